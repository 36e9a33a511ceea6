"""The law of `dpgen check`: what it says would be moved or refused is what a reader moves and refuses, record by record."""

import datetime
import itertools

import numpy as np
import pandas as pd
import pytest

import lightning_dpgen
from lightning_dpgen.cli.main import main
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.reading import COMMENTED, read_open_columns, read_table
from lightning_dpgen.data.tables.record_check import check_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.sampling.errors import BadRecords

DAY = datetime.date
# Declarations, and texts of a file with the value that a person means by each; None is nothing.
FAMILIES = {
    "listed": (
        {"type": "category", "values": ["Oslo", "Rome"]},
        {"Oslo": "Oslo", "Rome": "Rome", "ROME": "ROME", " Rome": " Rome", "Bonn": "Bonn"},
    ),
    "other": (
        {"type": "category", "values": ["Oslo", "Rome", "else"], "other": "else"},
        {"Oslo": "Oslo", "else": "else", "rome": "rome", "Bonn": "Bonn"},
    ),
    "any case": (
        {"type": "category", "values": ["Oslo", "Rome"], "ignore_case": True},
        {"Oslo": "Oslo", "OSLO": "Oslo", "rOME": "Rome", "Bonn": "Bonn", "ROMA": "ROMA"},
    ),
    "codes": ({"type": "category", "values": [1, 2, 9]}, {"1": 1, "2.0": 2, "7": 7, "x": "x"}),
    "words": ({"type": "boolean", "words": ["no", "yes"]}, {"no": False, "YES": True, "maybe": "maybe"}),
    "whole": (
        {"type": "integer", "low": 0, "high": 9},
        {"0": 0, "9": 9, "-1": -1, "12": 12, "1e2": 100, "4.5": 4.5, "x": 0},
    ),
    "special": ({"type": "integer", "low": 0, "high": 9, "special": [-9]}, {"3": 3, "-9": -9, "-8": -8, "99": 99}),
    "signs": (
        {"type": "number", "low": 0, "high": 2, "decimals": 1, "decimal": ","},
        {"1,5": 1.5, "0": 0.0, "7,0": 7.0, "-0,5": -0.5, "1.5": 0, "12 %": 0},
    ),
    "days": (
        {"type": "date", "low": "2024-01-01", "high": "2024-01-20", "format": "%d.%m.%Y"},
        {"05.01.2024": DAY(2024, 1, 5), "05.02.2024": DAY(2024, 2, 5), "31.02.2024": 0, "2024-01-05": 0},
    ),
}
MISSING = ({}, {"missing": True}, {"missing": True, "missing_values": ["NA", ""]})
RULES = [(None, "refuse"), (None, "clamp"), ("refuse", "clamp"), ("clamp", "refuse")]


def _read(texts, schema, outside):
    """Return the values of records that are read; None where they are refused."""
    try:
        encoded = read_table(pd.DataFrame(texts), schema, outside=outside).encoded
    except BadRecords:
        return None
    return schema.values(encoded, np.random.default_rng(0)).to_pylist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("missing", MISSING, ids=["all there", "missing", "words for it"])
def test_what_is_said_of_a_column_is_what_becomes_of_its_values(family, missing):
    fields, texts = FAMILIES[family]
    texts = texts | {"": None, "NA": None if "missing_values" in missing else "NA"}
    times = {text: 1 + place % 3 for place, text in enumerate(texts)}
    frame = pd.DataFrame({"x": [text for text in texts for _ in range(times[text])]})
    for said, by_default in RULES:
        schema = TableSchema((column_of("x", fields | missing | ({} if said is None else {"outside": said})),)).with_bins(
            50
        )
        assert TableSchema.from_json(schema.as_json()) == schema
        found = check_table(frame, schema, outside=by_default, max_moved=1.0)
        alone = {text: _read({"x": [text]}, schema, by_default) for text in texts}
        refused = {text for text, values in alone.items() if values is None}
        moved = {text for text in texts if text not in refused and alone[text][0]["x"] != texts[text]}
        assert sum(one.count for one in found.refused) == sum(times[text] for text in refused), found
        assert sum(one.count for one in found.findings if one.becomes) == sum(times[text] for text in moved), found
        assert found.passes == (not refused)
        if not refused:
            counted = read_table(frame, schema, outside=by_default).counted
            assert counted == {f"x: {one.what}": one.count for one in found.findings}
        if refused and moved:
            assert said == "clamp" or by_default == "clamp"


