"""Text that a spreadsheet would run leaves as text, and is read back as it was."""

import csv
import itertools
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_dpgen.data.files.formulas import escaped, known_again, unescaped
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.release.rows.tables import csv_text, write_table
from lightning_dpgen.sampling.errors import BadRecords

SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def _texts():
    """Make all short texts of a few letters, and some longer ones."""
    letters = ["'", "=", "-", "a", '"', ","]
    every = ["".join(word) for length in range(5) for word in itertools.product(letters, repeat=length)]
    random_ = random.Random(0)
    return every + ["".join(random_.choices([*SIGNS, *letters, "\U0001f600", "é"], k=7)) for _ in range(500)]


def test_no_cell_begins_with_a_sign_and_every_cell_comes_back():
    texts = _texts()
    cells = escaped(pa.array(texts)).to_pylist()
    assert not any(cell.startswith(SIGNS) for cell in cells)
    assert len(set(cells)) == len(set(texts)) and unescaped(pa.array(cells)).to_pylist() == texts
    changed = [text for text, cell in zip(texts, cells, strict=True) if cell != text]
    assert all(text.lstrip("'").startswith(SIGNS) for text in changed)


def test_what_is_known_is_never_touched():
    texts = _texts()
    assert known_again(pa.array(texts), pa.array(texts), escaped=False).to_pylist() == texts
    assert known_again(pa.array(texts), pa.array([], pa.string())).to_pylist() == texts


VALUES = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "'=x", "tea", "'tis"]
SCHEMA = parse_schema(f"""columns:
  "=name": {{type: category, values: {VALUES!r}}}
  plain: {{type: category, values: [a, "'=b"], missing: true, missing_values: ["-"]}}
  number: {{type: integer, low: -9, high: 9, bins: 19}}
""")


def _batch():
    rows = [*VALUES, *VALUES]
    return pa.RecordBatch.from_pydict({
        "=name": rows, "plain": ["a", "'=b"] * len(VALUES), "number": np.arange(-7, 7),
    }, SCHEMA.arrow)  # fmt: skip


@pytest.mark.parametrize("escape", [True, False])
def test_a_table_is_read_back_as_it_was_written(tmp_path, escape):
    batch = _batch()
    write_table(tmp_path / "t.csv", [batch], SCHEMA.arrow, escape=escape)
    with open(tmp_path / "t.csv", newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    texts = [header[0], *(row[0] for row in rows)]
    assert any(text.startswith(SIGNS) for text in texts) != escape
    # A number below zero is no formula, and no text.
    assert [int(row[2]) for row in rows] == list(range(-7, 7))
    read, expected = (read_table(source, SCHEMA).encoded for source in (tmp_path / "t.csv", batch))
    assert np.array_equal(read.codes, expected.codes) and np.array_equal(read.units, expected.units)


def test_apostrophes_of_the_data_stay(tmp_path):
    """In a frame nothing was escaped by us, and in a file only what the schema knows in no other way."""
    frame = pd.DataFrame({"=name": ["'=cmd|' /C calc'!A0"], "plain": ["a"], "number": [1]})
    with pytest.raises(ValueError, match="=name"):
        read_table(frame, SCHEMA)
    (tmp_path / "t.csv").write_text("=name,plain,number\n'=x,'=b,1\n")
    read = read_table(tmp_path / "t.csv", SCHEMA).encoded
    assert read.codes[0, 0] == VALUES.index("'=x") and read.codes[0, 1] == 1


_BARE = st.text(st.sampled_from(["=", "-", "@", "a", "'", '"', ",", "\uff1d"]), min_size=1, max_size=3)


def _with_escaped_forms(texts):
    """Make texts, and for each of them those that escape it once and twice."""
    return [form for text in texts for form in (text, f"'{text}", f"''{text}")]


@settings(max_examples=60)
@given(data=st.data())
def test_values_and_names_in_both_forms_are_read_back_as_they_were_written(tmp_path_factory, data):
    forms = [sorted(set(_with_escaped_forms(data.draw(st.lists(_BARE, min_size=1, max_size=3))))) for _ in range(2)]
    names = sorted(set(_with_escaped_forms(data.draw(st.lists(_BARE, min_size=1, max_size=2)))))
    header = data.draw(st.booleans())
    columns = tuple(
        column_of(name, {"type": "category", "values": forms[i % 2], "missing": True, "missing_values": ["", "?"]})
        for i, name in enumerate(names)
    )
    schema = TableSchema(columns, header=header)
    rows = data.draw(st.lists(st.tuples(*(st.sampled_from([*forms[i % 2], None]) for i in range(len(names)))), min_size=1))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, pa.string()) for values in zip(*rows, strict=True)], schema=schema.arrow
    )
    path = tmp_path_factory.mktemp("both") / "t.csv"
    write_table(path, [batch], schema.arrow)
    if not header:
        # A name may hold a comma, and no line break.
        path.write_text(path.read_text(encoding="utf-8").partition("\n")[2], encoding="utf-8")
    read, expected = (read_table(source, schema).encoded for source in (path, batch))
    assert np.array_equal(read.codes, expected.codes)


def _of_both_forms(tmp_path, text, name="x"):
    values = ["=a", "'=a", "b"]
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    schema = TableSchema((column_of(name, {"type": "category", "values": values}),))
    return [values[code] for code in read_table(tmp_path / "t.csv", schema).encoded.codes[:, 0]]


def test_a_file_that_was_not_escaped_is_read_as_it_stands_where_nothing_speaks_against_it(tmp_path):
    """A record is read by itself, and by the header: an apostrophe that may be ours is."""
    assert _of_both_forms(tmp_path, "x\n=a\nb\n") == ["=a", "b"]
    assert _of_both_forms(tmp_path, "x\n'=a\n''=a\nb\n") == ["=a", "'=a", "b"]
    assert _of_both_forms(tmp_path, "-x\n=a\n'=a\nb\n", "-x") == ["=a", "'=a", "b"]
    for cells in ("=a\nb\n'=a\n", "'=a\n=a\n"):
        with pytest.raises(BadRecords, match=r"column 'x' holds text .* Parquet") as refused:
            _of_both_forms(tmp_path, "x\n" + cells)
        assert len(str(refused.value).splitlines()) == 1


def test_lists_and_names_of_labels_cannot_be_run():
    batch = pa.RecordBatch.from_pydict({"items": [["=1", "b"], []], "@label": ["-x", None]})
    assert "".join(csv_text([batch])) == 'items,\'@label\n"[""=1"", ""b""]",\'-x\n[],\n'
    assert "items,@label\n" in "".join(csv_text([batch], escape=False))
