"""Micro-batches: a lot that is larger than memory, taken in parts.

There must be one bound for the whole lot. Where it follows from the number of the lot, one pass over the parts is enough:
each is clipped and added. Where it is chosen from the lot's norms, a first pass returns these and no gradient, and a second
one clips and adds: twice the work of a lot in one piece. In the second pass each record is clipped by the norm that it has
in that pass. This may differ from the first norm, if the record draws randomness of its own.
"""

from __future__ import annotations

import math
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.scopes import LotNorms, Scope
from lightning_dpgen.privacy.access import LotId
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.slots import enough_slots

# Lots whose memory is compared, and the part of what is free that a lot may take: allocators waste some of it, and so do
# others on the machine.
_SMALL, _LARGE, _PART = 2, 6, 0.5


def records_that_fit(compute: Callable[[int], Any], device: torch.device) -> int:
    """Return the number of records for which a computation takes half of the memory that is free, at least 1.

    Args:
        compute: is called with a number of records, of which it makes as many up.
        device: where it computes.

    Example:
        >>> records_that_fit(lambda n: torch.zeros(n, 10**9).exp() if n < 2 else torch.zeros(n, 10**5).exp(),
        ...                  torch.device("cpu")) > 100
        True
    """
    # The first call may make tables that stay.
    compute(_SMALL)
    small, large = (_peak(compute, n) for n in (_SMALL, _LARGE))
    each = max((large - small) / (_LARGE - _SMALL), 1.0)
    return max(1, int((_PART * free_memory(device) - (small - _SMALL * each)) / each))


def _peak(compute: Callable[[int], Any], n: int) -> int:
    with _Bytes() as mode:
        compute(n)
    return mode.peak


class _Bytes(TorchDispatchMode):
    """A mode that counts the bytes of the tensors that are made in it and still held.

    Attributes:
        peak: the largest number of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._held = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.layout == torch.strided:
                self._add(x.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self._held += size
        self.peak = max(self.peak, self._held)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self._held -= size


def free_memory(device: torch.device) -> int:
    """Return the bytes of memory that are free on a device; in a container, those that its limit leaves."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        line = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    except OSError:  # no Linux
        line = None
    whole = 1024 * int(line[1]) if line else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min([whole, *_within_limits(Path("/"))])


