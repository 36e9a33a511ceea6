"""From a budget to a plan: any two of epsilon, noise and steps give the third.

Read first: stage_spec.py, calibration.py, solving.py.
"""
