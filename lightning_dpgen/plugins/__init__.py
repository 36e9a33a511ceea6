"""Thin Lightning adapters: modules, the private split's datamodule, the moments accountant, progress and previews.

Read first: private_training.py, mixture.py, automatic_module.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
