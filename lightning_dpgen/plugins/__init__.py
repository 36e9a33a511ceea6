"""Thin Lightning adapters: modules, the private split's datamodule, the moments accountant, progress and previews."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.plugins.accountant import MomentsAccountant as MomentsAccountant
    from lightning_dpgen.plugins.checkpoints import Checkpoints as Checkpoints
    from lightning_dpgen.plugins.checkpoints import DurableCheckpointIO as DurableCheckpointIO
    from lightning_dpgen.plugins.events import PrivateEvents as PrivateEvents
    from lightning_dpgen.plugins.events import PublicEvents as PublicEvents
    from lightning_dpgen.plugins.mixture import PrivateMixture as PrivateMixture
    from lightning_dpgen.plugins.opacus_engine import AccountEngine as AccountEngine
    from lightning_dpgen.plugins.opacus_loader import AccountDataLoader as AccountDataLoader
    from lightning_dpgen.plugins.previews import Previews as Previews
    from lightning_dpgen.plugins.private_training import PrivateTraining as PrivateTraining
    from lightning_dpgen.plugins.progress import PrivateProgress as PrivateProgress
    from lightning_dpgen.plugins.rbm import RBM as RBM
    from lightning_dpgen.plugins.split import PrivateSplitDataModule as PrivateSplitDataModule
    from lightning_dpgen.plugins.vae import VAE as VAE
    from lightning_dpgen.plugins.vae import Divergence as Divergence
    from lightning_dpgen.plugins.wgan import WGAN as WGAN
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "accountant": ["MomentsAccountant"],
            "checkpoints": ["Checkpoints", "DurableCheckpointIO"],
            "events": ["PrivateEvents", "PublicEvents"],
            "mixture": ["PrivateMixture"],
            "opacus_engine": ["AccountEngine"],
            "opacus_loader": ["AccountDataLoader"],
            "previews": ["Previews"],
            "private_training": ["PrivateTraining"],
            "progress": ["PrivateProgress"],
            "rbm": ["RBM"],
            "split": ["PrivateSplitDataModule"],
            "vae": ["Divergence", "VAE"],
            "wgan": ["WGAN"],
        },
    )
