"""Fourier features and the private kernel k-means split.

Read first: kmeans.py, block_sums.py, features.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
