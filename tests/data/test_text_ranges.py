"""A file of text that is read in ranges has the rows, the lines and the faults of one that is read as a whole."""

import gzip

import numpy as np
import pandas as pd
import pytest
from marks import only

from lightning_dpgen.data.files import text as text_files
from lightning_dpgen.data.files.delimited import DelimitedText
from lightning_dpgen.data.files.text import WHOLE, QuoteScan
from lightning_dpgen.data.files.values import JsonLines
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.sources import table_files
from lightning_dpgen.sampling.errors import BadRecords

# Pieces of text with all that may end, or seem to end, a field, a row or a file.
PIECES = [
    "a", "b", " c ", ",", ",", ",", "\n", "\n", "\r\n", "\r", '"', '""', '"x,y"', '"two\nlines"', '"a\r\nb"',
    '"say ""so"""', '5"', "\n\n", "é", "\ufeff", "1,2\n", '"1","2"\n', "3,4\r\n", '"",""\n',
]  # fmt: skip


def _turns(content):
    """Follow the quotes a byte at a time."""
    state, found, start = "begin", [], 3 if content.startswith(b"\xef\xbb\xbf") else 0
    for at in range(start, len(content)):
        byte = content[at : at + 1]
        if state == "open" and byte == b'"':
            state = "closed"
        elif state in ("begin", "closed") and byte == b'"':
            state = "open"
        elif state == "open":
            continue
        else:
            state = "begin" if byte in b",\r\n" else "text"
            continue
        found.append(at)
    return found, state == "open"


def test_quotes_are_followed_in_pieces_of_any_size():
    random = np.random.default_rng(1)
    for _ in range(1000):
        mark = b"\xef\xbb\xbf" * bool(random.random() < 0.2)
        content = mark + bytes(random.choice(list(b'"""",\n\rab'), random.integers(1, 20)).tolist())
        scan, found, at = QuoteScan(b","), [], 0
        while at < len(content):
            piece = content[at : at + int(random.integers(1 if at else 3, 9))]
            found += [at + place for place in scan.feed(piece).tolist()]
            at += len(piece)
        assert (found, scan.is_open) == _turns(content)


def _read(rows):
    """Return the rows of a source with their places, and the fault that ends them."""
    found = []
    try:
        for block in rows.blocks():
            found += [(*values.values(), block.place(i)) for i, values in enumerate(block.rows.to_pylist())]
    except BadRecords as bad:
        return found, str(bad)
    return found, None


def _parts(rows):
    found = []
    for part in rows.ranges(rows.columns):
        read, fault = _read(rows.within(part))
        found += read
        if fault is not None:
            return found, fault
    return found, None


def _small(monkeypatch, least, piece=7):
    monkeypatch.setattr(text_files, "_BYTES_OF_RANGE", least)
    monkeypatch.setattr(text_files, "_BYTES_AT_ONCE", piece)


def _compare(rows):
    """Check a file that is read in ranges against the same as a whole, and return how many ranges there were."""
    (whole, fault), (parts, found) = _read(rows), _parts(rows)
    assert found == fault
    # The rows that Arrow hands out before a fault depend on its blocks.
    assert parts == whole if fault is None else parts[: len(whole)] == whole
    ranges = rows.ranges(rows.columns)
    assert [part.stop for part in ranges[:-1]] == [part.start for part in ranges[1:]]
    assert (ranges[0].start, ranges[-1].stop) == (0, None)
    return len(ranges)


@pytest.mark.parametrize("charset", only(("utf-8", "cp1252"), "utf-8"))
def test_ranges_of_delimited_text_are_the_whole(tmp_path, monkeypatch, charset):
    random, path, several, faults = np.random.default_rng(2), tmp_path / "a.csv", 0, 0
    for i in range(200):
        _small(monkeypatch, int(random.integers(1, 12)), int(random.integers(4, 9)))
        columns, header = int(random.integers(1, 3)), bool(random.random() < 0.5)
        text = "".join(random.choice(PIECES, random.integers(0, 25))) if i % 3 else _regular(random, columns)
        text = ("one,two"[: 3 if columns == 1 else 7] + "\n") * header + text
        if header and random.random() < 0.3:
            text = "\n\r\n" + text
        path.write_bytes(text.encode(charset, errors="replace"))
        rows = DelimitedText(
            path, None if header else ["one", "two"][:columns], strip=bool(random.random() < 0.5),
            skip_empty=bool(random.random() < 0.5), charset=charset,
        )  # fmt: skip
        several += _compare(rows) > 1
        faults += _read(rows)[1] is not None
    assert several > 80 and faults > 20


