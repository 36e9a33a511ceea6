"""The counts that are asked for: their error bars hold what they say, and the noise is that of a person's records."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema_file import schema_of
from lightning_dpgen.measure.tables import ASKED, TABLES, WORKLOAD_SHARE, TableRecipe
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.release.answers import Answers

SIZES = {"a": 10, "b": 12, "c": 15}
SETS = [["b", "a"], ["a", "b", "c"], ["c"]]
MAX_ROWS, N = 3, 600_000


@pytest.fixture(scope="module")
def measured():
    """Counts of uniform records of persons with three each, true ones, and the standard deviation that was planned."""
    columns = {name: {"type": "category", "values": [f"{name}{i}" for i in range(size)]} for name, size in SIZES.items()}
    schema = schema_of({"columns": columns})
    random = np.random.default_rng(0)
    codes = np.stack([random.integers(size, size=N) for size in SIZES.values()], axis=1).astype(np.uint8)
    records = Records(schema, Encoded(np.zeros((N, 0), np.float32), codes), persons=np.arange(N) // MAX_ROWS)
    asked = tuple(tuple("abc".index(name) for name in own) for own in SETS)
    recipe = TableRecipe(schema, 2, N, asked=asked)
    plan = make_plan(recipe.specs(1.0), epsilon=1.0, delta=1e-6, max_rows=MAX_ROWS)
    state = recipe.measure_state(records, torch.zeros(N, dtype=torch.int64), Account(plan, stream=PrivateStream(5)))
    true = [np.zeros(tuple(SIZES[name] for name in own), int) for own in SETS]
    for table, own in zip(true, asked, strict=True):
        np.add.at(table, tuple(codes[:, group] for group in own), 1)
    return schema, recipe, plan, state, np.concatenate([table.ravel() for table in true])


def covered(answers, true):
    table = answers.as_table()
    return np.mean((table["low"].to_numpy() <= true) & (true <= table["high"].to_numpy()))


def test_intervals_hold_the_true_counts_as_often_as_they_say(measured):
    """1,935 independent counts: a share beyond 4.5 of its deviations from 95 % has a chance of 7e-6."""
    schema, recipe, _, state, true = measured
    answers = Answers(schema, SETS, *recipe.answers(state))
    allowed = 4.5 * (0.95 * 0.05 / len(true)) ** 0.5
    assert abs(covered(answers, true) - 0.95) < allowed < 0.025
    # Errors of one record a person, of one table of three, and of all of the budget are wrong, and are seen to be.
    for factor in (1 / MAX_ROWS, len(SETS) ** -0.5, WORKLOAD_SHARE**0.5, 1.25):
        wrong = dataclasses.replace(answers, deviation=answers.deviation * factor)
        assert abs(covered(wrong, true) - 0.95) > allowed, factor


def test_the_error_follows_from_the_plan_before_anything_is_spent(measured):
    _, recipe, plan, state, _ = measured
    multipliers = plan.stage(TABLES).access.multipliers
    by_hand = multipliers[ASKED] * len(SETS) ** 0.5 * MAX_ROWS
    assert recipe.answers(state)[1] == pytest.approx(by_hand) == recipe.deviation_of_asked(plan)
    inverse = {name: multiplier**-2 for name, multiplier in multipliers.items()}
    assert inverse[ASKED] / sum(inverse.values()) == pytest.approx(WORKLOAD_SHARE)
    assert inverse["pairs"] / inverse["singles"] == pytest.approx(4.0)


def test_a_row_for_each_cell_says_which_one_it_is(measured):
    schema, recipe, _, state, _ = measured
    tables, deviation = recipe.answers(state)
    table = Answers(schema, SETS, tables, deviation).as_table()
    rows = table.to_pylist()
    assert len(rows) == sum(int(np.prod([SIZES[name] for name in own])) for own in SETS)
    for number, (own, counts) in enumerate(zip(SETS, tables, strict=True), 1):
        found = {
            tuple(row[f"value_{place + 1}"] for place in range(len(own))): row["count"]
            for row in rows
            if row["query"] == number
        }
        for cell in itertools.product(*(range(SIZES[name]) for name in own)):
            words = tuple(f"{name}{code}" for name, code in zip(own, cell, strict=True))
            assert found[words] == pytest.approx(float(counts[cell]), abs=1e-3)
    assert min(table["low"].to_pylist()) >= 0.0
