"""Tables by which models are tried for `model=auto`: rows fit their schemas, and scores lie between nothing and real."""

import json

import pytest

from experiments.league import choice
from experiments.league.choice_tables import TABLES
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.specs import defaults

PUBLIC = ("Mushroom", "Adult")


@pytest.mark.parametrize("name", [name for name in TABLES if name not in PUBLIC])
def test_rows_fit_the_schema_that_describes_them(name):
    table = TABLES[name]
    frame, schema = table.table.draw(300, 1), parse_schema(table.schema)
    assert schema.label == (table.table.label if table.label else None)
    assert len(read_table(frame, schema.with_bins(5), outside="refuse").encoded) == 300


def test_no_table_ships_that_the_rule_is_judged_by():
    ships = {own["name"] for own in json.loads(defaults.TABLE.read_text(encoding="utf-8")) if own["kind"] == "table"}
    assert ships == {name for name, table in TABLES.items() if not table.held_out}
    assert sum(table.held_out for name, table in TABLES.items() if name not in PUBLIC) == 2


def test_a_score_is_one_for_real_rows_and_zero_where_nothing_was_learned():
    told, commonest = "random forest, accuracy", "commonest label, accuracy"
    limits = {f"real {told}": 0.8, f"real {commonest}": 0.6, "independent": 0.2, "real pairs": 0.05}
    assert choice.table_score(limits | {"detected": 0.0, "pairs": 0.05, told: 0.8}) == 1.0
    assert choice.table_score(limits | {"detected": 1.0, "pairs": 0.3, told: 0.5}) == 0.0
    assert choice.table_score(limits | {"detected": 0.5, "pairs": 0.125, told: 0.7}) == pytest.approx(0.5)
    # The AUC of two labels goes before their accuracy, and pairs count where any two columns go together.
    auc = {"random forest, AUC": 0.7, "real random forest, AUC": 0.9}
    assert choice.table_score(limits | {"detected": 1.0, "pairs": 0.3, told: 0.8} | auc) == pytest.approx(0.5 / 3)
    assert choice.table_score({"detected": 0.3, "pairs": 0.1, "independent": 0.055, "real pairs": 0.05}) == pytest.approx(
        0.7
    )
