"""Baskets over a public universe of items.

Read first: schema.py, reading.py, form.py.
"""
