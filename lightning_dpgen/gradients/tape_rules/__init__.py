"""Rules of the tape: for each function of torch, the gradients of records with respect to its parameters.

A rule is called as its function is, with traced parameters among the arguments, and returns NotImplemented where it does
not apply. A tensor that the loss sees as one record has all records in front here (`Tape.rows`). Shapes: B records, r
positions (or calls), parameters as matrices (o, n).

Read first: table.py, matrices.py, convolutions.py.
"""
