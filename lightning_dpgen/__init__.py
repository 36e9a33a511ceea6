"""Learn generative models under differential privacy, and release them with a certificate anyone can recompute."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
