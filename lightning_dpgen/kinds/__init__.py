"""The kinds of records: of each the object that says all in which its records differ from others.

Read first: kind.py, their interface; series.py and tables.py. data/schema.py finds them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
