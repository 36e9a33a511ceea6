"""How a gradient becomes public: terms, per-record engines, clipping rules, and the one page `privatize`."""
