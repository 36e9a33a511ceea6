"""Utilities of all rooms: arguments and messages, strict JSON, folders of one owner, progress on a terminal.

Read first: arguments.py, strict_json.py, pace.py.
"""
