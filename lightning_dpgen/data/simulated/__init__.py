"""Records simulated from fixed public seeds: points, baskets and series, so that a figure needs no file.

A set has a place in the registry of `data/public_sets.py`, and here a function that draws its records. Draw 0 stays what it
was: figures and committed results rest on it.
"""
