"""Models that are learned: networks stacked over k components, their losses, and the mixture that samples from them.

Read first: mixture.py, networks.py, vae.py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