@pytest.mark.parametrize(
    "fields", [{"type": "category", "values": "private"}, {"type": "integer", "low": "private", "high": "private"}]
)
def test_of_what_is_found_privately_nothing_is_said_but_what_cannot_be_read(fields):
    schema = TableSchema((column_of("x", fields), column_of("y", {"type": "boolean"})))
    texts = ["1", "-5", "1e9", "x", "", "2.5"]
    frame = pd.DataFrame({"x": texts, "y": "yes"})
    found = check_table(frame, schema)
    refused = 0
    for text in texts:
        try:
            read_open_columns(pd.DataFrame({"x": [text], "y": ["yes"]}), schema)
        except BadRecords:
            refused += 1
    assert sum(one.count for one in found.refused) == refused == len(found.findings) + (fields["type"] == "integer")
    assert found.unknown == ("x",)


@pytest.mark.parametrize("rules", list(itertools.product((None, "refuse", "clamp"), repeat=2)))
@pytest.mark.parametrize("by_default", ["refuse", "clamp"])
def test_what_is_said_of_constraints_is_what_becomes_of_records(rules, by_default):
    """The total of net and tax may lie beyond its bounds, where a record cannot be repaired."""
    columns = [{"type": "integer", "low": 0, "high": high} for high in (9, 9, 12)]
    for column, outside in zip(columns, rules, strict=False):
        column["outside"] = outside
    rows = [(1, 2, 3), (1, 2, 9), (9, 9, 12), (9, 8, 1), (10, 1, 11), (3, 9, 12), (2, 1, 3)]
    names = ("net", "tax", "total")
    schema = TableSchema(
        tuple(column_of(name, column) for name, column in zip(names, columns, strict=True)),
        constraints=("total = net + tax", "net <= tax"),
    ).with_bins(50)
    found = check_table(pd.DataFrame(rows, columns=names), schema, outside=by_default, max_moved=1.0)
    alone = {
        row: _read({name: [value] for name, value in zip(names, row, strict=True)}, schema, by_default) for row in rows
    }
    assert found.passes == all(values is not None for values in alone.values())
    dropped = [row for row in rows if alone[row] == []]
    changed = [row for row in rows if alone[row] and tuple(alone[row][0].values()) != row]
    if found.passes:
        moved = [one for one in found.findings if one.what in ("repaired", "above high")]
        assert bool(moved) == bool(changed)
        assert sum(one.count for one in found.findings if one.what == "left out") == len(dropped)
        assert read_table(pd.DataFrame(rows, columns=names), schema, outside=by_default).counted == {
            f"{one.column}: {one.what}": one.count for one in found.findings
        }
    else:
        # A column that clamps has its constraints repaired, since a refusal would tell what it moved.
        open_to_repair = {name for name, said in zip(names, (*rules, None), strict=True) if (said or by_default) == "clamp"}
        assert not any(open_to_repair & set(one.column.split()) for one in found.refused)


def test_a_cause_and_a_cure_are_named():
    columns = {
        "region": {"type": "category", "values": ["North"], "missing": True},
        "age": {"type": "integer", "low": 0, "high": 99},
    }
    schema = TableSchema(tuple(column_of(name, fields) for name, fields in columns.items()))
    frame = pd.DataFrame({"region": ["NORTH", "North", "north "], "age": ["x", "120", ""]})
    said = str(check_table(frame, schema, outside="clamp"))
    for text in ("ignore_case: true", "66.7%", "'NORTH' (1)", "row 0 (from 0)", "declare missing: true", "becomes 99"):
        assert text in said


def _tables(tmp_path, share):
    """Write a table of 40 records, a share of which is not listed, beside a column that is found privately."""
    many = round(40 * share)
    frame = pd.DataFrame({"region": ["NORTH"] * many + ["North"] * (40 - many), "zip": ["a", "b"] * 20})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for name, of_zip in (("declared", "[a, b]"), ("private", "private")):
        text = "columns:\n  region: {type: category, values: [North, South], missing: true, outside: clamp}\n"
        (tmp_path / f"{name}.yaml").write_text(f"{text}  zip: {{type: category, values: {of_zip}}}\n", "utf-8")
    return frame


@pytest.mark.parametrize("blocks", [[], ["data.memory_gib=0"]], ids=["in memory", "in blocks"])
@pytest.mark.parametrize("bought", [{}, {"discovery_share": 0.05}, {"n": None, "n_share": 0.05}])
def test_a_run_stops_before_it_spends_where_the_check_does(tmp_path, bought, blocks):
    _tables(tmp_path, 0.5)
    schema = tmp_path / f"{'private' if 'discovery_share' in bought else 'declared'}.yaml"
    how = {"epsilon": 4.0, "n": 40, "run_dir": tmp_path / "run", "overrides": blocks} | bought
    with pytest.raises(BadRecords, match=r"data.max_moved=0.05: .*'region' 50.0%.*Nothing was spent"):
        lightning_dpgen.fit(tmp_path / "t.csv", schema, **how)
    assert not list(tmp_path.rglob("ledger*"))


