"""The way from a loss to a public gradient: terms, per-record engines, clipping rules, and the one page `privatize`."""
