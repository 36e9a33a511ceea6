"""Encodings, numbers, dates, zones and words as a schema declares them: read, written, drafted, and never guessed."""

import datetime
import re
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_dpgen.data.files.text import CHARSETS
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.moment_form import MomentForm
from lightning_dpgen.data.tables.reading import COMMENTED, UNNAMED, read_open_columns, read_table
from lightning_dpgen.data.tables.scales import MOMENTS
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_draft import draft_of_file, draft_text
from lightning_dpgen.data.tables.schema_file import parse_schema, schema_text
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.data.tables.sources import table_source
from lightning_dpgen.data.tables.value_set import value_of
from lightning_dpgen.data.tables.written_form import DECIMALS, THOUSANDS, NumberForm, negatives_of, problem_of_unit
from lightning_dpgen.release.rows.output_format import OutputFormat
from lightning_dpgen.release.rows.tables import csv_text
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
    schema = TableSchema([column_of(name, found) for name, found in fields.items()], **about).with_bins(5)
    assert len(read_table(tmp_path / "a.csv", schema).encoded) == 3


def test_a_draft_leaves_open_what_may_be_either(tmp_path):
    (tmp_path / "a.csv").write_text("day,at\n1/2/2024,2024-01-31T10:00:00+01:00\n3/4/2024,2024-07-31T10:00:00+02:00\n")
    text = draft_text(draft_of_file(tmp_path / "a.csv")[0], "a.csv")
    assert 'format: ???   # "%-d/%-m/%Y" or "%-m/%-d/%Y": both read the first rows' in text
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
    "of a program": ("7,0\n\n12,0", {"type": "integer", "decimals": 1, "missing": True}),
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
    assert len(read_table(tmp_path / "a.csv", TableSchema([column, money], **about)).encoded) == 2 + ("\n\n" in texts)


