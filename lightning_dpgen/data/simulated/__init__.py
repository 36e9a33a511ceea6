"""Records that are simulated from fixed public seeds, so that a figure needs no file.

Draw 0 stays what it was: figures and committed results rest on it.

Read first: points.py, baskets.py, meters.py.
"""
