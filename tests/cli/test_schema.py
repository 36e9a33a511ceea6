"""`dpgen schema`: names and types go into a draft, values never; schemas of other programs are taken over."""

import gzip
import json
import re
import shlex

import pandas as pd
import pytest

from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import read_schema
from lightning_dpgen.specs.words import write_word

FRAME = pd.DataFrame({
    "n": [10707, 20808], "x": [1.2345, None], "day": ["2011-09-08", "2012-01-30"],
    "at": ["2011-09-08 07:06", "2012-01-30 05:04"], "clock": ["13:14", "15:16:17"],
    "ok": ["true", "False"], "name": ["Zebedee", "Ottoline"], "none": [None, None],
})  # fmt: skip
TYPES = ["integer", "number", "date", "datetime", "time", "boolean", "category", "???"]
SECRETS = ["10707", "20808", "1.2345", "2011", "2012", "13:14", "Zebedee", "Ottoline"]


def types(text):
    return [line.split()[1] for line in text.splitlines() if line.startswith("    type:")]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "semicolons.csv", "bare.csv"])
def test_a_draft_has_types_and_no_values(dpgen, tmp_path, name):
    separator = {"t.tsv": "\t", "semicolons.csv": ";"}.get(name, ",")
    bare = name == "bare.csv"
    text = FRAME.to_csv(index=False, sep=separator, header=not bare)
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    status, out, err = dpgen("schema", tmp_path / name, *["--no-header"] * bare)
    draft = (tmp_path / f"{name.split('.')[0]}.schema.yaml").read_text()
    assert status == 0 and not err and "8 columns, 10 lines" in out and types(draft) == TYPES
    assert not any(secret in draft for secret in SECRETS)
    status, _, err = dpgen("schema", tmp_path / name, *["--no-header"] * bare)
    assert status == 2 and "exists already" in err


def test_a_draft_says_what_else_there_is_to_say(dpgen, tmp_path):
    """Fakes for columns named like names or keys, the column of persons, values beyond the bounds, and the next command."""
    names = ["patientID", "visit_id", "first name", "e-mail", "width", "identity", "key"]
    pd.DataFrame([["a", 1, "Zebedee", "c", 2, "d", 3.5]], columns=names).to_csv(tmp_path / "a b.csv", index=False)
    _, out, _ = dpgen("schema", tmp_path / "a b.csv", "-o", tmp_path / "s.yaml")
    draft = (tmp_path / "s.yaml").read_text()
    for words in ("type: drop", "type: fake", "data.person=COLUMN data.max_rows=", "data.outside=clamp"):
        assert words in draft.split("columns:")[0]
    hints = re.findall(r"^  (.*):\n    # decide: .*\n    type: .*fake: (\w+)", draft, re.MULTILINE)
    assert hints == [
        ("patientID", "row_number"), ("visit_id", "row_number"), ("first name", "name"), ("e-mail", "email"),
    ]  # fmt: skip
    command = shlex.split(out.splitlines()[-1])
    assert command[:4] == ["dpgen", "train", "data=table", write_word("data.path", tmp_path / "a b.csv")]
    assert f"data.schema={tmp_path / 's.yaml'}" in command


def test_a_draft_of_parquet_is_filled_in_and_read(dpgen, tmp_path):
    frame = FRAME.drop(columns="none").assign(day=pd.to_datetime(FRAME["day"]), tags=[["a"], []], ok=[True, False])
    frame.to_parquet(tmp_path / "t.parquet")
    status, _, _ = dpgen("schema", tmp_path / "t.parquet", "-o", tmp_path / "s.yaml")
    draft = (tmp_path / "s.yaml").read_text()
    assert status == 0
    assert types(draft) == ["integer", "number", "datetime", "category", "category", "boolean", "category", "drop"]
    assert not any(secret in draft for secret in SECRETS)
    with pytest.raises(ValueError, match="on lines 17, 18, 22, 23, 27, 28, 32, 36, 43"):
        read_schema(tmp_path / "s.yaml")
    head, rest = draft.split("columns:")
    for value in ("0", "99999", "0", "2", "2000-01-01", "2020-01-01", "[2011-09-08 07:06, 2012-01-30 05:04]",
                  '["13:14", "15:16:17"]', "[Zebedee, Ottoline]"):  # fmt: skip
        rest = rest.replace(": ???   ", f": {value}   ", 1)
    draft = f"{head}columns:{rest}"
    (tmp_path / "s.yaml").write_text(draft.replace("type: number", "type: number\n    missing: true"))
    schema = read_schema(tmp_path / "s.yaml").with_bins(10)
    assert read_table(tmp_path / "t.parquet", schema).encoded.codes.shape == (2, 7)


