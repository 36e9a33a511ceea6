"""Thin Lightning adapters: modules, the private split's datamodule, the moments accountant, progress and previews.

Read first: private_training.py, mixture.py, automatic_module.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
