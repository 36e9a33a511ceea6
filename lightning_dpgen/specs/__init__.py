"""Settings: one declaration each, with its range, default and meaning; Hydra composes them, and rules complete them.

Read first: spec.py, run.py, settings.py.
"""
