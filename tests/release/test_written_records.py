"""Synthetic baskets and series are read again by the settings by which the real ones were read, whatever these are."""

import json
import pickle

import numpy as np
import pytest
import scipy.sparse
from marks import only

from lightning_dpgen.data.baskets.form import BasketForm
from lightning_dpgen.data.baskets.reading import read_baskets
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.series.form import WEEKDAYS, SeriesForm
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.kinds.baskets import written_baskets
from lightning_dpgen.kinds.series import written_series
from lightning_dpgen.release.rows.tables import FORMATS, OF_BASKETS, write_table

N = 12
RANDOM = np.random.default_rng(0)
ITEMS = ("whole milk", "pâté", "bread, rye", '"7up"', "=1+1", "-x", 'a"b', "'tis", "semi;colon", "NA")
UNIVERSES = (ITEMS, (1, 2, 40), ("a", "b"))
BASKETS = (
    {}, {"form": "lines"}, {"form": "lines", "separator": ";"}, {"form": "lines", "header": True},
    {"form": "lines", "separator": " "}, {"form": "rows"}, {"form": "rows", "separator": ";"},
    {"form": "rows", "header": False}, {"columns": ("bill", "article")},
)  # fmt: skip
STEPS = ("1980", "1981", "1982")
SERIES = (
    ({"columns": ("lwage_1980", "lwage_1981", "lwage_1982")}, ()),
    ({"columns": STEPS, "separator": ";", "header": True, "label": "group"}, ()),
    ({"columns": tuple(f"{c}_{year}" for year in STEPS for c in "ab")}, ()),
    ({"header": False}, ()),
    ({"form": "long", "columns": ("lwage",), "by": "nr", "time": "year"}, STEPS),
    ({"form": "long", "columns": ("lwage", "union"), "by": "nr", "time": "year"}, STEPS),
    ({"form": "long", "columns": ("lwage",), "by": "nr", "time": "when"}, ("2024-01-01", "2024-02-01", "2024-03-01")),
    ({"form": "long", "columns": ("lwage",), "by": "nr"}, ()),
    ({"form": "long", "columns": ("internet",), "day": "datetime"}, ()),
    ({"form": "long", "columns": ("internet",), "day": "datetime", "by": "meter"}, ("00:00", "08:00", "16:30")),
    ({"form": "long", "columns": ("internet",)}, ()),
    ({"form": "long", "columns": ("internet",), "day": "datetime", "weekdays": "each"}, ()),
    ({"form": "long", "columns": ("internet",), "day": "datetime", "by": "meter", "weekdays": "weekend"}, ()),
)  # fmt: skip


def _written(path, schema, written, encoded, escape=True):
    """Write records in two chunks, as large draws are, in the form that other processes get."""
    written = pickle.loads(pickle.dumps(written))
    parts = [encoded[: N // 2], encoded[N // 2 :]]
    chunks = (schema.decode(part, RANDOM) for part in parts)
    write_table(path, written.rows(chunks, 0), written.columns, form=written.form, escape=escape)
    return path


def _by_json(schema):
    return type(schema).from_json(json.loads(json.dumps(schema.as_json())))


@pytest.mark.parametrize("ending", only([*FORMATS, *OF_BASKETS], ".csv", ".jsonl", ".parquet", ".dat"))
def test_baskets_are_read_by_the_settings_of_the_real_ones(tmp_path, ending):
    number = 0
    for items in UNIVERSES:
        units = scipy.sparse.csr_array((RANDOM.random((N, len(items))) < 0.4).astype(np.uint8))
        units = scipy.sparse.csr_array(
            scipy.sparse.vstack([units[: N - 1], scipy.sparse.csr_array((1, len(items)), dtype=np.uint8)])
        )
        for classes in ((), ("-day", "night")):
            for said in BASKETS if items is ITEMS else BASKETS[:2]:
                said = said | ({"label": True} if classes else {})
                schema = _by_json(BasketSchema(items, len(items), classes, BasketForm(**said)))
                encoded = schema.encode(units, np.arange(N) % 2 if classes else None)
                number += 1
                path = _written(tmp_path / f"{number}{ending}", schema, written_baskets(schema, ending), encoded)
                for known, options in ((BasketSchema(items, len(items), classes), said), (schema, {})):
                    read = read_baskets(path, known, **options).encoded
                    assert (read.units != encoded.units).nnz == 0 and (read.codes == encoded.codes).all(), (said, path)


def test_baskets_are_one_a_line_with_quotes_where_they_are_needed(tmp_path):
    schema = BasketSchema(ITEMS[:4], 4, written=BasketForm("lines"))
    units = scipy.sparse.csr_array(np.array([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1]], np.uint8))
    path = _written(tmp_path / "a.csv", schema, written_baskets(schema, ".csv"), schema.encode(units))
    assert path.read_text() == 'whole milk,"bread, rye"\n\npâté,"""7up"""\n'
    # An item may have a line break, or blanks around it, in the file of another program.
    path.write_text('header\n" whole milk ", "pâté\n"\n\n"bread, rye"')
    reading = read_baskets(path, schema, form="lines", header=True, outside="clamp")
    assert reading.encoded.units.toarray().tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]


