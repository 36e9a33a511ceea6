"""Runs: from checked settings to a release, stage by stage, in a folder from which an interrupted run goes on.

Read first: run.py, context.py, learn.py.
"""
