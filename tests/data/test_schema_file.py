"""Files of schemas: written and read they are the same, and what is wrong with one is said by line."""

import re
from importlib.resources import files
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from random_tables import schemas

from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.importers import read_domain, read_sdv
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_leniently, parse_schema, read_schema, schema_text, value_text
from lightning_dpgen.data.tables.schema_keys import KINDS, TableKeys

WILD = st.text(max_size=12) | st.sampled_from([
    "yes", "no", "null", "~", "1e5", "010", "0x1f", "12:30", "2020-01-01", "???", "TODO", "", "=", "<<", "- a", "a: b", "#",
    "'", '"', "{", "a\nb", "\t", "true", ".inf", "1_000", "\u2028", "!x", "&a", "*a", "%", "\x85",
])  # fmt: skip


PAGE = (Path(__file__).parents[2] / "docs/reference/schema.md").read_text(encoding="utf-8")


def test_the_page_has_every_type_and_every_key():
    before, _, _ = PAGE.partition("## Constraints")
    rows = [row.partition(" |")[0] for row in before.splitlines() if row.startswith("| `")]
    said = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    keys = {name for kind in (TableKeys, *KINDS.values()) for name in kind.model_fields}
    assert said - {"type"} == (keys | {"columns"} | set(KINDS)) - {"type"}


def test_the_schemas_of_the_page_make_sense():
    titled, rules, apart, scaled = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert parse_schema(titled).skip_rows == 2
    relative = parse_schema("columns:\n" + "".join(f"  {line}\n" for line in apart.splitlines()))
    assert relative.rules.texts[0] == ["discharged lies 0 to 180 days after admitted"]
    schema = parse_schema("columns:\n" + "".join(f"  {line}\n" for line in scaled.splitlines()))
    assert (schema.layout.units, schema.layout.groups) == (1, ())
    columns = dict.fromkeys(
        ("net", "tax", "total", "pdays", "previous", "age", "years", "hour", "minute", "sched_dep_time"),
        "{type: integer, low: -1, high: 99}",
    )
    columns |= dict.fromkeys(("admitted", "discharged"), "{type: date, low: 2020-01-01, high: 2020-12-31}")
    categories = {
        "city": "Oslo], missing: true, missing_values: [none",
        "country": "NO, SE",
        "education": "HS, Bachelors, PhD",
        "sex": "F, M",
        "title": "Ms, Mr, Dr",
    }
    columns |= {name: f"{{type: category, values: [{values}]}}" for name, values in categories.items()}
    text = "".join(f"  {name}: {described}\n" for name, described in columns.items())
    assert len(parse_schema(f"columns:\n{text}{rules}").constraints) == 7


@settings(max_examples=6, deadline=None)
@given(schemas())
def test_a_file_makes_the_same_schema_again(schema):
    assert parse_schema(schema_text(schema)) == schema


@settings(max_examples=100, deadline=None)
@given(st.lists(WILD.filter(bool), min_size=1, max_size=4, unique=True), WILD)
def test_any_text_may_be_a_name_a_value_or_a_description(texts, text):
    columns = [{"name": name, "type": "category", "values": texts, "description": text} for name in texts]
    fields = {"kind": "table", "description": text, "strip": False, "label": texts[0] if len(texts) > 1 else None}
    schema = TableSchema.from_json(fields | {"columns": columns})
    assert parse_schema(schema_text(schema)) == schema
    assert "\n" not in value_text(text)


@pytest.mark.parametrize("name", ["adult", "mushroom"])
def test_bundled_schemas(name, tmp_path):
    schema = read_schema(str(files("lightning_dpgen.data") / "bundled" / f"{name}.schema.yaml"))
    assert len(schema.with_bins(20).layout.groups) == {"adult": 15, "mushroom": 23}[name]
    assert schema.layout.label is not None if name == "mushroom" else schema.label == "income"
    (tmp_path / "again.yaml").write_text(schema_text(schema), encoding="utf-8")
    assert read_schema(tmp_path / "again.yaml") == schema


