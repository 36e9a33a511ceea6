"""The kinds of records: of each the object that says all in which its records differ from others.

Read first: kind.py, their interface; series.py and tables.py. data/schema.py finds them.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
