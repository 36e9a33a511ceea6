"""The `dpgen` program: a file for each command, which reads its words and leaves the work to runs, release or specs.

Read first: main.py, train.py, launch.py.
"""
