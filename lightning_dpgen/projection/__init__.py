"""The Johnson-Lindenstrauss release: every row, projected and perturbed.

Read first: project.py, steps.py, sensitivity.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
