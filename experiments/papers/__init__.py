"""The privacy arithmetic of the four papers, as they print it: to reproduce their numbers, never to protect anyone.

The package accounts by `privacy.accounting.accountant` alone. The errors in these formulas, with reasons, are in
docs/papers/errata.md ("Errata of the four papers"); `tests/contracts/test_errata.py` shows each counter-example.
"""
