"""Audits: lower bounds of epsilon from what mechanisms and whole runs do, beside what they claim.

Read first: whole_run.py, replay.py, training.py.
"""
