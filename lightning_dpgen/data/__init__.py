"""Data that may be read: schemas, records, readers, and what is found privately.

Read first: schema.py, records.py, tables/schema.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
