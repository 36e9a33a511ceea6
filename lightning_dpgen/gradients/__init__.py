"""Gradients, and their way to the public: terms, per-record engines, clipping rules, and the one page `privatize`."""

import lazy_loader

# Before all that uses a private name of torch.
import lightning_dpgen.gradients.torch_names  # noqa: F401

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
