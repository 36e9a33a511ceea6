"""Figures and the table of the Johnson-Lindenstrauss release."""
