"""Gradients, and their way to the public: terms, per-record engines, clipping rules, and the one page `privatize`.

Read first: privatize.py, terms.py, clipping.py, engines.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
