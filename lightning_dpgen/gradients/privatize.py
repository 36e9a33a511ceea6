"""From a lot to a public gradient: the privacy-critical path, on one page.

    norms   <-  |gradient_i|                                     private, one a record
    C       <-  rule(noisy statistics of the norms)              public
    mean    <-  sum_i factor_i gradient_i / L                    private, sensitivity C / L (add or remove one record),
                factor_i = min(1, C / norm_i) or what the rule   since no factor_i norm_i is above C
                has in its place
    public  <-  mean + N(0, (multiplier C / L)^2)                public; the expected lot L is a constant of the plan

Records outside the lot, and records with a non-finite gradient, add exact zeros. A lot of no records is noised like
any other, and so is the block of a component that no record of the lot belongs to. The histogram behind C and the
gradient come from one access, which is one merged, once subsampled Gaussian (docs/PRIVACY.md, "One lot, one event").
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lightning_dpgen.gradients.clipping import ClippingRule, clip_weights
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.privacy.account import OpenAccess
from lightning_dpgen.privacy.mechanisms import gaussian


class GradientBuffer:
    """One flat tensor for the gradient of all parameters, with a view a parameter: one noise draw serves them all."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        parameters = list(parameters)
        first = parameters[0]
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        pieces = self.flat.split([p.numel() for p in parameters])
        self.views: dict[nn.Parameter, Tensor] = {
            p: piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)
        }


def privatize(
    gradients: RecordGradients,
    access: OpenAccess,
    rule: ClippingRule,
    expected_lot: float,
    out: GradientBuffer,
    before: float | None = None,
) -> float:
    """Write the private mean gradient of a lot into `out`; gives the bound C that was used.

    Args:
        gradients: of the B records of a Poisson lot, with respect to exactly the parameters of `out`.
        access: an open access that lists the noise ``gradient`` and those of the rule.
        rule: chooses the bound.
        expected_lot: the public divisor: sampling rate times the declared number of records.
        out: overwritten.
        before: the bound of the lot before; None for the first.

    Guarantee:
        What `out` holds and the bound, together, are one Gaussian mechanism with the access's merged multiplier on the
        records of the lot, for one record added or removed.
    """
    norms = gradients.norms()
    if access.private:
        bound = rule.bound(access, norms, before)
        weights = rule.factors(norms, bound).to(out.flat.dtype)
    else:
        bound, weights = math.inf, clip_weights(norms, math.inf).to(out.flat.dtype)
    gradients.weighted_sum(weights / expected_lot, out.views)
    gaussian(access, "gradient", out.flat, sensitivity=bound / expected_lot)
    return bound
