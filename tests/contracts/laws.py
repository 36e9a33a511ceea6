"""The laws of the private pipeline, as functions: a law that is broken raises AssertionError.

The tests of each part run a law on what is shipped, over the families that belong to it. `test_broken_pipelines.py` runs
the same functions on what one changed line has broken.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import json
import math
import os
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import dp_accounting
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from contracts.door import Door, Gumbels, given_the_answers, overspent, parts_add_up
from contracts.drawn import draw_of, drawn, handed
from table_selection import Distances, TableSelection
from torch import nn

from lightning_dpgen.cli.fit import schema_of
from lightning_dpgen.cli.run_identity import fingerprint
from lightning_dpgen.clustering.features import FEATURE_NORM
from lightning_dpgen.clustering.kmeans import private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.discovery import find_bounds, find_keys
from lightning_dpgen.data.key_owners import KeyOwners
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.gradients import privatize
from lightning_dpgen.gradients.clipping import (
    Decay,
    DPNorm,
    Fixed,
    Normalised,
    PerComponent,
    PerLayer,
    Quantile,
    Schedule,
    Smoothed,
    clip_weights,
)
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.factors import Dense, OneComponent, RankOne
from lightning_dpgen.gradients.ghost import ghost_gradients
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.records import RecordGradients, materialised
from lightning_dpgen.gradients.scopes import LotNorms
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.measure.statistics import Marginals
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy import coins, mechanisms
from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE, PURE, Access, dominating_laplace
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accountant import ADD_OR_REMOVE_ONE, REPLACE_ONE, gaussian_epsilon, round_up, spent
from lightning_dpgen.privacy.calibration import StageSpec, make_plan
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError, NoiseMissing
from lightning_dpgen.privacy.lot_id import LotId
from lightning_dpgen.privacy.mechanisms import gaussian, select_keys
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.study import Study
from lightning_dpgen.projection import sensitivity
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection
from lightning_dpgen.release.certificate import make_certificate
from lightning_dpgen.sampling.lots import Lot, PoissonLots
from lightning_dpgen.sampling.stores import Store, store_of


def account_of(multipliers, *, count=1, rate=1.0, ledger=None, seed=0, max_rows=1, kinds=MappingProxyType({})):
    """An account for one stage ``training`` with the given noise multipliers (0: not private)."""
    stage = Stage(Access("training", multipliers, rate, kinds), count, share=1.0)
    return Account(Plan((stage,), target_epsilon=1.0, delta=1e-5, max_rows=max_rows), ledger, PrivateStream(seed=seed))


def deviates(values: torch.Tensor, deviation: float) -> bool:
    """A z-score at 5.5 on a mean square: of normals of that deviation, a false alarm of 4e-8."""
    values = values.double().flatten() / deviation
    return abs(float(values.square().mean()) - 1) > 5.5 * math.sqrt(2 / values.numel())


# Noise


def noise_is_multiplier_times_sensitivity(multiplier=0.8, sensitivity=3.0, dtype=torch.float32) -> None:
    with account_of({"sum": multiplier}).open("training") as access:
        noisy = gaussian(access, "sum", torch.zeros(50_000, dtype=dtype), sensitivity=sensitivity)
    assert noisy.dtype == dtype
    assert not deviates(noisy, multiplier * sensitivity)
    assert deviates(noisy, multiplier * sensitivity * math.sqrt(2))
    assert deviates(noisy, multiplier * sensitivity / math.sqrt(2))


def noise_is_that_of_all_records_of_a_person(max_rows=4) -> None:
    """Unless the sensitivity is that of a person already."""
    with account_of({"sum": 0.8, "own": 0.8}, max_rows=max_rows).open("training") as access:
        noisy = gaussian(access, "sum", torch.zeros(50_000), sensitivity=3.0)
        own = gaussian(access, "own", torch.zeros(50_000), sensitivity=3.0, of_unit=True)
    assert not deviates(noisy, 0.8 * 3.0 * max_rows) and deviates(noisy, 0.8 * 3.0)
    assert not deviates(own, 0.8 * 3.0)


MECHANISMS = {
    "gaussian": (GAUSSIAN, 1.0, lambda access: mechanisms.gaussian(access, "x", torch.zeros(4), sensitivity=3.0)),
    "noisy_histogram": (
        GAUSSIAN, 1.0, lambda access: mechanisms.noisy_histogram(access, "x", torch.arange(4), 4, sensitivity=3.0)
    ),
    "laplace": (LAPLACE, 1.0, lambda access: mechanisms.laplace(access, "x", torch.zeros(4), sensitivity=3.0)),
    "spherical": (PURE, 1.0, lambda access: mechanisms.spherical(access, "x", torch.zeros(4), sensitivity=3.0)),
    "spherical by row": (
        PURE, 1.0, lambda access: mechanisms.spherical(access, "x", torch.zeros(2, 2), sensitivity=3.0, by_row=True)
    ),
    "discrete_laplace": (
        PURE, 1.0, lambda access: mechanisms.discrete_laplace(access, "x", torch.zeros(4, dtype=torch.int64), sensitivity=3)
    ),
    "report_noisy_max": (PURE, 2.0, lambda access: mechanisms.report_noisy_max(access, "x", np.zeros(4), sensitivity=3.0)),
    "report_noisy_max of scores that only rise": (
        PURE, 1.0, lambda access: mechanisms.report_noisy_max(access, "x", np.zeros(4), sensitivity=3.0, monotonic=True)
    ),
}  # fmt: skip


def every_mechanism_is_noised_for_all_records_of_a_person() -> None:
    """The scale that the stream is asked for is multiplier times sensitivity times records, whatever the mechanism.

    Keys are counted by person already, and a number of trials has no sensitivity.
    """
    public = {name for name, found in vars(mechanisms).items() if inspect.isfunction(found) and name[0] != "_"}
    own = {name for name in public if getattr(mechanisms, name).__module__ == mechanisms.__name__}
    assert own - {"key_threshold", "number_of_trials", "select_keys"} <= MECHANISMS.keys(), "a mechanism without this law"
    for name, (kind, times, draw) in MECHANISMS.items():
        for max_rows in (1, 3):
            account, asked = account_of({"x": 0.8}, kinds={"x": kind}, max_rows=max_rows), []
            with pytest.MonkeyPatch.context() as patch, account.open("training") as access:
                for add in ("add_normal_", "add_laplace_", "add_spherical_"):
                    patch.setattr(account.stream, add, lambda values, scale, asked=asked: asked.append(scale) or values)
                patch.setattr(
                    account.stream, "discrete_laplace",
                    lambda shape, scale, asked=asked: asked.append(scale) or np.zeros(shape, np.int64),
                )  # fmt: skip
                numbers = Gumbels(lambda scores, scale, asked=asked: asked.append(scale) or scores)
                patch.setattr(account.stream, "gumbel", lambda size, numbers=numbers: numbers)
                draw(access)
            assert asked == [pytest.approx(0.8 * 3.0 * times * max_rows, rel=1e-12)], (name, max_rows)


def every_component_is_noised_alike_also_without_records(size=0) -> None:
    """Two components of 20,000 parameters; all records belong to the first, with zero gradients."""
    weight = nn.Parameter(torch.zeros(2, 20_000))
    bias = nn.Parameter(torch.zeros(2, 20_000))
    out = GradientBuffer([weight, bias])
    out.flat.fill_(9.0)  # what an earlier step left
    gradients = materialised({p: torch.zeros(size, 2, 20_000) for p in (weight, bias)})
    with account_of({"gradient": 1.3}).open("training") as access:
        bounds = privatize.privatize([(gradients, Fixed(0.7))], access, 5.0, out)
    assert bounds == [(0.7,)]
    for p in (weight, bias):
        for component in out.views[p]:
            assert not deviates(component, 1.3 * 0.7 / 5.0)
            assert deviates(component, 1.3 * 0.7 / 5.0 * math.sqrt(2))
            assert deviates(component, 1.3 * 0.7 / 5.0 / math.sqrt(2))
    parts = torch.stack([view for p in (weight, bias) for view in out.views[p]]).double()
    correlation = torch.corrcoef(parts) - torch.eye(4)
    assert correlation.abs().max() < 5.5 / math.sqrt(20_000)


def steps_have_noise_of_their_own() -> None:
    """A mean product of 20,000 pairs of normals, at 5.5 of its deviations."""
    account, noise = account_of({"sum": 1.0}, count=2), []
    for _ in range(2):
        with account.open("training") as access:
            noise.append(gaussian(access, "sum", torch.zeros(20_000), sensitivity=1.0))
    assert abs(float((noise[0] * noise[1]).mean())) < 5.5 / math.sqrt(20_000)


def no_number_of_the_stream_is_handed_out_twice(stream_of=lambda seed: PrivateStream(seed=seed)) -> None:
    """Normals of both types, in few and in many at once, on and over the sizes at which others are drawn ahead.

    In float64 two of all are alike with a chance of 1e-5. In float32 about 150 are by chance; that one number of each
    request is one of the next, too, would make 600 more.
    """
    random = np.random.default_rng(0)
    sizes = [*random.integers(0, 70, 600), *(2 ** np.arange(16)), *(2 ** np.arange(1, 15) - 1), *(2 ** np.arange(14) + 1)]
    for kinds in itertools.permutations((torch.float32, torch.float64)):
        stream, drawn = stream_of(11), {kind: [] for kind in kinds}
        for size in random.permutation(sizes).tolist():
            for kind in kinds:
                drawn[kind].append(stream.normal((size,), dtype=kind))
        single, double = (torch.cat(drawn[kind]).numpy() for kind in (torch.float32, torch.float64))
        assert len(np.unique(double)) == len(double)
        assert len(single) - len(np.unique(single)) < 300
        assert np.isin(single, double.astype(np.float32)).sum() < 1000, "numbers of one type are those of the other"


def the_split_asks_for_what_its_plan_says() -> None:
    """Each of its noises: as many numbers, and as large a deviation, as multiplier times sensitivity says."""
    for dimensions in (None, 4):
        _asks_for_what_its_plan_says(3, 10, 6, dimensions)


def _asks_for_what_its_plan_says(k: int, d: int, m: int, dimensions: int | None) -> None:
    settings = SplitSettings(k=k, iterations=1, features=d, dimensions=dimensions, radius=1.5)
    accesses = [spec.access(2.5) for spec in settings.specs(100)]
    account = Account(Plan(tuple(Stage(a, 1, 0.3) for a in accesses), 1.0, 1e-5), stream=PrivateStream(seed=6))
    asked, add = [], account.stream.add_normal_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            account.stream, "add_normal_", lambda out, s: asked.append((out.numel(), pytest.approx(s))) or add(out, s)
        )
        private_split(torch.rand(20, m), torch.ones(m), settings, 100, account, torch.Generator().manual_seed(0))
    first, lloyd, final = (a.multipliers for a in accesses)
    assert asked == [
        (d, first["sum"] * FEATURE_NORM),
        *([(d * d, first["moments"] * FEATURE_NORM**2)] if dimensions else []),
        (k, lloyd["counts"]),
        (k * (dimensions or d), lloyd["sums"] * FEATURE_NORM),
        (k, final["counts"]),
        (k * m, final["means"] * 1.5),
    ]


def no_seed_reaches_the_private_stream() -> None:
    draws, lots = [], []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        draws.append(PrivateStream().normal((8,)))
        lots.append(PrivateStream().poisson_sample(1000, 0.5).tolist())
    assert not torch.equal(*draws) and lots[0] != lots[1]
    assert not torch.equal(PrivateStream().normal((8,)), PrivateStream().normal((8,)))


def the_key_of_a_gpu_is_the_operating_systems() -> None:
    """On a device that only pretends: two keys of 64 bits, whatever seeds say; both below 2^48 has a chance of 2^-32."""
    keys, make = [], torch.Generator

    class Generator:
        def __init__(self, device=None):
            pass

        def manual_seed(self, key):
            keys.append(key)
            return make()

    with pytest.MonkeyPatch.context() as patch:
        for _ in range(2):
            torch.manual_seed(0)
            stream = PrivateStream()
            patch.setattr(torch, "Generator", Generator)
            stream._words(4, torch.device("meta"))
            patch.undo()
    assert len(set(keys)) == 2 and max(keys) >= 2**48


# What one record can change


RULES = {
    "fixed": Fixed(0.5),
    "dpnorm": DPNorm(c_max=2.0, bins=10, share=0.2),
    "decay": Decay(0.5, factor=0.5, least=0.25),
    "schedule": Schedule(lambda lot: 0.5 / (1 + lot)),
    "quantile": Quantile(0.5, expected_batch_size=5.0, share=0.2),
    "normalised": Normalised(0.5),
    "smoothed": Smoothed(DPNorm(c_max=2.0, bins=10, share=0.2), keep=0.8),
}


def bound_of(rule, access, norms: torch.Tensor, before: float | None = None) -> float:
    """The one bound that a rule chooses for whole gradients."""
    return rule.bounds(access, LotNorms((norms,)), None if before is None else (before,))[0]


ROWS = torch.randn(9, 3, 4, generator=torch.Generator().manual_seed(0))


def step_of(rule):
    """A step of the optimizer from 0 on the gradients that it is handed; gives the new weights and the bound."""

    def run(gradients):
        weight = nn.Parameter(torch.zeros(3, 4))
        account = account_of({**dict.fromkeys(rule.noise_shares, 4.0), "gradient": 1.0})
        optimizer = PrivateOptimizer(
            torch.optim.SGD([weight], lr=1.0), account=account, clipping=rule, expected_batch_size=5.0
        )
        optimizer.set_gradients(handed(account, {weight: gradients}))
        optimizer.step()
        return weight.detach(), optimizer.last_bound

    return run


def no_record_costs_more_than_the_access(rule=RULES["fixed"], extra=None, place=0) -> None:
    extra = 100 * ROWS[:1] if extra is None else extra
    more = torch.cat([ROWS[:place], extra, ROWS[place:]])
    assert max(overspent(step_of(rule), ROWS, more)) <= 1.0
    # The first record of a lot of none, and the last that leaves.
    assert max(overspent(step_of(rule), extra, ROWS[:0])) <= 1.0


def a_large_record_costs_all_that_was_paid(rule=RULES["fixed"]) -> None:
    """The bound is met, so that noise for half of it would be noticed."""
    assert max(overspent(step_of(rule), ROWS, torch.cat([100 * ROWS[:1], ROWS]))) > 0.999


def step_with(rules, multiplier=1.0):
    """A step of the optimizer on the gradients that `make(weights)` gives from what it is handed, one a rule."""

    def of(make):
        def run(data):
            weights = [nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(3, 2))]
            noises = {name: multiplier for rule in rules for name in rule.noise_shares} | {"gradient": multiplier}
            account = account_of(noises)
            optimizer = PrivateOptimizer(
                torch.optim.SGD(weights, lr=1.0), account=account, clipping=rules, expected_batch_size=5.0
            )
            terms = make(weights, data)
            draw = draw_of(account, max(len(own) for own in terms))
            for own in terms:
                own.draw = draw
            optimizer.set_gradients(*terms)
            optimizer.step()
            return torch.cat([w.detach().flatten() for w in weights]), optimizer.last_bound

        return run

    return of


def _two_layers(rows: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of two layers from one tensor a record."""
    return [rows, 0.3 * rows[:, :, :2]]


