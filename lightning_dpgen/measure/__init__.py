"""The other engine: bounded statistics of records, measured once with noise, and generators fitted to them.

Read first: recipe.py, workload.py, statistics.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
