"""Encodings, numbers, dates, zones and words as a schema declares them: read, written, drafted, and never guessed."""

import datetime
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_dpgen.data.files.text import CHARSETS
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.columns import column_of
from lightning_dpgen.data.tables.moment_form import MomentForm
from lightning_dpgen.data.tables.reading import read_open_columns, read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_draft import draft_of_file, draft_text
from lightning_dpgen.data.tables.schema_file import parse_schema, schema_text
from lightning_dpgen.data.tables.sources import table_source
from lightning_dpgen.data.tables.value_set import value_of
from lightning_dpgen.data.tables.written_form import DECIMALS, THOUSANDS, NumberForm
from lightning_dpgen.release.as_read import AsRead
from lightning_dpgen.sampling.errors import BadRecords

GERMAN = """Größe;Gewicht;geboren;gesehen;raucht;Stadt
1.234;72,5;31.12.1980;01.02.2024 13:45;ja;Köln
999;1.080,25;01.03.1975;31.01.2024 07:05;Nein;München
12.500;;02.07.2001;15.06.2023 00:00;nein;Köln
"""
SCHEMA = """
separator: ";"
decimal: ","
thousands: "."
columns:
  Größe: {type: integer, low: 0, high: 20000, bins: 20}
  Gewicht: {type: number, low: 0, high: 2000, decimals: 2, bins: 20, missing: true}
  geboren: {type: date, low: 1900-01-01, high: 2024-12-31, format: "%d.%m.%Y", bins: 20}
  gesehen: {type: datetime, low: "2020-01-01 00:00", high: "2024-12-31 23:59", format: "%d.%m.%Y %H:%M", bins: 20}
  raucht: {type: boolean, words: [nein, ja]}
  Stadt: {type: category, values: [Köln, München]}
"""
ENGLISH = pd.DataFrame({
    "Größe": [1234, 999, 12500], "Gewicht": [72.5, 1080.25, None],
    "geboren": pd.to_datetime(["1980-12-31", "1975-03-01", "2001-07-02"]),
    "gesehen": pd.to_datetime(["2024-02-01 13:45", "2024-01-31 07:05", "2023-06-15 00:00"]),
    "raucht": [True, False, False], "Stadt": ["Köln", "München", "Köln"],
})  # fmt: skip
# Encodings that have all letters of the example.
WESTERN = ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "iso8859-1", "iso8859-15", "cp1252", "cp850", "mac-roman"]


@pytest.mark.parametrize("charset", WESTERN)
def test_a_table_is_read_as_it_is_declared(tmp_path, charset):
    (tmp_path / "a.csv").write_bytes(GERMAN.replace("\n", "\r\n").encode(charset))
    schema = parse_schema(f"charset: {charset}{SCHEMA}")
    read = read_table(tmp_path / "a.csv", schema)
    assert read.encoded.codes.tolist() == read_table(ENGLISH, schema).encoded.codes.tolist()
    assert parse_schema(schema_text(schema)) == schema


@pytest.mark.parametrize("charset", ["utf-16", "utf-16-le", "utf-16-be", "cp1252", "utf-8"])
def test_a_draft_proposes_how_a_table_is_written(tmp_path, charset):
    (tmp_path / "a.csv").write_bytes(GERMAN.encode(charset))
    drafts, about = draft_of_file(tmp_path / "a.csv")
    expected = {"separator": ";", "decimal": ",", "thousands": "."} | ({} if charset == "utf-8" else {"charset": charset})
    assert about == expected
    fields = {draft.name: draft.fields for draft in drafts}
    kinds = [found["type"] for found in fields.values()]
    assert kinds == ["integer", "number", "date", "datetime", "boolean", "category"]
    assert fields["geboren"]["format"] == "%d.%m.%Y" and fields["gesehen"]["format"] == "%d.%m.%Y %H:%M"
    assert fields["raucht"]["words"] == ["nein", "ja"]
    text = draft_text(drafts, "a.csv", about)
    assert not any(secret in text for secret in ("1.234", "999", "72,5", "1980", "Köln", "13:45"))
    # Filled in, it reads the file.
    bounds = {"Größe": (0, 20000), "Gewicht": (0, 2000), "geboren": ("1900-01-01", "2024-12-31"),
              "gesehen": ("2020-01-01 00:00", "2024-12-31 23:59")}  # fmt: skip
    for name, (low, high) in bounds.items():
        fields[name] |= {"low": low, "high": high}
    fields["Gewicht"]["missing"] = True
    fields["Stadt"]["values"] = ["Köln", "München"]
    schema = TableSchema.of([column_of(name, found) for name, found in fields.items()], about).completed(5)
    assert len(read_table(tmp_path / "a.csv", schema).encoded) == 3


