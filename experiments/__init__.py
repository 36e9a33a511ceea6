"""Experiments: one command for each figure and table of the four papers, and for questions beyond them (README.md)."""
