"""All that goes with a published release: licenses, signatures, the mark of what is not private, the hub.

Read first: signature.py, mark.py.
"""