def test_the_command_ends_as_a_run_would(tmp_path, capsys):
    _tables(tmp_path, 0.1)
    words = ["check", str(tmp_path / "t.csv"), str(tmp_path / "declared.yaml")]
    assert main(words) == 2
    assert "'region': 10.0% would be moved, more than 5.0%" in capsys.readouterr().out
    assert main([*words, "data.max_moved=0.1"]) == 0
    assert main([*words, "model=vae"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["declared.yaml", "private.yaml", "t.csv"]


def test_a_limit_that_was_raised_stands_in_no_certificate(tmp_path):
    """It would tell that more than the default was moved."""
    from lightning_dpgen.specs.settings import load_complete_settings

    _tables(tmp_path, 0.5)
    words = ["data=table", f"data.schema={tmp_path / 'declared.yaml'}", "data.n=40", "privacy.epsilon=4", "model=measured"]
    declared = load_complete_settings([*words, "data.max_moved=0.6"]).dump_public()
    assert declared == load_complete_settings(words).dump_public()
    assert "max_moved" not in str(declared)


def test_all_that_is_wrong_with_a_schema_is_told_at_once(tmp_path, capsys):
    wrong = {
        "a": "{type: integer, low: 9}",
        "b": "{type: bolean}",
        "c": "{type: category, values: private, outside: refuse}",
        "d": "{type: category, values: [x, X], ignore_case: true}",
        "e": '{type: integer, low: "???", high: 9}',
        "f": "\n    type: integer\n    low: ???\n    high: 9",
    }
    columns = "".join(f"  {name}: {fields}\n" for name, fields in wrong.items())
    text = f"label: d\nconstraints: [a <= g]\nfoo: 1\ncolumns:\n{columns}  g: {{type: integer, low: 0, high: 9}}\n"
    (tmp_path / "s.yaml").write_text(text, "utf-8")
    assert main(["schema", str(tmp_path / "s.yaml")]) == 2
    out, err = capsys.readouterr()
    assert out.count("refused: ") == 1 + len(wrong) and "7 problems" in err
    assert all(f"column {name!r}" in out for name in "abcde") and "line 12" in out and "foo" in out


def test_lines_that_a_comment_leaves_out_are_counted(tmp_path):
    (tmp_path / "a.csv").write_text("# made by hand\na\n1\n# two\n3\nTotal\n")
    schema = parse_schema('{comment: ["#", Total], columns: {a: {type: integer, low: 0, high: 9, bins: 5}}}')
    found = check_table(tmp_path / "a.csv", schema)
    assert (found.rows, found.commented) == (2, 3) and "begin as a comment of the schema, left out: 3" in str(found)
    assert read_table(tmp_path / "a.csv", schema).counted == {COMMENTED: 3}


@pytest.mark.parametrize(
    "rows, said",
    [(0, "0 records (private, stays here)\na training would be refused: it needs a record"),
     (1, "1 record (private, stays here)\nnothing would be refused or moved"),
     (2, "2 records (private, stays here)\nnothing would be refused or moved")],
)  # fmt: skip
def test_a_table_passes_where_it_has_a_record(rows, said, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("a\n" + "1\n" * rows)
    (tmp_path / "a.schema.yaml").write_text("columns: {a: {type: integer, low: 0, high: 9}}")
    status = main(["check", str(tmp_path / "a.csv"), str(tmp_path / "a.schema.yaml")])
    assert bool(status) == (rows == 0) and said in capsys.readouterr().out


def test_a_schema_is_taken_in_each_form_that_fit_takes(tmp_path):
    fields, frame = {"columns": {"a": {"type": "integer", "low": 0, "high": 9}}}, pd.DataFrame({"a": [1, 2, 99]})
    (tmp_path / "a.yaml").write_text("columns: {a: {type: integer, low: 0, high: 9}}")
    forms = [fields, parse_schema(str(fields)), tmp_path / "a.yaml", str(tmp_path / "a.yaml")]
    assert len({str(lightning_dpgen.data.check_table(frame, form)) for form in forms}) == 1
    with pytest.raises(BadSchema, match="schema=5: expected a TableSchema, a dict"):
        check_table(frame, 5)


def test_findings_of_very_many_columns_are_cut():
    frame = pd.DataFrame({f"c{number}": ["x"] for number in range(300)})
    schema = TableSchema(tuple(column_of(name, {"type": "integer", "low": 0, "high": 9, "bins": 2}) for name in frame))
    found = check_table(frame, schema)
    assert len(found.findings) == 300 and "and 200 findings more; 300 columns" in str(found)
    assert len(str(found).splitlines()) == 202
