"""Histories that are measured: what one person moves, what a fit without noise gives back, and a run end to end."""

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_dpgen.cli.main import main
from lightning_dpgen.data.histories.row_table import PersonRows, RowOrder, RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.measure import forest_fit, history_steps
from lightning_dpgen.measure.histories import STEPS, HistoryRecipe
from lightning_dpgen.measure.history_steps import (
    fit_steps,
    scaled_sums,
    slow_waves,
    step_statistics,
    steps_of,
    units_of_tables,
    weights_of_tables,
)
from lightning_dpgen.measure.step_moments import StepContrasts
from lightning_dpgen.measure.tables import TABLES
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.models.histories import PersonLevel, StackedHistories
from lightning_dpgen.models.history_steps import Steps, count_edges
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import load_release

PERSONS = parse_schema("columns: {sex: {type: category, values: [F, M]}}")
ROWS = parse_schema(
    "columns: {ward: {type: category, values: [a, b, c]}, cost: {type: integer, low: 0, high: 99, bins: 5, missing: true}}"
)
WIDE = parse_schema(
    "columns: {ward: {type: category, values: [" + ", ".join(f"w{i}" for i in range(100)) + "]}, "
    "cost: {type: integer, low: 0, high: 99, bins: 5, missing: true}}"
)
WIDE_LAST = parse_schema(
    "columns: {kind: {type: category, values: [a, b, c]}, ward: {type: category, values: ["
    + ", ".join(f"w{i}" for i in range(100))
    + "]}}"
)
DAYS = RowOrder.of("day", {"type": "integer", "low": 0, "high": 99, "bins": 6}, {"high": 60, "bins": 5})
VISITS, SET = RowTable("visits", ROWS, 5, DAYS), RowTable("set", ROWS, 40, share=2.0)
SCHEMAS = {
    "whole": HistorySchema(PERSONS, (VISITS,)),
    "keys": HistorySchema(None, (VISITS,)),
    "sets": HistorySchema(PERSONS, (RowTable("set", ROWS, 5),)),
    "wide": HistorySchema(PERSONS, (RowTable("visits", WIDE, 5, DAYS),)),
    "wide last": HistorySchema(PERSONS, (RowTable("visits", WIDE_LAST, 5, DAYS),)),
    "one row": HistorySchema(PERSONS, (RowTable("visits", ROWS, 1, DAYS),)),
    "two": HistorySchema(PERSONS, (RowTable("visits", ROWS, 3, DAYS), RowTable("set", ROWS, 4, share=2.0))),
    "long": HistorySchema(PERSONS, (VISITS, SET, RowTable("one", ROWS, 1, DAYS))),
}


def _panel(schema, n=3000, seed=0):
    """Make histories up whose ward stays with a probability of 0.8, and whose cost moves by one bin at most.

    Persons have as many rows in each further table as in the first one, or none.
    """
    random, parts, more = np.random.default_rng(seed), [], None
    for table in schema.tables:
        counts = random.integers(0, table.max_rows + 1, n) if more is None else np.minimum(more, table.max_rows)
        more, total = np.where(random.random(n) < 0.8, counts, 0), int(counts.sum())
        place = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.stack([random.integers(0, 3, total), random.integers(0, 5, total)], axis=1)
        for number in range(1, table.max_rows):
            own = np.flatnonzero(place == number)
            rows[own, 0] = np.where(random.random(len(own)) < 0.8, rows[own - 1, 0], rows[own, 0])
            rows[own, 1] = np.clip(rows[own - 1, 1] + random.integers(-1, 2, len(own)), 0, 4)
        starts, gaps = random.integers(0, 6, n), random.integers(0, 5, total)
        parts.append(PersonRows(counts, starts if table.order else None, gaps if table.order else 0 * gaps, rows))
    return schema.joined(random.integers(0, 2, (n, 1 if schema.persons else 0)), parts)


def _extreme(schema, choice, only=None):
    """Return a person with as many rows as count, in all tables or one, each with the same choices."""
    parts = []
    for number, table in enumerate(schema.tables):
        count = table.max_rows if only in (None, number) else 0
        rows, none = np.full((count, 2), choice), np.zeros(count, int)
        parts.append(PersonRows(np.array([count]), np.array([0]) if table.order else None, none, rows))
    return schema.joined(np.zeros((1, schema.attributes), int), parts).codes[0]


