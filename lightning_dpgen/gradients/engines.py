"""The choice of the engine that computes the gradients of a term, and the source of the records' randomness."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from lightning_dpgen.gradients.engine_check import check_exact
from lightning_dpgen.gradients.functional import functional_gradients
from lightning_dpgen.gradients.ghost import ghost_gradients
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.probe_records import probe_lot
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.shards import has_shards
from lightning_dpgen.gradients.terms import PerGroup, PerRecord, code_of
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.own_randomness import randomness_of_their_own
from lightning_dpgen.sampling.twister_state import WORDS, make_twister_state

# For each network, the losses whose gradients were compared with those of single records, and a public record for each.
_checked: weakref.WeakKeyDictionary[nn.Module, dict] = weakref.WeakKeyDictionary()
_NONE = torch.zeros(())
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
    """Compute the gradients of a term on a lot: one for each record, or one for each group.

    Each record has randomness of its own from the private stream: its row of the term's noise, the group that it is in, and
    all that the loss draws from torch's generators (dropout, a code), which are keyed from that stream meanwhile.

    Args:
        network: the network to train; `term.loss` calls it.
        engine: ``ghost`` (book-keeping; nothing is materialised) or ``func`` (any network, B x P numbers).
        noise: (B, term.noise) from the stream, if it is drawn already.

    Raises:
        ValueError: for another engine or kind of term, layers that mix records, and a loss that would need to see more than
            its own record (`gradients/isolation.py`).
        RuntimeError: for a loss that writes into a parameter, or uses one where it cannot be seen.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: expected one of {sorted(ENGINES)}")
    if not isinstance(term, PerRecord | PerGroup):
        raise ValueError(f"{type(term).__name__} is not a loss of records: expected a PerRecord or PerGroup term")
    # The code of a data set is not that of the loss, and is not watched as that is.
    lot = lot.fetched()
    if engine == "func" and has_shards(network):
        raise ValueError(
            "engine='func' holds whole gradients of each record, and parameters are sharded: use engine='ghost'"
        )
    # A network without a real parameter is refused by the engine.
    some = next((p for p in network.parameters() if p.is_floating_point()), _NONE)
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
            # A loss that counts its calls must not learn that a lot is empty.
            compute(network, term, *probe_lot(lot, noise, 1, groups, example=term.example))
        return compute(network, term, lot, noise, groups)


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
    if lot.persons is None:
        return Groups(index, count, places)
    return Groups(index[lot.persons.to(device)], count, places, of_unit=True)


@contextmanager
def torch_draws_from(stream: PrivateStream, device: torch.device) -> Iterator[None]:
    """Key torch's default generators from the private stream inside this context, and numpy's and Python's by the system.

    Afterwards all are where they were.

    A public seed, or a position in a public sequence of numbers, would let one record change what the others draw. The
    numbers are as good as those of the stream's statistical generator: unknown without the key, not cryptographic.

    Args:
        device: the device whose generator is keyed, besides the processor's.
    """

    def key(generator: torch.Generator) -> None:
        if generator is torch.default_generator:
            generator.set_state(_keyed(stream))
        elif device.type == "cuda" and generator.device.index == (device.index or 0):
            generator.manual_seed(int(stream.words(1)[0] >> 1))
        else:
            generator.seed()

    with randomness_of_their_own(key):
        yield


def _keyed(stream: PrivateStream) -> Tensor:
    """Make a fresh state of the processor's generator, all words from the stream: manual_seed would keep 32 bits.

    Its seed is from the stream, too, so that `Guard` can tell it from another state.
    """
    fresh = stream.words(1 + WORDS)
    return make_twister_state(fresh[:1] >> np.uint64(1), fresh[1:] >> np.uint64(32))
