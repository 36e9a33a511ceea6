"""Fourier features and the private kernel k-means split."""
