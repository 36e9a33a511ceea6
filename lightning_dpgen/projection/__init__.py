"""The Johnson-Lindenstrauss release: every row, projected and perturbed.

Read first: project.py, steps.py, sensitivity.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
