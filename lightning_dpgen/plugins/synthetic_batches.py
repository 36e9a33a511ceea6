"""Lots of records that a released model generates: they are public, so a network learns from them as from public data."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.records import Records
from lightning_dpgen.gradients.terms import DataFree, PerRecord
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.sampling.lots import Lot

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

    Attributes:
        run: the run in whose ledger the mixture was paid for; empty where the mixture is public already.
    """

    def __init__(self, mixture: Mixture, clusters: Tensor, k: int, *, size: int, seed: int) -> None:
        self._public, self._k, self._size = torch.Generator().manual_seed(seed), k, size
        self.run = mixture.run
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

    def data_free(self, term: PerRecord, like: Tensor, weight: float) -> DataFree:
        """Return the same loss as a term of a private step, which sees no record."""
        return DataFree(functools.partial(self.loss, term, like, weight))
