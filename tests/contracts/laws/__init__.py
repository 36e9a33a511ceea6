"""Laws of the private pipeline, as functions: a law that is broken raises AssertionError.

The tests of each part run a law on the shipped code, over the families that belong to it. `test_broken_pipelines.py` runs
the same functions on code that one changed line has broken.
"""
