"""Distances of synthetic records from real ones, as torchmetrics. Every value is computed from real records: private.

Read first: measure.py, evaluation.py, sides.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
