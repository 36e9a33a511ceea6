"""Studies: runs on the same population, added up against one total.

Read first: study.py, study_total.py.
"""
