"""Pictures: from folders and arrays to records.

Read first: schema.py, reading.py.
"""
