"""Models that are learned: networks stacked over k components, their losses, and the mixture that samples from them.

Read first: mixture.py, networks.py, vae.py.
"""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
