"""Verification: a release is held against its own certificate, and this against the settings that it declares.

Read first: verify.py, epsilon_check.py, plan_check.py.
"""
