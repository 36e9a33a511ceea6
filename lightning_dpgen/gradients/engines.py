"""The gradients of a term by one of two engines: book-keeping, or a copy of each parameter for each record."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lightning_dpgen.common.precision import full_precision, without_autocast
from lightning_dpgen.gradients.engine_check import check_exact
from lightning_dpgen.gradients.factors import Dense, GradientFactors
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.isolation.isolation import HiddenGroups, HiddenOffsets, Isolation, OneGroup
from lightning_dpgen.gradients.isolation.padded_products import noting_bfloat16, rows_apart
from lightning_dpgen.gradients.layers import checked_layers, replaced_parameters
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.probes import probe_lot
from lightning_dpgen.gradients.shards import check_policies, has_shards, is_sharded, without_own_hooks
from lightning_dpgen.gradients.tape import Tape
from lightning_dpgen.gradients.tape_rules.table import RULES
from lightning_dpgen.gradients.terms import PerGroup, PerRecord, code_of
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.randomness import WORDS, make_twister_state, randomness_of_their_own
from lightning_dpgen.sampling.trees import leaves_of, map_tree

# Functions without a rule that a network's owner has been warned of.
_AS_LOTS_OF_ONE = functools.partial(torch.unsqueeze, dim=1)
_said: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()


def ghost_gradients(
    network: nn.Module, term: PerRecord | PerGroup, lot: Lot, noise: Tensor, groups: Groups | None = None
) -> PerSampleGradients:
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
    # Only where there are ranks can parameters be divided over them.
    in_ranks = dist.is_available() and dist.is_initialized()
    if in_ranks and has_shards(network):
        check_policies(network)
        if term.forms is not None:
            raise ValueError(
                f"{type(term).__name__}(forms=...) reads whole parameters, and these are sharded: leave forms out, so that "
                "gradients follow from the loss"
            )
        with without_own_hooks(network), rows_apart(noise.device, network, lambda: code_of(term.loss)):
            return _ghost_gradients(network, term, lot, noise, groups, in_ranks)
    with rows_apart(noise.device, network, lambda: code_of(term.loss)):
        return _ghost_gradients(network, term, lot, noise, groups, in_ranks)


def _ghost_gradients(
    network: nn.Module, term: PerRecord | PerGroup, lot: Lot, noise: Tensor, groups: Groups | None, in_ranks: bool
) -> PerSampleGradients:
    layers, size = checked_layers(network), len(lot)

    def of_rows(factors: Mapping[nn.Parameter, GradientFactors], losses: Callable[[], Tensor]) -> PerSampleGradients:
        if groups is None:
            return PerSampleGradients(
                factors, layers, size, lot.draw, losses=losses, offsets=lot.offsets, persons=lot.persons
            )
        of_groups: dict[str, Any] = {"groups": groups.count, "partition": groups, "of_unit": groups.of_unit}
        return PerSampleGradients(factors, layers, groups.count, lot.draw, losses=losses, **of_groups)

    if not size:
        nothing = noise.new_zeros(0 if groups is None else groups.count)
        return of_rows({}, lambda: nothing)

    if term.forms is not None:
        # Under autocast numbers of two precisions would meet, as torch converts nothing in a closed form.
        with full_precision(noise.device):
            return of_rows(*(term.forms(lot, noise) if groups is None else term.forms(lot, noise, groups)))
    names_said = _said.setdefault(network, set())

    def say(name: str) -> None:
        if name not in names_said:
            names_said.add(name)
            warnings.warn(
                f"no rule for {name}: each record gets a copy of its parameters, so their gradients are held one by one: "
                "exact, and slower",
                stacklevel=2,
            )

    isolation = Isolation(size, lot.offsets, groups, takes_gradients=False)
    offsets, hidden = HiddenOffsets(isolation), () if groups is None else (HiddenGroups(isolation, groups),)
    tape = Tape(isolation, RULES, say)

    def of_one(records: Any, noise: Tensor) -> Tensor:
        return term.losses(Lot(records, offsets), noise, *hidden).squeeze(0)

    instead: dict[nn.Parameter, Tensor] = dict(tape.trace(layers, in_ranks))
    if in_ranks:
        instead |= {p: tape.frozen(p) for p in network.parameters() if is_sharded(p) and not p.requires_grad}
    try:
        with replaced_parameters(network, instead):
            losses = isolation.run(of_one, map_tree(_AS_LOTS_OF_ONE, lot.records), noise.unsqueeze(1))
        if not tape.used or not losses.requires_grad:
            raise ValueError(
                "this loss does not depend on both the records and the parameters that the network's modules hold (a list "
                "beside the modules does not count): a loss of parameters alone is a DataFree term"
            )
        # Autocast is for the losses alone. Norms are computed from what the backward pass finds, however it was rounded.
        with without_autocast(losses.device):
            factors = tape.gradients(losses)
    finally:
        tape.close()
    values = losses.detach()
    return of_rows(factors, lambda: values)


def functional_gradients(
    network: nn.Module, term: PerRecord | PerGroup, lot: Lot, noise: Tensor, groups: Groups | None = None
) -> PerSampleGradients:
    """Compute the gradients of a term for each record, or group of records, by `torch.vmap` over records and parameters.

    It is the oracle of the book-keeping engine, and takes what that refuses. It needs B x P numbers.

    Args:
        network: the module whose trainable parameters are differentiated; `term.loss` must call it.
        term: a per-record or per-group loss.
        lot: B records, sorted by component.
        noise: (B, term.noise).
        groups: the groups of the records, for a per-group loss, with a public number of places.

    Raises:
        ValueError: for layers that mix records, groups of a mixture, or a loss that would need to see more than its own
            record.
    """
    layers = checked_layers(network)
    with rows_apart(noise.device, network, lambda: code_of(term.loss)):
        gradients, losses = (
            _of_records(network, term, lot, noise) if groups is None else _of_groups(network, term, lot, noise, groups)
        )
    return PerSampleGradients(
        {p: Dense(gradient) for p, gradient in gradients.items()},
        layers,
        len(losses),
        lot.draw,
        offsets=lot.offsets if groups is None else None,
        groups=None if groups is None else groups.count,
        persons=lot.persons if groups is None else None,
        of_unit=groups is not None and groups.of_unit,
        losses=lambda: losses,
    )


def _of_records(network: nn.Module, term: PerRecord, lot: Lot, noise: Tensor) -> tuple[dict[nn.Parameter, Tensor], Tensor]:
    parts = []
    for c, (start, end) in enumerate(itertools.pairwise(lot.offsets)):
        offsets = tuple(int(i > c) for i in range(len(lot.offsets)))

        def of_one(records: Any, noises: Tensor, offsets: tuple[int, ...] = offsets) -> Tensor:
            return term.losses(Lot(records, offsets), noises)

        if not len(lot):
            continue
        part, noises = lot.map(lambda x, s=start, e=end: x[s:e], (0, end - start)), noise[start:end]
        if start == end:
            # A loss that counts its calls must not learn that a component is empty.
            part, noises, _ = probe_lot(part, noises, example=term.example)
        computed = _each(network, of_one, tree_map(lambda x: x.unsqueeze(1), part.records), noises.unsqueeze(1))
        if start < end:
            parts.append(computed)
    nothing = {p: p.new_zeros(0, *p.shape) for p in _trained(network)}
    gradients = {p: torch.cat([part[p] for part, _ in [(nothing, None), *parts]]) for p in nothing}
    return gradients, torch.cat([noise.new_zeros(0), *(losses for _, losses in parts)])


def _of_groups(
    network: nn.Module, term: PerGroup, lot: Lot, noise: Tensor, groups: Groups
) -> tuple[dict[nn.Parameter, Tensor], Tensor]:
    if not len(lot):
        return {p: p.new_zeros(groups.count, *p.shape) for p in _trained(network)}, noise.new_zeros(groups.count)
    if len(lot.offsets) > 2:
        raise ValueError("engine='func' takes the groups of a single component: use engine='ghost' for a mixture")

    def of_one(records: Any, own: Tensor, there: Tensor) -> Tensor:
        return term.losses(Lot(records, (0, len(there))), own, OneGroup(there))

    records = tree_map(groups.repeated, lot.records)
    gradients, losses = _each(network, of_one, records, groups.repeated(noise), groups.mask)
    # A group without a record has neither gradient nor loss: the loss of its zeros may be anything.
    there = groups.mask.any(dim=1)
    kept = {p: torch.where(there.view(-1, *(1,) * p.dim()), gradient, 0.0) for p, gradient in gradients.items()}
    return kept, torch.where(there, losses, 0.0)


def _each(
    network: nn.Module, loss: Callable[..., Tensor], records: Any, *rest: Tensor
) -> tuple[dict[nn.Parameter, Tensor], Tensor]:
    """Compute the gradients (B, ...) of each parameter, and the losses (B,), of a loss (1,) of the rows of B records."""
    size = len(rest[0])
    copies = {p: p.detach().expand(size, *p.shape).requires_grad_() for p in _trained(network)}

    def of_one(values: list[Tensor], *rows: Any) -> Tensor:
        with replaced_parameters(network, dict(zip(copies, values, strict=True))):
            return loss(*rows).squeeze(0)

    isolation = Isolation(size)
    with torch.enable_grad():
        losses = isolation.run(of_one, [copy.view_as(copy) for copy in copies.values()], records, *rest)
        if not losses.requires_grad:
            raise ValueError(
                "this loss does not depend on the parameters of the network, or detaches them (detach, no_grad)"
            )
        with isolation.backward():
            found = torch.autograd.grad(losses.sum(), list(copies.values()), allow_unused=True, materialize_grads=True)
    # The zeros of a parameter that is not used ask for a gradient in torch 2.9.
    return {p: gradient.detach() for p, gradient in zip(copies, found, strict=True)}, losses.detach()


def _trained(network: nn.Module) -> list[nn.Parameter]:
    return [p for p in network.parameters() if p.requires_grad]


# For each network, the losses whose gradients were compared with those of single records, and a public record for each.
_checked: weakref.WeakKeyDictionary[nn.Module, dict] = weakref.WeakKeyDictionary()
_NONE = torch.zeros(())
ENGINES = {"ghost": ghost_gradients, "func": functional_gradients}


def known_record(network: nn.Module, engine: str, term: PerRecord | PerGroup) -> Any:
    """Return the public record (1, ...) that a loss was tried with; None for a closed form, or a loss not tried yet."""
    return _checked.get(network, {}).get((engine, code_of(term.loss))) if term.example is None else term.example


def term_gradients(
    network: nn.Module,
    term: PerRecord | PerGroup,
    lot: Lot,
    stream: PrivateStream,
    *,
    engine: str = "ghost",
    noise: Tensor | None = None,
) -> PerSampleGradients:
    """Compute the gradients of a term on a lot: one for each record, or one for each group.

    Each record has randomness of its own from the private stream: its row of the term's noise, the group that it is in, and
    all that the loss draws from torch's generators (dropout, a code), which are keyed from that stream meanwhile.

    Args:
        network: the network to train; `term.loss` calls it.
        engine: ``ghost`` (book-keeping; nothing is materialised) or ``func`` (any network, B x P numbers).
        noise: (B, term.noise) from the stream, if it is drawn already.

    Raises:
        ValueError: for another engine or kind of term, layers that mix records, and a loss that would need to see more than
            its own record (`gradients/isolation`).
        RuntimeError: for a loss that writes into a parameter, or uses one where it cannot be seen.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: expected one of {sorted(ENGINES)}")
    if not isinstance(term, PerRecord | PerGroup):
        raise ValueError(f"{type(term).__name__} is not a loss of records: expected a PerRecord or PerGroup term")
    # The code of a data set is not that of the loss, and is not watched as that is.
    lot = lot.fetch()
    if engine == "func" and has_shards(network):
        raise ValueError(
            "engine='func' holds whole gradients of each record, and parameters are sharded: use engine='ghost'"
        )
    # A network without a real parameter is refused by the engine.
    some = _NONE
    for p in network.parameters():
        if p.is_floating_point():
            some = p
            break
    size = len(lot) if lot.slots is None else lot.slots.size
    if noise is not None:
        noise = noise if lot.slots is None else lot.slots.spread(noise)
    elif not term.noise:
        noise = torch.empty(size, 0, dtype=some.dtype, device=some.device)
    else:
        noise = stream.normal((size, term.noise), dtype=some.dtype, device=some.device)
    closed = engine == "ghost" and term.forms is not None
    groups = _groups(term, lot, stream, some.device, closed) if isinstance(term, PerGroup) else None
    compute = ENGINES[engine]
    # A closed form draws nothing itself.
    if closed:
        return _of_slots(compute, network, term, lot, noise, groups)
    known, code = _checked.setdefault(network, {}), (engine, code_of(term.loss))
    if code not in known:
        with noting_bfloat16(network, code[1]):
            known[code] = check_exact(compute, network, term, lot, noise[: len(lot)], groups)
    # Only a component, a lot or a slot without a record needs one.
    if term.example is None and (engine == "func" or not size or lot.slots is not None):
        term = dataclasses.replace(term, example=known[code])
    with torch_draws_from(stream, some.device):
        if lot.slots is not None:
            return _of_slots(compute, network, term, lot, noise, groups)
        if not size:
            # A loss that counts its calls must not learn that a lot is empty.
            compute(network, term, *probe_lot(lot, noise, 1, groups, example=term.example))
        return compute(network, term, lot, noise, groups)


