"""Which engine computes the gradients of a term, and where the randomness of records comes from."""

from __future__ import annotations

import dataclasses
import weakref

import torch
from torch import Tensor, nn

from lightning_dpgen.gradients.engine_check import check_exact
from lightning_dpgen.gradients.functional import functional_gradients
from lightning_dpgen.gradients.ghost import ghost_gradients
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.probe_records import probe_lot
from lightning_dpgen.gradients.randomness import torch_draws_from
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.terms import PerGroup, PerRecord, code_of
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.sampling.lots import Lot

# Losses of a network whose gradients were compared with those of single records, and a public record that each takes.
_checked: weakref.WeakKeyDictionary[nn.Module, dict] = weakref.WeakKeyDictionary()
ENGINES = {"ghost": ghost_gradients, "func": functional_gradients}


def term_gradients(
    network: nn.Module,
    term: PerRecord | PerGroup,
    lot: Lot,
    stream: PrivateStream,
    *,
    engine: str = "ghost",
    noise: Tensor | None = None,
) -> RecordGradients:
    """The gradients of a term on a lot: one a record, or one a group.

    Each record has randomness of its own from the private stream: the rows of the term's noise, the group that it is in,
    and whatever the loss draws from torch's generators (dropout, a code), which are keyed from that stream meanwhile.

    Args:
        network: what is trained; `term.loss` calls it.
        term: the loss.
        lot: the records.
        stream: the account's private stream.
        engine: ``ghost`` (book-keeping; nothing is materialised) or ``func`` (any network, B x P numbers).
        noise: (B, term.noise) from the stream, where it was drawn already.

    Raises:
        ValueError: for another engine or kind of term, layers that mix records, and a loss that would need to see more than
            its own record (`gradients/isolation.py`).
        RuntimeError: for a loss that writes into a parameter, or uses one where it cannot be seen.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: expected one of {sorted(ENGINES)}")
    if not isinstance(term, PerRecord | PerGroup):
        raise ValueError(f"{type(term).__name__} is no loss of records: expected a PerRecord or PerGroup term")
    some = next(network.parameters())
    if noise is None:
        noise = stream.normal((len(lot), term.noise), dtype=some.dtype, device=some.device)
    closed = engine == "ghost" and term.forms is not None
    groups = _groups(term, lot, stream, some.device, closed) if isinstance(term, PerGroup) else None
    compute = ENGINES[engine]
    # A closed form draws nothing itself.
    if closed:
        return compute(network, term, lot, noise, groups)
    known, code = _checked.setdefault(network, {}), (engine, code_of(term.loss))
    if code not in known:
        known[code] = check_exact(compute, network, term, lot, noise, groups)
    if term.example is None:
        term = dataclasses.replace(term, example=known[code])
    with torch_draws_from(stream, some.device):
        if not len(lot):
            # A loss that counts its calls must not know that a lot is empty.
            compute(network, term, *probe_lot(lot, noise, 1, groups, example=term.example))
        return compute(network, term, lot, noise, groups)


def _groups(term: PerGroup, lot: Lot, stream: PrivateStream, device: torch.device, closed: bool) -> Groups:
    """The groups of a lot, drawn for each record by itself."""
    # Of several processes, each has as many of the groups, and its records are in these.
    count, left = divmod(term.groups, lot.draw.parts)
    if left:
        raise ValueError(
            f"groups={term.groups}: {lot.draw.parts} processes share them, so expected a multiple of {lot.draw.parts}"
        )
    if term.places is None and not closed:
        raise ValueError(
            "places=None: expected how many records a group has room for, a public number, since what the loss computes "
            "must not have the shape of the largest group; PerGroup.room(expected_batch_size, groups) gives one"
        )
    index = torch.from_numpy(stream.integers(len(lot), count)).to(device)
    return Groups(index, count, None if closed else term.places)