# The files of a control group that say its limit and what it has taken, and the line of `memory.stat` for files that can be
# let go of; by the controller that a line of `/proc/self/cgroup` names: none in version 2.
_CONTROLLERS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def _within_limits(root: Path) -> Iterator[int]:
    """Yield the bytes that are left to each control group of this process that has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name in {*controllers.split(",")} & {*_CONTROLLERS}:
            top, limit, usage, files = _CONTROLLERS[name]
            # A container sees its own group at the top, whatever its path is outside.
            for group in (Path(path), *Path(path).parents):
                folder = root / top / group.relative_to("/")
                # A limit may be the word max.
                with suppress(OSError, ValueError):
                    most, taken = (int((folder / part).read_text(encoding="ascii")) for part in (limit, usage))
                    match = re.search(
                        rf"^{files} (\d+)$", (folder / "memory.stat").read_text(encoding="ascii"), re.MULTILINE
                    )
                    yield max(most - taken + (int(match[1]) if match else 0), 0)


# The records of a part: about so many, as many as memory holds, or all.
MicroBatch = int | Literal["auto"] | None


class MicroBatches:
    """The gradients of a lot, made part by part when they are asked for.

    Args:
        make: begins anew at each call, and returns the gradients of each part; at least one part (of no records, if there
            are none). Parts are disjoint, and together they are the whole lot.

    Attributes:
        watch: is given the parts of each pass, which are private, and gives them back one after the other; or None.

    Example:
        A lot of some 50 records in parts of at most 8, in a bare loop:

        >>> from lightning_dpgen import Account, Fixed, PerRecord, PoissonLots, PrivateOptimizer
        >>> from lightning_dpgen import make_plan, term_gradients, training_stage
        >>> stage = training_stage(Fixed(1.0), n=100, sample_rate=0.5, steps=1)
        >>> account, network = Account(make_plan([stage], epsilon=2.0, delta=1e-5)), torch.nn.Linear(3, 1)
        >>> optimizer = PrivateOptimizer(torch.optim.SGD(network.parameters(), lr=1.0), account=account,
        ...                              clipping=Fixed(1.0))
        >>> lot = PoissonLots(torch.rand(100, 3), account).draw()
        >>> term = PerRecord(lambda lot, noise: network(lot.records).square().sum(dim=1))
        >>> make = lambda: (term_gradients(network, term, part, account.stream) for part in lot.cut(8))
        >>> optimizer.set_gradients(MicroBatches(make, lot.draw))
        >>> optimizer.step()
        >>> account.verify_complete()
    """

    groups = None
    of_unit = False

    def __init__(self, make: Callable[[], Iterable[PerSampleGradients]], draw: LotId) -> None:
        self._make, self.draw = make, draw
        self.watch: Callable[[Iterable[PerSampleGradients]], Iterable[PerSampleGradients]] | None = None
        # A pass whose first part was asked for, and that part.
        self._begun: list | None = None

    def of_persons(self, max_rows: int) -> MicroBatches:
        """Return the gradients of persons, none of whom is cut in two; see `PerSampleGradients.of_persons`."""
        if max_rows == 1 or self.of_unit:
            return self
        found = MicroBatches(lambda: (part.of_persons(max_rows) for part in self.parts()), self.draw)
        found.of_unit = True
        return found

    def first(self) -> PerSampleGradients:
        """Make the first part, with which the next pass begins.

        Raises:
            ValueError: as `parts`.
        """
        if self._begun is None:
            parts = self._pass()
            self._begun = [next(parts), parts]
        return self._begun[0]

    def parts(self) -> Iterator[PerSampleGradients]:
        """Make one pass over the parts, of which a caller that keeps none has one in memory.

        Raises:
            ValueError: if there is no part, or one is of groups, which may reach over several parts, or of another lot, or
                if all parts together have more records (or persons) than the lot.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            # It is held nowhere else while the next one is made.
            yield begun.pop(0)
        yield from self._pass() if begun is None else begun.pop()

    def _pass(self) -> Iterator[PerSampleGradients]:
        rows, most = None, self.draw.units if self.of_unit else self.draw.size
        for part in self._make() if self.watch is None else self.watch(self._make()):
            if part.groups is not None:
                raise ValueError("groups reach over the parts of a lot: take a lot with a per-group term in one piece")
            if part.draw is not self.draw:
                raise ValueError("a part is of another lot than its MicroBatches: cut one lot, whose parts keep its draw")
            rows = (rows or 0) + len(part)
            if most is not None and rows > most:
                raise ValueError(
                    "these parts have more records together than their lot, or hold records of one person apart: put each "
                    "record in one of them (Lot.cut and Lot.divide cut between persons)"
                )
            yield part
            # Free this part's gradients before the next part is computed.
            del part
        if rows is None:
            raise ValueError("a lot in parts has no part: give one part of no records for an empty lot")


