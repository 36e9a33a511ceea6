"""Sampling of records: stores, Poisson lots, multi-hot records.

Read first: lots.py, stores.py, as_store.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
