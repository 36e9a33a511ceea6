"""Learn generative models under differential privacy, and release them with a certificate anyone can recompute."""

from lightning_dpgen.privacy.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
