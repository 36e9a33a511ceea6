"""Opacus-compatible optimizers: a DPOptimizer around any torch optimizer, each step of which is an access.

Read first: private.py, stages.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
