"""Sampling of records: stores, Poisson lots, multi-hot records.

Read first: lots.py, stores.py, as_store.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