def _grouped(weights, data):
    rows, index = data
    groups = Groups(index, 3)
    forms = {p: Dense(g) for p, g in zip(weights, _two_layers(rows), strict=True)}
    return [RecordGradients(forms, [[p] for p in weights], 3, groups=3, partition=groups)]


def no_record_costs_its_group_more_than_the_access(rule=RULES["dpnorm"]) -> None:
    """Records that turn their group's gradient round, or bring it from one bin to another; the first of a group."""
    index = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 0])
    run = step_with([rule])(_grouped)
    longest = 0.0
    for rows in (ROWS, 0.01 * ROWS):
        for extra in (-100 * ROWS[[1, 4, 7]].sum(dim=0, keepdim=True), 100 * ROWS[:1], -0.3 * ROWS[:1]):
            for group in range(3):
                more = torch.cat([rows, extra]), torch.cat([index, torch.tensor([group])])
                longest = max([longest, *overspent(run, (rows, index), more)])
    assert longest <= 1.0
    alone = overspent(run, (ROWS[:1], index[:1]), (ROWS[:0], index[:0]))
    assert max(alone) <= 1.0


def no_record_costs_layers_more_than_the_access(rule=RULES["fixed"]) -> None:
    run = step_with([PerLayer(rule)])(
        lambda weights, rows: [materialised(dict(zip(weights, _two_layers(rows), strict=True)))]
    )
    for extra in (100 * ROWS[:1], 0.01 * ROWS[:1]):
        assert max(overspent(run, ROWS, torch.cat([extra, ROWS]))) <= 1.0


