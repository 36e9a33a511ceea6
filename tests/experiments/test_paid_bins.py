"""The experiments on tables by their values: made-up tables, their rules and scores, and schemas with bounds alone."""

import pytest

from experiments.league import paid_bins, ugly_tables
from experiments.league.made_up_tables import TABLES
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_a_made_up_table_keeps_its_rules_as_a_schema_declares_them(table, tmp_path):
    rows = table.draw(800, 0)
    assert all(rule(rows).all() for rule in table.rules.values())
    rows.to_csv(tmp_path / "rows.csv", index=False)
    schema = parse_schema(table.declared)
    assert len(read_table(tmp_path / "rows.csv", schema.with_bins(8)).encoded) == 800
    # With bounds alone the bins of all numbers are left open.
    assert len(parse_schema(table.schema).undecided(5)) >= 3
    numbers = ugly_tables.in_numbers(rows, rows)
    assert not numbers.isna().any().any() and list(numbers) == list(rows)


def test_a_table_is_no_other_than_itself_and_is_told_from_one_with_other_numbers():
    real, other = (ugly_tables.in_numbers(TABLES["bank"].draw(1500, seed), TABLES["bank"].draw(9, 0)) for seed in (0, 1))
    far, told, accuracy = paid_bins.scores(real, other, real, "y", 0)
    assert far == 0.0 and told < 0.6 and 0.5 < accuracy < 0.9
    spread = real.assign(previous=other["age"])
    far, told, _ = paid_bins.scores(real, other, spread, "y", 0)
    assert far > 0.8 and told == pytest.approx(1.0, abs=0.01)
    near, away = ugly_tables.triples(real, real, 0), ugly_tables.triples(real, spread, 0)
    assert near == 0.0 and ugly_tables.triples(real, other, 0) < 0.2 < away


def test_bounds_alone_leave_all_bins_of_numbers_open():
    schema = parse_schema(paid_bins.bounds_alone())
    assert {column.name for column in schema.undecided(5)} >= {"age", "fnlwgt", "capital-gain", "hours-per-week"}
    assert not any(column.special for column in schema.undecided(5))
