"""From a lot to a public gradient: the privacy-critical path, on one page.

For each term of the loss, over its R records (or groups of records):

    norms   <-  |gradient_i|                                     private, one a record
    C       <-  rule(noisy statistics of the norms)              public
    mean    <-  sum_i factor_i gradient_i / L                    private; no factor_i norm_i is above C, where
                factor_i = min(1, C / norm_i), or what the rule   L is a constant of the plan: the expected lot,
                has in its place                                  or the number of groups

and then, once for all terms together:

    public  <-  round(sum of means + N(0, (multiplier S)^2)),   S = sum of reach C / L

A record added or removed adds or takes away its own gradient, so its reach is 1; it changes the gradient of the group that
it belongs to from one vector within C to another, so over groups the reach is 2. A person with up to m records reaches m
times as far, unless all these records are in one row: a rule that is `PerPerson` sums the gradients of a person before it
clips, and groups are drawn for whole persons. Where a term has a bound for each layer, C
is the length of all of them together. Where it has one for each component of a mixture, so has the noise: a record reaches
the parameters of one component.

Records outside the lot, and records with a non-finite gradient, add exact zeros. A lot of no records is noised like
any other, and so is the block of a component that no record of the lot belongs to. The histograms behind C and the
gradient come from one access, which is one merged, once subsampled Gaussian (docs/guarantees/lots.md, "One lot, one
event").

Where several processes share the access, each has its part of the lot, adds its part of the noise, and one sum over all of
them ends each mechanism (docs/guarantees/devices.md, "Several devices"). Where they also share the parameters
(`fully_shard`), each sum goes to the process that has that shard, which adds all of its noise ("Sharded parameters").
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from lightning_dpgen.common.precision import full_precision
from lightning_dpgen.gradients.captured import CapturedGradients
from lightning_dpgen.gradients.clipping import ClippingRule, cap_factors, choose_bounds, clip_weights
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.micro_batches import MicroBatches, norms_of_parts
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients, each_weighted_sum, weighted_sums
from lightning_dpgen.gradients.shards import is_sharded, like_own_part, own_part, summed_shard
from lightning_dpgen.privacy.access import OpenAccess
from lightning_dpgen.privacy.mechanisms import gaussian

# One bound for each column of a term's norms.
Bounds = tuple[float, ...]


class GradientBuffer:
    """One flat tensor for the gradient of all parameters, with a view a parameter: one noise draw serves them all.

    Where `fully_shard` has divided the parameters over ranks, it holds the gradient of this rank's shards.

    Attributes:
        flat: all numbers.
        views: the view of each parameter, or of this rank's shard of it.
        sharded: True if parameters are divided over ranks.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        parameters = list(parameters)
        parts = [own_part(p) for p in parameters]
        self.flat = torch.zeros(sum(p.numel() for p in parts), dtype=parts[0].dtype, device=parts[0].device)
        pieces = self.flat.split([p.numel() for p in parts])
        self.views: dict[nn.Parameter, Tensor] = {
            p: piece.view_as(part) for p, part, piece in zip(parameters, parts, pieces, strict=True)
        }
        self.sharded = any(map(is_sharded, parameters))

    def gradients(self) -> Mapping[nn.Parameter, Tensor]:
        """Return the gradient of each parameter, in the memory of `flat`, divided over ranks as the parameter is."""
        return {p: like_own_part(p, view) for p, view in self.views.items()} if self.sharded else self.views

    def write(self, terms: Sequence[tuple[PerSampleGradients, Tensor | Sequence[Tensor]]], *, add: bool) -> None:
        """Write weighted sums of several terms, or add them (`weighted_sums`); those of shards are summed over all ranks.

        All ranks call it for sharded parameters, whose sums are whole one after the other.
        """
        if len(terms) == 1 and isinstance(gradients := terms[0][0], CapturedGradients):
            if not add:
                self.flat.zero_()
            gradients.add_to(terms[0][1])
            return
        if not self.sharded:
            weighted_sums(terms, self.views, add=add)
            return
        for p, whole in each_weighted_sum(terms, self.views):
            shard = summed_shard(whole, p)
            if add:
                self.views[p].add_(shard)
            else:
                self.views[p].copy_(shard)


