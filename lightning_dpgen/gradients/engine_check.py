"""The check that an engine understands a loss: its gradients are compared with those of single records, at no cost."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from lightning_dpgen.common.precision import whole_products, without_autocast
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.isolation.isolation import Isolation, OneGroup
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.probes import UNSUITED, WHOLE, ConstantDraws, probe_lot
from lightning_dpgen.gradients.shards import has_shards, reshard
from lightning_dpgen.gradients.terms import PerGroup, PerRecord, check_losses
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.randomness import randomness_of_their_own

# The number of records that are compared. Groups need more, so that some differ in size.
_RECORDS, _IN_GROUPS = 3, 12
# The part of the largest loss that rounding in whole float32 may move a mean of two.
_ROUNDING = 1e-5
# The part of its length by which the gradient of a record may differ at least.
_KINK = 0.01
# The part of its size by which a parameter is moved, and the least size.
_STEP = 0.02


def check_exact(
    engine: Callable[[nn.Module, PerRecord | PerGroup, Lot, Tensor, Groups | None], PerSampleGradients],
    network: nn.Module,
    term: PerRecord | PerGroup,
    lot: Lot,
    noise: Tensor,
    groups: Groups | None = None,
) -> Any:
    """Compare the gradients that an engine finds for made-up records with those of plain autograd for one record at a time,
    and the losses of these records with the losses that they have beside another record.

    The first comparison tests the engine, and finds parameters whose use it does not see. The second finds losses that are
    meant to compare records: each record is alone here, so they would learn something else. Privacy rests on neither.
    No record of the lot is looked at, since a refusal is not charged.

    Args:
        engine: an engine such as `ghost_gradients`.

    A loss, or gradient, that is not finite proves nothing: other probe records are taken, or a warning is given.

    Returns:
        A public record (1, ...) that the loss takes: the term's example, or a probe record.

    Raises:
        ValueError: if they differ, or if the loss takes no probe record. The message tells nothing about the records.
    """
    count = _RECORDS if groups is None else _IN_GROUPS
    probe, error, finite = _suited(engine, network, term, lot, noise, groups, count)
    # Plain autograd does not compute the groups of a mixture, and would need sharded parameters to be whole all at once.
    if (groups is None or len(lot.offsets) == 2) and not has_shards(network) and probe is not None:
        try:
            _check(engine, network, term, *probe)
        except ValueError as refusal:
            if not torch.is_autocast_enabled(noise.device.type):
                raise
            # In eight bits what nearly cancels may differ by more than any tolerance.
            try:
                with without_autocast(noise.device):
                    _check(engine, network, term, *probe)
            except (ValueError, *UNSUITED):
                raise refusal from None
    if probe is None and term.example is not None:
        raise ValueError(f"the loss does not take its example ({type(error).__name__}: {error})") from error
    if probe is None:
        raise ValueError(
            f"the loss takes no made-up record of numbers from {WHOLE[0]} to {WHOLE[-1]} ({type(error).__name__}: "
            f"{error}). It is called with one where a lot has none, so give it one that it takes: "
            f"{type(term).__name__}(..., example=...)"
        ) from error
    if not finite:
        numbers = f"made-up records of numbers from {WHOLE[0]} to {WHOLE[-1]}"
        warnings.warn(
            f"the loss or its gradient is not finite for {numbers if term.example is None else 'its example'}, so it could "
            "not be compared with that of a record alone: privacy holds, but a loss that is meant to compare records would "
            f"not be noticed. Give a public record for which it is finite: {type(term).__name__}(..., example=...)",
            stacklevel=2,
        )
    return tree_map(lambda x: x[:1], probe[0].records)


def _suited(
    engine: Callable,
    network: nn.Module,
    term: PerRecord | PerGroup,
    lot: Lot,
    noise: Tensor,
    groups: Groups | None,
    count: int,
) -> tuple[tuple[Lot, Tensor, Groups | None] | None, Exception | None, int]:
    """Find probe records that the loss takes, or the first error that it raises with them, and how many are finite.

    Preferred are those whose losses and gradients are finite, since others show nothing: a length of 0, say, divides by 0.
    """
    _check_example(term, lot)
    first, suited, most = None, None, -1
    # On a GPU a place that a table does not have ends all work of the process, so numbers that may be one are not tried.
    several = term.example is None and noise.device.type == "cpu"
    for whole in WHOLE if several else WHOLE[:1]:
        # Records that differ tell more, where the loss takes them.
        for varied in (True, False) if several else (False,):
            made = probe_lot(lot, noise, count, groups, whole=whole, varied=varied, example=term.example)
            try:
                finite = _try(engine, network, term, made)
            except UNSUITED as error:
                first = first or error
                continue
            if bool(finite.all()):
                return made, None, count
            if int(finite.sum()) > most:
                suited, most = made, int(finite.sum())
    return suited, first, most


def _try(engine: Callable, network: nn.Module, term: PerRecord | PerGroup, made: tuple) -> Tensor:
    """Return (B,) whether the loss and the gradient of each record, or group that has one, are finite."""
    _, _, groups = made
    with unchanged(network), randomness_of_their_own():
        gradients = engine(network, term, *made)
        norms = gradients.norms()
        finite = torch.isfinite(norms if gradients.losses is None else norms + gradients.losses.detach().to(norms))
    return finite if groups is None else finite | ~groups.mask.any(dim=1)


def _check_example(term: PerRecord | PerGroup, lot: Lot) -> None:
    """Check that the example of a term is a record like those of a lot.

    Raises:
        ValueError: naming the shape or type that differs.
    """
    if term.example is None:
        return
    expected, given = (
        [((1, *x.shape[1:]), "floating" if x.is_floating_point() else x.dtype) for x in tensors]
        for tensors in (lot.tensors, [x[:1] for x in tree_leaves(term.example)])
    )
    if expected != given or any(len(x) != 1 for x in tree_leaves(term.example)):
        raise ValueError(f"example of {given}: expected one record as lots have them, {expected}")


def _check(
    engine: Callable, network: nn.Module, term: PerRecord | PerGroup, few: Lot, noise: Tensor, groups: Groups | None
) -> None:
    parameters = [p for p in network.parameters() if p.requires_grad]
    # Random functions that are not held still would draw from public generators, once for each record.
    # In eleven bits gradients that are the same would differ by more than the tolerance.
    with (
        ConstantDraws() as still,
        whole_products(),
        randomness_of_their_own(),
        _moved(parameters),
        warnings.catch_warnings(),
    ):
        # Single records may be slow.
        warnings.filterwarnings("ignore", message="There is a performance drop")
        with unchanged(network):
            gradients = engine(network, term, few, noise, groups)
        singles = _one_by_one(network, term, few, noise, groups, parameters)
        is_still = _compare(gradients, singles, parameters, still)
        if groups is None and len(few.offsets) == 2:
            with unchanged(network):
                _compare_pairs(term, few, noise, gradients.losses, still.tolerance if is_still else math.inf)


def _one_by_one(
    network: nn.Module,
    term: PerRecord | PerGroup,
    lot: Lot,
    noise: Tensor,
    groups: Groups | None,
    parameters: list[nn.Parameter],
) -> Iterator[tuple[Sequence[Tensor], Sequence[Tensor]]]:
    """Compute the gradients of each record, or group, twice, by plain autograd on a lot of its own."""
    if groups is None:
        rows = [(tree_map(lambda x, i=i: x[i : i + 1, None], lot.records), noise[i : i + 1, None]) for i in range(len(lot))]
    else:
        held = tree_map(groups.repeated, lot.records), groups.repeated(noise), groups.mask
        rows = [tree_map(lambda x, j=j: x[j : j + 1], held) for j in range(groups.count)]
    for i, row in enumerate(rows):
        offsets = tuple(int(i < end) for end in lot.offsets)

        def loss(records: Any, noise: Tensor, *there: Tensor, offsets: tuple[int, ...] = offsets) -> Tensor:
            if there:
                return term.losses(Lot(records, (0, len(there[0]))), noise, OneGroup(there[0]))
            return term.losses(Lot(records, offsets), noise)

        def gradients(row: Any = row, loss: Callable[..., Tensor] = loss) -> Sequence[Tensor]:
            alone = Isolation(1)
            with unchanged(network), torch.enable_grad():
                losses = alone.run(loss, *row)
                with alone.backward():
                    return torch.autograd.grad(losses.sum(), parameters, allow_unused=True, materialize_grads=True)

        pair = gradients(), gradients()
        # The loss of a group without a record may be anything.
        if groups is not None and not bool(groups.mask[i].any()):
            pair = ([torch.zeros_like(p) for p in parameters],) * 2
        yield pair


def _compare(
    gradients: PerSampleGradients,
    singles: Iterable[tuple[Sequence[Tensor], Sequence[Tensor]]],
    parameters: list[nn.Parameter],
    still: ConstantDraws,
) -> bool:
    """Compare gradients, one record after the other: those of all at once would take more memory than a step.

    Returns:
        True if the loss is still: one that is not draws numbers of its own, so there is nothing to compare. It is called
        as often.
    """
    is_still, differences, lengths = True, [], []
    views = {p: torch.zeros_like(p) for p in parameters}
    rows = torch.eye(len(gradients), dtype=parameters[0].dtype, device=parameters[0].device)
    for weights, (single, again) in zip(rows, singles, strict=True):
        gradients.weighted_sum(weights, views)
        difference, length = 0.0, 0.0
        for p, x, y in zip(parameters, single, again, strict=True):
            x, y = ((g.to_dense() if g.is_sparse else g).double() for g in (x, y))
            is_still = is_still and torch.allclose(x, y, rtol=still.tolerance, equal_nan=True)
            difference, length = difference + (views[p].double() - x).square().sum(), length + x.square().sum()
        differences.append(torch.as_tensor(difference).sqrt())
        lengths.append(torch.as_tensor(length).sqrt())
    if is_still:
        _refuse_differences(torch.stack(differences), torch.stack(lengths), gradients, still.tolerance)
    return is_still


def _refuse_differences(differences: Tensor, lengths: Tensor, gradients: PerSampleGradients, tolerance: float) -> None:
    # Rounding can put one unit of a deep network on the other side of a kink (a ReLU's) in a lot, which changes the
    # gradient of that record by up to a hundredth. A parameter that is not seen changes those of all by more.
    wrong = differences > max(_KINK, tolerance) * lengths + 1e-9
    allowed = 1 if gradients.groups is None and len(wrong) == _RECORDS else 0
    # A record whose gradient is not finite adds zeros in a step, so it is not compared.
    if int((wrong & torch.isfinite(lengths)).sum()) > allowed:
        raise ValueError(
            "the gradients of single records differ from those that the engine finds in a lot: a parameter is used where "
            "it is not seen (for example in a list beside the modules; engine='func' sees more), or the loss or a layer "
            "depends on random numbers that are not torch's, or gives other values when it is called again"
        )


@contextmanager
def _moved(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Move parameters a little for the time of this context.

    At an optimum a gradient is what rounding leaves, and beside a weight of zeros it is zero: neither can be compared.
    """
    before = [p.detach().clone() for p in parameters]
    try:
        with torch.no_grad():
            for i, p in enumerate(parameters):
                generator = torch.Generator(p.device).manual_seed(i)
                size = _STEP * p.square().mean().sqrt().clamp(min=_STEP)
                p.add_(size * torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device))
        torch.clear_autocast_cache()
        yield
    finally:
        with torch.no_grad():
            for p, own in zip(parameters, before, strict=True):
                p.copy_(own)
        # Autocast would go on with what it has converted of the moved ones.
        torch.clear_autocast_cache()


