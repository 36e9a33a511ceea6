"""Fourier features and the private kernel k-means split.

Read first: kmeans.py, block_sums.py, features.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
