"""Learn generative models under differential privacy, and release them with a certificate anyone can recompute."""

import importlib

# Loaded when first used: `dpgen --help` and `dpgen verify` should not wait for Lightning.
_EXPORTS = {
    "api": ["Fitted", "fit"],
    "clustering.kmeans": ["Split"],
    "clustering.settings": ["SplitSettings"],
    "sampling.lots": ["Lot", "LotBlocks", "PoissonLots", "poisson_loader"],
    "sampling.errors": ["BadRecords"],
    "data.layout": ["Encoded", "Layout"],
    "data.records": ["Records"],
    "data.pictures.schema": ["ImageSchema", "encode_images"],
    "sampling.contents": ["check_finite"],
    "sampling.store_of": ["store_of"],
    "sampling.stores": ["Store"],
    "data.baskets.schema": ["BasketSchema"],
    "data.series.schema": ["SeriesSchema"],
    "data.tables.schema": ["TableSchema"],
    "gradients.clipping": [
        "Decay",
        "DPNorm",
        "Fixed",
        "Normalised",
        "PerComponent",
        "PerLayer",
        "Quantile",
        "Schedule",
        "Smoothed",
    ],
    "gradients.embedding_gradients": ["EmbeddingGradients"],
    "gradients.engines": ["term_gradients"],
    "gradients.micro_batches": ["MicroBatches"],
    "gradients.terms": ["DataFree", "PerGroup", "PerRecord"],
    "measure.basket_mixture": ["BasketRecipe"],
    "measure.baskets": ["ItemsBySize", "PairsBySize"],
    "measure.embeddings": ["MeanEmbeddings"],
    "measure.gaussians": ["GaussianRecipe"],
    "measure.products": ["ProductRecipe"],
    "measure.recipe": ["Recipe"],
    "measure.statistics": ["Counts", "Histogram", "Marginals", "Means", "Squares", "Statistic"],
    "measure.workload": ["Measured", "Workload"],
    "models.bases": ["Basis", "cosines"],
    "models.symmetries": ["Symmetries"],
    "optim.training_stage": ["training_stage"],
    "optim.private": ["PrivateOptimizer"],
    "plugins.accountant": ["MomentsAccountant"],
    "plugins.mixture": ["PrivateMixture"],
    "plugins.opacus_engine": ["AccountEngine"],
    "plugins.progress": ["PrivateProgress"],
    "plugins.split": ["PrivateSplitDataModule"],
    "plugins.rbm": ["RBM"],
    "plugins.vae": ["VAE", "Divergence"],
    "plugins.wgan": ["WGAN"],
    "privacy.account": ["Account"],
    "privacy.errors": ["BudgetTooSmall", "DamagedState", "LedgerError", "PlanMismatch", "PrivacyError"],
    "privacy.ledger": ["Ledger"],
    "privacy.mechanisms": ["gaussian"],
    "privacy.noise": ["PrivateStream"],
    "privacy.calibration": ["make_first_plan", "make_plan", "make_rest"],
    "privacy.stage_spec": ["StageSpec"],
    "privacy.plan": ["Plan", "Stage"],
    "privacy.study": ["Study"],
    "projection.neighbourhood": ["Neighbourhood"],
    "projection.recovery": ["Recovery"],
    "projection.transformer": ["PrivateProjection"],
    "release.against_real": ["evaluate"],
    "release.projected": ["ProjectedRows"],
    "release.sampler": ["Release", "load_release"],
    "release.certificate": ["NotARelease"],
    "release.verify": ["Verdict", "verify"],
    "release.synthetic": ["release_mixture"],
    "release.weights": ["release_weights"],
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'lightning_dpgen' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lightning_dpgen.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