@contextmanager
def unchanged(network: nn.Module) -> Iterator[None]:
    """Put counters, buffers and frozen parameters back after this context: a loss that is tried takes no step."""
    # The engine divides parameters again that are whole, and frees the memory of those.
    reshard(network)
    frozen = [p for p in network.parameters() if not p.requires_grad]
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    # Frozen parameters that outnumber the trained ones by far are a pretrained network: nothing updates it, and a copy
    # might not fit.
    if sum(p.numel() for p in frozen) > 4 * trained:
        frozen = []
    numbers = [(m, {name: x for name, x in vars(m).items() if isinstance(x, int | float)}) for m in network.modules()]
    tensors = [(x, x.detach().clone()) for x in (*network.buffers(), *frozen)]
    try:
        yield
    finally:
        for module, before in numbers:
            vars(module).update(before)
        with torch.no_grad():
            for x, before in tensors:
                x.copy_(before)


def _compare_pairs(term: PerRecord, lot: Lot, noise: Tensor, alone: Tensor, tolerance: float) -> None:
    """Call the loss with lots of two records each: every record of a lot and the next one.

    A loss that gives scalars is called with each record and its copy, too.
    """

    def paired(x: Tensor, shift: int = -1) -> Tensor:
        return torch.stack([x, x.roll(shift, dims=0)], dim=1)

    def copied(x: Tensor) -> Tensor:
        return paired(x, 0)

    def of_two(records: Any, own: Tensor) -> Tensor:
        losses = term.loss(Lot(records, (0, 2)), own)
        return losses if isinstance(losses, Tensor) and losses.dim() == 0 else check_losses(losses, 2)

    # Gradients are there for a loss that takes some by itself.
    with torch.enable_grad():
        pairs = Isolation(len(lot)).run(of_two, tree_map(paired, lot.records), paired(noise)).detach().double()
    alone = alone.double()
    # A loss that is not finite is compared with none, and bounds no rounding of others.
    allowed = tolerance * (alone.nan_to_num(0.0, 0.0, 0.0).abs().amax() + 1e-9)
    if pairs.dim() == 1:
        with torch.enable_grad():
            copies = Isolation(len(lot)).run(of_two, tree_map(copied, lot.records), copied(noise)).detach().double()
        mixed = _mixed_scalars(pairs, copies, alone, allowed)
    else:
        beside = torch.stack([pairs[:, 0], pairs[:, 1].roll(1, dims=0)])
        mixed = bool((((beside - alone).abs() > allowed) & torch.isfinite(alone)).any())
    # A deviation over one record, say.
    mixed = mixed or (not bool(torch.isfinite(alone).any()) and bool(torch.isfinite(pairs).all()))
    if mixed:
        raise ValueError(
            "the loss of a record is another when a second record is beside it (a norm over the lot, pairs of records, "
            "batch statistics, a position in the lot). Under privacy each record is alone, so that its gradient is its "
            "own: write the loss of one record. A PerGroup term may compare the records of a group"
        )


