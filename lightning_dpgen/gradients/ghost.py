"""Book-keeping ghost clipping: per-record norms and clipped sums without per-record gradients.

One forward and one backward give, for each use of a parameter, its inputs ``a`` and output gradients ``g``. A record's
gradient is a sum of outer products ``g a^T``: its norm follows from inner products of these factors, and the clipped sum is
one weighted product ``(w g)^T a`` (Bu et al. 2023, "Differentially private optimization on large model at small cost";
Li et al. 2022 for the norms). The bound may be chosen between the two, from the lot's own norms.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from lightning_dpgen.common.precision import full_precision
from lightning_dpgen.gradients.factors import GradientFactors
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.isolation import HiddenGroups, HiddenOffsets, Isolation
from lightning_dpgen.gradients.layers import checked_layers, replaced_parameters
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.shards import check_policies, has_shards, is_sharded, without_own_hooks
from lightning_dpgen.gradients.tape import Tape
from lightning_dpgen.gradients.tape_rules.table import RULES
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.trees import map_tree

# Functions without a rule that a network's owner has been warned of.
_said: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()


def ghost_gradients(
    network: nn.Module, term: PerRecord | PerGroup, lot: Lot, noise: Tensor, groups: Groups | None = None
) -> RecordGradients:
    """Compute the gradients of a term for each record, or group of records, by one forward and one backward pass.

    Linear layers, convolutions and their transposes, attention, recurrent layers and cells, embeddings, normalisation
    within a record or by public statistics, and parameters that are plain tensors have rules, wherever and however often
    they are used. Other functions are handed a copy of their parameters for each record; a warning says so once. The loss
    is called in an `Isolation`. A term that has its gradients in closed form is asked for these. Parameters that
    `fully_shard` has divided over ranks are gathered while a function uses them.

    Args:
        network: its trainable parameters are differentiated; `term.loss` calls it.
        term: a per-record or per-group loss.
        lot: B records, perhaps none.
        noise: (B, term.noise), the records' own randomness.
        groups: the groups of the records, for a per-group loss.

    Raises:
        ValueError: if a layer mixes records, or the loss would need to see more than its own record.
        RuntimeError: if a parameter is used by code that is no function of torch.
    """
    if has_shards(network):
        check_policies(network)
        if term.forms is not None:
            raise ValueError(
                f"{type(term).__name__}(forms=...) reads whole parameters, and these are sharded: leave forms out, so that "
                "gradients follow from the loss"
            )
        with without_own_hooks(network):
            return _ghost_gradients(network, term, lot, noise, groups)
    return _ghost_gradients(network, term, lot, noise, groups)


def _ghost_gradients(
    network: nn.Module, term: PerRecord | PerGroup, lot: Lot, noise: Tensor, groups: Groups | None
) -> RecordGradients:
    layers, count = checked_layers(network), None if groups is None else groups.count
    rows = len(lot) if count is None else count

    def held(factors: Mapping[nn.Parameter, GradientFactors], losses: Callable[[], Tensor]) -> RecordGradients:
        own: dict[str, Any] = {"offsets": lot.offsets, "persons": lot.persons}
        if groups is not None:
            own = {"groups": count, "partition": groups, "of_unit": groups.of_unit}
        return RecordGradients(factors, layers, rows, lot.draw, losses=losses, **own)

    if not len(lot):
        nothing = noise.new_zeros(rows)
        return held({}, lambda: nothing)

    if term.forms is not None:
        # Under autocast numbers of two precisions would meet, as torch converts nothing in a closed form.
        with full_precision(noise.device):
            return held(*(term.forms(lot, noise) if groups is None else term.forms(lot, noise, groups)))
    said = _said.setdefault(network, set())

    def say(name: str) -> None:
        if name not in said:
            said.add(name)
            warnings.warn(
                f"no rule for {name}: each record gets a copy of its parameters, so their gradients are held one by one: "
                "exact, and slower",
                stacklevel=2,
            )

    isolation = Isolation(len(lot), lot.offsets, groups)
    offsets, hidden = HiddenOffsets(isolation), () if groups is None else (HiddenGroups(isolation, groups),)
    tape = Tape(isolation, RULES, say)

    def of_one(records: Any, own: Tensor) -> Tensor:
        return term.losses(Lot(records, offsets), own, *hidden).squeeze(0)

    instead: dict[nn.Parameter, Tensor] = {p: tape.traced(p) for layer in layers for p in layer}
    instead |= {p: tape.frozen(p) for p in network.parameters() if is_sharded(p) and not p.requires_grad}
    try:
        with replaced_parameters(network, instead):
            losses = isolation.run(of_one, map_tree(lambda x: x.unsqueeze(1), lot.records), noise.unsqueeze(1))
        if not tape.used or not losses.requires_grad:
            raise ValueError(
                "this loss does not depend on both the records and the parameters that the network's modules hold (a list "
                "beside the modules does not count): a loss of parameters alone is a DataFree term"
            )
        # The backward pass runs in full precision, whatever the losses were computed in.
        with full_precision(losses.device):
            factors = tape.gradients(losses)
    finally:
        tape.close()
    found = losses.detach()
    return held(factors, lambda: found)