class LotParts:
    """Splits every lot of a fit into equally many parts, so that the number of calls of a loss does not tell its size.

    Args:
        micro_batch: about how many records' gradients are computed at a time; ``auto`` waits for `fit_memory`. None takes a
            lot in one piece.
        expected_size: the expected number of records of a lot in this process, public.
        slots: the number of rows that all parts of a lot have together, public; None for as many as it has records.
        persons: whether persons have several records, which stay in one part: several parts are in no slots then.

    Attributes:
        count: the number of parts.

    Example:
        >>> LotParts(64, expected_size=16_384).count
        256
    """

    def __init__(
        self, micro_batch: MicroBatch, expected_size: float, slots: int | None = None, *, persons: bool = False
    ) -> None:
        self._expected_size, self._slots, self._persons = expected_size, slots, persons
        self.count = self._count(micro_batch) if isinstance(micro_batch, int) else 1

    @classmethod
    def of_stage(cls, micro_batch: MicroBatch, expected_size: float, plan: Plan, stage: str, *, in_slots: bool) -> LotParts:
        """Return the parts of the lots of a plan's stage.

        Args:
            expected_size: as for the class.
            in_slots: lay lots out in as many rows as one exceeds with a probability below 1e-9, or the largest lot has.
        """
        if not in_slots:
            return cls(micro_batch, expected_size)
        slots, truncation = enough_slots(expected_size, plan.max_rows), plan.stage(stage).access.sampler.truncation
        if truncation is not None:
            slots = min(slots, truncation["largest_lot"] * plan.max_rows)
        return cls(micro_batch, expected_size, slots, persons=plan.max_rows > 1)

    def _count(self, size: int) -> int:
        return max(1, math.ceil(self._expected_size / size))

    def fit_memory(self, compute: Callable[[int], Iterable[PerSampleGradients]], device: torch.device) -> None:
        """Take as many records at a time as half of the free memory holds.

        Args:
            compute: returns the gradients of so many made-up records.
            device: where it computes them.
        """

        def use(count: int) -> None:
            for own in compute(count):
                some = own.parameters[0]
                own.weighted_sum(own.norms().to(some), {p: torch.zeros_like(p) for p in own.parameters})

        self.count = self._count(records_that_fit(use, device))

    @property
    def slots_of_part(self) -> int | None:
        """The number of rows in which each part is laid out; None for as many as it has records."""
        if self._slots is None or (self._persons and self.count > 1):
            return None
        return math.ceil(self._slots / self.count)

    def gradients(
        self, lot: Lot, of_part: Callable[[Lot, int], PerSampleGradients], stream: PrivateStream | None = None
    ) -> PerSampleGradients | MicroBatches:
        """Return the gradients of a lot, in as many parts.

        Args:
            of_part: returns those of a part, given its number from 0; called again for each pass over the lot.
            stream: draws the slot of each record; None lays the lot out in no slots.
        """
        placed = self._placed(lot, stream)
        if self.count == 1:
            return of_part(lot if placed is None else placed[0], 0)
        return MicroBatches(lambda: (of_part(part, i) for i, part in enumerate(self._each(lot, placed))), lot.draw)

    def lots(self, lot: Lot, stream: PrivateStream | None = None) -> Iterator[Lot]:
        """Yield the parts of a lot; see `gradients`."""
        return self._each(lot, self._placed(lot, stream))

    def _placed(self, lot: Lot, stream: PrivateStream | None) -> list[Lot] | None:
        slots = self.slots_of_part
        return None if stream is None or slots is None else lot.in_slots(slots, stream, self.count)

    def _each(self, lot: Lot, placed: list[Lot] | None) -> Iterator[Lot]:
        return lot.divide(self.count) if placed is None else iter(placed)


def takes_slots(asked: bool | None, device: torch.device) -> bool:
    """Return whether lots are laid out in slots: as asked, or on a GPU, whose kernels have fixed shapes then."""
    return device.type == "cuda" if asked is None else asked


def check_micro_batch(size: MicroBatch) -> None:
    """Refuse a number of records that is none.

    Raises:
        ValueError: naming it.
    """
    if not (size is None or size == "auto" or (type(size) is int and size >= 1)):
        raise ValueError(f"micro_batch={size!r}: expected a whole number (int), 1 or more, 'auto' or None")


def norms_of_parts(gradients: MicroBatches, scope: Scope, expected_rows: float, *, needed: bool) -> LotNorms:
    """Return the norms of a lot in parts, from which its bounds are chosen.

    Args:
        expected_rows: as in `LotNorms`.
        needed: whether the bounds depend on the norms; if not, no pass is made over the parts.
    """
    if not needed:
        first = scope.norms(gradients.first())
        return replace(first, columns=[column[:0] for column in first.columns], expected_rows=expected_rows)
    # A loop's variable would hold a part while the next one is made.
    each = list(map(scope.norms, gradients.parts()))
    columns = zip(*(norms.columns for norms in each), strict=True)
    return replace(each[0], columns=[torch.cat(column) for column in columns], expected_rows=expected_rows)