def _noise(recipe, scale=50.0):
    """Return a state of tables of persons that are noise, from which contrasts follow."""
    generator = torch.Generator().manual_seed(0)
    tables = {name: Measured(scale * torch.rand(own.shape, dtype=torch.float64, generator=generator), 1.0)
              for name, own in recipe.statistics(TABLES, {}).items()}  # fmt: skip
    return {TABLES: [tables]}


def _contrasts(schema):
    level = PersonLevel(schema)
    return [
        StepContrasts(steps, level, [np.full(size, 1 / size) for size in level.layout.groups]) for steps in steps_of(schema)
    ]


@pytest.mark.parametrize("name", SCHEMAS)
def test_one_person_moves_no_table_by_more_than_its_bound(name):
    """With any history, however extreme; sums are whole, and do not follow from how histories are divided."""
    schema, recipe = SCHEMAS[name], HistoryRecipe(SCHEMAS[name], 3, 100)
    encoded = _panel(schema, 150)
    many = [_extreme(schema, choice, only) for choice in (0, 2) for only in (None, *range(len(schema.tables)))]
    extreme = np.concatenate([encoded.codes, many])
    encoded = Encoded(np.zeros((len(extreme), 0), np.float32), extreme)
    none, checked, largest = torch.zeros(len(extreme), dtype=torch.int64), 0, 0.0
    some = np.array([*range(10), *range(len(extreme) - len(many), len(extreme))])
    for workload in recipe.workloads:
        for statistic in recipe.statistics(workload.stage, _noise(recipe)).values():
            whole = statistic.sums(encoded, none)
            halves = statistic.sums(encoded[:100], none[:100]) + statistic.sums(encoded[100:], none[100:])
            assert whole.dtype == torch.int64 and torch.equal(whole, halves)
            left = statistic.sums(encoded[some], none[: len(some)])
            for i in some:
                own = statistic.sums(encoded[i : i + 1], none[:1])
                left, moved = left - own, own.double() * statistic.unit
                largest = max(largest, float(moved.norm()) / statistic.bound)
                checked += 1
            # The part of a person is the same beside others.
            assert not left.any()
    assert checked > 20 and 0.999 < largest <= 1.0 + 1e-12


@pytest.mark.parametrize("name", ["whole", "wide", "two", "long"])
def test_no_record_of_the_layout_moves_a_table_by_more_than_its_bound(name):
    """Rows that are none, places behind the last row, and all else that no reader makes: an audit makes such records."""
    schema, recipe = SCHEMAS[name], HistoryRecipe(SCHEMAS[name], 3, 100)
    groups, random = np.array(schema.layout.groups), np.random.default_rng(0)
    codes = [random.integers(0, groups, (60, len(groups))), np.where(random.random((60, len(groups))) < 0.5, groups - 1, 0)]
    codes = np.concatenate(codes)
    for part, table in zip(schema.parts, schema.tables, strict=True):
        codes[30:90, part.start] = table.max_rows
    encoded, none = Encoded(np.zeros((len(codes), 0), np.float32), codes), torch.zeros(1, dtype=torch.int64)
    (steps,) = [own for own in recipe.workloads if own.stage == STEPS]
    for statistic in recipe.statistics(steps.stage, _noise(recipe)).values():
        for i in range(len(codes)):
            assert float((statistic.sums(encoded[i : i + 1], none).double() * statistic.unit).norm()) <= statistic.bound


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_moments_of_long_histories_of_many_columns_stay_within_their_bound(share):
    """In exact numbers, also where lengths leave those that whole numbers of 64 bits hold."""
    columns = {n: ", ".join(f"{n}{i}: {{type: integer, low: 0, high: 9, bins: 10}}" for i in range(60)) for n in "ac"}
    persons, rows = (parse_schema(f"columns: {{{columns[name]}}}") for name in "ac")
    schema = HistorySchema(persons, (RowTable("visits", rows, 1000),))
    level, (steps,) = PersonLevel(schema), steps_of(schema)
    shares = [np.append(share, np.full(size - 1, (1 - share) / (size - 1))) for size in level.layout.groups]
    contrasts, largest = StepContrasts(steps, level, shares), 0
    for choice in (0, 9):
        for number in (1, 10, 300, 999):
            codes = {
                name: np.full(number, choice) for name in (*contrasts.features, *(f"now: column {i}" for i in range(60)))
            }
            moved = contrasts.sums(np.zeros(number, int), codes)
            length = sum(own**2 for own in moved.flatten().tolist())
            assert length <= 2**62
            largest = max(largest, length)
    assert largest > 0.95 * 2**62


