"""`dpgen schema` says of each column what to decide, and warns of a schema from public facts alone."""

import builtins
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_advice import warnings_of
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.schema_keys import KINDS, column_of

pytestmark = pytest.mark.filterwarnings("ignore")
SCHEMA = f"""columns:
  previous: {{type: integer, low: 0, high: 300, bins: 29}}
  age: {{type: integer, low: 0, high: 99}}
  city: {{type: category, values: [{", ".join(f"c{number}" for number in range(2000))}]}}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "s.yaml").write_text(SCHEMA)
    lines = [f"{0 if number % 50 else 40},{number % 90},c{number % 3}" for number in range(500)]
    (tmp_path / "people.csv").write_text("\n".join(["previous,age,city", *lines]) + "\n")
    return tmp_path


def test_a_draft_says_what_to_decide(dpgen, folder):
    assert dpgen("schema", folder / "people.csv")[0] == 0
    text = (folder / "people.schema.yaml").read_text()
    assert text.count(f"    # decide: {KINDS['integer'].decide}\n") == 2
    assert f"  city:\n    # decide: {KINDS['category'].decide}\n    type: category\n" in text
    status, out, _ = dpgen("schema", folder / "people.schema.yaml", "--explain", "age")
    assert status == 0 and out.startswith("age: whole numbers") and "  low = ???: " in out and "  special: " in out
    status, _, err = dpgen("schema", folder / "people.schema.yaml", "--explain", "aeg")
    assert status == 2 and "did you mean age?" in err


def test_a_schema_is_judged_by_public_facts(dpgen, folder):
    status, out, err = dpgen("schema", folder / "s.yaml")
    assert status == 0 and not err
    assert "previous: each of 29 bins of equal width holds about 10 values" in out and "city: 2,000 values" in out
    assert "age:" not in out and "2 warnings, from the schema alone" in out
    _, out, _ = dpgen("schema", folder / "s.yaml", "--n", 10**7, "--epsilon", 3)
    assert "city" not in out
    _, out, _ = dpgen("schema", folder / "s.yaml", "--n", 300, "--epsilon", 0.5)
    assert "bins: those left open are of equal width" in out


def test_no_record_is_read_without_being_declared_public(dpgen, folder, monkeypatch):
    """Whatever stands beside the schema, no other file is opened; with the sample, it is."""
    opened, real = [], builtins.open

    def watched(path, *args, **given):
        opened.append(str(path))
        return real(path, *args, **given)

    monkeypatch.setattr(builtins, "open", watched)
    dpgen("schema", folder / "s.yaml", "--n", 500, "--epsilon", 1)
    assert not [path for path in opened if path.endswith(".csv")]
    (folder / "people.csv").rename(folder / "elsewhere")
    assert dpgen("schema", folder / "s.yaml", "--n", 500, "--epsilon", 1)[0] == 0
    status, _, err = dpgen("schema", folder / "s.yaml", "--public-sample", folder / "people.csv")
    assert status == 2 and "--public-sample" in err and "there is no such file" in err


def test_a_public_sample_shows_a_bin_that_holds_nearly_all(dpgen, folder):
    (folder / "s.yaml").write_text(SCHEMA.replace("high: 99", "high: 50, bins: 10"))
    (folder / "city.yaml").write_text(SCHEMA.replace("high: 99", "high: 89, bins: 10"))
    status, out, _ = dpgen("schema", folder / "city.yaml", "--public-sample", folder / "people.csv")
    assert status == 0 and "previous: 98.0% of the sample are in one bin" in out and "age:" not in out
    assert "and the sample that you declare public" in out
    status, out, _ = dpgen("schema", folder / "s.yaml", "--public-sample", folder / "people.csv")
    assert status == 0 and "age: 195 values of the sample are" in out


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({"bins": 29}, True),
        ({"bins": 301}, False),
        ({"bins": 29, "transform": "log"}, False),
        ({}, False),
        ({"encoding": "scaled"}, False),
    ],
)
def test_equal_bins_of_many_values_are_warned_of(fields, warned):
    column = column_of("a", {"type": "integer", "low": 0, "high": 300, **fields})
    assert bool(list(warnings_of(TableSchema((column,))))) == warned


MISTAKES = {
    "no file": (["schema"], "expected a file of records, or a schema"),
    "a sample of a draft": (["schema", "people.csv", "--n", "5"], "needs a schema"),
    "epsilon without n": (["schema", "s.yaml", "--epsilon", "1"], "needs --n"),
    "a wrong epsilon": (["schema", "s.yaml", "--n", "9", "--epsilon", "-1"], "--epsilon=-1.0: expected a number"),
    "a file that is not there": (["schema", "poeple.csv"], r"did you mean"),
    "no schema": (["schema", "bad.yaml"], "bad.yaml"),
}


def test_dates_in_order_are_better_told_by_their_distance():
    columns = "start: {type: date, low: 2020-01-01, high: 2020-12-31}, end: {type: date, low: 2020-01-01, high: 2020-12-31"
    schema = parse_schema(f"columns: {{{columns}}}}}\nconstraints: [end >= start]")
    assert [(name, "relative_to: start" in told) for name, told in warnings_of(schema)] == [("end", True)]
    relative = parse_schema(f"columns: {{{columns}, relative_to: start}}}}\nconstraints: [end >= start]")
    assert not list(warnings_of(relative))


def _schema_of_stays(rules="", of_end=""):
    bounds = "low: 2020-01-01, high: 2020-12-31"
    lines = ["born: {type: date, low: 1900-01-01, high: 2020-12-31}", f"start: {{type: date, {bounds}}}"]
    lines += [f"end: {{type: date, {bounds}{of_end}}}", "seen: {type: datetime, low: 2020-01-01, high: 2020-12-31}"]
    return parse_schema(f"constraints: [{rules}]\ncolumns:\n" + "".join(f"  {line}\n" for line in lines))


@pytest.mark.parametrize(
    ("rules", "of_end", "asked"),
    [
        ("", "", "can start be after end?"),
        ("start <= end", "", "can born be after start?"),
        ("", ", relative_to: start", "can born be after start?"),
        ("born <= end, start <= end", "", None),
        ("end >= born if start > born", "", None),
    ],
)
def test_the_order_of_dates_is_asked_for_once(rules, of_end, asked):
    found = [text for _, text in warnings_of(_schema_of_stays(rules, of_end)) if "The same" in text or "can " in text]
    assert len(found) == (asked is not None) and all(asked in text and "relative_to: " in text for text in found), found


def test_dates_apart_by_their_bounds_are_not_asked_for():
    dates = "{born: {type: date, low: 1901-01-01, high: 1999-12-31}, seen: {type: date, low: 2000-01-01, high: 2020-12-31}}"
    assert not list(warnings_of(parse_schema(f"columns: {dates}")))


def test_a_draft_names_what_relates_columns(dpgen, tmp_path):
    (tmp_path / "t.csv").write_text("start,end,n\n2020-01-01,2020-02-01,5\n2020-01-03,2020-02-01,7\n")
    assert dpgen("schema", tmp_path / "t.csv")[0] == 0
    head = (tmp_path / "t.schema.yaml").read_text().partition("columns:\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert "# constraints: [" in head and "# relative_to: " in head and "# start, end: is one never after another?" in head


def test_too_few_records_for_so_many_columns_are_told_of(dpgen, tmp_path):
    lines = [f"  c{number}: {{type: integer, low: 0, high: 100}}" for number in range(12)]
    (tmp_path / "s.yaml").write_text("\n".join(["columns:", *lines, "  p: {type: integer, low: private, high: private}"]))
    told = "300 records at epsilon 3: hardly worth publishing: in most tables of two columns a cell holds"
    assert told in dpgen("schema", tmp_path / "s.yaml", "--n", 300, "--epsilon", 3)[1]
    assert "hardly" not in dpgen("schema", tmp_path / "s.yaml", "--n", 12_000, "--epsilon", 3)[1]


@pytest.mark.parametrize("bins", ["", ", bins: 5"], ids=["bought", "declared"])
def test_what_noise_hides_is_told_before_anything_is_spent_and_at_the_end(dpgen, tmp_path, bins):
    """Noise hides even that one of twelve columns follows from another in 300 records, and does not in 40,000."""
    names = [f"c{number}" for number in range(12)]
    lines = [f"  {name}: {{type: integer, low: 0, high: 100{bins}}}" for name in names]
    (tmp_path / "s.yaml").write_text("\n".join(["columns:", *lines]))
    rows = np.repeat(np.random.default_rng(0).integers(0, 101, (300, 1)), 12, axis=1)
    pd.DataFrame(rows, columns=names).to_csv(tmp_path / "t.csv", index=False)
    words = ["data=table", f"data.schema={tmp_path / 's.yaml'}", "data.n=300", "privacy.epsilon=0.5", "model=measured"]
    words += [] if bins else ["data.bins_share=0.1"]
    told = "correlations cannot be found with 300 records, 12 columns and epsilon 0.5: in 66 of 66 tables"
    assert told in dpgen("schema", tmp_path / "s.yaml", "--n", 300, "--epsilon", 0.5)[1]
    assert told in dpgen("budget", *words)[2]
    words += [f"data.path={tmp_path / 't.csv'}", f"run_dir={tmp_path / 'run'}"]
    status, out, err = dpgen("train", *words)
    assert status == 0 and told in out + err and f"warned: {told}"[:30] in out.partition("done: ")[2]
    assert (f"whatever the first pass finds: {told}" in out) == (not bins)
    assert "cannot be found" not in dpgen("schema", tmp_path / "s.yaml", "--n", 40_000, "--epsilon", 1)[1]


def test_zeros_and_ones_are_drafted_as_false_and_true(dpgen, tmp_path):
    rows = [f"{number % 2},{number % 3},{number % 2}.5" for number in range(9)]
    (tmp_path / "t.csv").write_text("\n".join(["died,stays,x", *rows]) + "\n")
    assert dpgen("schema", tmp_path / "t.csv")[0] == 0
    died, stays = (tmp_path / "t.schema.yaml").read_text().partition("  died:")[2].split("  stays:")
    assert "type: boolean" in died and "words: ['0', '1']   # for false and true" in died and "type: integer\n" in stays
    (tmp_path / "t.yaml").write_text("columns: {died: {type: boolean, words: ['0', '1']}}")
    read = parse_schema((tmp_path / "t.yaml").read_text()).encode(pa.record_batch({"died": ["0", "1"]}))
    assert read.codes[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize(("words", "told"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_one_line(dpgen, folder, monkeypatch, words, told):
    monkeypatch.chdir(folder)
    (folder / "bad.yaml").write_text("columns: 3\n")
    for more in ([], ["--explain", "a"]) if "bad.yaml" in words else ([],):
        status, out, err = dpgen(*words, *more)
        assert status == 2 and told in err and len(err.splitlines()) == 1 and not out, err


def test_the_json_schema_is_printed(dpgen):
    status, out, _ = dpgen("schema", "--json-schema")
    assert status == 0 and json.loads(out)["properties"]["label"]


def test_a_draft_tells_of_row_numbers_and_of_the_check_that_comes_next(dpgen, tmp_path):
    """Whole numbers that are in another order, or begin elsewhere, are none of rows."""
    rows = [f"{i + 1},{i + 5},{(7 * i) % 20}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c", *rows]) + "\n")
    status, out, err = dpgen("schema", tmp_path / "t.csv")
    assert status == 0, err
    text = (tmp_path / "t.schema.yaml").read_text()
    assert text.count("is it the row number?") == 1 and "is it the row number?" in text.partition("  b:")[0]
    lines = out.splitlines()
    assert "next, once they are filled in:" in lines
    assert lines[-2].startswith(f"  dpgen schema {tmp_path / 't.schema.yaml'} --n") and "dpgen train" in lines[-1]


def test_a_bound_that_looks_like_a_code_is_asked_about(dpgen, tmp_path):
    column = "  {}: {{type: integer, low: {}, high: {}{}}}\n"
    columns = [("pdays", 0, 999, ""), ("age", 0, 99, ""), ("told", -1, 50, ""), ("known", -1, 50, ", special: [-1]")]
    (tmp_path / "t.yaml").write_text("columns:\n" + "".join(column.format(*one) for one in columns))
    _, out, _ = dpgen("schema", tmp_path / "t.yaml")
    asked = [line.strip().partition(":")[0] for line in out.splitlines() if "looks like a code" in line]
    assert asked == ["pdays", "told"] and "special: [999]" in out


def test_an_explanation_is_plain_text(dpgen, tmp_path):
    (tmp_path / "t.yaml").write_text("columns:\n  a: {type: number, low: 0, high: 9}\n")
    status, out, _ = dpgen("schema", tmp_path / "t.yaml", "--explain", "a")
    assert status == 0 and "encoding" in out and "`" not in out and "(below)" not in out
