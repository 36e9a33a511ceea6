"""One call of a loss in which each record of a lot is alone: the levels of vmap, and the guard of what the loss calls.

Read first: isolation.py, loss_guard.py, unknown_functions.py.
"""
