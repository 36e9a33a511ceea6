"""The cost of events: event trees, epsilon by privacy loss distributions and by Renyi moments, references.

Read first: accountant.py, events.py, pld.py.
"""
