"""Synthetic rows as files: tables, folders of files, workbooks, databases, pictures, baskets and series.

Read first: tables.py, folder_of_rows.py, output_format.py.
"""