def no_record_costs_a_mixture_more_than_the_access(rule=RULES["fixed"]) -> None:
    """Three components, of which the first has long gradients and the last short ones."""
    sizes = torch.tensor([2.0, 0.5, 0.02])

    def gradients(weights, counts):
        offsets = [0, *itertools.accumulate(counts)]
        rows = torch.cat([100 * s * ROWS[:1].expand(n, -1, -1)[:, 0] for s, n in zip(sizes, counts, strict=True)])
        forms = {p: OneComponent(Dense(rows[:, : p.shape[1]].clone()), offsets) for p in weights}
        return [RecordGradients(forms, [[p] for p in weights], offsets[-1], offsets=offsets)]

    run = step_with([PerComponent(rule)])(gradients)
    for more in ((4, 3, 2), (3, 4, 2), (3, 3, 3)):
        assert max(overspent(run, (3, 3, 2), more)) <= 1.0
    assert max(overspent(run, (0, 0, 0), (0, 0, 1))) <= 1.0


def no_record_costs_several_terms_more_than_the_access() -> None:
    """One term of records and one of groups, moved in one direction."""
    rules = [Fixed(0.5), Fixed(0.2)]

    def gradients(weights, data):
        return [materialised(dict(zip(weights, _two_layers(data[0]), strict=True))), *_grouped(weights, data)]

    index = torch.zeros(9, dtype=torch.long)
    spent = overspent(step_with(rules)(gradients), (ROWS, index), (torch.cat([ROWS, 100 * ROWS[:1]]), F.pad(index, (0, 1))))
    assert max(spent) <= 1.0
    rows, index = -100 * ROWS[:1], index[:1]
    turned = overspent(
        step_with(rules)(gradients), (rows, index), (torch.cat([rows, 1e4 * ROWS[:1]]), F.pad(index, (0, 1)))
    )
    assert 0.99 < max(turned) <= 1.0, "both terms move as far as they may"


def the_norm_of_a_group_is_its_own(sizes=(1, 2, 20, 64, 65)) -> None:
    """One more record in a group, whose own gradient is zero, changes what no other group's gradient is multiplied by."""
    generator = torch.Generator().manual_seed(0)
    for o, n in ((3, 4), (40, 30), (300, 200), (5000, 2)):
        weight = nn.Parameter(torch.zeros(o, n))
        for size in sizes:
            index = torch.arange(4).repeat_interleave(size)
            # Products that nearly cancel, where slack weighs most.
            left = torch.randn(len(index), o, generator=generator) * (1.0 - 2.0 * (torch.arange(len(index)) % 2))[:, None]
            right = 1.0 + 0.1 * torch.randn(len(index), n, generator=generator)
            norms = []
            for more in (0, 1):
                own = Groups(torch.cat([index, index[:more]]), 4)
                form = RankOne(torch.cat([left, 0.0 * left[:more]]), torch.cat([right, right[:more]]), (o, n))
                norms.append(RecordGradients({weight: form}, [[weight]], 4, groups=4, partition=own).norms()[1:])
            torch.testing.assert_close(*norms, rtol=1e-6, atol=0.0)


def groups_are_independent_of_who_else_is_there() -> None:
    """Of 6,000 records in 3 groups: neighbours share a group as often as chance has it, at 5.5 of its deviations."""
    layer, seen = nn.Linear(1, 1), []
    term = PerGroup(None, 3, forms=lambda lot, _, groups: seen.append(groups.index) or ({}, lambda: torch.zeros(3)))
    term_gradients(layer, term, Lot(torch.ones(6000, 1), (0, 6000)), PrivateStream(seed=1))
    index = seen[-1]
    for distance in (1, 2, 3):
        same = float((index[distance:] == index[:-distance]).double().mean())
        assert abs(same - 1 / 3) < 5.5 * math.sqrt(2 / 9 / 6000)


