"""Gradients that wait for a noisy mean embedding of their own lot.

A divergence of a lot from a prior is a function of the lot's mean embedding. Its gradient would mix the records; given a
noisy mean it does not: with m the released mean and mu that of the prior, a record's part of the gradient of
``|m - mu|^2`` is ``2 J^T (m - mu)``, and is clipped by itself (docs/PRIVACY.md, PriVAE). Both noises come from one access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.privacy.account import OpenAccess
from lightning_dpgen.privacy.draws import Draw
from lightning_dpgen.privacy.mechanisms import gaussian


@dataclass(frozen=True)
class Deferred:
    """What an optimizer takes in place of gradients, where these depend on a noisy mean of the lot.

    Args:
        rows: (B, d) the embedding of each record; one longer than 1 is scaled to 1, one that is not finite counts as zeros.
        then: gives the gradients of the same lot from the noisy mean (d,); that of a record may depend on the record and
            the mean alone.
        parameters: which the gradients are of.
        draw: the identity of the lot.
        noise: the name of the mean's noise in the plan.
    """

    rows: Tensor
    then: Callable[[Tensor], RecordGradients]
    parameters: Iterable[nn.Parameter]
    draw: Draw
    noise: str = "embedding"

    groups = None

    def given(self, access: OpenAccess, expected_lot: float) -> RecordGradients:
        """The gradients, once the mean is released.

        The sum has sensitivity 1 for one record added or removed; it is divided by the expected lot.

        Raises:
            ValueError: if `then` gives gradients of another lot.
        """
        norms = torch.linalg.vector_norm(self.rows.double(), dim=1)
        factors = torch.where(torch.isfinite(norms), 1.0 / norms.clamp(min=1.0), 0.0)
        kept = torch.where(torch.isfinite(norms)[:, None], self.rows.double(), 0.0)
        total = gaussian(access, self.noise, (kept * factors[:, None]).sum(dim=0), sensitivity=1.0 + 1e-12)
        gradients = self.then((total / expected_lot).to(self.rows.dtype))
        if gradients.draw is not self.draw or len(gradients) != len(self.rows):
            raise ValueError("the gradients that follow from a mean embedding must be of the same lot as the embedding")
        return gradients
