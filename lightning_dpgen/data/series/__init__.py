"""Series of one length.

Read first: schema.py, reading.py, form.py.
"""
