"""Releases, which may leave: the bundle, its certificate, sampling, the report.

Read first: bundle.py, certificate.py, drawing/opened.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
