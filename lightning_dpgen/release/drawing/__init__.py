"""A release that is opened: its model, draws with conditions, codes and predictions.

Read first: sampler.py, opened.py, description.py.
"""
