"""Private discovery of what a curator could not declare: bounds, categories, items, and how numbers are distributed.

Read first: bounds_and_keys.py, counts.py, value_tree.py.
"""
