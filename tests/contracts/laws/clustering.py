"""Laws of the private split."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from contracts.door import others_learn_the_same, overspent, parts_add_up
from contracts.laws.lots import Owned

from lightning_dpgen.clustering.block_sums import clipped_sums
from lightning_dpgen.clustering.features import FEATURE_NORM
from lightning_dpgen.clustering.kmeans import private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.sampling.as_store import store_of


def the_split_asks_for_what_its_plan_says() -> None:
    """Check for each noise how many numbers it has, and that its deviation is multiplier times sensitivity, in steps."""
    for dimensions in (None, 4):
        _asks_for_what_its_plan_says(3, 10, 6, dimensions)


def _asks_for_what_its_plan_says(k: int, d: int, m: int, dimensions: int | None) -> None:
    settings = SplitSettings(k=k, iterations=1, features=d, dimensions=dimensions, radius=1.5)
    accesses = [spec.access(2.5) for spec in settings.specs(100)]
    account = Account(Plan(tuple(Stage(a, 1, 0.3) for a in accesses), 1.0, 1e-5), stream=PrivateStream(seed=6))
    asked, records = [], torch.rand(20, m)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("add_normal_", "add_rounded_normal_"):
            add = getattr(account.stream, name)
            patch.setattr(
                account.stream, name, lambda out, s, add=add: asked.append((out.numel(), pytest.approx(s))) or add(out, s)
            )
        private_split(records, torch.ones(m), settings, 100, account, torch.Generator().manual_seed(0))
    first, lloyd, final = (a.multipliers for a in accesses)
    # The units of cosines and sines, of directions, and of the records themselves.
    wave, direction, number = (
        (2 / d) ** 0.5 / 2**13,
        2.0**-13,
        clipped_sums(store_of(records), 1.5, torch.zeros(20).long(), k)[1],
    )
    assert asked == [
        (d, first["sum"] * FEATURE_NORM / wave),
        *([(d * d, first["moments"] * FEATURE_NORM**2 / (32 * wave) ** 2)] if dimensions else []),
        (k, lloyd["counts"]),
        (k * (dimensions or d), lloyd["sums"] * FEATURE_NORM / (direction if dimensions else wave)),
        (k, final["counts"]),
        (k * m, final["means"] * 1.5 / number),
    ]


SETTINGS = SplitSettings(k=4, iterations=2, features=10, dimensions=3, radius=1.5)

RECORDS = torch.rand(30, 6, generator=torch.Generator().manual_seed(1))


def whole_split(records, max_rows=1):
    """Split records; with `max_rows`, those beyond `RECORDS` are in front and belong to one person."""
    if max_rows > 1:
        persons = np.maximum(np.arange(len(records)) - (len(records) - len(RECORDS)), -1)
        records = Owned(store_of(records), persons)
    specs = SETTINGS.specs(30)
    account = Account(Plan(tuple(Stage(d.access(3.0), d.count, 0.5) for d in specs), 1.0, 1e-5, max_rows=max_rows))
    return private_split(records, torch.ones(6), SETTINGS, 30, account, torch.Generator().manual_seed(2))


def no_record_costs_a_split_more_than_its_accesses(extra=None, place=0) -> None:
    extra = torch.full((1, 6), 5.0) if extra is None else extra
    spent = overspent(whole_split, RECORDS, torch.cat([RECORDS[:place], extra, RECORDS[place:]]))
    assert len(spent) == 4
    assert max(spent) <= 1.0 + 1e-9
    assert max(overspent(whole_split, extra, RECORDS[:0])) <= 1.0 + 1e-9, "a cluster of one"


def no_person_costs_a_split_more_than_its_accesses(max_rows=3) -> None:
    """Check the worst person, whose records are all alike: they are in one cluster, and add up."""
    run = functools.partial(whole_split, max_rows=max_rows)
    spent = overspent(run, RECORDS, torch.cat([torch.full((max_rows, 6), 5.0), RECORDS]))
    assert 0.9 < max(spent) <= 1.0 + 1e-9


def what_a_split_noises_is_a_sum_over_the_records() -> None:
    parts_add_up(whole_split, RECORDS, RECORDS[:5], RECORDS[5:])


def given_the_answers_a_split_is_the_same_for_any_records() -> None:
    """Check that counts and means are the same, and that the public generator is left where it was."""

    def run(records):
        specs, generator = SETTINGS.specs(30), torch.Generator().manual_seed(2)
        account = Account(Plan(tuple(Stage(d.access(3.0), d.count, 0.5) for d in specs), 1.0, 1e-5))
        split = private_split(records, torch.ones(6), SETTINGS, 30, account, generator)
        return split.counts, split.means, generator.get_state()

    for other in (RECORDS[:0], RECORDS[:7], 0.1 * RECORDS):
        others_learn_the_same(run, RECORDS, other)