def test_a_draft_leaves_open_what_may_be_either(tmp_path):
    (tmp_path / "a.csv").write_text("day,at\n1/2/2024,2024-01-31T10:00:00+01:00\n3/4/2024,2024-07-31T10:00:00+02:00\n")
    text = draft_text(draft_of_file(tmp_path / "a.csv")[0], "a.csv")
    assert 'format: ???   # "%d/%m/%Y" or "%m/%d/%Y": both read the first rows' in text
    assert "zone: ???   # whose" in text
    pa.parquet.write_table(
        pa.table(
            {"at": pa.array([0], pa.timestamp("s", "Europe/Berlin")), "off": pa.array([0], pa.timestamp("s", "+01:00"))}
        ),
        tmp_path / "a.parquet",
    )
    drafts, _ = draft_of_file(tmp_path / "a.parquet")
    assert [draft.fields["zone"] for draft in drafts] == ["Europe/Berlin", "???"]


NUMBERS = {
    "decimals": ("0,00\n3,00", {"type": "number", "decimals": 2}),
    "of several": ("0,5\n3,25", {"type": "number", "decimals": 2}),
    "many": ("0,3333333333\n3,25", {"type": "number"}),
    "whole": ("7\n12", {"type": "integer"}),
    "of a program": ("7,0\n\n12,0", {"type": "integer"}),
    "one decimal": ("7,0\n12,0", {"type": "number", "decimals": 1}),
    "another sign": ("52.5200\n48.1", {"type": "number", "decimals": 4, "decimal": ".", "thousands": ""}),
    "codes": ("10115\n99999", {"type": "integer", "thousands": ""}),
    "zeros in front": ("01067\n99999", {"type": "category"}),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_are_drafted_as_they_are_written(tmp_path, case):
    texts, expected = NUMBERS[case]
    (tmp_path / "a.csv").write_text("x;money\n" + "".join(f"{text};1.234,50\n" for text in texts.split("\n")))
    drafts, about = draft_of_file(tmp_path / "a.csv")
    assert about == {"separator": ";", "decimal": ",", "thousands": "."}
    fields = {draft.name: draft.fields for draft in drafts}
    assert {key: value for key, value in fields["x"].items() if value != "???"} == expected
    bounds = {"category": {"values": ["01067", "99999"]}}.get(expected["type"], {"low": 0, "high": 99999, "bins": 5})
    column = column_of("x", expected | bounds | {"missing": True})
    money = column_of("money", {**fields["money"], "low": 0, "high": 5000, "bins": 5})
    assert len(read_table(tmp_path / "a.csv", TableSchema.of([column, money], about)).encoded) == 2 + ("\n\n" in texts)


TEXTS = {
    "words in capitals": ("Ja\nNein\nJa", {"type": "boolean", "words": ["Nein", "Ja"]}),
    "mixed capitals": ("Ja\nnein", {"type": "boolean", "words": ["nein", "ja"]}),
    "of R": ("TRUE\nTRUE", {"type": "boolean", "words": ["FALSE", "TRUE"]}),
    "usual": ("true\nfalse", {"type": "boolean"}),
    "with T": ("2024-01-31T10:05:00", {"type": "datetime", "format": "%Y-%m-%dT%H:%M:%S"}),
    "to the minute": ("2024-01-31 10:05", {"type": "datetime", "format": "%Y-%m-%d %H:%M", "resolution": "minute"}),
    "as programs": ("2024-01-31 10:05:00", {"type": "datetime"}),
    "clocks": ("10:05\n9:30", {"type": "category"}),
    "times": ("10:05\n09:30", {"type": "time", "format": "%H:%M", "resolution": "minute"}),
}


@pytest.mark.parametrize("case", TEXTS)
def test_words_and_moments_are_drafted_as_they_are_spelled(tmp_path, case):
    """A draft that is filled in writes the texts of the file again."""
    texts, expected = TEXTS[case]
    (tmp_path / "a.csv").write_text(f"x\n{texts}\n")
    fields = draft_of_file(tmp_path / "a.csv")[0][0].fields
    assert {key: value for key, value in fields.items() if value != "???"} == expected
    bounds = {"low": "2020-01-01 00:00", "high": "2024-12-31 23:59"} if expected["type"] == "datetime" else {}
    values = {"values": texts.split("\n")} if expected["type"] == "category" else {}
    schema = TableSchema((column_of("x", expected | bounds | values),)).completed(9000)
    column = schema.columns[0]
    again = column.restored(*column.numbers(_read_one(tmp_path / "a.csv", schema), False, Counter()))
    written = AsRead.of(schema).texts(pa.record_batch({"x": again})).column(0).to_pylist()
    assert written == [text if case != "mixed capitals" else text.lower() for text in texts.split("\n")]


def _read_one(path, schema):
    return next(table_source(path, schema).batches(["x"])).column(0)


@given(
    st.lists(st.one_of(st.integers(-(2**53), 2**53), st.floats(-1e12, 1e12)), min_size=1, max_size=20),
    st.sampled_from([(d, t) for d in DECIMALS for t in THOUSANDS if d != t]),
)
def test_numbers_that_are_written_are_read_again(numbers, signs):
    form = NumberForm(*signs)
    values = pa.array(numbers, pa.int64() if all(isinstance(number, int) for number in numbers) else pa.float64())
    texts = form.written(values)
    assert form.fits(texts).all()
    assert form.read(texts).cast(pa.float64()).to_pylist() == values.cast(pa.float64(), safe=False).to_pylist()


@given(st.datetimes(datetime.datetime(1000, 1, 1), datetime.datetime(2999, 1, 1)))
def test_moments_that_are_written_are_read_again(moment):
    moment = moment.replace(microsecond=0)
    values = {"date": pa.array([moment.date()]), "datetime": pa.array([moment], pa.timestamp("s")),
              "time": pa.array([moment.time()], pa.time32("s"))}  # fmt: skip
    for kind, text in (("date", "%m/%d/%Y"), ("datetime", "%S/%M/%H %d-%m-%Y"), ("time", "%H.%M.%S")):
        form = MomentForm(text, kind)
        written = form.written(values[kind])
        assert written.to_pylist() == [moment.strftime(text)] and form.fits(written).all()
        again = form.read(written)[0].as_py()
        assert type(values[kind][0].as_py()).fromisoformat(again) == values[kind][0].as_py()


def test_a_zone_keeps_what_its_clocks_show():
    """An independent oracle: Python's own zones, over a day of each month and the two changes of the clocks."""
    from zoneinfo import ZoneInfo

    zone = ZoneInfo("Europe/Berlin")
    moments = [datetime.datetime(2024, month, 15, 22, 30, tzinfo=datetime.UTC) for month in range(1, 13)]
    moments += [datetime.datetime(2024, 3, 31, hour, tzinfo=datetime.UTC) for hour in range(4)]
    moments += [datetime.datetime(2024, 10, 27, hour, tzinfo=datetime.UTC) for hour in range(4)]
    fields = {"type": "datetime", "low": "2024-01-01 00:00", "high": "2025-01-31 00:00", "zone": "Europe/Berlin", "bins": 9}
    column = column_of("at", fields)
    clocks = [moment.astimezone(zone).replace(tzinfo=None) for moment in moments]
    expected = [int((clock - datetime.datetime(1970, 1, 1)).total_seconds()) for clock in clocks]
    for values in (
        pa.array([moment.isoformat() for moment in moments]),
        pa.array([moment.astimezone(zone).isoformat() for moment in moments]),
        pa.array(moments, pa.timestamp("us", "America/New_York")),
    ):
        assert column.scale.ticks(values).tolist() == expected
    again = column.scale.column(np.array(expected), np.zeros(len(expected), bool))
    assert again.type == pa.timestamp("s", "Europe/Berlin") == column.arrow
    # The hour that clocks show twice is the first one.
    wrong = [a for a, b in zip(again.cast(pa.timestamp("s", "UTC")).to_pylist(), moments, strict=True) if a != b]
    assert wrong == [datetime.datetime(2024, 10, 27, 0, tzinfo=datetime.UTC)]


BAD = {
    "no thousands there": (
        "1.23;1;31.12.1980;01.02.2024 13:45;ja;Köln",
        "'Größe': '1.23': expected decimal: .* 1.234,5",
    ),
    "a point": ("1;1.5;31.12.1980;01.02.2024 13:45;ja;Köln", "line 2: column 'Gewicht': '1.5': expected decimal"),
    "another date": ("1;1;1980-12-31;01.02.2024 13:45;ja;Köln", "'1980-12-31': expected format: .* 01.01.1970"),
    "no such day": ("1;1;31.02.1980;01.02.2024 13:45;ja;Köln", "'geboren': '31.02.1980': expected format"),
    "another word": ("1;1;31.12.1980;01.02.2024 13:45;yes;Köln", "'raucht': 'yes': expected nein or ja"),
    "a text": ("n/a;1;31.12.1980;01.02.2024 13:45;ja;Köln", "'Größe': 'n/a': expected decimal"),
}


@pytest.mark.parametrize(("line", "words"), BAD.values(), ids=BAD)
def test_a_value_in_another_form_is_refused(tmp_path, line, words):
    (tmp_path / "a.csv").write_text(f"{GERMAN.splitlines()[0]}\n{line}\n")
    with pytest.raises(BadRecords, match=words):
        read_table(tmp_path / "a.csv", parse_schema(SCHEMA))


def test_another_encoding_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(GERMAN.encode("latin-1"))
    with pytest.raises(
        BadRecords, match=r"not UTF-8: save the file as UTF-8 .* or declare its encoding .* charset: latin-1"
    ):
        read_table(tmp_path / "a.csv", parse_schema(SCHEMA))
    (tmp_path / "b.csv").write_bytes(GERMAN.encode("cp1252") + b"\x81;1;2;3;4;5\n")
    with pytest.raises(BadRecords, match=r"b.csv, at line \d or below it, is not cp1252"):
        read_table(tmp_path / "b.csv", parse_schema(f"charset: cp1252{SCHEMA}"))


def test_missing_texts_and_open_bounds_have_the_form_too(tmp_path):
    (tmp_path / "a.csv").write_text("a;b\n1,5;-\n-;2,5\n")
    schema = parse_schema("""{separator: ";", columns: {
        a: {type: number, low: private, high: private, decimals: 1, decimal: ",", missing: true, missing_values: ["-"]},
        b: {type: number, low: 0, high: 9, decimals: 1, bins: 91, decimal: ",", missing: true, missing_values: ["-"]}}}""")
    raw, _ = read_open_columns(tmp_path / "a.csv", schema)
    assert raw["a"][0] == 15 and np.isnan(raw["a"][1])
    filled = schema.filled({"a": [0, 100]}).completed(10)
    assert read_table(tmp_path / "a.csv", filled).encoded.codes[:, 1].tolist() == [filled.columns[1].present, 25]


REFUSED = {
    "quotes: some": "quotes: 'some': expected one of needed, texts, all",
    "charset: zip": "charset: 'zip': expected an encoding: utf-8", "charset: 5": "charset: 5: expected an encoding",
    "decimal: x": "decimal: 'x': expected", "thousands: '.'": "expected another sign between thousands",
    "columns: {a: {type: number, low: 0, high: 1, thousands: ';'}}": "thousands: ';': expected one of",
    "thousands: ','\ncolumns: {a: {type: number, low: 0, high: 1, decimal: ','}}": "than before decimals, wh",
    "columns: {a: {type: date, low: 2020-01-01, high: 2021-01-01, format: '%d.%m.%y'}}": "format: .*%Y %m %d, each once",
    "columns: {a: {type: date, low: 2020-01-01, high: 2021-01-01, format: '%d.%m.%Y %H'}}": "format: .*%Y %m %d, each on",
    "columns: {a: {type: integer, low: 0, high: 1, format: '%d'}}": "format: expected only with type: date",
    "columns: {a: {type: datetime, low: 2020-01-01, high: 2021-01-01, zone: Mars}}": "zone: 'Mars': expected the name of",
    "columns: {a: {type: date, low: 2020-01-01, high: 2021-01-01, zone: UTC}}": "zone: 'UTC': expected",
    "columns: {a: {type: boolean, words: [ja, JA]}}": "words: .* expected two words that differ",
    "columns: {a: {type: boolean, words: ja}}": "words: 'ja': expected the two words",
    "columns: {a: {type: category, values: [a, b], words: [ja, nein]}}": "words: expected only with type: boolean",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_forms_that_make_no_sense(text):
    text = text if "columns" in text else f"{text}\ncolumns: {{a: {{type: boolean}}}}"
    with pytest.raises(BadSchema, match=REFUSED[text.removesuffix("\ncolumns: {a: {type: boolean}}")]):
        parse_schema(text)


def test_conditions_take_declared_words_and_true_and_false():
    column = column_of("raucht", {"type": "boolean", "words": ["nein", "ja"]})
    assert [value_of(column, value) for value in ("ja", "JA", "true", True)] == [1] * 4
    assert value_of(column, "false") == value_of(column, "nein") == 0
    # Words that mean the opposite elsewhere are the file's.
    column = column_of("not", {"type": "boolean", "words": ["true", "false"]})
    assert [value_of(column, value) for value in ("true", "false", True)] == [0, 1, 1]


def test_every_charset_is_known_to_arrow(tmp_path):
    for charset in CHARSETS:
        (tmp_path / "a.csv").write_bytes("a\nx\n".encode(charset))
        schema = parse_schema(f"{{charset: {charset}, columns: {{a: {{type: category, values: [x, y]}}}}}}")
        assert len(read_table(tmp_path / "a.csv", schema).encoded) == 1, charset


# The declaration of column a, a text, and parts of the message.
IN_ANOTHER_FORM = [
    ("type: date, low: 2020-01-01, high: 2024-12-31", "28.02.2023", ["'28.02.2023'", 'format: "%d.%m.%Y"']),
    ("type: date, low: 2020-01-01, high: 2024-12-31", "04/03/2023", ['"%d/%m/%Y" or format: "%m/%d/%Y"']),
    ("type: integer, low: 0, high: 99", "1,234", ["'1,234'", "thousands: ','"]),
    ("type: number, low: 0, high: 99", "8,21", ["'8,21'", "declare decimal: ','"]),
    ("type: number, low: private, high: private", "8,21", ["'8,21'", "declare decimal: ','"]),
    ("type: number, low: 0, high: 99, decimal: ','", "1.234,5", ["decimal: \",\" and no thousands", "thousands: '.'"]),
    ('type: date, low: 2020-01-01, high: 2024-12-31, format: "%d/%m/%Y"', "02/28/2023", [
        "'02/28/2023': expected format: \"%d/%m/%Y\"", 'declare format: "%m/%d/%Y"',
    ]),
    ('type: date, low: 2020-01-01, high: 2024-12-31, format: "%d.%m.%Y"', "31.02.2023", ["'31.02.2023': expected format"]),
    ('type: time, format: "%H.%M"', "25.61", ["'25.61': expected format: \"%H.%M\""]),
    ("type: date, low: 2020-01-01, high: 2024-12-31", "never", ["'never': expected a date as YYYY-MM-DD; correct it"]),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "text", "told"), IN_ANOTHER_FORM)
def test_a_value_in_another_form_is_quoted_as_it_stands_and_its_key_is_named(fields, text, told):
    schema = parse_schema(f"columns:\n  a: {{{fields}}}\n  b: {{type: boolean, missing: true}}")
    frame = pd.DataFrame({"a": [text], "b": [True]})
    with pytest.raises(BadRecords) as found:
        read_open_columns(frame, schema) if schema.open else read_table(frame, schema.completed(5))
    message = str(found.value)
    assert all(part in message for part in told) and "\n" not in message, message
