"""The other engine: bounded statistics of records, measured once with noise, and generators fitted to them.

Read first: recipe.py, workload.py, statistics.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
