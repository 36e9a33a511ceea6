"""Every row, projected and perturbed: the Johnson-Lindenstrauss release."""