@pytest.mark.parametrize("ending", only(FORMATS, ".csv", ".jsonl", ".parquet"))
def test_series_are_read_by_the_settings_of_the_real_ones(tmp_path, ending):
    for number, (said, steps) in enumerate(SERIES):
        wide = said.get("form") is None
        count = len(said.get("columns", "x")) // 3 or 1 if wide else len(said["columns"])
        channels = ("value",) if count == 1 else ("a", "b")
        names = WEEKDAYS[said["weekdays"]][0] if "weekdays" in said else ("-low", "high")
        for classes in (names,) if "weekdays" in said else ((), names):
            schema = _by_json(SeriesSchema(3, 0, 9, channels, classes, 2, steps, SeriesForm(**said)))
            units = np.round(RANDOM.random((N, 3 * count)) * 900) / 900
            codes = np.arange(N)[:, None] % len(classes) if classes else np.zeros((N, 0))
            encoded = Encoded(units.astype(np.float32), codes.astype(np.uint8))
            written = written_series(schema, schema.written)
            path = _written(tmp_path / f"{number}{len(classes)}{ending}", schema, written, encoded)
            columns = [name for name in written.columns.names if name not in (schema.written.label, "label")]
            keys = [said[key] for key in ("by", "day", "time") if key in said]
            assert columns == keys + list(said.get("columns", schema.columns))
            options = {name: value for name, value in said.items() if name != "columns"}
            for known, asked in ((SeriesSchema(3, 0, 9, channels, classes, 2, steps), options), (schema, {})):
                read = read_series(path, known, **asked).encoded
                assert np.allclose(read.units, encoded.units, atol=1e-6) and (read.codes == encoded.codes).all(), (
                    said,
                    path,
                )


def test_another_form_is_written_where_it_is_asked_for(tmp_path):
    schema = SeriesSchema(3, 0, 9, written=SeriesForm(columns=("lwage_1980", "lwage_1981", "lwage_1982")))
    assert written_series(schema, schema.written, "long").columns.names == ["series", "time", "lwage"]
    chunk = schema.decode(Encoded(np.ones((1, 3), np.float32), np.zeros((1, 0), np.uint8)), RANDOM)
    assert next(written_series(schema, schema.written, "long").rows([chunk], 0))["time"].to_pylist() == [1980, 1981, 1982]
    panel = SeriesSchema(3, 0, 9, steps=STEPS, written=SeriesForm("long", columns=("lwage",), by="nr", time="year"))
    assert written_series(panel, panel.written, "wide").columns.names == list(STEPS)


def test_days_have_an_end():
    schema = SeriesSchema(2, 0, 9, written=SeriesForm("long", day="t"))
    chunk = schema.decode(Encoded(np.ones((1, 2), np.float32), np.zeros((1, 0), np.uint8)), RANDOM)
    with pytest.raises(ValueError, match="before the year 10,000"):
        next(written_series(schema, schema.written).rows([chunk], 3_000_000))


FOREIGN = (
    {"forn": "wide"}, {"form": "square"}, {"label": None}, {"columns": ["a\x1b[2J", "b"]}, {"separator": "\n"}, {"by": 3},
    [],
)  # fmt: skip


@pytest.mark.parametrize("written", FOREIGN)
@pytest.mark.parametrize("schema", [SeriesSchema(2, 0, 9), BasketSchema(("a", "b"), 1)], ids=lambda schema: schema.kind)
def test_a_form_of_a_stranger_is_checked(schema, written):
    with pytest.raises(ValueError):
        type(schema).from_json(schema.as_json() | {"written": written})
