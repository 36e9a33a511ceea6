"""Lots of records that a released model makes: they are public, so a network learns from them as from any public data."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.records import Records
from lightning_dpgen.gradients.terms import DataFree, PerRecord
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.sampling.lots import Lot

# Records that lots are drawn from.
_POOL = 20_000


class SyntheticBatches:
    """Lots of synthetic records of a measured model, for a network that learns from private ones besides.

    All of it is post-processing of what the model was measured with, and draws public randomness alone.

    Args:
        mixture: makes the records.
        clusters: (mixture.network.k,) to which of the network's components the records of each of its components belong.
        k: number of the network's components.
        size: of a lot.
        seed: public.

    Attributes:
        run: in whose ledger stands what the mixture was learned by; empty where that is public already.
    """

    def __init__(self, mixture: Mixture, clusters: Tensor, k: int, *, size: int, seed: int) -> None:
        self._public, self._k, self._size = torch.Generator().manual_seed(seed), k, size
        self.run = mixture.run
        component = torch.multinomial(mixture.weights, _POOL, replacement=True, generator=self._public)
        self._clusters = clusters[component]
        self._records = Records(mixture.network.schema, mixture.sample_components(component, self._public))

    def draw(self) -> Lot:
        """A lot, sorted by component."""
        rows = torch.randint(_POOL, (self._size,), generator=self._public)
        rows = rows[self._clusters[rows].argsort(stable=True)]
        counts = torch.bincount(self._clusters[rows], minlength=self._k)
        return Lot(self._records.take(rows.numpy()), (0, *np.cumsum(counts.tolist()).tolist()))

    def loss(self, term: PerRecord, like: Tensor, weight: float = 1.0) -> Tensor:
        """The mean loss of a fresh lot, times a weight.

        Args:
            term: of a network, as it takes records.
            like: a parameter of the network, for precision and device.
            weight: of the term.
        """
        lot = self.draw().to(like.device, like.dtype)
        noise = torch.randn(self._size, term.noise, generator=self._public).to(like)
        return weight * term.loss(lot, noise).mean()

    def data_free(self, term: PerRecord, like: Tensor, weight: float) -> DataFree:
        """The same as a term of a private step, which sees no record."""
        return DataFree(functools.partial(self.loss, term, like, weight))
