"""The first pass, bought before a run can be planned: the number of records, bounds, categories and items."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from lightning_dpgen.common import pace
from lightning_dpgen.data.discovery.bounds_and_keys import bounds_of, find_bounds, find_keys, keys_of
from lightning_dpgen.data.discovery.counts import KeyOwners
from lightning_dpgen.data.discovery.value_grid import Leaves, values_of
from lightning_dpgen.data.discovery.value_tree import MOST_PIECES, find_values
from lightning_dpgen.data.persons import number_persons
from lightning_dpgen.data.tables.description import BOUNDS
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.access import OpenAccess
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import PLD
from lightning_dpgen.privacy.durable import make_room
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.mechanisms import rounded_gaussian
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.runs.moved import check_moved
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.runs.warnings import noise_warnings
from lightning_dpgen.specs.first_pass import FIRST_PASS, describe_find, first_stage, reference_plan
from lightning_dpgen.specs.network import TrainedSpec
from lightning_dpgen.specs.run import RunSpec, check_privacy
from lightning_dpgen.specs.settings import Settings, complete_settings, make_schema
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import UsageError

# A number of a find that takes as much room as any.
_LARGEST = 2**63


@dataclass(frozen=True)
class Discovery:
    """The finds of a first pass: public from then on, and all that is known of it.

    Args:
        n: the number of records, if it was bought.
        parts: bounds and keys by the names of what they are of; as JSON holds them.
    """

    n: int | None
    parts: dict[str, Any]


def save_discovery(bought: Discovery, account: Account, folder: RunFolder) -> None:
    """Save what was bought first, for `load_discovery`."""
    durable.save(folder.bought, _content(bought, account))


def _content(bought: Discovery, account: Account) -> dict[str, Any]:
    return {"head": account.ledger.head, "n": bought.n, "parts": bought.parts}


def load_discovery(account: Account, folder: RunFolder) -> Discovery:
    """Return what a run has bought first and not yet made its plan from.

    Raises:
        UsageError: if the run ended before it was saved.
    """
    if folder.bought.is_file():
        state = durable.load(folder.bought, "head", "n", "parts")
        if account.ledger.knows(state["head"]):
            return Discovery(state["n"], state["parts"])
    raise UsageError(lost_message(folder))


def lost_message(folder: RunFolder) -> str:
    """Return the line about a run whose first pass was paid for and not kept."""
    return (
        f"run_dir={folder.root}: the run was interrupted in its first pass over the records; choose another run_dir (what "
        "that has cost adds to the cost of the new run)"
    )


@dataclass(frozen=True)
class FirstPass:
    """A run whose first pass is planned, and not yet made.

    Args:
        plan: the promise, whatever the first pass finds. Where the accesses after it follow from settings alone, this is
            the plan of the whole run. Otherwise it holds the first pass, and a reference below which the rest is planned.
        any_find: the settings of the run before it is known what is found (`for_any_find`).
    """

    plan: Plan
    any_find: Settings


def plan_first_pass(spec: RunSpec, source: Source) -> FirstPass:
    """Plan the first pass; mistakes that no find would cure are refused here, before anything is paid for.

    Raises:
        UsageError: as `settings.complete_settings`.
        BudgetTooSmall: if the first pass, or a plan that follows from settings alone, does not fit.
    """
    check_privacy(spec)
    privacy, max_rows = spec.privacy, spec.data.most_rows
    stage = first_stage(spec, source.open_parts)
    settings = for_any_find(spec, source)
    if not privacy.private:
        plan = Plan((Stage(stage.access(0.0), 1, stage.share),), math.inf, privacy.delta, max_rows=max_rows)
        return FirstPass(plan, settings)
    if follows_from_settings(spec):
        # A number of records that was only assumed is not promised.
        return FirstPass(replace(settings.plan(), n=spec.data.n), settings)
    if privacy.accountant != PLD:
        raise UsageError(
            f"privacy.accountant={privacy.accountant}: the first pass buys what the plan is made from, and such a plan "
            f"takes {PLD} alone: leave it out, or declare what is bought (data.n in place of data.n_share)"
        )
    return FirstPass(reference_plan(spec, stage), settings)


def follows_from_settings(spec: RunSpec) -> bool:
    """Return True where every access after the first pass follows from the settings, whatever it finds.

    Its events are fixed then. A default that follows from the number of records, or from what is found of columns and
    items, must be given: rate, steps (or the noise of a step, and steps from the budget) and the share of the cluster
    means. Where the number of records is bought, so must all else of the split. What is measured always follows from the
    columns.

    Args:
        spec: as it was asked for, without defaults.
    """
    model, split = spec.model, spec.split
    if not isinstance(model, TrainedSpec) or split.kernel == "identity":
        return False
    given = [model.rate, model.steps if model.noise is None else model.noise, split.means_share]
    if spec.data.n is None:
        given.append(split.k)
        if split.k != 1:
            given += [split.iterations, split.features, split.moments_share, split.lloyd_share]
    return None not in given


def for_any_find(spec: RunSpec, source: Source) -> Settings:
    """Return the settings for a number of records that delta allows, before what is found is known."""
    make_schema(spec, source)
    n = max(1, int(0.1 / spec.privacy.delta)) if spec.data.n is None else None
    settings = with_discovery(spec, source, Discovery(n, {}))
    with suppress(BudgetTooSmall):  # it may be enough for another number of records
        settings.plan()
    return settings


def warnings_for_any_find(spec: RunSpec, settings: Settings) -> list[str]:
    """Return what noise will most likely hide of what is found and measured, where the declared n tells of it.

    Args:
        settings: by `for_any_find`.
    """
    if spec.data.n is None or not spec.privacy.private:
        return []
    try:
        return list(noise_warnings(settings, settings.plan()))
    except BudgetTooSmall:  # the run itself tells it
        return []


class FirstPassRecords(Protocol):
    """The records as a first pass sees them. Private.

    Attributes:
        n: how many records take part.
    """

    n: int

    def categories(self, name: str) -> np.ndarray:
        """Return the different categories of a column, or the items of sets, of all records; private."""

    def find_bounds(self, access: OpenAccess, name: str, part: Part) -> tuple[int | float, int | float] | None:
        """Find the bounds of a column; see `bounds_and_keys.find_bounds_in`."""

    def find_keys(self, access: OpenAccess, name: str, part: Part) -> list[Any]:
        """Find the categories of a column, or the items of sets; see `bounds_and_keys.find_keys`."""

    def find_values(self, access: OpenAccess, name: str, part: Part, leaves: Leaves) -> dict[str, Any]:
        """Find how a column is distributed; see `value_tree.find_values_in`."""


@dataclass(frozen=True, eq=False, repr=False)
class InMemoryRecords:
    """Records in memory as a first pass sees them. Private.

    Args:
        n: how many records take part.
        parts: what is to be found something of: numbers (N,), NaN where there is none, or keys and their owners.
        persons: (N,) whose each record is; None where no person has several.
        salts: (N,) uint64, a hash of each record's person; None to draw it.
    """

    n: int
    parts: dict[str, np.ndarray | KeyOwners]
    persons: np.ndarray | None
    salts: np.ndarray | None = None

    def categories(self, name: str) -> np.ndarray:
        """Return the different categories of a column, or the items of sets, of all records; private."""
        keys = self.parts[name]
        assert isinstance(keys, KeyOwners)
        return keys.names

    def find_bounds(self, access: OpenAccess, name: str, part: Part) -> tuple[int | float, int | float] | None:
        """Find the bounds of a column; see `bounds_and_keys.find_bounds`."""
        whose = {"owners": self.persons, "salts": self.salts, "most": part.most}
        return find_bounds(access, bounds_of(name), self.parts[name], whole=part.whole, **whose)

    def find_keys(self, access: OpenAccess, name: str, part: Part) -> list[Any]:
        """Find the categories of a column, or the items of sets; see `bounds_and_keys.find_keys`."""
        return find_keys(access, keys_of(name), self.parts[name], most=part.most)

    def find_values(self, access: OpenAccess, name: str, part: Part, leaves: Leaves) -> dict[str, Any]:
        """Find how a column is distributed; see `value_tree.find_values`."""
        whose = {"owners": self.persons, "salts": self.salts, "most": part.most}
        return find_values(access, name, self.parts[name], leaves.grid, reference=leaves.reference, **whose)


def open_first_pass(spec: RunSpec, source: Source) -> InMemoryRecords:
    """Read what the first pass is about; nothing is spent yet.

    Raises:
        MissingData, BadRecords: as the readers of the data.
    """
    # All of it is read as it will be, with anything in the place of what is to be found, so that what cannot be read costs
    # nothing.
    with pace.stage("reading and checking the records"):
        records, counted = source.records(make_schema(spec, source))
    n = len(records)
    check_moved(source, counted, n)
    if not source.open_parts:
        return InMemoryRecords(n, {}, None)
    with pace.stage("looking at what the schema leaves open"):
        raw, persons = source.raw_parts()
        numbers, salts = (None, None) if persons is None else number_persons(persons)
        parts = {}
        for name, values in raw.items():
            if isinstance(values, tuple):
                parts[name] = KeyOwners.of_sets(*values)
            else:
                parts[name] = values if isinstance(values, np.ndarray) else KeyOwners.of_column(values, numbers, salts)
    return InMemoryRecords(n, parts, numbers, salts)


def make_room_for(source: Source, records: FirstPassRecords, account: Account, folder: RunFolder) -> None:
    """Make room on the disk for all that `run_discovery` may find.

    Raises:
        OSError: in one line, where there is too little; nothing has been spent.
    """
    parts: dict[str, Any] = {}
    for name, part in source.open_parts.items():
        if part.grid is None and part.find != BOUNDS:
            # Noise may keep any of them.
            parts[name] = records.categories(name).tolist()
        elif part.counted:
            parts[name] = {"counts": [-_LARGEST + 0.1] * part.grid.span, "noise": math.pi}
        else:
            parts[name] = {"bounds": [-_LARGEST] * 2, "pieces": [[-_LARGEST, math.pi] for _ in range(MOST_PIECES)]}
    keys = any(isinstance(found, list) for found in parts.values())
    size = "as much room as all categories and items in the records" if keys else ""
    # Python's pickler takes as many bytes as `torch.save`, and asks of no number whether it is a tensor.
    largest = _content(Discovery(_LARGEST, {"all": bytes(len(pickle.dumps(parts, protocol=2)))}), account)
    make_room(folder.bought, largest, account, "what is bought first", size=size)


def run_discovery(spec: RunSpec, source: Source, records: FirstPassRecords, account: Account) -> Discovery:
    """Return what the first pass finds, from one access.

    One record added or removed changes the count by 1; what it changes of the rest, `find_bounds` and `find_keys` say.

    Raises:
        BudgetTooSmall: if nothing of a part stands out from the noise. What was bought is spent.
    """
    open_parts, parts, n = source.open_parts, {}, None
    with account.open(FIRST_PASS) as access:
        if spec.data.n is None:
            n = max(1, int(rounded_gaussian(access, "n", torch.tensor([records.n]), sensitivity=1.0)))
        for name, part in pace.counted("finding what the schema leaves open", open_parts.items()):
            if part.grid is not None:
                parts[name] = records.find_values(access, name, part, Leaves(part.grid))
            elif part.find == BOUNDS:
                parts[name] = records.find_bounds(access, name, part)
                if part.column is None:
                    continue
                if parts[name] is None:
                    # The tree between them is paid for, and there is nothing to look at.
                    for level in range(1, part.levels + 1):
                        access.consume(values_of(name, level))
                else:
                    values = records.find_values(access, name, part, part.column.leaves_between(parts[name]))
                    parts[name] = {"bounds": list(parts[name])} | values
            else:
                parts[name] = records.find_keys(access, name, part)
    nothing = [name for name, value in parts.items() if not value]
    if nothing:
        raise BudgetTooSmall(
            f"{nothing[0]}: no {describe_find(spec.data, open_parts[nothing[0]])} stand out from the noise that "
            f"data.discovery_share={spec.data.share_of_discovery:g} buys: declare them, or start anew with a larger share "
            "(what this run has spent adds to it)"
        )
    return Discovery(n, {name: value if isinstance(value, dict) else list(value) for name, value in parts.items()})


def with_discovery(spec: RunSpec, source: Source, bought: Discovery) -> Settings:
    """Return the settings of a run after its first pass."""
    if bought.n is not None:
        spec = spec.changed(data=spec.data.changed(n=bought.n))
    return complete_settings(spec, source, bought.parts or None)


def settings_of(spec: RunSpec, source: Source, about: Mapping[str, Any]) -> Settings:
    """Return the settings of a run that goes on, with what its ledger says that it has bought first."""
    return with_discovery(spec, source, Discovery(about["n"] if spec.data.n is None else None, about.get("found") or {}))
