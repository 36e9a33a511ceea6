"""Learn generative models under differential privacy, and release them with a certificate anyone can recompute."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen import clipping as clipping
    from lightning_dpgen import clustering as clustering
    from lightning_dpgen import data as data
    from lightning_dpgen import gradients as gradients
    from lightning_dpgen import measure as measure
    from lightning_dpgen import metrics as metrics
    from lightning_dpgen import models as models
    from lightning_dpgen import optim as optim
    from lightning_dpgen import plugins as plugins
    from lightning_dpgen import privacy as privacy
    from lightning_dpgen import projection as projection
    from lightning_dpgen import release as release
    from lightning_dpgen import sampling as sampling
    from lightning_dpgen.api import Fitted as Fitted
    from lightning_dpgen.api import fit as fit
    from lightning_dpgen.clustering.settings import SplitSettings as SplitSettings
    from lightning_dpgen.data.baskets.schema import BasketSchema as BasketSchema
    from lightning_dpgen.data.pictures.schema import ImageSchema as ImageSchema
    from lightning_dpgen.data.pictures.schema import encode_images as encode_images
    from lightning_dpgen.data.records import Records as Records
    from lightning_dpgen.data.series.schema import SeriesSchema as SeriesSchema
    from lightning_dpgen.data.tables.schema import TableSchema as TableSchema
    from lightning_dpgen.gradients.clipping import DPNorm as DPNorm
    from lightning_dpgen.gradients.clipping import Fixed as Fixed
    from lightning_dpgen.gradients.engines import term_gradients as term_gradients
    from lightning_dpgen.gradients.terms import DataFree as DataFree
    from lightning_dpgen.gradients.terms import PerGroup as PerGroup
    from lightning_dpgen.gradients.terms import PerRecord as PerRecord
    from lightning_dpgen.optim.private import PrivateOptimizer as PrivateOptimizer
    from lightning_dpgen.optim.training_stage import training_stage as training_stage
    from lightning_dpgen.plugins.accountant import MomentsAccountant as MomentsAccountant
    from lightning_dpgen.plugins.mixture import PrivateMixture as PrivateMixture
    from lightning_dpgen.plugins.opacus_engine import AccountEngine as AccountEngine
    from lightning_dpgen.plugins.private_training import PrivateTraining as PrivateTraining
    from lightning_dpgen.plugins.rbm import RBM as RBM
    from lightning_dpgen.plugins.split import PrivateSplitDataModule as PrivateSplitDataModule
    from lightning_dpgen.plugins.vae import VAE as VAE
    from lightning_dpgen.plugins.wgan import WGAN as WGAN
    from lightning_dpgen.privacy.account import Account as Account
    from lightning_dpgen.privacy.calibration import make_plan as make_plan
    from lightning_dpgen.privacy.errors import PrivacyError as PrivacyError
    from lightning_dpgen.privacy.stage_spec import StageSpec as StageSpec
    from lightning_dpgen.projection.transformer import PrivateProjection as PrivateProjection
    from lightning_dpgen.release.against_real import evaluate as evaluate
    from lightning_dpgen.release.sampler import load_release as load_release
    from lightning_dpgen.release.synthetic import release_mixture as release_mixture
    from lightning_dpgen.release.verify import verify as verify
    from lightning_dpgen.release.weights import release_weights as release_weights
    from lightning_dpgen.sampling.errors import BadRecords as BadRecords
    from lightning_dpgen.sampling.lots import PoissonLots as PoissonLots
    from lightning_dpgen.sampling.lots import poisson_loader as poisson_loader
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "api": ["Fitted", "fit"],
            "clustering.settings": ["SplitSettings"],
            "data.baskets.schema": ["BasketSchema"],
            "data.pictures.schema": ["ImageSchema", "encode_images"],
            "data.records": ["Records"],
            "data.series.schema": ["SeriesSchema"],
            "data.tables.schema": ["TableSchema"],
            "gradients.clipping": ["DPNorm", "Fixed"],
            "gradients.engines": ["term_gradients"],
            "gradients.terms": ["DataFree", "PerGroup", "PerRecord"],
            "optim.private": ["PrivateOptimizer"],
            "optim.training_stage": ["training_stage"],
            "plugins.accountant": ["MomentsAccountant"],
            "plugins.mixture": ["PrivateMixture"],
            "plugins.opacus_engine": ["AccountEngine"],
            "plugins.private_training": ["PrivateTraining"],
            "plugins.rbm": ["RBM"],
            "plugins.split": ["PrivateSplitDataModule"],
            "plugins.vae": ["VAE"],
            "plugins.wgan": ["WGAN"],
            "privacy.account": ["Account"],
            "privacy.calibration": ["make_plan"],
            "privacy.errors": ["PrivacyError"],
            "privacy.stage_spec": ["StageSpec"],
            "projection.transformer": ["PrivateProjection"],
            "release.against_real": ["evaluate"],
            "release.sampler": ["load_release"],
            "release.synthetic": ["release_mixture"],
            "release.verify": ["verify"],
            "release.weights": ["release_weights"],
            "sampling.errors": ["BadRecords"],
            "sampling.lots": ["PoissonLots", "poisson_loader"],
        },
        modules=[
            "clipping",
            "clustering",
            "data",
            "gradients",
            "measure",
            "metrics",
            "models",
            "optim",
            "plugins",
            "privacy",
            "projection",
            "release",
            "sampling",
        ],
    )
