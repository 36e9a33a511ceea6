"""Gradients, and their way to the public: terms, per-record engines, clipping rules, and the one page `privatize`.

Read first: privatize.py, terms.py, clipping.py, engines.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