def privatize(
    terms: Sequence[tuple[PerSampleGradients | MicroBatches | EmbeddingGradients, ClippingRule]],
    access: OpenAccess,
    expected_batch_size: float,
    out: GradientBuffer,
    before: Sequence[Bounds] | None = None,
    *,
    add: bool = False,
) -> list[Bounds]:
    """Write the private mean gradient of a lot into `out`, and return the bounds that were used for each term.

    Args:
        terms: gradients of the same Poisson lot with respect to exactly the parameters of `out`, each with the rule that
            chooses its bounds.
        access: an open access that lists the noise ``gradient`` and those of the rules.
        expected_batch_size: the public divisor of sums over records: sampling rate times the declared number of records.
        out: overwritten.
        before: the bounds that it returned for the lot before; None for the first.
        add: whether `out` holds the sum of earlier parts of this very lot, from `add_clipped` with the same bounds.

    Guarantee:
        The contents of `out` and the bounds, together, are one Gaussian mechanism with the access's merged multiplier on
        the records of the lot, for one unit of the plan (a record, or a person with all records) added or removed.
    """
    # Norms, factors and sums keep their guarantees only in full precision.
    with full_precision(out.flat.device):
        used: list[Bounds] = []
        private = access.private
        whole: list[tuple[PerSampleGradients, Tensor | Sequence[Tensor]]] = []
        sensitivity: float | Tensor = 0.0
        # An expected lot of clipped gradients, and so many groups, are this long over their divisor.
        largest: float | Tensor = 0.0
        for i, (gradients, rule) in enumerate(terms):
            if isinstance(gradients, EmbeddingGradients):
                gradients = gradients.given(access, expected_batch_size)
            if rule.by_person:
                gradients = gradients.of_persons(access.max_rows)
            divisor, reach = expected_batch_size, 1.0
            if gradients.groups is not None:
                divisor, reach = gradients.groups * access.ranks.size, 2.0
            if not gradients.of_unit:
                reach *= access.max_rows
            if isinstance(gradients, PerSampleGradients):
                norms = rule.scope.norms(gradients, divisor)
            else:
                needed = private and rule.known(access.number) is None
                norms = norms_of_parts(gradients, rule.scope, divisor, needed=needed)
            if private:
                bounds = choose_bounds(rule, access, norms, before and before[i])
            else:
                bounds = (math.inf,) * len(norms.columns)
            if isinstance(gradients, PerSampleGradients):
                whole.append((gradients, clipped_weights(gradients, rule, bounds, divisor, out.flat.dtype)))
            else:
                for part in gradients.parts():
                    add_clipped(part, rule, bounds, divisor, out, add=add)
                    add = True
                    # Free this part's gradients before the next part is computed.
                    del part
            sensitivity = sensitivity + rule.scope.sensitivity(bounds) * (reach / divisor)
            largest = largest + rule.scope.sensitivity(bounds)
            used.append(bounds)
        # All terms are summed at once, since a factor that they have in common is then multiplied once.
        out.write(whole, add=add)
        if isinstance(sensitivity, float):
            gaussian(
                access,
                "gradient",
                out.flat,
                sensitivity=sensitivity,
                per_person=True,
                of_shard=out.sharded,
                largest=largest,
            )
        else:
            _by_component(access, sensitivity, largest, out)
        return used


def add_clipped(
    gradients: PerSampleGradients, rule: ClippingRule, bounds: Bounds, divisor: float, out: GradientBuffer, *, add: bool
) -> None:
    """Write the exact, private sum of clipped gradients over the divisor into `out`, or add it.

    An infinite bound, as of the twin without privacy, clips nothing.
    """
    out.write([(gradients, clipped_weights(gradients, rule, bounds, divisor, out.flat.dtype))], add=add)


def clipped_weights(
    gradients: PerSampleGradients, rule: ClippingRule, bounds: Bounds, divisor: float, dtype: torch.dtype
) -> Tensor | Sequence[Tensor]:
    """Return the weight of each gradient, or of each layer of it: the rule's factor over the divisor."""
    columns = rule.scope.norms(gradients).columns
    factors = clip_weights if math.inf in bounds else functools.partial(cap_factors, rule)
    each = [factors(norms, bound) / divisor for norms, bound in zip(columns, bounds, strict=True)]
    # A weight too small for a normal number of that type would be rounded up by too much. NaN is below any number here.
    return rule.scope.weights([w.masked_fill_(~(w >= torch.finfo(dtype).tiny), 0.0).to(dtype) for w in each])


def _by_component(access: OpenAccess, sensitivity: Tensor, largest: Tensor, out: GradientBuffer) -> None:
    """Add noise to each component's block in proportion to its own sensitivity: in these units each block has 1."""
    access.ranks.agree(sensitivity.tolist())
    for view in out.views.values():
        view.div_(sensitivity.to(view).view(-1, *(1,) * (view.dim() - 1)))
    gaussian(access, "gradient", out.flat, sensitivity=1.0, per_person=True, largest=float((largest / sensitivity).max()))
    for view in out.views.values():
        view.mul_(sensitivity.to(view).view(-1, *(1,) * (view.dim() - 1)))
