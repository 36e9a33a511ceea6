"""The private stream and the laws that it draws: normal, Laplace and spherical numbers in whole numbers, choices, coins.

Read first: stream.py, rounded_normal.py, units.py.
"""
