"""A release that is opened: its model, draws with conditions, codes and predictions.

Read first: opened.py, draws.py, description.py.
"""
