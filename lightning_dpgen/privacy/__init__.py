"""The privacy that is spent: accesses, ledger, mechanisms (the only door to noise), accountant, plan, noise source.

Read first: account.py, plan.py, ledger.py, mechanisms.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
