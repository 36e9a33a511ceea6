"""Laws of what is found privately: keys, bounds and a choice of tables."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import torch
from contracts.door import given_the_answers, overspent
from scipy.special import log_ndtr, ndtri

from experiments.league.table_selection import Distances, TableSelection
from lightning_dpgen.api import schema_of
from lightning_dpgen.data.discovery.bounds_and_keys import find_bounds, find_keys
from lightning_dpgen.data.discovery.counts import KeyOwners
from lightning_dpgen.data.discovery.value_grid import ValueGrid, values_of
from lightning_dpgen.data.discovery.value_tree import find_values
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.statistics import Marginals
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import select_keys
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.planning.calibration import make_plan


def discovery_account(multiplier=1.5, delta=0.02, *, seed=5, ledger=None):
    """Return an account for one access that buys keys and bounds (multiplier 0: not private)."""
    noises = {"keys": multiplier, "bounds": multiplier} if multiplier else {"keys": 0.0, "bounds": 0.0}
    stage = Stage(Access("discovery", noises, deltas={"keys": delta}), 1, share=1.0)
    return Account(Plan((stage,), target_epsilon=1.0, delta=0.1), ledger, PrivateStream(seed=seed))


def keys_of_one_record_are_seen_with_its_delta(most=3, draws=6_500, at_once=100) -> None:
    """Check that their share is within 5.5 standard deviations of delta: a false alarm of 4e-8.

    The threshold is a whole number and a half, so delta is the one that is met there exactly. Records with keys of their
    own are looked at together, so many in each draw of noise.
    """
    deviation = 2.5 * math.sqrt(most)
    border = round(deviation * float(ndtri(0.91 ** (1 / most)))) + 0.5
    delta, seen, keys = float(-math.expm1(most * log_ndtr(border / deviation))) * (1 + 1e-6), 0, np.arange(most * at_once)
    with discovery_account(2.5, delta).open("discovery") as access:
        access.consume("bounds")
        for _ in range(draws // at_once):
            access._undrawn["keys"] = 2.5  # the law of one draw is sampled many times
            seen += len(set(select_keys(access, "keys", keys, np.ones(len(keys), int), most=most)[0] // most))

    def off(expected):
        return abs(seen / draws - expected) > 5.5 * math.sqrt(expected * (1 - expected) / draws)

    assert not off(delta)
    assert off(delta * math.sqrt(2)) and off(delta / math.sqrt(2))


def _found(data, most=3):
    """Find keys and bounds, from entries (owner, key) and values of owners, in one access."""
    entries, values = np.asarray(data[0]).reshape(-1, 2), np.asarray(data[1], dtype=float).reshape(-1, 2)
    names = np.arange(int(entries[:, 1].max(initial=-1)) + 1)
    with discovery_account().open("discovery") as access:
        keys = find_keys(access, "keys", KeyOwners(entries[:, 1], entries[:, 0], names), most=most)
        bounds = find_bounds(access, "bounds", values[:, 1], owners=values[:, 0].astype(int), most=most)
    return keys, bounds


def no_person_costs_a_discovery_more_than_its_access(most=3) -> None:
    """Check a person with more keys, and numbers in more buckets, than count; each twice, and all held by others too."""
    others = [(owner, key) for owner in range(12) for key in (owner % 6, (owner + 1) % 6)]
    values = [(owner, 2.0**owner) for owner in range(12)]
    greedy = [(99, key) for key in range(6)] * 2, [(99, 2.0**power) for power in range(6)] * 2
    run = functools.partial(_found, most=most)
    (spent,) = overspent(run, (others, values), (others + greedy[0], values + greedy[1]))
    assert 0.999 < spent <= 1.0 + 1e-9
    once = [(99, 0)] * 5, [(99, 1.0)] * 5
    (spent,) = overspent(run, (others, values), (others + once[0], values + once[1]))
    assert spent <= 1.0 + 1e-9


def values_account(grid, multiplier, *, max_rows=1, seed=5):
    """Return an account for one access that buys the distribution of a column x (multiplier 0: not private)."""
    noises = {values_of("x", level): multiplier for level in range(1, grid.levels + 1)}
    stage = Stage(Access("values", noises), 1, share=1.0)
    return Account(Plan((stage,), target_epsilon=1.0, delta=0.1, max_rows=max_rows), None, PrivateStream(seed=seed))


def no_person_costs_a_distribution_more_than_its_access(most=3) -> None:
    """Check a person with more rows than count, all of one value, which is looked at down to the last level."""
    grid = ValueGrid(0, 9999, True)

    def run(rows):
        owners, numbers = np.asarray(rows, dtype=float).reshape(-1, 2).T
        with values_account(grid, 1.5, max_rows=most).open("values") as access:
            return find_values(access, "x", numbers, grid, owners=owners.astype(int), most=most)

    others = [(owner, 1234.0) for owner in range(400)]
    greedy = [(9999, 1234.0)] * (most + 2), [(9999, 1234.0 + 3000.0 * row) for row in range(most)]
    spent = overspent(run, others, *(others + own for own in greedy))
    assert 0.999 < spent[0] <= 1.0 + 1e-9 and spent[1] <= 1.0 + 1e-9


def no_person_costs_a_choice_more_than_its_access(max_rows=3) -> None:
    """Check a choice among tables where one person's records bring some nearer to the expected ones and others farther."""
    columns = {f"a{i}": {"type": "category", "values": ["x", "y", "z"]} for i in range(4)}
    schema = schema_of({"columns": columns}).with_bins(5)
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
    """Check that the keys found, and their order, follow from the answers alone."""
    some = [(owner, key) for owner in range(5) for key in range(4)], [(1, 3.0), (2, 5.0)]
    other = [(owner, 3 - key) for owner in range(9) for key in range(4)], [(owner, -1.0) for owner in range(9)]
    first, second = given_the_answers(_found, some, other)
    assert first == second
