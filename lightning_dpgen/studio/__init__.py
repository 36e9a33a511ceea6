"""The studio: pages on the curator's own machine, which write schemas and settings and run the commands of `dpgen`.

Read first: pages.py, case.py, job.py, guard.py, schema_form.py.
"""