def test_metadata_of_sdv(dpgen, tmp_path):
    columns = {
        "key": {"sdtype": "id"}, "age": {"sdtype": "numerical", "computer_representation": "Int64"},
        "pay": {"sdtype": "numerical", "decimal_places": 2, "range_min": 0, "range_max": 99.5, "range_is_nullable": True},
        "day": {"sdtype": "datetime", "datetime_format": "%d/%m/%Y", "range_min": "01/02/2000", "range_max": "03/04/2020"},
        "at": {"sdtype": "datetime", "datetime_format": "%Y-%m-%d %H:%M:%S"}, "sex": {"sdtype": "categorical"},
        "city": {"sdtype": "categorical", "range_values": ["no", "Oslo"]}, "ok": {"sdtype": "boolean"},
        "who": {"sdtype": "first_name", "pii": True}, "mail": {"sdtype": "email"}, "ssn": {"sdtype": "ssn", "pii": True},
        "odd": {"sdtype": "unknown"},
    }  # fmt: skip
    table = {"primary_key": "key", "columns": columns}
    forms = {"one.json": {"METADATA_SPEC_VERSION": "SINGLE_TABLE_V1", **table},
             "many.json": {"METADATA_SPEC_VERSION": "V1", "tables": {"t": table}, "relationships": []}}  # fmt: skip
    drafts = set()
    for name, content in forms.items():
        (tmp_path / name).write_text(json.dumps(content, indent=4))
        assert dpgen("schema", "--from", "sdv", "--declared-public", tmp_path / name)[0] == 0
        drafts.add((tmp_path / name.replace("json", "schema.yaml")).read_text().replace(name, ""))
    (draft,) = drafts
    assert types(draft) == [
        "fake", "integer", "number", "date", "datetime", "category", "category", "boolean", "fake", "fake", "drop", "???",
    ]  # fmt: skip
    for line in (
        "low: 2000-02-01", "high: 2020-04-03", "decimals: 2", "missing: true", "values: [no, Oslo]", "fake: row_number",
        "format: '%d/%m/%Y'",
    ):  # fmt: skip
        assert f"    {line}" in draft
    status, out, _ = dpgen("schema", "--from", "sdv", tmp_path / "one.json", "-o", tmp_path / "unread.yaml")
    assert status == 0 and "the bounds and values of 3 columns is left out" in out and "--declared-public" in out
    assert "--declared-public takes it" in (tmp_path / "unread.yaml").read_text()


def test_domains_of_dpsynth_and_mbi(dpgen, tmp_path):
    (tmp_path / "d.yaml").write_text(
        "a: {type: NumericalAttribute, min_value: 0.0, max_value: 9.0, dtype: int, clip_to_range: true, sentinel: null}\n"
        "b: {type: CategoricalAttribute, possible_values: [x, y], out_of_domain_index: 1, description: what}\n"
        "c: {min_value: 0.5, max_value: 1.5, clip_to_range: false}\n"
    )
    (tmp_path / "e.json").write_text('{"a": 3, "b": 2}')
    for name in ("d.yaml", "e.json"):
        words = ("--from", "dpsynth", "--declared-public", tmp_path / name, "-o", tmp_path / f"{name}.out")
        assert dpgen("schema", *words)[0] == 0
    schema = read_schema(tmp_path / "d.yaml.out").with_bins(20)
    assert schema.layout.groups == (10, 2, 21)
    assert schema.columns[1].other == "y" and schema.columns[1].description == "what"
    assert read_schema(tmp_path / "e.json.out").layout.groups == (3, 2)


MISTAKES = {
    "no file": (["no.csv"], "no.csv: expected a file"),
    "no arguments": ([], "file"),
    "suffix": (["a.txt"], "a.txt is not read: rename it to .csv or .tsv"),
    "unknown program": (["--from", "other", "a.txt"], "--from"),
    "a record for a header": (["bare.csv"], "the first line has a field like an integer.*--no-header"),
    "an empty name": (["gap.csv"], "an empty field"),
    "names twice": (["twice.csv"], "two columns are named 'a'"),
    "empty": (["empty.csv"], "is empty"),
    "no Parquet": (["bad.parquet"], "cannot be read as Parquet"),
    "no metadata": (["--from", "sdv", "bad.json"], "is not JSON"),
    "a header of metadata": (["--from", "sdv", "bad.json", "--no-header"], "--no-header applies to"),
    "public records": (["good.csv", "--declared-public"], "--declared-public applies to a file of another program"),
    "no folder": (["good.csv", "-o", "nowhere/a.yaml"], "cannot be written"),
    "there already": (["good.csv", "-o", "a.txt"], "exists already"),
}


@pytest.mark.parametrize(("words", "expected"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes(dpgen, tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    contents = {"a.txt": "x", "bare.csv": "17,x\n", "gap.csv": "a,\n1,2\n", "twice.csv": "a,a\n1,2\n", "empty.csv": "",
                "bad.parquet": "x", "bad.json": "{", "good.csv": "a\n1\n"}  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    status, out, err = dpgen("schema", *words)
    assert status == 2 and not out and err.count("\n") == 1 and err.startswith("dpgen: ") and re.search(expected, err), err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(contents)


def test_very_many_columns_are_counted_before_they_are_looked_at(dpgen, tmp_path):
    (tmp_path / "wide.csv").write_text(",".join(f"c{i}" for i in range(20_001)) + "\n1\n")
    status, _, err = dpgen("schema", tmp_path / "wide.csv")
    assert status == 2 and "20,001 columns: expected at most 20,000" in err


def test_more_records_than_a_release_holds(dpgen):
    status, _, err = dpgen("budget", "data=digits", "rows=1000000000")
    assert status == 2 and "rows=1000000000: expected at most" in err
