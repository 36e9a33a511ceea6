"""Data that may be read: schemas, records, readers, and what is found privately.

Read first: schema.py, records.py, tables/schema.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
