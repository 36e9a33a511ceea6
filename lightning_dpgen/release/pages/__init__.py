"""Pages for people: the report of a release, the private report, charts, the dossier and the entry of a registry.

Read first: report.py, dossier.py, private_report.py.
"""
