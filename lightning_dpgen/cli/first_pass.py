"""What is bought before a run can be planned: the number of records, bounds, categories, items. One look at all records."""

from __future__ import annotations

import copy
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lightning_dpgen.cli import kinds
from lightning_dpgen.cli.configuration import Conf, DataConf
from lightning_dpgen.cli.defaults import MOST_STEPS
from lightning_dpgen.cli.measured import measures
from lightning_dpgen.cli.settings import FIRST_PASS, Settings, check_privacy, fill, first_stage, make_schema
from lightning_dpgen.data.discovery import bounds_of, find_bounds, find_keys, keys_of
from lightning_dpgen.data.key_owners import KeyOwners
from lightning_dpgen.data.tables.open_columns import BOUNDS
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.calibration import make_first_plan
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.plan import Plan, Stage


@dataclass(frozen=True)
class Bought:
    """What a first pass has found: public from then on, and all that is known of it.

    Args:
        n: the number of records, if it was bought.
        parts: bounds and keys by the names of what they are of; as JSON holds them.
    """

    n: int | None
    parts: dict[str, Any]


def first_plan(conf: Conf) -> Plan:
    """What is promised before the first pass, whatever it finds.

    Where the accesses after it follow from settings alone, this is the plan of the whole run. Otherwise it holds the
    first pass, and a reference below which the rest is planned. Mistakes that no find would cure are told here, before
    anything is paid for.

    Raises:
        UsageError: as `settings.fill`.
        BudgetTooSmall: if the first pass, or a plan that follows from settings alone, does not fit.
    """
    check_privacy(conf)
    spec, delta, max_rows = first_stage(conf), conf.privacy.delta, conf.data.max_rows or 1
    settings = for_any_find(conf)
    if conf.privacy.noise == "off":
        return Plan((Stage(spec.access(0.0), 1, spec.share),), math.inf, delta, max_rows=max_rows)
    if follows_from_settings(conf):
        # A number of records that was only assumed is not promised.
        return replace(settings.plan(), n=conf.data.n)
    steps = MOST_STEPS if conf.model.steps is None else conf.model.steps
    if conf.model.noise is not None:
        steps = None
    return make_first_plan(
        spec,
        epsilon=conf.privacy.epsilon,
        delta=delta,
        max_rows=max_rows,
        # Where nothing is trained, full passes alone follow.
        sampled=0 if conf.model.name == "measured" else steps,
        # Pairs of columns are chosen by the exponential mechanism.
        pure=conf.model.pairs is not None,
    )


def follows_from_settings(conf: Conf) -> bool:
    """Whether every access after the first pass follows from the settings, whatever it finds; its events are fixed then.

    Whatever a default makes of the number of records, or of what is found of columns and items, must be given: rate, steps
    (or the noise of a step, and steps from the budget) and the share of the cluster means; where the number of records is
    bought, also all else of the split. What is measured always follows from the columns.

    Args:
        conf: as it was asked for, without defaults.
    """
    model, split = conf.model, conf.split
    if model.name == "auto" or measures(conf) or split.kernel == "identity":
        return False
    given = [model.rate, model.steps if model.noise is None else model.noise, split.means_share]
    if conf.data.n is None:
        given.append(split.k)
        if split.k != 1:
            given += [split.iterations, split.features, split.moments_share, split.lloyd_share]
    return None not in given


def for_any_find(conf: Conf) -> Settings:
    """The settings for a number of records that delta allows, before what is found is known.

    Raises:
        UsageError: as `settings.fill`.
    """
    # Whatever is read for the schema is read once.
    make_schema(conf)
    settings = with_bought(conf, Bought(max(1, int(0.1 / conf.privacy.delta)) if conf.data.n is None else None, {}))
    with suppress(BudgetTooSmall):  # of another number of records it may be enough
        settings.plan()
    return settings


@dataclass(frozen=True, eq=False, repr=False)
class Look:
    """What a first pass sees. Private.

    Args:
        n: how many records take part.
        parts: what is to be found something of: numbers (N,), NaN where there is none, or who holds which key.
        persons: (N,) whose each record is; None where nobody has several.
    """

    n: int
    parts: dict[str, np.ndarray | KeyOwners]
    persons: np.ndarray | None


def look(conf: Conf) -> Look:
    """Read what the first pass is about; nothing is spent yet.

    Raises:
        MissingData, BadRecords: as the readers of the data.
    """
    # All of it is read as it will be, with anything in the place of what is to be found, so that what cannot be read costs
    # nothing.
    n = len(kinds.records_of(conf.data, make_schema(conf))[0])
    if not kinds.open_parts(conf.data):
        return Look(n, {}, None)
    raw, persons = kinds.raw_parts(conf.data)
    parts = {}
    for name, values in raw.items():
        if isinstance(values, tuple):
            parts[name] = KeyOwners.of_sets(*values)
        else:
            parts[name] = values if isinstance(values, np.ndarray) else KeyOwners.of_column(values, persons)
    return Look(n, parts, persons)


def buy(conf: Conf, seen: Look, account: Account) -> Bought:
    """What the first pass finds, from one access.

    One record added or removed changes the count by 1; what it changes of the rest, `find_bounds` and `find_keys` say.

    Raises:
        BudgetTooSmall: if nothing of a part stands out from the noise. What was bought is spent.
    """
    opened, found, n = kinds.open_parts(conf.data), {}, None
    with account.open(FIRST_PASS) as access:
        if conf.data.n is None:
            total = torch.tensor([seen.n], dtype=torch.float64)
            n = max(1, round(float(gaussian(access, "n", total, sensitivity=1.0))))
        for name, part in opened.items():
            if part.find == BOUNDS:
                found[name] = find_bounds(
                    access, bounds_of(name), seen.parts[name], owners=seen.persons, most=part.most, whole=part.whole
                )
            else:
                found[name] = find_keys(access, keys_of(name), seen.parts[name], most=part.most)
    nothing = [name for name, value in found.items() if not value]
    if nothing:
        raise BudgetTooSmall(
            f"{nothing[0]}: no {opened[nothing[0]].find} stand out from the noise that data.discovery_share="
            f"{conf.data.discovery_share:g} buys: declare them, or start anew with a larger share (what this run has spent "
            "adds to it)"
        )
    return Bought(n, {name: list(value) for name, value in found.items()})


def with_bought(conf: Conf, bought: Bought) -> Settings:
    """The settings of a run after its first pass.

    Raises:
        UsageError: as `settings.fill`.
    """
    # Records in memory are not copied.
    copied = copy.deepcopy(replace(conf, data=DataConf()))
    n = conf.data.n if bought.n is None else bought.n
    return fill(replace(copied, data=replace(conf.data, n=n, found=bought.parts or None)))
