"""Files of text and of arrays, read a block at a time.

Read first: rows.py, delimited.py, values.py.
"""