@dataclass(frozen=True, eq=False)
class Owned(Store):
    """Records of persons."""

    store: Store
    persons: np.ndarray

    def __len__(self) -> int:
        return len(self.store)

    def take(self, positions):
        return self.store.take(positions)


SETTINGS = SplitSettings(k=4, iterations=2, features=10, dimensions=3, radius=1.5)
RECORDS = torch.rand(30, 6, generator=torch.Generator().manual_seed(1))


def whole_split(records, max_rows=1):
    """With `max_rows`, records beyond `RECORDS` are in front, and one person's."""
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
    """A person whose records are all alike is the worst: they are in one cluster, and add up."""
    run = functools.partial(whole_split, max_rows=max_rows)
    spent = overspent(run, RECORDS, torch.cat([torch.full((max_rows, 6), 5.0), RECORDS]))
    assert 0.9 < max(spent) <= 1.0 + 1e-9


def what_a_lot_noises_is_a_sum_over_its_records(rule=RULES["fixed"]) -> None:
    """Given the answers so far, each record adds its own, whoever else is there: two parts of a lot add up to it."""
    parts_add_up(step_of(rule), ROWS, ROWS[:3], ROWS[3:])


def step_given_an_embedding(rows):
    """A step whose gradients lean towards the noisy mean of what records are embedded as, as those of a divergence do."""
    weight = nn.Parameter(torch.zeros(rows.shape[1]))
    account = account_of({"embedding": 1.0, "gradient": 1.0})
    lot = PoissonLots(rows, account).draw()
    optimizer = PrivateOptimizer(
        torch.optim.SGD([weight], lr=1.0),
        account=account,
        clipping=Fixed(0.5),
        expected_batch_size=5.0,
        embeddings=["embedding"],
    )
    (embedded,), seen = lot.tensors, []

    def then(mean):
        seen.append(mean.clone())
        return materialised({weight: 10 * embedded * mean}, lot.draw)

    optimizer.set_gradients(EmbeddingGradients(embedded, then, [weight], lot.draw))
    optimizer.step()
    return seen[0], weight.detach()


def what_a_lot_with_an_embedding_noises_is_a_sum_over_its_records() -> None:
    rows = torch.cat([ROWS[:, 0], 0.1 * ROWS[:, 1]])
    parts_add_up(step_given_an_embedding, rows, rows[:4], rows[4:])


def given_the_answers_a_mean_embedding_is_the_same_for_any_lot() -> None:
    rows = ROWS[:, 0]
    for other in (rows[:0], rows[:2], 3 * ROWS.flatten(0, 1)):
        _others_learn_the_same(step_given_an_embedding, rows, other)


def what_a_split_noises_is_a_sum_over_the_records() -> None:
    parts_add_up(whole_split, RECORDS, RECORDS[:5], RECORDS[5:])