def _of_slots(
    compute: Callable[..., PerSampleGradients],
    network: nn.Module,
    term: PerRecord | PerGroup,
    lot: Lot,
    noise: Tensor,
    groups: Groups | None,
) -> PerSampleGradients:
    """Compute the gradients of a lot in the slots that it is laid out in, if it is."""
    if lot.slots is None:
        return compute(network, term, lot, noise, groups)
    tensors = leaves_of(term.example) or [None] * len(lot.tensors)
    empty = iter(tensors)
    spread = map_tree(lambda x: lot.slots.spread(x, next(empty)), lot.records)
    return compute(network, term, Lot(spread, (0, lot.slots.size)), noise, groups).in_slots(lot)


def _groups(term: PerGroup, lot: Lot, stream: PrivateStream, device: torch.device, closed: bool) -> Groups:
    """Draw the group of each record of a lot, or of each person with all records, by itself."""
    # Each of several processes has an equal number of the groups, and its records are in these.
    count, left = divmod(term.groups, lot.draw.parts)
    if left:
        raise ValueError(
            f"groups={term.groups}: {lot.draw.parts} processes share them, so expected a multiple of {lot.draw.parts}"
        )
    if term.places is None and not closed:
        raise ValueError(
            "places=None: expected the number of records that a group has room for, a public number, since the shape of a "
            "group must not be that of the largest one; PerGroup.slots(expected_batch_size, groups) returns one"
        )
    index, places = torch.from_numpy(stream.integers(lot.units, count)).to(device), None if closed else term.places
    if lot.persons is not None:
        index = index[lot.persons.to(device)]
    if lot.slots is not None:
        # A slot without a record is in no group.
        index = index.new_full((lot.slots.size,), count).index_copy_(0, lot.slots.places_on(device), index)
    return Groups(index, count, places, of_unit=lot.persons is not None)


def torch_draws_from(stream: PrivateStream, device: torch.device) -> randomness_of_their_own:
    """Return a context in which torch's default generators are keyed from the private stream, others by the system.

    Afterwards all are where they were.

    A public seed, or a position in a public sequence of numbers, would let one record change what the others draw. The
    numbers are as good as those of the stream's statistical generator: unknown without the key, not cryptographic.

    Args:
        device: the device whose generator is keyed, besides the processor's.
    """

    def key(generator: torch.Generator) -> None:
        if generator is torch.default_generator:
            # A state of which all words are from the stream: manual_seed would keep 32 bits. So is its seed, by which
            # `LossGuard` tells it from another state.
            fresh = stream.words(1 + WORDS)
            generator.set_state(make_twister_state(fresh[:1] >> np.uint64(1), fresh[1:] >> np.uint64(32)))
        elif device.type == "cuda" and generator.device.index == (device.index or 0):
            generator.manual_seed(int(stream.words(1)[0] >> 1))
        else:
            generator.seed()

    return randomness_of_their_own(key)
