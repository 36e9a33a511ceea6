"""Lots: the records of each step, drawn by the sampler of the plan's stage."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.privacy.access import LotId
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import TRAINING
from lightning_dpgen.privacy.planning.stage_spec import warn_of_declared
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.contents import check_finite, check_same_records
from lightning_dpgen.sampling.csr import entries_of
from lightning_dpgen.sampling.device_copies import copied
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.fetching import fetch_ahead
from lightning_dpgen.sampling.slots import Slots, draw_places
from lightning_dpgen.sampling.stores import Store
from lightning_dpgen.sampling.trees import leaves_of, map_tree

if TYPE_CHECKING:
    from lightning_dpgen.privacy.noise.stream import PrivateStream


@dataclass(frozen=True)
class Lot:
    """The records of one step, sorted by the component that they belong to. Everything in it is private.

    Args:
        records: (B, m), or a tuple, list or dict of tensors (B, ...); B is random and may be 0.
        offsets: k + 1 positions; the records of component c are ``records[offsets[c]:offsets[c + 1]]``.
        draw: its identity, which copies of a lot share. A lot made by hand has one of its own, which no account has
            issued, so no step can be taken with it: lots to learn from are those of `PoissonLots`. Of the records that
            stand beside an issued identity only the number is compared, so put no others in their place.
        persons: (B,) int64, the person of each record, counted from 0 within the lot, where persons have several; None
            where each has one, or it is not known whose records these are.
        slots: the rows in which the records are laid out when gradients are computed, where their number is fixed; None
            for as many rows as records.

    Raises:
        ValueError: for more records than were drawn, or other persons than one a record.
    """

    records: Any
    offsets: tuple[int, ...]
    draw: LotId = field(default_factory=LotId, repr=False, compare=False)
    persons: Tensor | None = field(default=None, repr=False, compare=False)
    slots: Slots | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.draw.size is not None and self.offsets[-1] > self.draw.size:
            raise ValueError("offsets: this lot has more records than were drawn; each record that is drawn counts once")
        if self.persons is not None and self.persons.shape != (len(self),):
            raise ValueError("persons: expected one for each record of the lot, (B,) whole numbers")

    def __len__(self) -> int:
        return self.offsets[-1]

    @property
    def units(self) -> int:
        """The number of units of privacy: of persons, where they have several records, or of records."""
        if self.persons is None:
            return len(self)
        return int(self.persons.max()) + 1 if len(self) else 0

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the records consist of."""
        return leaves_of(self.records)

    def map(self, change: Callable[[Tensor], Tensor], offsets: tuple[int, ...] | None = None) -> Lot:
        """Return the lot with `change` applied to each tensor.

        Args:
            change: keeps the order of the records.
            offsets: the new offsets, where it takes some of the records: their persons are not known then (see `cut`).
        """
        if offsets is None:
            return self._changed(change, self.persons)
        return Lot(map_tree(change, self.records), offsets, self.draw)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Lot:
        """Return the lot on a device, with real numbers in a precision.

        A GPU copies it while it still computes the step before (`copied`).
        """
        device = torch.device(device)

        def moved(x: Tensor) -> Tensor:
            wanted = dtype if x.is_floating_point() else None
            # It is converted on the device: on the way it would pass through memory that is not pinned, and block.
            return x.to(device, wanted) if device.type != "cuda" else copied(x, device).to(dtype=wanted)

        return self._changed(moved, None if self.persons is None else moved(self.persons))

    def fetch(self) -> Lot:
        """Return the lot with its records at hand."""
        return self

    def cut(self, size: int) -> Iterator[Lot]:
        """Cut the records into lots of at most `size`, for `MicroBatches`; an empty lot yields one empty lot.

        No person is cut in two: one with more than `size` records is a lot.

        Example:
            >>> [(len(part), part.offsets) for part in Lot(torch.zeros(5, 2), (0, 3, 5)).cut(2)]
            [(2, (0, 2, 2)), (2, (0, 1, 2)), (1, (0, 0, 1))]
        """
        if self.persons is None:
            for start in range(0, max(len(self), 1), size):
                yield self._between(start, min(start + size, len(self)))
            return
        ends, start, end = self._ends_of_persons, 0, -1
        while end < len(ends) - 1:
            fit = int(np.searchsorted(ends, ends[start] + size, side="right")) - 1
            end = min(max(fit, start + 1), len(ends) - 1)
            yield self._of_persons(start, end)
            start = end

    def divide(self, parts: int) -> Iterator[Lot]:
        """Divide the records into so many lots of about the same size, for `MicroBatches`; the number is public.

        No person is divided.

        Example:
            >>> [len(part) for part in Lot(torch.zeros(5, 2), (0, 3, 5)).divide(4)]
            [1, 1, 1, 2]
        """
        at = [i * len(self) // parts for i in range(parts + 1)]
        if self.persons is not None:
            at = np.searchsorted(self._ends_of_persons, at).tolist()
        take = self._between if self.persons is None else self._of_persons
        for start, end in itertools.pairwise(at):
            yield take(start, end)

    def in_slots(self, size: int, stream: PrivateStream, parts: int = 1) -> list[Lot] | None:
        """Divide the records at random into so many lots, each laid out in `size` slots; None where these do not suffice.

        Args:
            size: the number of rows of each part, public.
            stream: the private stream, which draws the slot of each record.

        Raises:
            ValueError: for persons in several parts, or components of a mixture, whose sizes are private.
        """
        if len(self.offsets) > 2 or (parts > 1 and self.persons is not None):
            raise ValueError(
                f"slots={size}: expected lots of one component, in one part where persons have several records"
            )
        if len(self) > parts * size:
            return None
        places = draw_places(stream, parts * size, len(self))
        if parts == 1:
            return [self._at(Slots(size, torch.from_numpy(places)))]
        found = []
        for start in range(0, parts * size, size):
            rows = np.flatnonzero((places >= start) & (places < start + size))
            part = self._part(torch.from_numpy(rows), (0, len(rows)), None)
            found.append(part._at(Slots(size, torch.from_numpy(places[rows] - start))))
        return found

    def _at(self, slots: Slots) -> Lot:
        """Return the lot with its records at these slots."""
        return Lot(self.records, self.offsets, self.draw, self.persons, slots)

    def _between(self, start: int, end: int) -> Lot:
        ends = tuple(min(max(end_of - start, 0), end - start) for end_of in self.offsets)
        return self._part(slice(start, end), ends, None)

    @property
    def _ends_of_persons(self) -> np.ndarray:
        """The number of records of the first persons: of none of them, of one, and so on up to all."""
        return np.concatenate([[0], torch.bincount(self.persons).cumsum(0).cpu().numpy()])

    def _of_persons(self, start: int, end: int) -> Lot:
        """Take the records of the persons from `start` to before `end`."""
        rows = ((self.persons >= start) & (self.persons < end)).nonzero()[:, 0]
        ends = torch.searchsorted(rows, torch.tensor(self.offsets, device=rows.device)).tolist()
        return self._part(rows, tuple(ends), self.persons[rows] - start)

    def _changed(self, change: Callable[[Tensor], Tensor], persons: Tensor | None) -> Lot:
        return Lot(map_tree(change, self.records), self.offsets, self.draw, persons, self.slots)

    def _part(self, rows: slice | Tensor, offsets: tuple[int, ...], persons: Tensor | None) -> Lot:
        return Lot(map_tree(lambda x: x[rows], self.records), offsets, self.draw, persons)


class StoredLot(Lot):
    """A lot whose records are fetched when they are first asked for; parts of it that come first fetch their own alone.

    So a lot that is larger than memory is never there as a whole. Moves to a device and conversions wait, too. A record
    that cannot be fetched is found when it is asked for.

    Args:
        store: the place of the records.
        positions: (B,) of the records, sorted by component.
        offsets, draw, persons: as for `Lot`.
        changes: functions that each tensor goes through when it is fetched.
    """

    _store: Store
    _positions: np.ndarray
    _changes: tuple[Callable[[Tensor], Tensor], ...]

    def __init__(
        self,
        store: Store,
        positions: np.ndarray,
        offsets: tuple[int, ...],
        draw: LotId,
        persons: Tensor | None,
        changes: tuple[Callable[[Tensor], Tensor], ...] = (),
        slots: Slots | None = None,
    ) -> None:
        # A frozen dataclass is written to in this way.
        vars(self).update(offsets=offsets, draw=draw, persons=persons, slots=slots)
        vars(self).update(_store=store, _positions=positions, _changes=changes)
        self.__post_init__()

    @functools.cached_property
    def records(self) -> Any:
        """The records, fetched once.

        Raises:
            BadRecords: as `Store.take`.
        """
        records = self._store.take(self._positions)
        for change in self._changes:
            records = map_tree(change, records)
        return records

    def fetch(self) -> Lot:
        return Lot(self.records, self.offsets, self.draw, self.persons, self.slots)

    def _at(self, slots: Slots) -> Lot:
        if "records" in vars(self):
            return super()._at(slots)
        return StoredLot(self._store, self._positions, self.offsets, self.draw, self.persons, self._changes, slots)

    def _changed(self, change: Callable[[Tensor], Tensor], persons: Tensor | None) -> Lot:
        if "records" in vars(self):
            return super()._changed(change, persons)
        changes = (*self._changes, change)
        return StoredLot(self._store, self._positions, self.offsets, self.draw, persons, changes, self.slots)

    def _part(self, rows: slice | Tensor, offsets: tuple[int, ...], persons: Tensor | None) -> Lot:
        if "records" in vars(self):
            return super()._part(rows, offsets, persons)
        positions = self._positions[rows if isinstance(rows, slice) else rows.cpu().numpy()]
        return StoredLot(self._store, positions, offsets, self.draw, persons, self._changes)


class PoissonLots:
    """An endless source of lots, which the sampler of the plan's stage draws.

    Sampling draws a random size and distinct positions. The records of a lot are fetched when they are first asked for: at
    once, or part by part (`StoredLot`). An empty lot is a lot like any other, since skipping it would tell that it was
    empty. Records stay where they are: no copy of them is made. Where several processes share the account, each record (or
    person) belongs to one of them, by an independent draw that rank 0 makes when the first lot is asked for and that stays
    among them; all are given the same records, and a lot is the part of one that falls to this process.

    Args:
        records: anything that `store_of` takes: a tensor or array in memory or memory-mapped, a CSR matrix, a tuple or
            dict of columns, a map-style Dataset, or a store. Finite (`check_finite`).
        account: the account whose plan says the rate and whose private stream draws the samples.
        stage: the plan's stage that the lots are for.
        clusters: (N,) whole numbers, the component of each record, in 0..k-1; None puts all into the first.
        persons: (N,) whole numbers, the person of each record, where one person has several: a lot holds all of a person's
            records or none. None takes the store's own, if it has any.

    Raises:
        BadRecords: for records that no lot can be drawn from, such as a DataLoader, or a person with more records than the
            plan's `max_rows`.
        ValueError: for clusters or persons that do not fit.

    Example:
        >>> from lightning_dpgen.privacy import Plan, Poisson, Stage
        >>> plan = Plan((Stage(Access("training", {"gradient": 1.0}, Poisson(0.5)), 10, 1.0),), 1.0, 1e-5)
        >>> lots = PoissonLots((np.zeros((8, 3), np.float32), np.arange(8)), Account(plan))
        >>> rows, numbers = lots.draw().records
        >>> rows.shape[1:], len(rows) == len(numbers) <= 8
        (torch.Size([3]), True)
    """

    def __init__(
        self,
        records: Any,
        account: Account,
        *,
        stage: str = TRAINING,
        clusters: Tensor | None = None,
        k: int = 1,
        persons: np.ndarray | None = None,
    ) -> None:
        self._store = store_of(records)
        # Callers that hand over a store have warned before anything was begun.
        if self._store is not records:
            warn_of_declared(account.plan.n, len(self._store))
        self._person_of = persons_of(self._store, persons, account.plan.max_rows)
        # Positions are drawn in the order of components; `_order` says which record is at each, None if all are in place.
        if clusters is not None and account.plan.stage(stage).access.sampler.in_turn:
            raise ValueError("clusters of records that take turns: expected None, one component")
        clusters = None if clusters is None else _checked(np.asarray(clusters), len(self._store), k)
        if clusters is None or k == 1:
            self._order, self._bounds = None, np.array([0] + [len(self._store)] * k)
        else:
            self._order = np.argsort(clusters, kind="stable")
            self._bounds = np.searchsorted(clusters, np.arange(k + 1), sorter=self._order)
        self._records_of: _RecordsOfPersons | None = None
        # The number of records or persons of this process; None before it is known how many processes there are.
        self._units: int | None = None
        self._account, self._stage = account, account.plan.stage(stage).name

    def _divide(self) -> None:
        """Leave out the records of other processes, once it is known how many there are."""
        ranks = self._account.ranks
        if ranks.size > 1:
            check_same_records(ranks, self._store)
            units, of_unit = len(self._store), None
            if self._person_of is not None:
                persons, person_of = np.unique(self._person_of, return_inverse=True)
                units = len(persons)
            if ranks.leads:
                of_unit = self._account.stream.integers(units, ranks.size).astype(np.uint16)
            mine = ranks.broadcast_object(of_unit) == ranks.rank
            if self._person_of is not None:
                mine = mine[person_of]
            if self._order is not None:
                mine = mine[self._order]
            of_process = np.flatnonzero(mine)
            self._order = of_process if self._order is None else self._order[of_process]
            self._bounds = of_process.searchsorted(self._bounds)
        if self._person_of is not None:
            self._records_of = _RecordsOfPersons.of(self._person_of, self._order)
        self._units = len(next(x for x in (self._records_of, self._order, self._store) if x is not None))

    @property
    def empty(self) -> Any:
        """The records of an empty lot: their shapes and types, which are public."""
        return self._store.take(np.zeros(0, dtype=np.int64))

    def draw(self, ahead: int = 0) -> Lot:
        """Draw one lot, or this process's part of it.

        Args:
            ahead: the number of lots that were drawn before, and whose steps are still to come: records may take turns.

        Raises:
            PlanMismatch: for more records than a plan with truncated lots allows; nothing is charged.
        """
        return self._draw(self._account.count(self._stage) + ahead)

    def draws(self, count: int, workers: int = 0) -> Iterator[Lot]:
        """Yield so many lots, whose records are fetched by processes of their own before they are asked for.

        Lots are drawn here, for the steps that follow one after the other. A lot that is drawn ahead and not used costs
        nothing, since no access is opened for it.

        Args:
            count: the number of lots.
            workers: the number of processes, each of which fetches whole lots; 0 for none, and lots that are fetched when
                their records are asked for (`StoredLot`).
        """
        # Lots are drawn for steps to come, which may be the turn of other records.
        first = self._account.count(self._stage)
        if not workers:
            for number in range(first, first + count):
                yield self._draw(number)
            return
        waiting: deque[StoredLot] = deque()

        def positions() -> Iterator[np.ndarray]:
            for number in range(first, first + count):
                waiting.append(self._draw(number))
                yield waiting[-1]._positions

        for records in fetch_ahead(self._store, positions(), workers):
            lot = waiting.popleft()
            yield Lot(records, lot.offsets, lot.draw, lot.persons)

    def _draw(self, number: int) -> StoredLot:
        """Draw the lot of a step, or this process's part of it."""
        if self._units is None:
            self._divide()
        rows = None if self._records_of is None else self._records_of.records
        places, draw = self._account.sample(self._stage, self._units, rows, number)
        offsets = tuple(places.searchsorted(self._bounds).tolist())
        positions = places if self._order is None else self._order[places]
        persons = None if draw.persons is None else torch.from_numpy(draw.persons)
        return StoredLot(self._store, positions, offsets, draw, persons)


@dataclass(frozen=True)
class _RecordsOfPersons:
    """The records of each person, as positions in the order of components."""

    positions: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, persons: np.ndarray, order: np.ndarray | None) -> _RecordsOfPersons:
        in_order = persons if order is None else persons[order]
        _, person, counts = np.unique(in_order, return_inverse=True, return_counts=True)
        return cls(np.argsort(person, kind="stable"), np.concatenate([[0], counts.cumsum()]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def records(self, persons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sorted positions of all records of these persons, and whose each is: a place in `persons`."""
        entries, counts = entries_of(persons, self.starts)
        positions = self.positions[entries]
        order = np.argsort(positions)
        return positions[order], np.repeat(np.arange(len(persons)), counts)[order]


def persons_of(store: Store, persons: np.ndarray | None, max_rows: int) -> np.ndarray | None:
    """Return the person of each record, checked; None where each person has one.

    Raises:
        BadRecords: for a person with more than `max_rows` records.
        ValueError: for persons that are not (N,) whole numbers, or for no persons where the plan is about them: if records
            were drawn one by one, nearly every lot would hold one of a person's.
    """
    persons = store.persons if persons is None else persons
    # A copy, since lots are drawn by it later.
    persons = None if persons is None else np.array(persons)
    if persons is None:
        if max_rows > 1:
            raise ValueError(
                f"persons=None: the plan protects a person with up to max_rows={max_rows} records, all of which are in a "
                "lot or none: give the person of each record (N whole numbers), or make the plan with max_rows=1"
            )
        return None
    if persons.shape != (len(store),) or persons.dtype.kind not in "iu":
        raise ValueError("persons: expected (N,) whole numbers, one for each record; make them of the same records")
    if len(persons) and np.unique(persons, return_counts=True)[1].max() > max_rows:
        raise BadRecords(
            f"a person has more records than the plan's max_rows={max_rows}: choose some of them (persons.bounded), or "
            "make the plan with a larger max_rows"
        )
    return persons


def _checked(clusters: np.ndarray, n: int, k: int) -> np.ndarray:
    # Neither message tells the number of records, nor what was found.
    if clusters.shape != (n,) or clusters.dtype.kind not in "iu":
        raise ValueError("clusters: expected (N,) whole numbers, one for each record; make them of the same records")
    if n and (clusters.min() < 0 or clusters.max() >= k):
        raise ValueError(f"clusters hold numbers outside 0 to {k - 1}: expected k={k} components")
    return clusters


class LotLoader:
    """The lots of a run in batches of several, which a Trainer takes as its dataloader.

    Lightning's overhead is paid once a batch. Lots are drawn when they are asked for. The number of steps is the plan's,
    never a function of the number of records.

    Args:
        steps: the number of lots in all.
        block: the number of lots in a batch.
        workers: the number of processes that fetch records, ahead of the steps; 0 for none.

    Attributes:
        watched: True in a fit that a `MomentsAccountant` watches over, which sets it.
    """

    watched = False

    def __init__(self, lots: PoissonLots, steps: int, block: int, workers: int = 0) -> None:
        if type(workers) is not int or workers < 0:
            raise ValueError(f"workers={workers!r}: expected a whole number (int), 0 or more")
        self.steps, self.block, self.workers, self._lots = steps, block, workers, lots

    def __len__(self) -> int:
        return -(-self.steps // self.block)

    @property
    def empty(self) -> Any:
        """The records of an empty lot: their shapes and types."""
        return self._lots.empty

    def check_fit_is_private(self) -> None:
        """Refuse the first batch of a fit that is not private; a loader for one training alone says so."""

    def __iter__(self) -> Iterator[LotBatch]:
        self.check_fit_is_private()
        lots = self._lots.draws(self.steps, self.workers)
        for start in range(0, self.steps, self.block):
            yield LotBatch(lots, min(self.block, self.steps - start), watched=self.watched)


def poisson_loader(
    records: Any,
    account: Account,
    *,
    stage: str = TRAINING,
    block: int | None = None,
    persons: np.ndarray | None = None,
    workers: int = 0,
    collate_fn: Callable[[list], Any] | None = None,
) -> LotLoader:
    """Make the loader of all lots of a run, which takes the place of a DataLoader in a Trainer.

    Args:
        records: anything that `store_of` takes: tensors, arrays, a CSR matrix, columns, a Dataset. No DataLoader.
        account: the account whose plan says rate and steps.
        stage: the plan's stage that the lots are for.
        block: the number of lots in a batch; None takes `block_of(steps)`.
        persons: as for `PoissonLots`.
        workers: the number of processes that fetch the records of the next lots, as for a DataLoader; 0 for none.
        collate_fn: makes a batch of one item of a Dataset or list, as for `store_of`.

    Raises:
        BadRecords: for records that no lot can be drawn from, or that hold values that are not finite; nothing is spent.
    """
    store = store_of(records, collate_fn=collate_fn)
    check_finite(store)
    warn_of_declared(account.plan.n, len(store))
    steps = account.remaining(stage)
    return LotLoader(PoissonLots(store, account, stage=stage, persons=persons), steps, block or block_of(steps), workers)


def block_of(steps: int) -> int:
    """Return the number of lots in a batch: enough to hide a Trainer's overhead, and so few that a crash costs little."""
    return min(50, max(1, steps // 20))


class LotBatch:
    """A batch of several lots, drawn one after the other while they are iterated over; `len` is public."""

    def __init__(self, lots: Iterator[Lot], size: int, *, watched: bool = True) -> None:
        self._lots, self._size, self._watched = lots, size, watched

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Lot]:
        return itertools.islice(self._lots, self._size)

    def to(self, *_: Any, **__: Any) -> LotBatch:
        """Return the batch itself: a Trainer calls this, and lots are moved one by one.

        Raises:
            TypeError: in a Trainer without `MomentsAccountant`, whose training step would get lots in place of records.
        """
        return self if self._watched else self[0]

    def __getitem__(self, at: object) -> NoReturn:
        raise TypeError(
            f"the batch is a {type(self).__name__}, the next lots, and no tensors: expected a Trainer with "
            "callbacks=[MomentsAccountant(account)], which hands training_step the records, or a loop of your own over its "
            "lots, as in for lot in batch: lot.records"
        )
