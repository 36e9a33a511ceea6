"""The Johnson-Lindenstrauss release: every row, projected and perturbed."""
