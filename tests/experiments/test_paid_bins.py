"""The experiment of paid bins: its made-up table, its scores, and schemas with bounds alone."""

import paid_bins
import pytest

from lightning_dpgen.data.tables.schema_file import parse_schema


def test_a_table_is_no_other_than_itself_and_is_told_from_one_with_other_numbers():
    real, other = paid_bins.bank(1500, 0), paid_bins.bank(1500, 1)
    assert ((real["pdays"] == -1) == (real["previous"] == 0)).all()
    far, told, accuracy = paid_bins.scores(real, other, real, "y", 0)
    assert far == 0.0 and told < 0.6 and 0.5 < accuracy < 0.9
    spread = real.assign(previous=other["age"])
    far, told, _ = paid_bins.scores(real, other, spread, "y", 0)
    assert far > 0.8 and told == pytest.approx(1.0, abs=0.01)


def test_bounds_alone_leave_all_bins_of_numbers_open():
    schema = parse_schema(paid_bins.bounds_alone())
    assert {column.name for column in schema.undecided(5)} >= {"age", "fnlwgt", "capital-gain", "hours-per-week"}
    assert not any(column.special for column in schema.undecided(5))
    assert len(parse_schema(paid_bins.BANK).undecided(5)) == 5
