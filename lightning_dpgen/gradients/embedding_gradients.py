"""Gradients that wait for a noisy mean embedding of their own lot.

A divergence of a lot from a prior is a function of the lot's mean embedding. Its gradient would mix the records; given a
noisy mean, it does not. With m the released mean and mu the mean of the prior, a record's part of the gradient of
``|m - mu|^2`` is ``2 J^T (m - mu)``, and is clipped by itself (docs/papers/errata.md, PriVAE). Both noises are of one
access.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_dpgen.gradients.micro_batches import MicroBatches
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.privacy.access import LotId, OpenAccess
from lightning_dpgen.privacy.mechanisms import gaussian


@dataclass(frozen=True)
class EmbeddingGradients:
    """Gradients that depend on a noisy mean of their lot; an optimizer takes them in place of `PerSampleGradients`.

    Args:
        rows: (B, ...) the embedding of each record, whose length is that of all its numbers; one longer than 1 is scaled to
            1, one that is not finite counts as zeros.
        then: returns the gradients of the same lot, in one piece or in parts, given the noisy mean (...); that of a record
            may depend on the record and the mean alone.
        noise: the name of the mean's noise in the plan.

    Example:
        The mean code of a lot is drawn towards zero:

        >>> from lightning_dpgen import Account, Fixed, PerRecord, PoissonLots, PrivateOptimizer
        >>> from lightning_dpgen import make_plan, term_gradients, training_stage
        >>> spec = training_stage(Fixed(1.0), n=100, sample_rate=0.5, steps=1, embeddings={"embedding": 0.2})
        >>> account, network = Account(make_plan([spec], epsilon=2.0, delta=1e-5)), torch.nn.Linear(3, 2)
        >>> optimizer = PrivateOptimizer(torch.optim.SGD(network.parameters(), lr=1.0), account=account,
        ...                              clipping=Fixed(1.0), expected_batch_size=50, embeddings=["embedding"])
        >>> lot = PoissonLots(torch.rand(100, 3), account).draw()
        >>> with torch.no_grad():
        ...     codes = network(lot.records)
        >>> def then(mean):
        ...     term = PerRecord(lambda lot, noise: 2 * network(lot.records) @ mean)
        ...     return term_gradients(network, term, lot, account.stream)
        >>> optimizer.set_gradients(EmbeddingGradients(codes, then, list(network.parameters()), lot.draw))
        >>> optimizer.step()
        >>> account.verify_complete()
    """

    rows: Tensor
    then: Callable[[Tensor], PerSampleGradients | MicroBatches]
    parameters: Iterable[nn.Parameter]
    draw: LotId
    noise: str = "embedding"

    groups = None

    def given(self, access: OpenAccess, expected_batch_size: float) -> PerSampleGradients | MicroBatches:
        """Release the mean, and return the gradients that follow from it.

        The sum has sensitivity 1 for one record added or removed; it is divided by the expected lot.

        Raises:
            ValueError: if `then` returns gradients of another lot.
        """
        rows = self.rows.double().reshape(len(self.rows), math.prod(self.rows.shape[1:]))
        norms = torch.linalg.vector_norm(rows, dim=1)
        factors = torch.where(torch.isfinite(norms), 1.0 / norms.clamp(min=1.0), 0.0)
        kept = torch.where(torch.isfinite(norms)[:, None], rows, 0.0)
        # Norms, divisions and products are rounded in float64.
        sensitivity = 1.0 + 1e-12 + rows.shape[1] * 2.0**-53
        total = gaussian(access, self.noise, (kept * factors[:, None]).sum(dim=0), sensitivity=sensitivity)
        gradients = self.then((total / expected_batch_size).to(self.rows.dtype).view(self.rows.shape[1:]))
        # Parts count their own records.
        whole = isinstance(gradients, PerSampleGradients)
        if gradients.draw is not self.draw or (whole and len(gradients) != len(self.rows)):
            raise ValueError("the gradients that follow from a mean embedding must be of the same lot as the embedding")
        return gradients
