"""Full passes over records: blocks, exact partial sums of each, and where these are computed.

Read first: reduce.py, encoded_blocks.py, table_blocks.py.
"""
