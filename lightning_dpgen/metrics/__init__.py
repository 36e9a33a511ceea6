"""Distances of synthetic records from real ones, as torchmetrics. Every value is computed from real records: private.

Read first: measure.py, evaluation.py, sides.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
