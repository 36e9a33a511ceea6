"""Releases, which may leave: the bundle, its certificate, sampling, the report.

Read first: bundle.py, certificate.py, drawing/opened.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