def _others_learn_the_same(run, first, second) -> None:
    for a, b in zip(*given_the_answers(run, first, second), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def given_the_answers_a_step_is_the_same_for_any_lot(rule=RULES["dpnorm"]) -> None:
    """Weights and bound are functions of what the mechanisms answered, and of nothing else."""
    for other in (ROWS[:0], 0.01 * ROWS, torch.cat([ROWS, 3 * ROWS])):
        _others_learn_the_same(step_of(rule), ROWS, other)


def given_the_answers_a_split_is_the_same_for_any_records() -> None:
    """Counts and means likewise, and the public generator is left where it was."""

    def run(records):
        specs, generator = SETTINGS.specs(30), torch.Generator().manual_seed(2)
        account = Account(Plan(tuple(Stage(d.access(3.0), d.count, 0.5) for d in specs), 1.0, 1e-5))
        split = private_split(records, torch.ones(6), SETTINGS, 30, account, generator)
        return split.counts, split.means, generator.get_state()

    for other in (RECORDS[:0], RECORDS[:7], 0.1 * RECORDS):
        _others_learn_the_same(run, RECORDS, other)


def the_histogram_counts_each_finite_record_once(norms=(0.3, math.nan, math.inf, 9.0, 0.0)) -> None:
    rule = DPNorm(c_max=2.0, bins=8)
    with Door() as door, account_of({"norms": 1.0, "gradient": 1.0}).open("training") as access:
        bound_of(rule, access, torch.tensor(norms))
        assert set(access._left) == {"gradient"}, "a rule draws exactly the noises that it lists"
        access.consume("gradient")
    assert len(door.walk) == 1
    histogram = door.walk[0].exact  # over its deviation of 1 it is the histogram itself
    assert histogram.shape == (8,) and (histogram >= 0).all()
    assert histogram.sum() == sum(math.isfinite(n) for n in norms)


# Records side by side


def setting(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    network = StackedVAE(ImageSchema(3, 3, levels=1), 3, hidden=6, latent=2, generator=generator).to(dtype)
    records = torch.rand(7, 9, generator=generator, dtype=dtype)
    noise = torch.randn(7, 2, generator=generator, dtype=dtype)
    return network, Lot(records, (0, 3, 3, 7)), noise


def with_front(lot, noise, extra):
    records = torch.cat([extra.expand(1, lot.records.shape[1]).to(lot.records.dtype), lot.records])
    return Lot(records, (0, *(o + 1 for o in lot.offsets[1:]))), torch.cat([noise[:1] * 3, noise])


class Coupled:
    """In place of the private stream: a record's numbers are its own, counted from the end, wherever it stands."""

    def __init__(self, noise):
        self.noise = noise

    def normal(self, shape, *, dtype=torch.float32, device=None):
        assert shape[1] == self.noise.shape[1] and shape[0] <= len(self.noise)
        return self.noise[len(self.noise) - shape[0] :].to(dtype)

    def words(self, size):
        return np.arange(1, size + 1, dtype=np.uint64) << np.uint64(33)


def contributions(engine, network, term, lot, noise):
    """Losses, norms and the single gradient of each record, as the weighted sum that picks it out."""
    gradients = term_gradients(network, term, lot, Coupled(noise), engine=engine)
    losses = gradients.losses
    each = []
    for i in range(len(lot)):
        buffer = GradientBuffer(network.parameters())
        gradients.weighted_sum(torch.eye(len(lot), dtype=buffer.flat.dtype)[i], buffer.views)
        each.append(buffer.flat)
    return losses, gradients.norms(), torch.stack(each)


def a_record_in_front_changes_nobody_else(engine="ghost", dtype=torch.float64, tolerance=1e-12, extra=None) -> None:
    """Not bit for bit: matrix products choose their blocks by the number of rows, so a row's last bits may depend on
    how many others there are. Norms are float32 whatever the network is. The public stream starts alike for both, and is
    not consumed."""
    network, lot, noise = setting(dtype)
    extra = torch.ones(1) if extra is None else extra
    state = torch.manual_seed(0).get_state()
    before = contributions(engine, network, network.term, lot, noise)
    assert torch.equal(torch.get_rng_state(), state)
    after = contributions(engine, network, network.term, *with_front(lot, noise, extra))
    assert torch.equal(torch.get_rng_state(), state)
    for a, b, close in zip(before, after, (tolerance, 1e-5, tolerance), strict=True):
        torch.testing.assert_close(b[1:], a, rtol=close, atol=close)


def a_record_that_is_not_finite_adds_exact_zeros(engine="ghost", bad=math.nan) -> None:
    network, lot, noise = setting()
    spoiled = Lot(lot.records.clone(), lot.offsets)
    spoiled.records[2] = bad
    sums = []
    for records in (lot, spoiled):
        gradients = ENGINES[engine](network, network.term, records, noise)
        weights = clip_weights(gradients.norms(), 1.0)
        weights[2] = 0.0
        buffer = GradientBuffer(network.parameters())
        gradients.weighted_sum(weights, buffer.views)
        sums.append(buffer.flat)
    assert torch.equal(*sums)
    assert clip_weights(ENGINES[engine](network, network.term, spoiled, noise).norms(), 1.0)[2] == 0.0


def a_norm_is_that_of_what_the_record_adds(engine="ghost", dtype=torch.float64) -> None:
    network, lot, noise = setting(dtype)
    _, norms, each = contributions(engine, network, network.term, lot, noise)
    torch.testing.assert_close(norms, each.double().norm(dim=1), rtol=1e-5, atol=1e-7)


def network_of_two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def without_privacy_it_is_descent_on_the_sum_over_the_expected_lot(rule=RULES["fixed"], inner=torch.optim.SGD) -> None:
    """A plan from `make_plan(epsilon=math.inf)`: not private, so neither noise nor bound, whatever the rule says."""
    spec = StageSpec("training", {"gradient": 0.95, **rule.noise_shares}, 4, max_noise=10)
    account = Account(make_plan([spec], epsilon=math.inf, delta=1e-5))
    private, plain = network_of_two_layers(), network_of_two_layers()
    optimizer = PrivateOptimizer(
        inner(private.parameters(), lr=0.05), account=account, clipping=rule, expected_batch_size=4.0
    )
    twin = inner(plain.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    for size in (5, 0, 3, 7):  # Poisson lots vary; the divisor does not
        records = torch.rand(size, 3, generator=generator)
        term = PerRecord(lambda lot, _: private(lot.records).square().sum(dim=1))
        optimizer.set_gradients(ghost_gradients(private, term, drawn(account, records), torch.empty(size, 0)))
        optimizer.step()
        twin.zero_grad()
        (plain(records).square().sum() / 4.0).backward()
        twin.step()
        assert optimizer.last_bound == math.inf
    for a, b in zip(private.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    account.verify_complete()
    assert len(account.ledger.accesses) == 1 and account.plan.epsilon == math.inf


# Lots


def lots_of(rate, clusters, k=5, seed=0, kept=lambda records: records):
    """Lots of records (N, 1) that hold their own number; `kept` puts them where they are to be kept."""
    records = torch.arange(len(clusters), dtype=torch.float32)[:, None]
    return PoissonLots(kept(records), account_of({"gradient": 1.0}, rate=rate, seed=seed), clusters=clusters, k=k)


def numbers_in(lot) -> torch.Tensor:
    """The numbers of a lot's records, from the first column where there are several."""
    return lot.tensors[0][:, 0].long()


CLUSTERS = torch.tensor([2, 0, 2, 2, 4, 0, 4, 4, 4, 2])  # components 1 and 3 have no record


def inclusion_is_independent_with_the_public_rate(stream=None, kept=lambda records: records, draws=20_000) -> None:
    """10 records and 45 pairs over 20,000 lots, each within 5.5 standard deviations: a false alarm of 2e-6."""
    rate, lots = 0.3, lots_of(0.3, CLUSTERS, seed=8, kept=kept)
    lots._account.stream = stream or lots._account.stream
    taken = np.zeros((draws, 10))
    for row in taken:
        row[numbers_in(lots.draw()).numpy()] = 1

    def off(share, expected):
        return np.abs(share - expected) > 5.5 * math.sqrt(expected * (1 - expected) / draws)

    pairs = (taken.T @ taken)[np.triu_indices(10, 1)] / draws
    assert not off(taken.mean(axis=0), rate).any() and not off(pairs, rate**2).any()
    assert off(taken.mean(axis=0), rate * math.sqrt(2)).all()
    # Lots of exactly three records have the same inclusion but other pairs: 3 * 2 / (10 * 9) = 0.0667.
    assert off(np.full(45, 6 / 90), rate**2).all()


# Whose the ten records are.
PERSONS = np.array([3, 1, 3, 1, 7, 8, 3, 8, 9, 9])


def a_person_is_in_a_lot_with_all_records_or_none(draws=4_000) -> None:
    """Five persons in 4,000 lots, and ten pairs of them, each within 5.5 standard deviations: a false alarm of 4e-7."""
    rate, records = 0.3, torch.arange(10, dtype=torch.float32)[:, None]
    account = account_of({"gradient": 1.0}, rate=rate, max_rows=3)
    lots = PoissonLots(records, account, clusters=CLUSTERS, k=5, persons=PERSONS)
    names, taken = np.unique(PERSONS), np.zeros((draws, 5))
    for row in taken:
        lot = lots.draw()
        numbers = numbers_in(lot).numpy()
        there = np.unique(PERSONS[numbers])
        assert len(numbers) == lot.draw.size == np.isin(PERSONS, there).sum()
        for c in range(5):
            assert (CLUSTERS[numbers[lot.offsets[c] : lot.offsets[c + 1]]] == c).all()
        row[np.isin(names, there)] = 1
    shares, pairs = taken.mean(axis=0), (taken.T @ taken)[np.triu_indices(5, 1)] / draws
    for share, expected in ((shares, rate), (pairs, rate**2)):
        assert (np.abs(share - expected) < 5.5 * math.sqrt(expected * (1 - expected) / draws)).all()


def the_rate_is_the_plans_however_many_records_there_are() -> None:
    """Total size of 300 lots, a binomial number, within 5.5 standard deviations; and what the lots say of themselves."""
    rate, draws = 0.2, 300
    for n in (2, 40, 700):
        lots = lots_of(rate, torch.zeros(n, dtype=torch.long), k=1, seed=n)
        sizes = [(len(lot), lot.draw.size) for lot in (lots.draw() for _ in range(draws))]
        assert all(own == said for own, said in sizes)
        total = sum(own for own, _ in sizes)
        assert abs(total - draws * n * rate) < 5.5 * math.sqrt(draws * n * rate * (1 - rate))


# Accesses and the ledger


def the_line_is_on_disk_before_the_noise_is_drawn() -> None:
    """Written, flushed and synced: at each draw the last fsync saw the whole file, with the line of this access."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "ledger.jsonl"
        account = account_of({"sum": 2.0}, ledger=path)
        seen, synced, fsync = [], [], os.fsync

        def noted(file):
            fsync(file)
            if os.path.samestat(os.fstat(file), path.stat()):
                synced.append(path.read_text())

        patch.setattr(os, "fsync", noted)

        class Stream:
            def add_normal_(self, out, deviation):
                seen.append((path.read_text(), synced[-1:]))
                return out

        account.stream = Stream()
        with account.open("training") as access:
            gaussian(access, "sum", torch.zeros(2), sensitivity=1.0)
        account.ledger.close()
        ((text, synced_text),) = seen
        assert synced_text == [text]
        lines = [json.loads(line) for line in text.splitlines()]
        assert len(lines) == 2, "the line of this access is not there yet"
        assert (
            lines[1]["stage"] == "training" and lines[1]["multipliers"] == {"sum": 2.0} and lines[1]["sample_rate"] == 1.0
        )


def each_noise_is_drawn_once_and_only_while_open() -> None:
    account = account_of({"a": 1.0, "b": 1.0}, count=3)
    with account.open("training") as access:
        gaussian(access, "a", torch.zeros(1), sensitivity=1.0)
        with pytest.raises(LedgerError, match="drawn already"):
            gaussian(access, "a", torch.zeros(1), sensitivity=1.0)
        with pytest.raises(LedgerError, match="not listed"):
            gaussian(access, "c", torch.zeros(1), sensitivity=1.0)
        gaussian(access, "b", torch.zeros(1), sensitivity=1.0)
    with pytest.raises(LedgerError, match="closed"):
        gaussian(access, "b", torch.zeros(1), sensitivity=1.0)
    with pytest.raises(LedgerError, match="never drawn"), account.open("training"):
        pass


def a_step_is_one_access() -> None:
    weight, account = nn.Parameter(torch.zeros(4)), account_of({"gradient": 1.0}, count=6)
    optimizer = PrivateOptimizer(
        torch.optim.SGD([weight], lr=1.0), account=account, clipping=Fixed(1.0), expected_batch_size=4.0
    )
    for steps, size in enumerate((3, 0, 5), start=1):
        optimizer.set_gradients(handed(account, {weight: torch.ones(size, 4)}))
        optimizer.step()
        assert account.ledger.count("training") == steps


def a_lot_is_spent_once(again="the same lot") -> None:
    network, account = network_of_two_layers(), account_of({"gradient": 1.0}, count=5)
    optimizer, other = (
        PrivateOptimizer(
            torch.optim.SGD(network.parameters(), lr=1.0), account=account, clipping=Fixed(1.0), expected_batch_size=4.0
        )
        for _ in range(2)
    )
    term, lot = PerRecord(lambda lot, _: network(lot.records).sum(dim=1)), drawn(account, torch.rand(3, 3))
    gradients = ghost_gradients(network, term, lot, torch.empty(3, 0))
    optimizer.set_gradients(gradients)
    optimizer.step()
    if again != "the same gradients":
        gradients = ghost_gradients(network, term, lot.to("cpu"), torch.empty(3, 0))
    second = other if again == "another optimizer" else optimizer
    second.set_gradients(gradients)
    with pytest.raises(LedgerError, match="draw a new lot"):
        second.step()
    assert account.ledger.count("training") == 1


def _two_stages() -> Account:
    plan = Plan(tuple(Stage(Access(name, {"gradient": 1.0}), 5, 0.5) for name in ("training", "tuning")), 50.0, 1e-5)
    return Account(plan)


def a_lot_that_was_not_drawn_is_refused() -> None:
    """By hand, copied, with another account, or for another stage: in one piece and in parts, and nothing is charged."""
    account = _two_stages()
    made = {
        "forged": LotId("training", 3),
        "by hand": Lot(torch.rand(3, 4), (0, 3)).draw,
        "a copy": copy.copy(draw_of(account, 3)),
        "with another account": draw_of(_two_stages(), 3),
        "for another stage": draw_of(account, 3, stage="tuning"),
    }
    for draw in made.values():
        for parts in (False, True):
            weight = nn.Parameter(torch.zeros(4))
            optimizer = PrivateOptimizer(
                torch.optim.SGD([weight], lr=1.0), account=account, clipping=Fixed(1.0), expected_batch_size=4.0
            )
            optimizer.signal_skip_step(do_skip=parts)
            optimizer.set_gradients(materialised({weight: torch.ones(3, 4)}, draw))
            with pytest.raises(LedgerError, match=r"poisson_loader\(records, account, stage='training'\)"):
                optimizer.step()
            assert not account.ledger.accesses and not weight.any()


def a_sampled_access_needs_a_lot() -> None:
    account = account_of({"gradient": 1.0}, rate=0.5)
    with pytest.raises(LedgerError, match="were not drawn at all"), account.open("training"):
        pass
    assert not account.ledger.accesses
    lot = PoissonLots(torch.zeros(9, 1), account).draw()
    with account.open("training", draw=lot.draw) as access:
        gaussian(access, "gradient", lot.records.sum(dim=0), sensitivity=1.0)
    account.verify_complete()


def a_step_takes_no_more_records_than_were_drawn(rate=1.0) -> None:
    """In one piece, over several parts together, and as a lot: a record that is there twice would add twice its bound.

    Three are drawn, at a rate below 1 from among more of them.
    """
    for sizes in ([4], [2, 2], [3, 1], [0, 4]):
        for way in ("set_gradients", "grad_sample"):
            weight, account = nn.Parameter(torch.zeros(4)), account_of({"gradient": 1.0}, rate=rate)
            optimizer = PrivateOptimizer(
                torch.optim.SGD([weight], lr=1.0), account=account, clipping=Fixed(1.0), expected_batch_size=4.0
            )
            lots = (drawn(account, torch.zeros(round(3 / rate), 1)) for _ in range(100))
            draw = next(lot.draw for lot in lots if len(lot) == 3)
            optimizer.expect(draw)
            with pytest.raises(RuntimeError, match=r"more records than their lot(.|\n)*Nothing was charged"):
                for i, size in enumerate(sizes, start=1):
                    optimizer.signal_skip_step(do_skip=i < len(sizes))
                    weight.grad_sample = torch.ones(size, 4)
                    if way == "set_gradients":
                        optimizer.set_gradients(materialised({weight: torch.ones(size, 4)}, draw))
                    optimizer.step()
            assert not account.ledger.accesses and not weight.any()
    with pytest.raises(ValueError, match="more records than were drawn"):
        Lot(torch.zeros(4, 1), (0, 4), draw)


def a_sample_has_each_record_at_its_own_place(rate=0.5) -> None:
    """At a rate of one digit, at which a coin takes one byte: heads are where bytes are below it, whatever the blocks."""
    (digit,) = coins.digits(Fraction(rate))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coins, "_AT_ONCE", 7)
        for population in range(41):
            random, given = np.random.default_rng(population), [np.empty(0, np.uint8)]

            def octets(size, random=random, given=given):
                given.append(random.integers(0, 256, size, np.uint8))
                return given[-1]

            found = coins.poisson_sample(octets, population, rate)
            below = np.concatenate(given) < digit
            assert len(below) == population and found.tolist() == np.flatnonzero(below).tolist()


def records_that_differ_in_a_byte_are_others(largest=3 << 20) -> None:
    """In their first, middle or last one, in one array of several, of any size; and so are the same bytes otherwise cut."""
    key = "ab" * 16
    for size in (1, (1 << 20) - 1, (1 << 20) + 1, largest):
        array, small = np.zeros(size, np.uint8), np.zeros(3, np.uint8)
        before, second = fingerprint([array], key), fingerprint([small, array], key)
        assert before == fingerprint([array.copy()], key) != fingerprint([array], "cd" * 16)
        for place in {0, size // 2, size - 1}:
            array[place] = 1
            assert fingerprint([array], key) != before and fingerprint([small, array], key) != second
            array[place] = 0
        assert len({before, second, fingerprint([array, small], key), fingerprint([array[:, None]], key)}) == 4
        assert fingerprint([array.view(np.int8)], key) != before


def each_noise_of_an_access_is_counted() -> None:
    """Also beside one that is equal. At delta 0 epsilons add up; above it, what is not Gaussian is an event of its own."""
    random = np.random.default_rng(0)
    for _ in range(100):
        several = random.choice([0.3, 1.0, 1.7, 4.0], int(random.integers(1, 7))).tolist()
        multipliers = {f"noise {place}": multiplier for place, multiplier in enumerate(several)}
        kinds = {name: str(random.choice([LAPLACE, PURE])) for name in multipliers}
        access = Access("s", multipliers, kinds=kinds)
        exact = access.event_at(pure=True)
        assert spent(exact, 0.0).epsilon == pytest.approx(math.fsum(1.0 / m for m in several), rel=1e-12)
        dominated = [dominating_laplace(1.0 / m) if kinds[name] == PURE else m for name, m in multipliers.items()]
        for event, counted in ((exact, several), (access.event, dominated)):
            found = [one.noise_multiplier for one in getattr(event, "events", [event])]
            assert sorted(found) == sorted(counted)


def a_rehearsal_notices_noise_of_another_size() -> None:
    """On all parameters alike: of 20,000 numbers each, a tenth more or less is noticed but for a chance of 1e-25."""
    for times in (0.0, 0.5, 0.9, 1.0, 1.1, 2.0):
        account = account_of({"gradient": 1.3})
        weights = [nn.Parameter(torch.zeros(100, 200)), nn.Parameter(torch.zeros(20_000))]
        optimizer = PrivateOptimizer(
            torch.optim.SGD(weights, lr=1.0), account=account, clipping=Fixed(0.7), expected_batch_size=5.0
        )
        add = account.stream.add_normal_
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(account.stream, "add_normal_", lambda out, s, add=add, times=times: add(out, times * s))
            with nullcontext() if times == 1.0 else pytest.raises(NoiseMissing, match="times the planned size"):
                optimizer.rehearse()
        assert not account.ledger.accesses and not any(w.any() for w in weights)


def stopping_early_does_not_lower_what_is_certified() -> None:
    """One access of two, of which each would pay for itself: account and certificate still say what both cost."""
    plan = Plan((Stage(Access("training", {"sum": 5.0}), 2, 1.0),), target_epsilon=1.0, delta=1e-5)
    account = Account(plan)
    with account.open("training") as access:
        gaussian(access, "sum", torch.zeros(2), sensitivity=1.0)
    assert account.certified()[1].epsilon == plan.epsilon
    with tempfile.TemporaryDirectory() as folder:
        certificate = make_certificate(account, unit="one row", declared={"n": 9}, released=[], folder=Path(folder))
    assert certificate["epsilon"] == round_up(plan.epsilon)


# Studies


def _run(study, multiplier, relation) -> None:
    """A run of one Gaussian, entered by its account when it draws."""
    plan = Plan((Stage(Access("sum", {"sum": multiplier}), 1, 1.0),), 9.0, 1e-7, relation=relation)
    with Account(plan, study=study).open("sum") as access:
        gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)


def a_study_tells_no_less_than_its_runs_cost_together() -> None:
    """Of Gaussians, of which the exact cost has a closed form: mu is 1 / m for a record added or removed, 2 / m for one
    replaced, and the squares of all runs add up. A study that begins with a run under replace-one is under it."""
    one, both = ADD_OR_REMOVE_ONE, REPLACE_ONE
    for runs in ([(4, one)], [(4, one), (5, one)], [(6, both)], [(9, both), (9, both)], [(8, both), (9, one), (12, one)]):
        with tempfile.TemporaryDirectory() as folder:
            study = Study(Path(folder) / "s.jsonl", epsilon=9.0, delta=1e-6)
            for multiplier, relation in runs:
                _run(study, multiplier, relation)
            total, replaced = study.total, any(relation == both for _, relation in runs)
            mu = (2.0 if replaced else 1.0) * math.sqrt(sum(multiplier**-2 for multiplier, _ in runs))
            assert (total.relation, total.runs) == (both if replaced else one, len(runs))
            assert total.epsilon >= gaussian_epsilon(mu, 1e-6)


def what_a_study_states_at_its_orders_fails_with_its_delta() -> None:
    """Which Renyi order is the best may follow from results, so each needs a part of delta of its own (a union bound).

    A Gaussian's moment of order a is a x, with x = 1 / (2 m^2). What a study states of Gaussians is the lower envelope of
    lines a x + c: the slope says the order, and c the part of delta that it was given, by the conversion of Canonne, Kamath
    and Steinke 2020. Together these parts are at most delta.
    """
    with tempfile.TemporaryDirectory() as folder:
        # A large total lets all orders be seen.
        for epsilon, delta in ((5.0, 1e-6), (30.0, 1e-5)):
            study = Study(Path(folder) / f"{epsilon}.jsonl", epsilon=epsilon, delta=delta)

            def stated(x, study=study):
                return study.check(dp_accounting.GaussianDpEvent((2.0 * x) ** -0.5)).epsilon

            parts = {}
            for x in np.geomspace(1e-7, 100.0, 200):
                try:
                    here, order = stated(x), (stated(1.001 * x) - stated(x)) / (0.001 * x)
                except BudgetTooSmall:
                    break
                if abs(order - round(order)) < 1e-3:
                    a = round(order)
                    left = here - a * x - math.log1p(-1.0 / a)
                    parts[a] = math.exp(-(a - 1) * left - math.log(a))
            assert len(parts) > 10 and sum(parts.values()) <= delta


# Keys and bounds


def discovery_account(multiplier=1.5, delta=0.02, *, seed=5, ledger=None):
    """An account for one access that buys keys and bounds (multiplier 0: not private)."""
    noises = {"keys": multiplier, "bounds": multiplier} if multiplier else {"keys": 0.0, "bounds": 0.0}
    stage = Stage(Access("discovery", noises, deltas={"keys": delta}), 1, share=1.0)
    return Account(Plan((stage,), target_epsilon=1.0, delta=0.1), ledger, PrivateStream(seed=seed))


def keys_of_one_record_are_seen_with_its_delta(most=3, draws=6_500) -> None:
    """Within 5.5 standard deviations of a share of delta: a false alarm of 4e-8."""
    delta, seen, keys = 0.06, 0, np.arange(most)
    with discovery_account(delta=delta).open("discovery") as access:
        access.consume("bounds")
        for _ in range(draws):
            access._left["keys"] = 1.5  # the law of one draw, many times over
            seen += len(select_keys(access, "keys", keys, np.ones(most, int), most=most)[0]) > 0

    def off(expected):
        return abs(seen / draws - expected) > 5.5 * math.sqrt(expected * (1 - expected) / draws)

    assert not off(delta)
    assert off(delta * math.sqrt(2)) and off(delta / math.sqrt(2))


def _found(data, most=3):
    """Entries (owner, key) and values of owners, through one access."""
    entries, values = np.asarray(data[0]).reshape(-1, 2), np.asarray(data[1], dtype=float).reshape(-1, 2)
    names = np.arange(int(entries[:, 1].max(initial=-1)) + 1)
    with discovery_account().open("discovery") as access:
        keys = find_keys(access, "keys", KeyOwners(entries[:, 1], entries[:, 0], names), most=most)
        bounds = find_bounds(access, "bounds", values[:, 1], owners=values[:, 0].astype(int), most=most)
    return keys, bounds


def no_person_costs_a_discovery_more_than_its_access(most=3) -> None:
    """Somebody with more keys, and numbers in more buckets, than count; each twice, all of them held by others too."""
    others = [(owner, key) for owner in range(12) for key in (owner % 6, (owner + 1) % 6)]
    values = [(owner, 2.0**owner) for owner in range(12)]
    greedy = [(99, key) for key in range(6)] * 2, [(99, 2.0**power) for power in range(6)] * 2
    run = functools.partial(_found, most=most)
    (spent,) = overspent(run, (others, values), (others + greedy[0], values + greedy[1]))
    assert 0.999 < spent <= 1.0 + 1e-9
    once = [(99, 0)] * 5, [(99, 1.0)] * 5
    (spent,) = overspent(run, (others, values), (others + once[0], values + once[1]))
    assert spent <= 1.0 + 1e-9


def no_person_costs_a_choice_more_than_its_access(max_rows=3) -> None:
    """Choose among tables, of which a person's records bring some nearer to what is expected and others farther away."""
    columns = {f"a{i}": {"type": "category", "values": ["x", "y", "z"]} for i in range(4)}
    schema = schema_of({"columns": columns}).completed(5)
    tables = Marginals(schema.layout, list(itertools.combinations(range(4), 2)))
    expected = [torch.full(size, 100.0 * (place % 2), dtype=torch.float64) for place, size in enumerate(tables.sizes)]
    choice, codes = TableSelection("choice", {"distances": 1.0}, 20, 1.0, count=2), np.arange(20)[:, None] % (3, 2, 3, 1)

    def run(persons):
        rows = codes[np.minimum(persons, 19)].astype(np.uint8)
        records = Records(schema, Encoded(np.zeros((len(rows), 0), np.float32), rows), persons)
        account = Account(make_plan([choice.spec(1.0)], epsilon=2.0, delta=1e-5, max_rows=max_rows))
        statistics = {"distances": Distances(tables, expected, [0.0] * len(expected), 2)}
        return choice.measure(statistics, records, torch.zeros(len(rows), dtype=torch.int64), account)

    (found,) = overspent(run, np.arange(20), np.concatenate([np.arange(20), [99] * max_rows]))
    assert 0.999 < found <= 1.0 + 1e-9


def keys_come_sorted() -> None:
    with discovery_account(0.0).open("discovery") as access:
        keys, counts = select_keys(access, "keys", np.array(["b", "c", "a"], dtype=object), np.array([3, 1, 2]))
    assert keys.tolist() == ["a", "b", "c"] and counts.tolist() == [2, 3, 1]


def given_the_answers_a_discovery_is_the_same_for_any_records() -> None:
    """Of the same keys: which are found, and in which order, follows from the answers alone."""
    some = [(owner, key) for owner in range(5) for key in range(4)], [(1, 3.0), (2, 5.0)]
    other = [(owner, 3 - key) for owner in range(9) for key in range(4)], [(owner, -1.0) for owner in range(9)]
    first, second = given_the_answers(_found, some, other)
    assert first == second


# Projections


def no_sign_vector_passes_the_dual_norm(k=5) -> None:
    """The largest of them may be in any chunk of those that are looked at: one is planted after the other."""
    noise = 0.1 * np.random.default_rng(k).normal(size=(12, k))
    vectors = np.array(list(itertools.product([-1.0, 1.0], repeat=k)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensitivity, "_CHUNK", 4)
        for planted in vectors:
            matrix = noise + planted
            largest = np.linalg.norm(vectors @ matrix.T, axis=1).max()
            assert largest * (1.0 - 1e-12) <= sensitivity.l1_of_a_row(matrix) <= largest * (1.0 + 1e-8)


def a_replaced_row_costs_at_most_epsilon(noise="laplace", unit="row") -> None:
    """How far the worst neighbours move the exact release, over the noise that rows of zeros come back with.

    The worst rows are found without the package: over all sign vectors, or the longest row of the matrix. The noise is
    estimated from 120,000 numbers; 3 % is more than six standard errors.
    """
    d, k, epsilon, delta = 12, 4, 1.0, 1e-5 if noise == "gaussian" else 0.0
    matrix = np.random.default_rng(0).normal(size=(d, k)) / math.sqrt(k)
    projection = Projection(matrix, Neighbourhood(unit, radius=2.0), noise)
    plan = projection.plan(epsilon, delta)
    drawn, _ = projection.release(np.zeros((30_000, d)), Account(plan, stream=PrivateStream(seed=4)))
    drawn = drawn.astype(np.float64)
    order = 1 if noise == "laplace" else 2
    if unit == "element":
        worst = np.eye(d)[np.linalg.norm(matrix, ord=order, axis=1).argmax()]
    elif noise == "laplace":
        signs = np.array(list(itertools.product([-1.0, 1.0], repeat=k)))
        worst = matrix @ signs[np.linalg.norm(signs @ matrix.T, axis=1).argmax()]
    else:
        worst = np.linalg.svd(matrix)[0][:, 0]
    worst = worst / np.linalg.norm(worst)
    exact = [projection._exact(far * worst[None])[0] for far in (2.0, -2.0, 1e3, -1e3)]
    moved = max(np.linalg.norm((one - other).ravel(), ord=order) for one in exact for other in exact)
    scale = {
        "laplace": np.abs(drawn).mean(),
        "spherical": np.linalg.norm(drawn, axis=1).mean() / k,
        "gaussian": drawn.std(),
    }[noise]
    spent = gaussian_epsilon(moved / scale, delta) if delta else moved / scale
    # A hundredth of the budget pays for the count of what was pulled back.
    assert 0.97 * 0.98 * epsilon < spent < 1.03 * epsilon