def test_attributes_that_no_contrast_tells_have_tables():
    many = parse_schema("columns: {state: {type: category, values: [" + ", ".join(f"s{i}" for i in range(20)) + "]}}")
    for persons, moments, table in ((many, False, True), (PERSONS, True, False)):
        weights = weights_of_tables(HistorySchema(persons, (VISITS,)))
        assert ("moments of steps" in weights) == moments and ("gap by attribute 0" in weights) == table


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 99, 999])
def test_a_history_is_scaled_to_a_length_of_one_and_no_more(steps):
    """However its steps are divided among cells: the largest whole weight, in exact numbers."""
    for cells in range(1, min(steps, 40) + 1):
        counts = np.full(cells, steps // cells) + (np.arange(cells) < steps % cells)
        for changed in (counts, np.sort(counts)[::-1] + np.arange(cells)[::-1]):
            own = np.repeat(np.arange(cells), changed)
            sums = scaled_sums(np.full(len(own), 5), own, 0 * own, (cells, 1))[:, 0].tolist()
            (weight,) = {own // count for own, count in zip(sums, changed.tolist(), strict=True)}
            squares = sum(count**2 for count in changed.tolist())
            assert weight**2 * squares <= 2**40 < (weight + 1) ** 2 * squares and sum(own**2 for own in sums) <= 2**40


def test_a_weight_that_is_too_large_is_found_out(monkeypatch):
    monkeypatch.setattr(history_steps, "_BITS", 22)
    with pytest.raises(AssertionError):
        test_one_person_moves_no_table_by_more_than_its_bound("whole")


def _exact(schema, encoded):
    none = torch.zeros(len(encoded), dtype=torch.int64)
    return {
        name: Measured(own.sums(encoded, none).double() * own.unit, 0.0)
        for name, own in step_statistics(_contrasts(schema)).items()
    }


def _transitions(schema, encoded, column, number=0):
    _, codes = Steps(schema, number).of_histories(encoded)
    size = ROWS.layout.groups[column]
    table = np.zeros((size, size))
    np.add.at(table, (codes[f"before: column {column}"], codes[f"now: column {column}"]), 1.0)
    return table / table.sum()


@pytest.fixture
def quick(monkeypatch):
    """Fits of few steps, where a test is about all that is around them."""
    for part in ("_FIRST", "_TRIAL", "_LAST"):
        monkeypatch.setattr(forest_fit, part, 0.05)
    monkeypatch.setattr(history_steps, "_MADE_UP", 500)
    monkeypatch.setattr(history_steps, "_ROUNDS", 9)


@pytest.mark.parametrize("name", [pytest.param("keys", marks=pytest.mark.slow), "two"])
def test_a_measured_panel_without_noise_comes_back(name):
    schema, n = SCHEMAS[name], 4000
    encoded = _panel(schema, n)
    recipe = HistoryRecipe(schema, 4, n)
    account = Account(make_plan(recipe.specs(1.0), epsilon=math.inf, delta=1e-5))
    none = torch.zeros(n, dtype=torch.int64)
    kept = []
    mixture = recipe.measure(Records(schema, encoded), none, account, save=kept.append)
    assert account.finished and all(recipe.fits(state) for state in kept) and STEPS in kept[-1]
    drawn = mixture.sample(n, torch.Generator().manual_seed(1))
    for number, table in enumerate(schema.tables):
        for column in range(2):
            own, expected = (_transitions(schema, x, column, number) for x in (drawn, encoded))
            shuffled = expected.sum(axis=1, keepdims=True) * expected.sum(axis=0)
            assert 0.5 * np.abs(own - expected).sum() < 0.06 < 0.3 < 0.5 * np.abs(shuffled - expected).sum()
        counts = [
            np.bincount(schema.parted(x)[1][number].counts, minlength=table.max_rows + 1) / n for x in (drawn, encoded)
        ]
        assert 0.5 * np.abs(counts[0] - counts[1]).sum() < 0.03
    if name == "two":
        ties = [np.corrcoef(*(part.counts for part in schema.parted(x)[1]))[0, 1] for x in (drawn, encoded)]
        assert ties[1] > 0.3 and abs(ties[0] - ties[1]) < 0.05
    assert schema.decode(drawn, np.random.default_rng(0)).num_rows == n


def test_with_noise_ordered_columns_have_slow_waves_alone():
    projection = slow_waves(9, 8, 0.1)
    torch.testing.assert_close(projection @ projection, projection)
    assert round(float(projection.trace())) == 3 + 1 and slow_waves(9, 8, 1.0) is None
    # Constants and slopes stay; the last choice is by itself.
    line = torch.cat([torch.arange(8.0), torch.zeros(1)]).double()
    assert float((projection @ line - line).norm()) < 0.1 * float(line.norm())


@pytest.mark.parametrize("name", ["whole", "long"])
def test_a_release_is_what_was_fitted(tmp_path, name):
    """Any tables make whole histories, also those in which a first row may be none beside a number of rows."""
    schema = SCHEMAS[name]
    network = StackedHistories(schema, 2, [-1] * len(PersonLevel(schema).layout.groups))
    generator = torch.Generator().manual_seed(0)
    for tensor in network.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
    mixture = Mixture(network, torch.tensor([0.3, 0.7]))
    write_model(tmp_path, mixture)
    release = load_release(tmp_path)
    assert release.schema == schema
    table = release.drawn_table(50, 3)
    assert table.schema == schema.arrow and table.num_rows == 50
    own, other = (mixture.sample(20, torch.Generator().manual_seed(5)).codes for _ in range(2))
    assert (own == other).all()


@pytest.mark.parametrize("name", ["long", "wide", "wide last"])
def test_features_of_what_is_drawn_are_those_of_what_is_read(name):
    """The steps of drawn histories have the codes that the same histories have when they are measured."""
    schema = SCHEMAS[name]
    network = StackedHistories(schema, 1, [-1] * len(PersonLevel(schema).layout.groups))
    attributes, heads = network.draw_persons(torch.zeros(300, dtype=torch.int64), torch.Generator().manual_seed(1))
    for number, table in enumerate(schema.tables):
        drawn = list(network.rows_after(number, attributes, heads, torch.Generator().manual_seed(2)))
        codes = np.tile(np.array(schema.layout.groups) - 1, (300, 1))
        codes[:, network.level.places] = np.concatenate([attributes, *heads], axis=1)
        fixed = network.steps[number].of_persons(attributes, [head[:, 0] for head in heads])
        for rows in drawn:
            first = schema.parts[number].start + table.place(rows.place).start
            for i in range(2):
                codes[rows.who, first + i] = rows.codes[f"now: column {i}"]
            if table.order is not None:
                codes[rows.who, first - 1] = rows.codes["now: gap"]
        encoded = Encoded(np.zeros((300, 0), np.float32), codes)
        who, measured = Steps(schema, number).of_histories(encoded)
        assert (len(drawn) > 0) == (table.max_rows > 1) and sum(len(rows.who) for rows in drawn) == len(who)
        order = np.argsort(np.concatenate([rows.who for rows in drawn] or [[]]), kind="stable").astype(int)
        for name, own in measured.items() if drawn else ():
            parts = [fixed[name][rows.who] if name in fixed else rows.codes[name] for rows in drawn]
            assert (np.concatenate(parts)[order] == own).all(), name
        assert (np.bincount(who, minlength=300) == np.maximum(heads[number][:, 0] - 1, 0)).all()


@pytest.mark.parametrize("name", ["whole", "wide", "wide last", "two"])
def test_a_row_follows_from_each_of_its_features(name):
    """A table that leaves a target one choice for each choice of a feature is obeyed by all rows that are drawn."""
    schema, one = SCHEMAS[name], torch.zeros(60, dtype=torch.int64)
    network = StackedHistories(schema, 1, [-1] * len(PersonLevel(schema).layout.groups))
    for t, steps in enumerate(network.steps):
        for j, (target, size, _) in enumerate(steps.targets):
            # A choice that is earlier than the row before is not there for all.
            size = 2 if target.startswith("same: ") else size
            for i, feature in enumerate(steps.features[target]):
                if feature.of_memory or target in steps.wide:
                    continue
                table = network.tables_of(t, j)[i]
                rows = torch.arange(len(table))
                table[rows, rows % size] = 50.0
                attributes, heads = network.draw_persons(one, torch.Generator().manual_seed(1))
                fixed, number = steps.of_persons(attributes, [head[:, 0] for head in heads]), 0
                for drawn in network.rows_after(t, attributes, heads, torch.Generator().manual_seed(2)):
                    codes = {own: values[drawn.who] for own, values in fixed.items()} | drawn.codes
                    cells, now = steps.cells_of(codes, target, feature)
                    assert (now == cells % size).all(), (target, feature.name)
                    number += len(now)
                assert number > 20
                table.zero_()


def test_rows_that_are_drawn_end_in_time():
    order = RowOrder.of("day", {"type": "integer", "low": 0, "high": 99, "bins": 6}, {"high": 60, "bins": 5}, 130)
    schema = HistorySchema(PERSONS, (RowTable("visits", ROWS, 9, order),))
    network = StackedHistories(schema, 1, [-1] * len(PersonLevel(schema).layout.groups))
    drawn = Mixture(network, torch.ones(1)).sample(500, torch.Generator().manual_seed(0))
    (rows,) = schema.parted(drawn)[1]
    first, gaps = order.lowest
    lowest = np.where(rows.place > 0, gaps[rows.gaps], first[np.minimum(rows.starts, 5)][rows.person])
    assert 100 < np.bincount(rows.person, lowest).max() <= 130
    times = schema.decode(drawn, np.random.default_rng(0)).column("visits").flatten().field("day").to_numpy()
    assert times.max() <= 130 and (np.diff(times)[rows.place[1:] > 0] >= 0).all()


def test_rows_that_are_drawn_keep_constraints():
    """Whatever the tables of a network, and also where columns that were drawn leave another one no choice."""
    columns = (
        "a: {type: category, values: [x, y]}, b: {type: category, values: [x, y]}, c: {type: category, values: [x, y]}"
    )
    rows = parse_schema(f"{{columns: {{{columns}}}, constraints: [c = x if a = x, c = y if b = x, a = y if b = y]}}")
    schema = HistorySchema(PERSONS, (RowTable("visits", rows, 6), RowTable("more", rows, 2, DAYS)))
    network = StackedHistories(schema, 1, [-1] * len(PersonLevel(schema).layout.groups))
    drawn = Mixture(network, torch.ones(1)).sample(500, torch.Generator().manual_seed(0))
    for table, part in zip(schema.tables, schema.parted(drawn)[1], strict=True):
        assert len(table.pairs) == 3 and set(map(tuple, part.rows)) == {(1, 0, 1), (1, 1, 0), (1, 1, 1)}
    pairs, persons = PersonLevel(schema).impossible_pairs(), PersonLevel(schema).encode(drawn).codes
    assert len(pairs) == 6 + 7 and not any(none[persons[:, a], persons[:, b]].any() for a, b, none in pairs)


def test_large_numbers_of_rows_are_bins_and_places():
    """Codes come back from what is encoded, and no pair of choices that a person has is called impossible."""
    many = HistorySchema(PERSONS, (VISITS, RowTable("set", ROWS, 300)))
    for schema, groups in ((SCHEMAS["long"], (17, 7)), (many, (27, 16))):
        level, encoded = PersonLevel(schema), _panel(schema, 500)
        if schema is many:
            persons = [
                PersonRows(np.arange(301), None, np.zeros(45150, int), np.zeros((45150, 2), int)),
                PersonRows(np.zeros(301, int), np.zeros(301, int), np.zeros(0, int), np.zeros((0, 2), int)),
            ]
            encoded = schema.joined(np.zeros((301, 1), int), persons[::-1])
        persons = level.encode(encoded).codes.astype(int)
        low, high = (level.heads_of(persons, np.full(len(persons), uniform)) for uniform in (0.0, 0.999))
        for head, last, part, table in zip(low, high, schema.parts, schema.tables, strict=True):
            expected = encoded.codes[:, part.start : part.start + table.head].astype(int)
            assert (head[:, 0] <= expected[:, 0]).all() and (expected[:, 0] <= last[:, 0]).all()
            assert (last[:, 0] - head[:, 0] <= expected[:, 0] // 64).all() and (head[:, 1:] == expected[:, 1:]).all()
        assert persons.shape[1] == len(level.layout.groups) == len(level.choices) == len(level.places) + 1
        assert (persons < np.array(level.layout.groups)).all() and level.layout.groups[5:7] == groups
        assert [len(names) for names in level.choices.values()] == list(level.layout.groups)
        pairs = level.impossible_pairs()
        assert pairs and not any(none[persons[:, a], persons[:, b]].any() for a, b, none in pairs)


def test_names_and_weights_of_tables():
    one, two = (step_statistics(_contrasts(SCHEMAS[name])) for name in ("whole", "two"))
    assert all(name in one for name in ("gap by time", "column 0 by before: column 0"))
    assert "visits: gap by rows" in two and "set: column 1 by place" in two and "set: moments of steps" in two
    assert units_of_tables(SCHEMAS["whole"]) == {name: own.bound / own.unit for name, own in one.items()}
    weights, equal = weights_of_tables(SCHEMAS["two"]), weights_of_tables(SCHEMAS["whole"])
    assert set(weights) == set(two)
    assert weights["set: column 0 by before: column 0"] == 2 * equal["column 0 by before: column 0"]
    assert weights["visits: column 0 by before: column 0"] == equal["column 0 by before: column 0"]
    assert count_edges(16).tolist() == list(range(17)) and len(count_edges(1000)) < 35


def test_tables_of_steps_are_fitted_to_what_they_are(monkeypatch):
    """A network whose tables are zeros makes other tables; after the fit it makes those that were measured."""
    monkeypatch.setattr(history_steps, "_MADE_UP", 3000)
    schema = SCHEMAS["sets"]
    encoded = _panel(schema, 4000)
    recipe = HistoryRecipe(schema, 1, 4000)
    account = Account(make_plan(recipe.specs(1.0), epsilon=math.inf, delta=1e-5))
    mixture = recipe.measure(Records(schema, encoded), torch.zeros(4000, dtype=torch.int64), account)
    network, measured = mixture.network, _exact(schema, encoded)
    for name, tensor in network.state_dict().items():
        if not name.startswith("persons"):
            tensor.zero_()
    before = 0.5 * np.abs(_transitions(schema, mixture.sample(4000, torch.Generator()), 0)
                          - _transitions(schema, encoded, 0)).sum()  # fmt: skip
    fit_steps(network, mixture.weights, measured, _contrasts(schema), 4000.0, seed=0)
    after = 0.5 * np.abs(_transitions(schema, mixture.sample(4000, torch.Generator()), 0)
                         - _transitions(schema, encoded, 0)).sum()  # fmt: skip
    assert after < 0.05 < 0.3 < before


def _made_up(folder):
    """Write the tables of persons, visits and orders, and the file that describes them."""
    random = np.random.default_rng(0)
    (folder / "visits.yaml").write_text((Path(__file__).parents[1] / "data/visits.yaml").read_text() + ORDERS)
    sexes, who = random.choice(["F", "M"], 300), random.integers(0, 300, 900)
    patients = pd.DataFrame({"patient": range(300), "sex": sexes, "died": random.random(300) < 0.2})
    days = pd.Timestamp("2020-03-01") + pd.to_timedelta(random.integers(0, 80, 900), "D")
    wards, costs = random.choice(list("abc"), 900), random.integers(0, 99, 900)
    visits = pd.DataFrame({"patient": who, "day": days, "ward": wards, "cost": costs})
    orders = pd.DataFrame({"buyer": who[:400], "paid": random.random(400) < 0.5})
    for name, table in (("patients", patients), ("visits", visits), ("orders", orders)):
        table.to_csv(folder / f"{name}.csv", index=False)


ORDERS = """
orders:
  file: orders.csv
  person: buyer
  max_rows: 3
  columns:
    paid: {type: boolean}
"""


@pytest.mark.usefixtures("quick")
def test_files_become_a_release(tmp_path, capsys):
    """From the description of three tables to records whose tables belong together, and an evaluation."""
    _made_up(tmp_path)
    run = tmp_path / "run"
    settings = [f"data.path={tmp_path / 'visits.yaml'}", "data.n=300", "privacy.epsilon=8", "rows=50", "model.components=2"]
    assert main(["train", "data=histories", "model=measured", *settings, f"run_dir={run}"]) == 0
    assert main(["verify", str(run / "release")]) == 0
    certificate = json.loads((run / "release/privacy.json").read_text())
    assert certificate["epsilon"] <= 8.0
    tables = {}
    for form in ("persons", "visits", "orders"):
        given = ["-n", "40", "--seed", "3", "--form", form, "-o", str(tmp_path / f"{form}-drawn.csv")]
        assert main(["sample", str(run / "release"), *given]) == 0
        tables[form] = pd.read_csv(tmp_path / f"{form}-drawn.csv")
    persons, rows, orders = tables.values()
    assert list(persons) == ["patient", "sex", "died"] and persons.patient.tolist() == list(range(1, 41))
    assert list(rows) == ["patient", "day", "ward", "cost"] and set(rows.patient) <= set(persons.patient)
    assert rows.groupby("patient").size().max() <= 4 and rows.groupby("patient").day.is_monotonic_increasing.all()
    assert list(orders) == ["buyer", "paid"] and set(orders.buyer) <= set(persons.patient)
    assert main(["sample", str(run / "release"), "-n", "40", "--seed", "3", "-o", str(tmp_path / "all.sqlite")]) == 0
    with closing(sqlite3.connect(tmp_path / "all.sqlite")) as file:
        for form, own in tables.items():
            found = pd.read_sql(f"select * from {form}", file)
            pd.testing.assert_frame_equal(found, own, check_dtype=False)
        (index,) = file.execute("select name, sql from sqlite_master where type = 'index' and tbl_name = 'visits'")
        assert index[1].endswith('ON "visits" ("patient")')
        with pytest.raises(sqlite3.IntegrityError):
            file.execute("insert into persons (patient) values (1)")
    capsys.readouterr()
    assert main(["sample", str(run / "release"), "--table", "a", "-o", str(tmp_path / "b.sqlite")]) == 2
    assert "these records have persons, visits, orders" in capsys.readouterr().err
    where = ["-n", "9", "--form", "persons", "-o", str(tmp_path / "w.csv"), "--where"]
    assert main(["sample", str(run / "release"), *where, "sex=F"]) == 0
    assert set(pd.read_csv(tmp_path / "w.csv").sex) == {"F"}
    assert main(["sample", str(run / "release"), "--form", "rows"]) == 2
    assert "expected persons or visits or orders" in capsys.readouterr().err
    assert "<b>1 person</b><span>added or removed, with the whole history<" in (run / "release/report.html").read_text()
    readme = (run / "release/README.md").read_text()
    assert "All rows of a person are one record." in readme and "the number of persons (300)" in readme
    assert main(["evaluate", str(run), "--rows", "100", "data=histories", f"data.path={tmp_path / 'visits.yaml'}"]) == 0
    assert "numbers of visits and orders" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["vae", "rbm", "wgan", "classifier"])
def test_networks_are_refused_before_a_run(tmp_path, capsys, model):
    text = (Path(__file__).parents[1] / "data/visits.yaml").read_text()
    (tmp_path / "visits.yaml").write_text(text)
    (tmp_path / "visits.csv").write_text("patient,day,ward,cost\n")
    (tmp_path / "patients.csv").write_text("patient,sex,died\n")
    given = ["data=histories", f"data.path={tmp_path / 'visits.yaml'}", "data.n=300", "privacy.epsilon=8", f"model={model}"]
    assert main(["train", *given, f"run_dir={tmp_path / 'run'}"]) == 2
    assert "take model=measured" in capsys.readouterr().err and not (tmp_path / "run").exists()
