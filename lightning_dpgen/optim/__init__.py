"""Opacus-compatible optimizers: a DPOptimizer around any torch optimizer, each step of which is an access.

Read first: private.py, stages.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