DATE, DATETIME, TIME = ({"type": kind} for kind in ("date", "datetime", "time"))
MINUTES = {"resolution": "minute"}
# Texts of a column, and what is drafted of it. Filled in, the draft writes the texts again.
TEXTS = {
    "words in capitals": ("Ja\nNein\nJa", {"type": "boolean", "words": ["Nein", "Ja"]}),
    "mixed capitals": ("Ja\nnein", {"type": "boolean", "words": ["nein", "ja"]}),
    "of R": ("TRUE\nTRUE", {"type": "boolean", "words": ["FALSE", "TRUE"]}),
    "usual": ("true\nfalse", {"type": "boolean"}),
    "words and missing": ("Yes\nNA\nNo", {
        "type": "boolean", "words": ["No", "Yes"], "missing": True, "missing_values": ["NA"],
    }),
    "with T": ("2024-01-31T10:05:00", DATETIME | {"format": "%Y-%m-%dT%H:%M:%S"}),
    "to the minute": ("2024-01-31 10:05", DATETIME | {"format": "%Y-%m-%d %H:%M"} | MINUTES),
    "as programs": ("2024-01-31 10:05:00", DATETIME),
    "thousandths": ("2024-01-31 10:05:00.000", DATETIME | {"format": "%Y-%m-%d %H:%M:%S.%3f"}),
    "millionths": ("2024-01-31T10:05:00.000000", DATETIME | {"format": "%Y-%m-%dT%H:%M:%S.%f"}),
    "clocks": ("10:05\n9:30", TIME | {"format": "%-H:%M"} | MINUTES),
    "times": ("10:05\n09:30", TIME | {"format": "%H:%M"} | MINUTES),
    "half days": ("02:54 PM\n12:08 AM", TIME | {"format": "%I:%M %p"} | MINUTES),
    "small half days": ("2:54 pm\n12:08 am", TIME | {"format": "%-I:%M %P"} | MINUTES),
    "hours": ("2 PM\n11 AM", TIME | {"format": "%-I %p", "resolution": "hour"}),
    "months by name": ("19 Aug 2023\n01 May 2022", DATE | {"format": "%d %b %Y"}),
    "whole names": ("August 9, 2023\nMay 10, 2022", DATE | {"format": "%B %-d, %Y"}),
    "of SAS": ("19AUG2023\n01MAY2022", DATE | {"format": "%d%^b%Y"}),
    "of Oracle": ("19-AUG-23\n01-MAY-70", DATE | {"format": "%d-%^b-%y"}),
    "weekdays": ("Sat, 19 Aug 2023\nSun, 01 May 2022", DATE | {"format": "%a, %d %b %Y"}),
    "of two digits": ("08/19/23\n12/31/22", DATE | {"format": "%m/%d/%y"}),
    "without zeros": ("8/19/2023\n12/1/2022", DATE | {"format": "%-m/%-d/%Y"}),
    "ISO without zeros": ("2023-8-19\n2022-12-1", DATE | {"format": "%Y-%-m-%-d"}),
    "days of years": ("2023-231\n2024-366", DATE | {"format": "%Y-%j"}),
    "with half days": ("08/19/2023 02:54 PM", DATETIME | {"format": "%m/%d/%Y %I:%M %p"} | MINUTES),
    "digits": ("20240320\n20231231", DATE | {"format": "%Y%m%d"}),
    "digits from the day": ("08042024\n27062024", DATE | {"format": "%d%m%Y"}),
    "digits without zeros": ("8042024\n27062024", DATE | {"format": "%-d%m%Y"}),
    "digits to the second": ("20240320101112\n20231231235959", DATETIME | {"format": "%Y%m%d%H%M%S"}),
    "missing days": ("2024-03-20\nNULL", DATE | {"missing": True, "missing_values": ["NULL"]}),
    "euros": ("334,59 €\n1.435,09 €\n-3,00 €", {"type": "number", "decimals": 2, "unit": "1 €"}),
    "a narrow space": ("334,59\u202f€\n-3,00\u202f€", {"type": "number", "decimals": 2, "unit": "1\u202f€"}),
    "percent": ("12,5 %\n7,0 %", {"type": "number", "decimals": 1, "unit": "1 %"}),
    "dollars": ("$1,200\n-$5,000,000", {"type": "integer", "unit": "$1"}),
    "a minus behind the sign": ("$1\n$-5", {"type": "integer", "unit": "$1", "negative": "$-1"}),
    "of accountants": ("45.00\n(1.50)", {"type": "number", "decimals": 2, "negative": "(1)"}),
    "dollars of accountants": ("$45.00\n($1.50)", {"type": "number", "decimals": 2, "unit": "$1", "negative": "($1)"}),
    "a minus at the end": ("45-\n7", {"type": "integer", "negative": "1-"}),
    "a minus of typesetters": ("\u221245\n7", {"type": "integer", "negative": "\u22121"}),
    "of the Swiss": ("CHF 1'200.\u2013\nCHF 5.\u2013", {"type": "integer", "unit": "CHF 1.\u2013"}),
    "of the Czechs": ("5,-\n10,-", {"type": "integer", "unit": "1,-"}),
    "spaces": ("1 234,50 EUR\n7,25 EUR", {"type": "number", "decimals": 2, "unit": "1 EUR"}),
    "kilograms": ("12.5kg\n7.0kg", {"type": "number", "decimals": 1, "unit": "1kg"}),
    "degrees": ("36.5°C\n-7.0°C", {"type": "number", "decimals": 1, "unit": "1°C"}),
    "of pandas": ("\n".join(f"{age}.0" for age in range(20, 30)), {"type": "integer", "decimals": 1}),
    "missing numbers": ("7\nN/A\n12", {"type": "integer", "missing": True, "missing_values": ["N/A"]}),
    # Texts that are no numbers, or would lose a part as such.
    "codes": ("00123\n45678", {"type": "category"}),
    "telephones": ("+491701234567\n+441701234567", {"type": "category"}),
    "ordinals": ("1st\n2nd\n3rd", {"type": "category"}),
    "letters and digits": ("A1\nB2", {"type": "category"}),
    "quarters": ("Q1\nQ2", {"type": "category"}),
    "weeks": ("2024-W12\n2024-W13", {"type": "category"}),
    "ranges": ("10-19\n20-29", {"type": "category"}),
    "bounds": ("<5\n7", {"type": "category"}),
    "hexadecimal": ("0x1F\n0xA0", {"type": "category"}),
    "durations": ("1h 30m\n2h 05m", {"type": "category"}),
    "numbers of houses": ("#1\n#2", {"type": "category"}),
    "a word among texts": ("None\nOslo", {"type": "category"}),
}  # fmt: skip
# Bounds for each type; %y reads the years up to the last.
WIDE = {
    "date": {"low": "1970-01-01", "high": "2068-12-31"},
    "datetime": {"low": "2020-01-01 00:00", "high": "2024-12-31 23:59"},
    "integer": {"low": -(10**9), "high": 10**9}, "number": {"low": -(10**6), "high": 10**6},
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_words_numbers_and_moments_are_drafted_as_they_are_spelled(tmp_path, case):
    """A draft that is filled in writes the file again, and what it writes is read as the same."""
    texts, expected = TEXTS[case]
    lines = texts.split("\n")
    (tmp_path / "a.csv").write_text("".join(f"{line};o\n" for line in ["x", *lines]))
    drafts, about = draft_of_file(tmp_path / "a.csv")
    fields = drafts[0].fields
    kept = {key: value for key, value in fields.items() if value != "???" and key not in ("decimal", "thousands")}
    assert kept == expected
    values = {"values": sorted(set(lines))} if expected["type"] == "category" else {}
    columns = [
        column_of("x", fields | WIDE.get(expected["type"], values)),
        column_of("o", {"type": "category", "values": ["o"]}),
    ]
    schema = TableSchema(columns, **about)
    assert parse_schema(schema_text(schema)) == schema
    (tmp_path / "b.csv").write_text(written := _written(tmp_path / "a.csv", schema))
    again = texts.lower() if case == "mixed capitals" else texts
    assert written == "".join(f"{line};o\n" for line in ["x", *again.split("\n")])
    assert _written(tmp_path / "b.csv", schema) == written


def _written(path, schema):
    """Return the file of the records of a file, as synthetic ones are written."""
    batch = next(table_source(path, schema).batches([column.name for column in schema.recorded]))
    arrays = {
        column.name: column.restored(*column.numbers(batch[column.name], False, Counter())) for column in schema.recorded
    }
    return "".join(csv_text([pa.record_batch(arrays)], form=OutputFormat.of(schema), escape=False))


SEVERAL = {
    "5 kg\n5 lb\n7": r'several units, "1 kg", "1 lb", "1"', "12 %\n7": 'several units, "1 %", "1"',
    "$5\n€7": 'several units, "\\$1", "€1"',
    "13.02.2024\n2024-03-01\n14.02.2024": r'two forms, as 31.12.2024 \("%d.%m.%Y"\) and 2024-12-31 \("%Y-%m-%d"\)',
}  # fmt: skip


@pytest.mark.parametrize("texts", SEVERAL)
def test_a_column_of_several_forms_is_told(tmp_path, texts):
    (tmp_path / "a.csv").write_text(f"x\n{texts}\n")
    draft = draft_of_file(tmp_path / "a.csv")[0][0]
    assert draft.fields == {"type": "???"} and re.search(SEVERAL[texts], draft.why["type"])


def test_a_draft_asks_whether_numbers_are_moments(tmp_path):
    rows = [f"{1692403200 + 60 * i},{1692403200123 + i},{100 * (5 + i // 60) + i % 60}" for i in range(90)]
    (tmp_path / "a.csv").write_text("\n".join(["s,ms,at", *rows]) + "\n")
    drafts = draft_of_file(tmp_path / "a.csv")[0]
    assert [draft.fields["type"] for draft in drafts] == ["integer"] * 3
    for draft, form in zip(drafts, ("%s", "%s%3f", "%-H%M"), strict=True):
        assert f'format: "{form}"' in draft.why["type"]
        kind = "time" if form == "%-H%M" else "datetime"
        numbers = next(table_source(tmp_path / "a.csv", _ANY).batches([draft.name])).column(0)
        read = MomentForm(form, kind).of_numbers(numbers.cast(pa.int64()))
        assert MomentForm(form, kind).fits(read).all() and MOMENTS[kind].ticks(
            MomentForm(form, kind).read(read)
        ).tolist() == _seconds(draft.name)


_ANY = TableSchema(tuple(column_of(name, {"type": "integer", "low": 0, "high": 9}) for name in ("s", "ms", "at")))


def _seconds(name):
    clocks = [3600 * (5 + i // 60) + 60 * (i % 60) for i in range(90)]
    return {"s": [1692403200 + 60 * i for i in range(90)], "ms": [1692403200] * 90, "at": clocks}[name]


# Files, and the records that are in them.
FILES = {
    "a title": "Visits 2023\n\nday;cost\n2023-01-01;5\n2023-01-02;7\n",
    "comments": '# by LIMS; of Berlin; "x\nday;cost\n# note\n2023-01-01;5\n2023-01-02;7\n# end\n',
    "a sum": "day;cost\n2023-01-01;5\n2023-01-02;7\nTotal;12\n",
    "an index": ";day;cost\n0;2023-01-01;5\n1;2023-01-02;7\n",
    "separators at the end": "day;cost;\n2023-01-01;5;\n2023-01-02;7;\n",
    "all": "Visits 2023\nof Berlin\n;day;cost\n0;2023-01-01;5\n1;2023-01-02;7\nSumme;;12\n",
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("charset", ["utf-8", "utf-16", "cp1252"])
def test_lines_that_are_no_records_are_drafted_and_left_out(tmp_path, case, charset):
    """Files written for them are read again by the same schema."""
    (tmp_path / "a.csv").write_bytes(FILES[case].encode(charset))
    drafts, about = draft_of_file(tmp_path / "a.csv")
    columns = [column_of(draft.name, draft.fields | WIDE[draft.fields["type"]]) for draft in drafts if draft.name]
    assert [column.type for column in columns] == ["date", "integer"]
    schema = TableSchema(columns, **about | {"charset": charset})
    assert parse_schema(schema_text(schema)) == schema
    nameless = {UNNAMED: 1} if any(not draft.name for draft in drafts) else {}
    counted = read_table(tmp_path / "a.csv", schema.with_bins(3)).counted
    assert counted.pop(COMMENTED, 0) > 0 or not schema.comment
    assert counted == nameless
    written = _written(tmp_path / "a.csv", schema)
    assert written == "\n" * schema.skip_rows + "day;cost\n2023-01-01;5\n2023-01-02;7\n"
    (tmp_path / "b.csv").write_text(written, encoding=charset)
    assert _written(tmp_path / "b.csv", schema) == written


def test_a_record_is_never_taken_for_the_names_below_a_title(tmp_path):
    """Names below a title differ from the records by digits: else the draft would show a record."""
    for text in ("who\nSmith,John\nBrown,Ann\n", "who\nSmith,42\nBrown,43\n", "a;b;c\nx,5;2,5;1\ny,5;3,5;1\nz,5;4,5;1\n"):
        (tmp_path / "a.csv").write_text(text)
        try:
            drafts, about = draft_of_file(tmp_path / "a.csv")
        except BadRecords:
            continue
        assert "skip_rows" not in about and {draft.name for draft in drafts} <= set(re.split("[;,\n]", text.split("\n")[0]))


def test_a_text_that_begins_as_a_comment_is_written_in_quotes(tmp_path):
    schema = parse_schema('{comment: ["#", Total], columns: {x: {type: category, values: ["#1", Total, Totally, a]}}}')
    (tmp_path / "a.csv").write_text('x\n"#1"\n#1\n"Total"\nTotal\nTotally\na\n')
    assert _written(tmp_path / "a.csv", schema) == 'x\n"#1"\n"Total"\n"Totally"\na\n'


UNITS = ["1", "1 €", "$1", "1%", "CHF 1.\u2013", "1,-", "Rs.1", "1 l/100km", "1eV", "1 %"]


@given(
    st.lists(st.one_of(st.integers(-(2**53), 2**53), st.floats(-1e12, 1e12)), min_size=1, max_size=20),
    st.sampled_from([(d, t) for d in DECIMALS for t in THOUSANDS if d != t]),
    st.sampled_from([(unit, negative) for unit in UNITS for negative in (None, *negatives_of(unit))]),
)
def test_numbers_that_are_written_are_read_again(numbers, signs, unit):
    assert problem_of_unit(*unit) is None
    form = NumberForm(*signs, unit=unit[0], negative=unit[1])
    values = pa.array(numbers, pa.int64() if all(isinstance(number, int) for number in numbers) else pa.float64())
    texts = form.written(values)
    assert form.fits(texts).all()
    assert form.read(texts).cast(pa.float64()).to_pylist() == values.cast(pa.float64(), safe=False).to_pylist()
    # A number of another unit is never read as one of this.
    others = [NumberForm(*signs, unit=other).written(values) for other in UNITS if other.strip("1 ") != unit[0].strip("1 ")]
    assert not any(form.fits(pc.replace_substring_regex(other, "^-", "")).any() for other in others)


# Formats that Python and Arrow write alike; those of GNU alone are Python's on this system.
FORMATS = [
    ("date", "%m/%d/%Y"), ("date", "%d %b %Y"), ("date", "%A, %B %d, %Y"), ("date", "%a %d%b%Y"), ("date", "%Y%m%d"),
    ("date", "%Y%j"), ("date", "%d%m%Y"), ("datetime", "%S/%M/%H %d-%m-%Y"), ("datetime", "%Y-%m-%d %I:%M:%S %p"),
    ("datetime", "%Y%m%d%H%M%S"), ("datetime", "%j of %Y, %H.%M.%S"), ("time", "%H.%M.%S"), ("time", "%I%M%S%p"),
    ("datetime", "%Y-%m-%dT%H:%M:%S.%f"),
]  # fmt: skip


@given(st.datetimes(datetime.datetime(1000, 1, 1), datetime.datetime(2999, 1, 1)), st.sampled_from(FORMATS))
def test_moments_that_are_written_are_read_again(moment, formatted):
    moment = moment.replace(microsecond=0)
    values = {"date": pa.array([moment.date()]), "datetime": pa.array([moment], pa.timestamp("s")),
              "time": pa.array([moment.time()], pa.time32("s"))}  # fmt: skip
    kind, text = formatted
    form = MomentForm(text, kind)
    written = form.written(values[kind])
    assert written.to_pylist() == [moment.strftime(text)] and form.fits(written).all()
    again = form.read(written)[0].as_py()
    assert type(values[kind][0].as_py()).fromisoformat(again) == values[kind][0].as_py()


@given(st.integers(1000, 2999), st.integers(0, 99))
def test_two_digits_of_a_year_are_of_the_hundred_years_that_end_with_the_bound(last, year):
    read = MomentForm("%d.%m.%y", "date", last).read(pa.array([f"01.02.{year:02}"]))[0].as_py()
    assert last - 100 < int(read[:4]) <= last and int(read[:4]) % 100 == year


def test_a_weekday_of_another_day_is_refused():
    assert MomentForm("%a %d.%m.%Y", "date").fits(pa.array(["Sat 19.08.2023", "Sun 19.08.2023"])).tolist() == [True, False]


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
    filled = schema.with_discovery({"a": [0, 100]}).with_bins(10)
    assert read_table(tmp_path / "a.csv", filled).encoded.codes[:, 1].tolist() == [filled.columns[1].present, 25]


REFUSED = {
    "quotes: some": "quotes: 'some': expected one of needed, texts, all",
    "charset: zip": "charset: 'zip': expected an encoding: utf-8", "charset: 5": "charset: 5: expected an encoding",
    "decimal: x": "decimal: 'x': expected", "thousands: '.'": "expected another sign between thousands",
    "columns: {a: {type: number, low: 0, high: 1, thousands: ';'}}": "thousands: ';': expected one of",
    "thousands: ','\ncolumns: {a: {type: number, low: 0, high: 1, decimal: ','}}": "than before decimals, wh",
    "columns: {a: {type: date, low: 2020-01-01, high: 2021-01-01, format: '%d.%m'}}": "format: .*%Y %m %d, each once",
    "columns: {a: {type: date, low: 2020-01-01, high: 2021-01-01, format: '%Y%-m%d'}}": "format: .*%Y %m %d, each once",
    "columns: {a: {type: date, low: 1900-01-01, high: 2021-01-01, format: '%d.%m.%y'}}": "low: .*a year from 1922 to 2021",
    "columns: {a: {type: number, low: 0, high: 1, unit: EUR}}": "unit: 'EUR': expected the number 1 as it is written",
    "columns: {a: {type: number, low: 0, high: 1, unit: '=cmd|1'}}": "unit: .*without =",
    "columns: {a: {type: number, low: 0, high: 1, unit: $1, negative: (1)}}": "negative: .*expected the number -1 .*-.1",
    "columns: {a: {type: date, low: 2020-01-01, high: 2021-01-01, unit: 1 d}}": "unit: expected only with type: integer",
    "skip_rows: -1": "skip_rows: -1: expected a number of lines", "comment: ''": "comment: '': expected a text",
    "columns: {a: {type: date, low: 2020-01-01, high: 2021-01-01, format: '%d.%m.%Y %H'}}": "format: .*%Y %m %d, each on",
    "columns: {a: {type: integer, low: 0, high: 1, format: '%d'}}": "format: expected only with type: date",
    "columns: {a: {type: datetime, low: 2020-01-01, high: 2021-01-01, zone: Mars}}": "zone: 'Mars': expected the name of",
    "columns: {a: {type: date, low: 2020-01-01, high: 2021-01-01, zone: UTC}}": "zone: expected only with type: datetime",
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
    ("type: number, low: 0, high: 99", "334,59 €", ["decimal: ',' and unit: \"1 €\"", "'€' is not understood"]),
    ("type: number, low: 0, high: 99", "($4.50)", ['unit: "$1" and negative: "($1)"']),
    ("type: integer, low: 0, high: 99", "45-", ['declare negative: "1-"']),
    ('type: number, low: 0, high: 99, unit: "1 kg"', "5 lb", ["'5 lb': expected", 'unit: "1 kg"', "such as 1234.5 kg"]),
    ('type: number, low: 0, high: 99, unit: "1 kg"', "5", ["'5': expected", 'unit: "1 kg"']),
    ("type: number, low: private, high: private", "n/a", ['declare missing: true and missing_values: ["n/a"]']),
    ("type: category, values: [a, b]", "NULL", ['declare missing: true and missing_values: ["NULL"]']),
    ("type: category, values: [a, b]", "Total", ['declare comment: "Total"']),
    ("type: date, low: 2020-01-01, high: 2024-12-31", "20240320", ['declare format: "%Y%m%d"']),
    ("type: date, low: 2020-01-01, high: 2024-12-31", "19 Aug 2023", ['declare format: "%d %b %Y"']),
    ("type: time", "02:54 PM", ['declare format: "%I:%M %p"']),
    ('type: time, format: "%H.%M"', "25.61", ["'25.61': expected format: \"%H.%M\""]),
    ("type: date, low: 2020-01-01, high: 2024-12-31", "never", ["'never': expected a date as YYYY-MM-DD; correct it"]),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "text", "told"), IN_ANOTHER_FORM)
def test_a_value_in_another_form_is_quoted_as_it_stands_and_its_key_is_named(fields, text, told):
    schema = parse_schema(f"columns:\n  a: {{{fields}}}\n  b: {{type: boolean, missing: true}}")
    frame = pd.DataFrame({"a": [text], "b": [True]})
    with pytest.raises(BadRecords) as found:
        read_open_columns(frame, schema) if schema.open else read_table(frame, schema.with_bins(5))
    message = str(found.value)
    assert all(part in message for part in told) and "\n" not in message, message


TITLES = {
    "a title": "Title", "lines": "Title\n\n2020", "quoted lines": '"A title, on\n two lines"', "fields": "Title,,,",
    "a sign": "# Title",
    "two signs": "% a\n% b", "a space": " Title", "a quote": '"""q"" t"', "a minus": "-- report", "a backslash": "\\x",
    "an inch": '5" pipes',
}  # fmt: skip


@pytest.mark.parametrize("end", ["\n", *(pytest.param(end, marks=pytest.mark.slow) for end in ("\r\n", "\r"))])
@pytest.mark.parametrize("declared", ["", "skip_rows: 1\n", "skip_rows: 2\n", "strip: false\n"])
def test_what_is_advised_where_names_stand_below_a_title_reads_the_table(tmp_path, declared, end):
    """Each of the keys that are named reads the records, all of them, whatever stands above and was declared before."""
    text = "columns:\n  a: {type: integer, low: -9, high: 9, bins: 3}\n  b: {type: boolean}\n"
    for name, above in TITLES.items():
        path = tmp_path / "a.csv"
        path.write_bytes(f"{above}\na,b\n-3,1\n4,0\n".replace("\n", end).encode())
        try:
            found = read_table(path, parse_schema(declared + text))
            assert "skip_rows" in declared and len(found.encoded) == 2
            continue
        except BadRecords as error:
            message = str(error)
        advised = re.findall(r"skip_rows: \d+|comment: [^ ]+", message)
        assert advised, (name, message)
        for key in advised:
            kept = "" if "skip" in declared else declared
            assert len(read_table(path, parse_schema(f"{kept}{key}\n{text}")).encoded) == 2, (name, key)