BAD = {
    "nothing": ("", "F: expected keys and values"),
    "a list": ("- a", "F: expected keys and values"),
    "no columns": ("label: a", "F: expected columns"),
    "columns as a list": ("columns: [a, b]", "F: expected columns"),
    "no column": ("columns: {}", "F, line 1: columns: no column is modelled"),
    "a column of nothing": ("columns:\n  a:", "F, line 2: column 'a': None: expected keys and values"),
    "twice": ("columns:\n  a: {type: boolean}\n  a: {type: boolean}", "F, line 3: 'a' appears twice"),
    "a key twice": ("columns:\n  a:\n    type: date\n    type: time", "F, line 4: 'type' appears twice"),
    "unknown key": ("columns:\n  a: {type: boolean}\nlabels: a", "F, line 3: labels: unknown here"),
    "unknown key of a column": ("columns:\n  a:\n    type: integer\n    lo: 3", "F, line 4: column 'a': lo: unknown here"),
    "value": ("columns:\n  a:\n    type: integer\n\n    low: x", "F, line 5: column 'a': low: 'x': expected"),
    "missing key": ("columns:\n  b: {type: boolean}\n  a:\n    type: integer", "F, line 3: column 'a': low: is missing"),
    "label": ("columns:\n  a: {type: boolean}\nlabel: b", "F, line 3: label: 'b': expected the name"),
    "draft": ("columns:\n  a:\n    type: integer\n    low: ???\n    high: TODO  # later", "F: .* on lines 4, 5"),
    "draft between braces": ("columns:\n  a: {type: integer, low: ???}", "F: .* on line 2"),
    "draft of a draft": ("columns:\n  a: {type: integer, low: TODO, high: 3}", "F: .* on line 2"),
    "no YAML": ("columns:\n  a: b: c", "F, line 2: not YAML"),
    "tabs": ("columns:\n\ta: 3", "F, line 2: not YAML"),
    "an alias": ("columns: &x\n  a: {type: boolean}\ny: *x", "F, line 3: an alias"),
    "code": ("columns: !!python/object/apply:os.system [ls]", "F, line 1: not YAML"),
    "a set": ("columns: !!set {a, b}", "F: expected columns"),
    "depth": ("columns: " + "[" * 1000, "F: nested too deeply"),
    "a huge number": ("columns:\n  a: {type: integer, low: " + "9" * 5000 + "}", "F, line 2: a huge number"),
    "control characters": ("columns: \x00", "F: not YAML"),
    "two documents": ("a: 1\n---\nb: 2", "F, line 2: not YAML"),
    "no name": ("? [a]\n: b", "F, line 1: expected a name"),
    "a name of nothing": ("columns:\n  '': {type: boolean}", "F, line 2: column '': name: expected text"),
    "two tables": ("columns:\n  a: {type: boolean, a: {b: 3}}", "F, line 2: column 'a': a: unknown"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD.keys())
def test_files_that_make_no_sense(text, words):
    with pytest.raises(BadSchema, match=words) as caught:
        parse_schema(text, "F")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    file = tmp_path / "a.yaml"
    with pytest.raises(FileNotFoundError):
        read_schema(file)
    file.write_bytes(b"columns: \xff")
    with pytest.raises(BadSchema, match="byte 9 is not UTF-8"):
        read_schema(file)
    file.write_bytes("\ufeffcolumns: {a: {type: boolean}}".encode())
    assert read_schema(file).arrow.names == ["a"]
    monkeypatch.setattr("lightning_dpgen.data.tables.schema_file._LARGEST_FILE", 3)
    with pytest.raises(BadSchema, match="larger than 3 bytes"):
        read_schema(file)


@pytest.mark.parametrize("text", [
    "", "[]", "3", "{", "{}", '{"columns": {"a": 3}}', "[" * 1000, '{"tables": {"a": 3}}', '{"tables": {"a": {}, "b": {}}}',
    '{"a": "b"}', '{"a": 0}', '{"a": true}',
])  # fmt: skip
@pytest.mark.parametrize("reader", [read_sdv, read_domain])
@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_other_programs_files_that_are_none(tmp_path, reader, text, name):
    Path(tmp_path / name).write_text(text)
    with pytest.raises(BadSchema) as caught:
        reader(tmp_path / name)
    assert "\n" not in str(caught.value) and name in str(caught.value)


NEARLY = {
    "{typ: integer, low: 0, high: 9}": "type: must be given: expected one of .*; did you mean type in place of 'typ'",
    "{low: 0}": "type: must be given: expected one of category",
    "{type: number, low: 1,5, high: 9}": "5: is the rest of a value with a comma: expected a decimal point, as in 1.5",
    "{type: number, low: '1,5', high: 9}": "'1,5': expected a number, at most 1e.100, with a decimal point and nothing",
    "{type: integer, low: 0, high: '10,000'}": "'10,000': expected a whole number, .* as in 1.5 or 10000",
    "{type: boolean, words: [0, 1]}": 'in quotes ."0", "1".',
    "{type: integer, low: 0, high: 10000000000000000}": "a whole number, at most 2.53: .* type: fake .* type: drop",
    "{type: number, low: 0, high: 100, decimals: 2}": "'a' has 10,001 values: expected a column of 2 to 1,000 choices",
    "{type: integer, low: 0, high: 5000, special: [-1, 3]}": "'a' has 5,002 values: expected",
    "{type: number, low: 0, high: 1}": "'a' has real numbers",
    "{type: integer, low: 0, high: 99, bins: 3}": "'a' has 3 choices of several values each",
}


@pytest.mark.parametrize(("fields", "told"), NEARLY.items())
def test_what_is_nearly_right_is_told_truly(fields, told):
    with pytest.raises(BadSchema, match=told) as found:
        parse_schema(f"label: a\ncolumns:\n  a: {fields}\n  b: {{type: boolean}}\n")
    assert "\n" not in str(found.value)


def test_a_misspelled_key_of_all_columns_is_found():
    with pytest.raises(BadSchema, match="did you mean columns in place of 'colums'"):
        parse_schema("colums:\n  a: {type: boolean}\n")


def test_text_behind_a_quote_is_told_of():
    with pytest.raises(BadSchema, match=r"line 2: not YAML: .*; a text that begins with a quote ends with the next one"):
        parse_schema("constraints:\n  - 'a b' <= c\ncolumns: {c: {type: boolean}}\n")


# A file of a schema, and faults that a person may make in it: words in it, what they become, and what is told of that.
WHOLE_FILE = """\
description: visits
label: sex
types: {age: int8, sex: category}
constraints:
  - a <= b
  - c < d
columns:
  sex: {type: category, values: [F, M]}
  age: {type: integer, low: 0, high: 99, missing: true}
  a: {type: integer, low: 0, high: 9}
  b: {type: integer, low: 0, high: 9}
  c:
    type: date
    low: 2020-01-01
    high: 2021-01-01
  d: {type: date, low: 2020-01-01, high: 2021-01-01}
  e: {type: number, low: 0, high: 1}
"""
FAULTS = {
    "description: visits": ("descripton: visits", "line 1: descripton: unknown here"),
    "label: sex": ("label: zz", "line 2: label: 'zz': expected the name"),
    "age: int8": ("ages: int8", "line 3: types: 'ages': expected the name"),
    "sex: category}\n": ("sex: bool}\n", "line 3: types: column 'sex': 'bool': expected a type"),
    "a <= b": ("a ~ b", "line 5: constraints: 'a ~ b': column 'a ~ b'"),
    "c < d": ("b <= 3", "line 6: constraints: 'b <= 3': concerns only one column"),
    "0, high: 99": ("0, hihg: 99", "line 9: column 'age': hihg: unknown here: did you mean 'high'?"),
    "missing: true": ("missing: yes", "line 9: column 'age': missing: 'yes': expected true or false"),
    "    low: 2020-01-01": ("    low: 2020-13-01", "line 14: column 'c': low: '2020-13-01': expected a date"),
    "e: {type: number, low: 0": ("e: {type: number, low: ???", "is still to be filled in, on line 17"),
}


@pytest.mark.parametrize("left", [None, *FAULTS], ids=lambda words: "all" if words is None else words.strip())
def test_all_that_is_wrong_is_told_at_once_and_nothing_else(left):
    text, expected = WHOLE_FILE, []
    for words, (wrong, told) in FAULTS.items():
        assert words in WHOLE_FILE
        if words != left:
            text, expected = text.replace(words, wrong, 1), [*expected, told]
    # A constraint on a column of which too little is left is not looked at.
    problems = [str(problem) for problem in parse_leniently(text, "F")[1]]
    assert all(any(told in problem for problem in problems) for told in expected), problems
    assert len(problems) == len(expected), problems


@pytest.mark.parametrize("columns", ["{e: {type: integer, low: ???, high: 5}}", "{e: {type: integre}}", "{e: ???}"])
def test_what_is_wrong_with_a_table_is_told_where_no_column_is_left(columns):
    text = f"label: zz\ndescripton: x\nconstraints: [a ~ b, 'q <= 3', e < 4]\ncolumns: {columns}\n"
    found, problems = parse_leniently(text)
    assert found is None and len(problems) == 5
    assert [problem.key for problem in problems[1:]] == ["descripton", "constraints", "constraints", "label"]
