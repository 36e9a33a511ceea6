"""The privacy that is spent: accesses, ledger, mechanisms (the only door to noise), accountant, plan, noise source.

Read first: account.py, plan.py, ledger.py, mechanisms.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
