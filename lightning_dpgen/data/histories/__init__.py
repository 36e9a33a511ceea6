"""Histories: persons with attributes and rows of their own, as their schema describes them.

Read first: row_table.py, schema.py, rules.py, reading.py, description.py.
"""
