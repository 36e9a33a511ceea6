"""Models that are learned: networks stacked over k components, their losses, and the mixture that samples from them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
