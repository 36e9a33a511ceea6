"""The privacy arithmetic of the four papers, as they print it: to reproduce their numbers, never to protect anybody.

The package accounts by `lightning_dpgen.privacy.accountant` alone. What is wrong in these formulas, and why, is in
docs/PRIVACY.md ("Errata of the four papers"); `tests/contracts/test_errata.py` shows each counter-example.
"""