def _regular(random, columns):
    """Return rows that are right."""
    fields = ["a", "b ", '"x,y"', '"two\nlines"', '"a\r\nb"', '"say ""so"""', '5"', "", "é", '""', '"\ufeff"', "\ufeff"]
    ends = ["\n", "\r\n", "\n\n", "\r"]
    return "".join(",".join(random.choice(fields, columns)) + random.choice(ends) for _ in range(random.integers(0, 12)))


def test_ranges_of_json_lines_are_the_whole(tmp_path, monkeypatch):
    random, path, several, faults = np.random.default_rng(3), tmp_path / "a.jsonl", 0, 0
    lines = [
        '{"one": 1, "two": "x"}',
        '{"two": "\u2028\\n"}',
        "",
        " ",
        '{"one": 2.5}',
        '{"one": "z\ufeff"}',
        "\r",
        '{"one": 1}',
    ]
    for _ in range(150):
        _small(monkeypatch, int(random.integers(1, 40)))
        # One kind of fault a file: how many lines are read together decides which of two is told.
        fault = random.choice(["{", '{"other": 1}'])
        chosen = [lines[0], *random.choice([*lines, *lines, fault, fault], random.integers(0, 12))]
        mark, end = b"\xef\xbb\xbf" * bool(random.random() < 0.3), random.choice(["\n", "\r\n"])
        path.write_bytes(mark + end.join(chosen).encode())
        monkeypatch.setattr("lightning_dpgen.data.files.values._LOOKED_AT", int(random.integers(1, 3)))
        try:
            rows = JsonLines(path, ["one", "two", "three"])
        except BadRecords:
            continue
        rows.columns = rows.columns[:2]
        several += _compare(rows) > 1
        faults += _read(rows)[1] is not None
        # A key that may be in no line is looked for in all.
        assert rows.ranges(["one", "three"]) == [WHOLE]
    assert several > 60 and faults > 20


def test_a_quote_that_would_be_missed_is_noticed(tmp_path, monkeypatch):
    """The law above fails where quotes are not followed."""
    monkeypatch.setattr(QuoteScan, "feed", lambda self, piece: np.empty(0, np.int64))
    with pytest.raises(AssertionError):
        test_ranges_of_delimited_text_are_the_whole(tmp_path, monkeypatch, "utf-8")


def test_an_open_quote_is_told_beside_one_that_is_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('one,two\n5",a\n"b,c\nd,e\n')
    with pytest.raises(BadRecords, match="line 3: a double quote is opened and never closed"):
        list(DelimitedText(path).blocks())


def test_a_byte_that_is_no_text_is_told_with_its_line(tmp_path, monkeypatch):
    _small(monkeypatch, 10)
    path = tmp_path / "a.csv"
    path.write_bytes(b'1,2\n"a\rb",c\n1,2\n3,4\r5,6\n7,8\n7,\xe98\n')
    rows = DelimitedText(path, ["one", "two"])
    assert _compare(rows) > 2 and "line 8: byte 3 (0xe9) is not UTF-8" in _read(rows)[1]


@pytest.mark.parametrize("columns", [["one", "two"], ["two"]], ids=" ".join)
def test_a_file_is_whole_where_rows_depend_on_others(tmp_path, monkeypatch, columns):
    """Texts that the schema has with an apostrophe and without are escaped in all rows, or in none."""
    _small(monkeypatch, 10)
    schema = parse_schema(
        'columns: {one: {type: category, values: ["=a", "\'=a", b]}, two: {type: integer, low: 0, high: 9}}'
    )
    path = tmp_path / "a.csv"
    path.write_text("one,two\n" + "b,1\n" * 20)
    ranges = table_files(path, schema)["a.csv"].ranges(columns)
    assert (ranges == [WHOLE]) == ("one" in columns) and len(ranges) > 1 - ("one" in columns)


@pytest.mark.parametrize("kind", ["packed", "utf-16", "small"])
def test_files_that_are_not_cut(tmp_path, monkeypatch, kind):
    text, path = "one,two\n" + "1,2\n" * 50, tmp_path / ("a.csv.gz" if kind == "packed" else "a.csv")
    if kind != "small":
        _small(monkeypatch, 10)
    charset = "utf-16" if kind == "utf-16" else "utf-8"
    path.write_bytes(gzip.compress(text.encode()) if kind == "packed" else text.encode(charset))
    rows = DelimitedText(path, charset=charset)
    assert rows.ranges(rows.columns) == [WHOLE] and _compare(rows) == 1 and len(_read(rows)[0]) == 50


def test_a_parquet_file_has_no_ranges_of_bytes(tmp_path):
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "p.parquet")
    file = table_files(tmp_path / "p.parquet", parse_schema("columns: {x: {type: integer, low: 0, high: 9}}"))["p.parquet"]
    assert file.ranges(["x"]) == [WHOLE]
    with pytest.raises(ValueError, match="expected one of `ranges`"):
        file.within(WHOLE._replace(start=3))