def _mixed_scalars(pairs: Tensor, copies: Tensor, alone: Tensor, allowed: Tensor) -> bool:
    """Return whether scalars of two records are neither means, weighted or not, nor sums of what these have alone.

    Args:
        pairs: (B,) the scalar of each record and the next one.
        copies: (B,) that of each record and its copy.
        alone: (B,) that of each record.
        allowed: the difference that rounding may make.
    """
    after = alone.roll(-1, dims=0)
    finite = torch.isfinite(alone) & torch.isfinite(after)
    pairs, copies, alone, after = pairs[finite], copies[finite], alone[finite], after[finite]
    # A part without a record, such as weight decay, is in each scalar once.
    rest = torch.cat([alone + after - pairs, 2.0 * alone - copies])
    if not len(rest) or bool(((rest - rest[0]).abs() <= 4.0 * allowed).all()):
        return False
    low, high = torch.minimum(alone, after) - allowed, torch.maximum(alone, after) + allowed
    if bool(((copies - alone).abs() > allowed).any() or ((pairs < low) | (pairs > high)).any()):
        return True
    if bool(((pairs - 0.5 * (alone + after)).abs() <= allowed).all()):
        return False
    if not _weigh_records(pairs, alone, after, torch.minimum(allowed, _ROUNDING * alone.abs().amax())):
        return True
    warnings.warn(
        "the loss of two records is a weighted mean of theirs (class weights, padding that is left out, or a reduction "
        "of its own). A record alone has no weight, so all count alike: to weigh them, give one loss for each record "
        "(reduction='none')",
        stacklevel=2,
    )
    return False


def _weigh_records(pairs: Tensor, alone: Tensor, after: Tensor, allowed: Tensor) -> bool:
    """Return whether scalars are weighted means with a weight for each record: ratios of weights in a circle multiply to 1.

    A maximum, or a root of a mean square, lies between two losses, too, and its weights follow from both.
    """
    apart = alone - after
    error = allowed / apart.abs().clamp(min=1e-300)
    # Losses that are alike show no weights.
    if bool((error > 0.02).any()):
        return True
    share = (pairs - after) / apart
    if bool(((share <= 2.0 * error) | (share >= 1.0 - 2.0 * error)).any()):
        return False
    uncertain = (4.0 * error / (share * (1.0 - share))).sum()
    return bool((share / (1.0 - share)).log().sum().abs() <= uncertain + 1e-3)
