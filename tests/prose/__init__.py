"""Checks of what is written, in code and on pages; ``python -m tests.prose`` runs them all."""
