"""Tables: columns, their schema, and reading them from files and frames.

Read first: schema.py, description.py, reading.py.
"""
