"""Does a network that also learns from the records of a measured model do better than either of them?

    python experiments/synthetic_batches.py

Bundled digits, epsilon 1 and 4 at delta 1e-5: accuracy of a forest trained on synthetic records, on real ones that no model
saw. Half of the budget measures, and the network learns from records that the measured model generates: first from these
alone, then beside private ones. They are post-processing of the measurements, so it learns from them as from public data.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import replace

import numpy as np
import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from lightning_dpgen import (
    VAE,
    Account,
    DataFree,
    DPNorm,
    ImageSchema,
    MomentsAccountant,
    PerRecord,
    PrivateOptimizer,
    PrivateSplitDataModule,
    Records,
    SplitSettings,
    encode_images,
    make_plan,
    training_stage,
)
from lightning_dpgen.measure import GaussianRecipe
from lightning_dpgen.metrics.classifiers import train_on_synthetic
from lightning_dpgen.models import Mixture
from lightning_dpgen.sampling import Lot

# The number of records from which lots are drawn.
_POOL = 20_000


class SyntheticBatches:
    """Lots of synthetic records of a measured model, for a network that learns from private ones, too.

    All of it is post-processing of the measurements of the model, and draws public randomness alone.

    Args:
        mixture: the model that generates the records.
        clusters: (mixture.network.k,) the component of the network for the records of each component of the mixture.
        k: the number of the network's components.
        size: the size of a lot.
        seed: the public seed.

    """

    def __init__(self, mixture: Mixture, clusters: Tensor, k: int, *, size: int, seed: int) -> None:
        self._public, self._k, self._size = torch.Generator().manual_seed(seed), k, size
        component = torch.multinomial(mixture.weights, _POOL, replacement=True, generator=self._public)
        self._clusters = clusters[component]
        self._records = Records(mixture.network.schema, mixture.sample_components(component, self._public))

    def draw(self) -> Lot:
        """Draw a lot, sorted by component."""
        rows = torch.randint(_POOL, (self._size,), generator=self._public)
        rows = rows[self._clusters[rows].argsort(stable=True)]
        counts = torch.bincount(self._clusters[rows], minlength=self._k)
        return Lot(self._records.take(rows.numpy()), (0, *np.cumsum(counts.tolist()).tolist()))

    def loss(self, term: PerRecord, like: Tensor, weight: float = 1.0) -> Tensor:
        """Return the mean loss of a fresh lot, times a weight.

        Args:
            term: the network's term for private records.
            like: a parameter of the network, for precision and device.
            weight: the weight of the term.
        """
        lot = self.draw().to(like.device, like.dtype)
        noise = torch.randn(self._size, term.noise, generator=self._public).to(like)
        return weight * term.loss(lot, noise).mean()


class TaughtVAE(VAE):
    """A `VAE` that also learns from the records of a measured model.

    Args:
        made: records of the same schema and number of components; the same account has paid for their model.
        steps: the number of steps before the first private one, at the same learning rate.
        weight: the weight of their loss in each private step, beside that of private records.
    """

    def __init__(self, *given, made: SyntheticBatches, steps: int, weight: float, **named) -> None:
        super().__init__(*given, **named)
        self.made, self.steps, self.weight = made, steps, weight

    def private_optimizer(self, inner: torch.optim.Optimizer) -> PrivateOptimizer:
        network = self.trained_network
        loss = functools.partial(self.made.loss, network.term, next(network.parameters()), self.weight)
        return PrivateOptimizer(inner, account=self.account, clipping=self.clipping, data_free=[DataFree(loss)])

    def on_train_start(self) -> None:
        super().on_train_start()
        parameters, term = list(self.trained_network.parameters()), self.trained_network.term
        optimizer = torch.optim.Adam(parameters, lr=self.lr)
        for _ in range(self.steps):
            gradients = torch.autograd.grad(self.made.loss(term, parameters[0]), parameters, allow_unused=True)
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
            optimizer.step()
        for p in parameters:
            p.grad = None


N, K, DELTA, STEPS, HELD_OUT = 1400, 10, 1e-5, 200, 397
SCHEMA = ImageSchema(height=8, width=8, levels=16, classes=10)
SPLIT, CLIPPING = SplitSettings(k=K), DPNorm(c_max=20.0)
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def fitted(records: Records, labels: Tensor, epsilon: float, share: float) -> Mixture:
    """Return the mixture of a run that gives this share of its budget to measurements: 0, 1 or a part."""
    recipe = GaussianRecipe(SCHEMA, k=K, n=N, size=20, radius=4.0, spread=2.5)
    if share == 1.0:
        account = Account(make_plan(recipe.specs(1.0), epsilon=epsilon, delta=DELTA))
        return recipe.measure(records, labels, account)
    training = training_stage(CLIPPING, n=N, sample_rate=0.1, steps=STEPS)
    split = [replace(spec, share=spec.share * (1.0 - share)) for spec in SPLIT.specs(N)]
    measured = recipe.specs(share) if share else []
    account = Account(make_plan([*measured, *split, training], epsilon=epsilon, delta=DELTA))
    settings = {"k": K, "hidden": 100, "latent": 4, "lr": 3e-3}
    if share:
        mixture = recipe.measure(records, labels, account)
        made = SyntheticBatches(mixture, torch.arange(K), K, size=100, seed=0)
        model = TaughtVAE(SCHEMA, account, CLIPPING, made=made, steps=1000, weight=0.5, **settings)
    else:
        model = VAE(SCHEMA, account, CLIPPING, **settings)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[MomentsAccountant(account)], **QUIET)
    trainer.fit(model, PrivateSplitDataModule(records, SPLIT, account))
    return model.mixture()


def main() -> None:
    warnings.filterwarnings("ignore")
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    seen, unseen = order[HELD_OUT:], order[:HELD_OUT]
    records = encode_images(digits.images[seen], digits.target[seen], SCHEMA)
    real = encode_images(digits.images[unseen], digits.target[unseen], SCHEMA)
    for epsilon in (1.0, 4.0):
        for name, share in (("measured", 1.0), ("vae", 0.0), ("vae with measurements", 0.5)):
            mixture = fitted(records, torch.from_numpy(digits.target[seen]), epsilon, share)
            synthetic = mixture.sample(N, torch.Generator().manual_seed(0))
            found = train_on_synthetic(synthetic, real.encoded, SCHEMA.layout, classifiers=["random forest"])
            print(f"epsilon {epsilon:g}, {name}: {found['random forest, accuracy']:.3f}")


if __name__ == "__main__":
    main()
