"""Series survive every way they are written in, no encoding depends on other records, and what does not fit is refused."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.series import reading as reading_of_series
from lightning_dpgen.data.series.form import WEEKDAYS
from lightning_dpgen.data.series.reading import CLAMPED, INCOMPLETE, OTHER_LENGTH, read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.sampling.errors import BadRecords

quick = settings(max_examples=25, deadline=None)
RANDOM = np.random.default_rng(0)


@st.composite
def records(draw):
    """Draw a schema, readings (N, length, channels) of its decimals, and labels."""
    channels = draw(st.sampled_from([("value",), ("use", "sun"), ("label", "a", "b_1")]))
    length, n = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    classes = draw(st.sampled_from([(), ("old", "young"), (1, 2, 3)]))
    decimals = draw(st.integers(0, 3))
    whole = st.integers(-(10**4), 10**4)
    bounds = [sorted(draw(st.tuples(whole, whole).filter(lambda pair: pair[0] != pair[1]))) for _ in channels]
    steps = tuple(f"{t}:00" for t in range(length)) if draw(st.booleans()) else ()
    low, high = ([pair[i] / 10**decimals for pair in bounds] for i in (0, 1))
    schema = SeriesSchema(length, low, high, channels, classes, decimals, steps)
    units = [draw(st.integers(*bounds[c])) for _ in range(n * length) for c in range(len(channels))]
    readings = np.round(np.reshape(units, (n, length, len(channels))) / 10**decimals, decimals)
    labels = [draw(st.sampled_from(classes)) for _ in range(n)] if classes else None
    return schema, readings, labels


def _wide(schema, readings, labels):
    frame = pd.DataFrame(readings.reshape(len(readings), -1), columns=schema.columns)
    if labels:
        frame["label"] = labels
    return frame


def _long(schema, readings, labels):
    """Mix the rows of different series."""
    n, length, _ = readings.shape
    rows = [
        {"id": i, "day": f"2024-02-{i + 20:02d} 00:{t:02d}", **dict(zip(schema.channels, readings[i, t], strict=True))}
        | ({"class": labels[i]} if labels else {})
        for t in range(length)
        for i in range(n)
    ]
    return pd.DataFrame(rows)


def _write_csv(folder, known):
    _wide(*known).to_csv(folder / "x.csv", index=False)
    return folder / "x.csv", {}


def _write_bare(folder, known):
    frame = _wide(*known)[[*(["label"] if known[2] else []), *known[0].columns]]
    frame.to_csv(folder / "x.tsv.gz", index=False, header=False, sep="\t")
    return folder / "x.tsv.gz", {"header": False}


def _write_steps(folder, known):
    schema = known[0]
    by_steps = len(schema.channels) == 1 and schema.steps
    names = schema.steps if by_steps else [f"r{i}" for i in range(len(schema.columns))]
    return _wide(*known).rename(columns=dict(zip(schema.columns, names, strict=True))), {}


def _write_parquet(folder, known):
    _wide(*known).sample(frac=1, axis=1, random_state=0).to_parquet(folder / "x.parquet")
    return folder / "x.parquet", {}


def _write_long_by_id(folder, known):
    _long(*known).to_csv(folder / "x.csv", index=False)
    return folder / "x.csv", {"form": "long", "by": "id", "label": "class", "columns": known[0].channels}


def _write_long_by_day(folder, known):
    frame = _long(*known).sample(frac=1, random_state=0)
    frame.to_parquet(folder / "x.parquet")
    return folder / "x.parquet", {"form": "long", "day": "day", "label": "class"}


def _write_windows(folder, known):
    frame = _long(*known).sort_values(["id", "day"])
    return pa.Table.from_pandas(frame, preserve_index=False), {"form": "long", "label": "class"}


def _write_array(folder, known):
    np.save(folder / "x.npy", known[1])
    return folder / "x.npy", {} if known[2] is None else {"label": known[2]}


def _write_arrays(folder, known):
    np.savez(folder / "x.npz", series=known[1], **({} if known[2] is None else {"labels": known[2]}))
    return folder / "x.npz", {}


WAYS = [
    _write_csv, _write_bare, _write_steps, _write_parquet, _write_long_by_id, _write_long_by_day, _write_windows,
    _write_array, _write_arrays,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=10, deadline=None)
@given(known=records())
def test_what_is_written_is_read(tmp_path_factory, way, known):
    schema, readings, labels = known
    source, options = way(tmp_path_factory.mktemp("s"), known)
    reading = read_series(source, schema, **options)
    assert reading.encoded.units.dtype == np.float32 and reading.counted == {} and reading.persons is None
    decoded = schema.decode(reading.encoded, RANDOM)
    assert decoded.schema == schema.arrow
    for name, column in zip(schema.columns, readings.reshape(len(readings), -1).T, strict=True):
        # A float32 tells more than the 20,000 values apart that there are between the bounds.
        assert np.array_equal(decoded[name].to_numpy(), column)
    assert labels is None or decoded["label"].to_pylist() == labels
    again = read_series(decoded.to_pandas(), schema)
    assert np.array_equal(again.encoded.units, reading.encoded.units)
    assert np.array_equal(again.encoded.codes, reading.encoded.codes)


@quick
@given(known=records(), at=st.integers(0, 8), seed=st.integers(0, 99))
def test_a_series_more_changes_no_other(known, at, seed):
    schema, readings, labels = known
    at = min(at, len(readings))
    added = np.random.default_rng(seed).normal(0, 1e4, readings.shape[1:])
    more = np.insert(readings, at, added, axis=0)
    labels_more = labels and [*labels[:at], labels[0], *labels[at:]]
    before = read_series(readings, schema, label=labels or "label").encoded
    sources = [(more, {"label": labels_more or "label"})]
    for form in ({"by": "id"}, {"day": "day"}):
        form |= {"form": "long", "label": "class", "columns": schema.channels}
        sources.append((_long(schema, more, labels_more), form))
    for source, options in sources:
        after = read_series(source, schema, outside="clamp", **options).encoded
        assert np.array_equal(np.delete(after.units, at, axis=0), before.units)
        assert np.array_equal(np.delete(after.codes, at, axis=0), before.codes)


@st.composite
def meters(draw):
    """Draw rows of a long file: a person, a house that several share, a time, a reading."""
    hour = st.integers(0, 40).map(lambda h: f"2024-01-{h // 12 + 1:02d} {h % 12:02d}:00")
    row = st.tuples(st.sampled_from("ABC"), st.sampled_from(["x", "y"]), hour, st.integers(0, 9))
    rows = draw(st.lists(row, max_size=20))
    # At least one series is whole, however rows are cut.
    rows += [("D", "z", f"2024-02-01 0{hour}:00", hour) for hour in range(2)]
    return pd.DataFrame(rows, columns=["who", "house", "time", "load"])


@pytest.mark.parametrize("cut", [["house"], ["time"], ["house", "time"]], ids="+".join)
@quick
@given(frame=meters(), added=meters(), seed=st.integers(0, 99))
def test_a_person_more_changes_nobody_elses_series(cut, frame, added, seed):
    def series_of_others(rows):
        who = list(dict.fromkeys(rows["who"]))
        options = {"by": "house" if "house" in cut else None, "day": "time" if "time" in cut else None}
        reading = read_series(
            rows, SeriesSchema(2, 0, 9), outside="clamp", form="long", person="who", columns=["load"], **options
        )
        of = [who[person] for person in reading.persons]
        return sorted((p, *units) for p, units in zip(of, reading.encoded.units.tolist(), strict=True) if p != "new")

    # Anywhere between the rows of the others.
    both = pd.concat([frame, added.assign(who="new")])
    at = np.random.default_rng(seed).choice(len(both), len(added), replace=False)
    order = np.full(len(both), -1)
    order[np.sort(at)] = len(frame) + np.arange(len(added))
    order[order < 0] = np.arange(len(frame))
    with pytest.MonkeyPatch.context() as patch:
        # A file most of whose series are left out is refused as a whole.
        patch.setattr(reading_of_series, "MOST_LEFT_OUT", 1.0)
        assert series_of_others(both.iloc[order]) == series_of_others(frame)


@quick
@given(known=records(), seed=st.integers(0, 99))
def test_what_is_generated_stays_within_the_bounds(known, seed):
    schema, _, _ = known
    random = np.random.default_rng(seed)
    units = random.choice(np.array([0.0, 1.0, 0.5, 1e-7, 1 - 1e-7], np.float32), (20, schema.layout.units))
    codes = np.zeros((20, len(schema.layout.groups)), np.uint8)
    decoded = schema.decode(Encoded(units, codes), random)
    for i, name in enumerate(schema.columns):
        low, high = schema.low[i % len(schema.channels)], schema.high[i % len(schema.channels)]
        values = decoded[name].to_numpy()
        assert ((low <= values) & (values <= high)).all()
        assert (values[units[:, i] == 0] == low).all() and (values[units[:, i] == 1] == high).all()


@given(known=records())
@quick
def test_a_schema_survives_json(known):
    schema = known[0]
    assert SeriesSchema.from_json(json.loads(json.dumps(schema.as_json()))) == schema
    assert schema.layout.width == schema.length * len(schema.channels) + len(schema.classes)


GOOD = SeriesSchema(2, 0, 1, classes=("a", "b")).as_json()


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "table"}, {"length": 0}, {"length": 10**9}, {"length": True}, {"length": 2.0}, {"low": [1]},
        {"low": ["0"]},
        {"low": [float("nan")]}, {"high": [float("inf")]}, {"high": [True]}, {"high": [1, 2]}, {"high": 1}, {"low": []},
        {"channels": []}, {"channels": [1]}, {"channels": ["a", "a"]}, {"classes": ["a"]}, {"classes": "ab"}, {"more": 1},
        {"decimals": [-1]}, {"decimals": [1.0]}, {"decimals": [99]}, {"low": [0.25], "decimals": [1]}, {"steps": ["a"]},
        {"steps": [1, 2]}, {"low": [1e29], "high": [1.0000000000000001e29]}, {"length": 60_000, "channels": ["a", "b"]},
        {"high": [10**400]},
    ],
    ids=repr,
)  # fmt: skip
def test_nonsense_makes_no_schema(change):
    with pytest.raises(ValueError, match=r"^[^\n]{10,300}$"):
        SeriesSchema.from_json({**GOOD, **change})


def test_clamping_moves_and_leaves_out_and_counts(tmp_path):
    schema = SeriesSchema(2, 0, 10)
    (tmp_path / "x.csv").write_text("t_0,t_1\n1,20\n-5,inf\n,3\n1\n2,NA\n3,4,5\n5,5\n6,7\n")
    reading = read_series(tmp_path / "x.csv", schema, outside="clamp")
    assert reading.encoded.units.tolist() == [
        [np.float32(x) for x in pair] for pair in ((0.1, 1), (0, 1), (0.5, 0.5), (0.6, 0.7))
    ]
    assert reading.counted == {INCOMPLETE: 2, CLAMPED: 3, OTHER_LENGTH: 2}
    frame = pd.DataFrame({"id": [1, 1, 2, 3, 3, 4, 4], "value": [1.0, 5.0, 1.0, 2.0, np.nan, 5.0, 5.0]})
    reading = read_series(frame, schema, outside="clamp", form="long", by="id")
    assert reading.encoded.units.tolist() == [[np.float32(0.1), 0.5], [0.5, 0.5]]
    assert reading.counted == {INCOMPLETE: 1, OTHER_LENGTH: 1}
    with pytest.raises(BadRecords, match=r"no series.*another length, left out: 5"):
        read_series(pd.DataFrame({"id": range(5), "value": 1.0}), schema, outside="clamp", form="long", by="id")


def test_days_are_cut_by_their_dates_and_meters():
    stamps = [f"2024-03-{day} {hour:02d}:00" for day in (30, 31) for hour in (12, 0)]
    frame = pd.DataFrame({"meter": ["x"] * 4 + ["y"] * 4, "time": stamps * 2, "value": range(8)})
    schema = SeriesSchema(2, 0, 8)
    wanted = [[1, 0], [3, 2], [5, 4], [7, 6]]
    for times in (frame["time"], pd.to_datetime(frame["time"])):
        reading = read_series(frame.assign(time=times), schema, form="long", by="meter", day="time", columns=["value"])
        assert (reading.encoded.units * 8).tolist() == wanted
        reading = read_series(frame.assign(time=times), schema, form="long", by="meter", day="time", person="meter")
        assert reading.persons.tolist() == [0, 0, 1, 1]
    # The hour that stands twice when clocks are set back.
    frame.loc[1, "time"] = stamps[0]
    with pytest.raises(BadRecords, match=r"meter='x', time on 2024-03-30 has another length, a time twice, or one"):
        read_series(frame, schema, form="long", by="meter", day="time")
    reading = read_series(frame, schema, form="long", by="meter", day="time", outside="clamp")
    assert (reading.encoded.units * 8).tolist() == wanted[1:] and reading.counted == {OTHER_LENGTH: 1}


def test_the_day_of_the_week_may_be_the_label():
    """Ten days from before 1970 on, in any order, beside pandas' own calendar; 1969-12-29 was a Monday."""
    days = pd.date_range("1969-12-29", periods=10)
    times = pd.concat([pd.Series(days), pd.Series(days + pd.Timedelta(hours=12))]).sample(frac=1, random_state=0)
    frame = pd.DataFrame({"time": times, "value": range(20)})
    for weekdays, expected in (("each", days.day_of_week), ("weekend", days.day_of_week >= 5)):
        schema = SeriesSchema(2, 0, 20, classes=WEEKDAYS[weekdays][0])
        reading = read_series(frame, schema, form="long", day="time", weekdays=weekdays)
        assert reading.encoded.codes[:, 0].tolist() == list(map(int, expected))
        # Records whose label is to be predicted have none.
        unlabelled = read_series(frame, SeriesSchema(2, 0, 20), form="long", day="time", weekdays=weekdays)
        assert np.array_equal(unlabelled.encoded.units, reading.encoded.units) and unlabelled.encoded.codes.shape == (10, 0)
    with pytest.raises(ValueError, match=r"classes=\['a', 'b'\]: expected those of weekdays=weekend"):
        read_series(frame, SeriesSchema(2, 0, 20, classes=("a", "b")), form="long", day="time", weekdays="weekend")
    for wrong in ({"weekdays": "month", "day": "time"}, {"weekdays": "each", "by": "value"}):
        with pytest.raises(ValueError, match="expected each or weekend, and the column of times, or neither"):
            read_series(frame, SeriesSchema(2, 0, 20), form="long", **wrong)


def test_names_of_columns_may_be_numbers(tmp_path):
    frame = pd.DataFrame([[1.0, 2.0]], columns=[2001, 2002])
    assert len(read_series(frame, PAIR).encoded) == len(read_series(frame.set_axis([0, 1], axis=1), PAIR).encoded) == 1
    # In a file only where that is said.
    (tmp_path / "x.csv").write_text("1,2\n3,4\n")
    for header, first in ((True, 3), (False, 1)):
        units = read_series(tmp_path / "x.csv", PAIR, header=header).encoded.units
        assert len(units) == 2 - header and units[0, 0] * 10 == pytest.approx(first)


def test_persons():
    schema = SeriesSchema(1, 0, 9)
    reading = read_series(pd.DataFrame({"t_0": [1, 2, 3], "who": ["b", "a", "b"]}), schema, person="who")
    assert reading.persons.tolist() == [0, 1, 0]
    assert read_series(np.ones((3, 1)), schema, person=[7, 7, 1]).persons.tolist() == [0, 0, 1]
    # Those of series that are left out are left out too.
    reading = read_series(np.array([[np.nan], [1.0]]), schema, person=["x", "y"], outside="clamp")
    assert reading.persons.tolist() == [1]


def test_blocks_are_put_together(tmp_path, monkeypatch):
    for name in ("files.rows._ROWS_AT_ONCE", "files.delimited._BYTES_AT_ONCE", "series.reading._NUMBERS_AT_ONCE"):
        monkeypatch.setattr(f"lightning_dpgen.data.{name}", 40)
    schema = SeriesSchema(3, 0, 1000)
    readings = np.arange(300.0).reshape(100, 3)
    frame = pd.DataFrame(readings.astype(int), columns=schema.columns)
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet")
    np.save(tmp_path / "x.npy", readings)
    long = pd.DataFrame({"id": np.repeat(np.arange(100), 3), "value": np.arange(300)})
    long.to_csv(tmp_path / "long.csv", index=False)
    for file, options in {"x.csv": {}, "x.parquet": {}, "x.npy": {}, "long.csv": {"form": "long", "by": "id"}}.items():
        units = read_series(tmp_path / file, schema, **options).encoded.units
        assert np.array_equal(np.rint(units * 1000), readings), file
    (tmp_path / "x.csv").write_text("\n".join(["t_0,t_1,t_2", *["1,2,3"] * 30, "1,2", *["1,2,3"] * 30, "1,2,x"]))
    with pytest.raises(BadRecords, match="line 32: found 2 fields, expected 3"):
        read_series(tmp_path / "x.csv", schema)
    # Lines that were left out are counted as lines.
    with pytest.raises(BadRecords, match="line 63: the column 't_2' holds 'x'"):
        read_series(tmp_path / "x.csv", schema, outside="clamp")


def test_places_are_lines_whatever_stands_before_them(tmp_path):
    (tmp_path / "x.csv").write_text('t_0,t_1,who\n1,2,"a\n\nb"\n1,2\n"3\n",4,"a\n\nb"\n5,11,c\n')
    reading = read_series(tmp_path / "x.csv", PAIR, person="who", outside="clamp")
    assert reading.persons.tolist() == [0, 0, 1] and reading.counted == {OTHER_LENGTH: 1, CLAMPED: 1}
    with pytest.raises(BadRecords, match=r"line 5: found 2 fields, expected 3"):
        read_series(tmp_path / "x.csv", PAIR, person="who")
    (tmp_path / "x.csv").write_text('t_0,t_1,who\n1,2,"a\n\nb"\n1,2\n"3\n",4,"a\n\nb"\n5,x,c\n')
    with pytest.raises(BadRecords, match=r"line 10: the column 't_1' holds 'x'"):
        read_series(tmp_path / "x.csv", PAIR, person="who", outside="clamp")


PAIR = SeriesSchema(2, 0, 10)
LABELLED = SeriesSchema(2, 0, 10, classes=("a", "b"))
TWO = SeriesSchema(2, 0, 10, channels=("u", "v"))
LONG = {"form": "long", "by": "id"}
FILES = {
    "a reading beyond": ("x.csv", "t_0,t_1\n1,2\n3,11\n", PAIR, {}, r"line 3: the reading t_1 is 11: expected 0 to 10"),
    "below": ("x.csv", "t_0,t_1\n-1,2\n", PAIR, {}, r"line 2: the reading t_0 is -1"),
    "infinite": ("x.csv", "t_0,t_1\n1,inf\n", PAIR, {}, r"line 2: the reading t_1 is inf"),
    "missing": ("x.csv", "t_0,t_1\n1,\n", PAIR, {}, r"line 2: the reading t_1 is missing.*outside=clamp"),
    "an empty line": ("x.csv", "t_0,t_1\n1,2\n\n1,2\n", PAIR, {}, r"line 3: the reading t_0 is missing"),
    "text": ("x.csv", "t_0,t_1\n1,abc\n", PAIR, {}, r"line 2: the column 't_1' holds 'abc': expected a number"),
    "a decimal comma": ("x.csv", 't_0,t_1\n1,"1,5"\n', PAIR, {}, r"holds '1,5': expected a number, with a point"),
    "too long": ("x.csv", "t_0,t_1\n1,2,3\n", PAIR, {}, r"line 2: found 3 fields, expected 2"),
    "too short": ("x.csv", "t_0,t_1\n1\n", PAIR, {}, r"line 2: found 1 field, expected 2"),
    "another length": ("x.csv", "p,q,r\n1,2,3\n", PAIR, {}, r"found 3 columns of readings, expected 2.*length"),
    "another length, bare": ("x.csv", "1,2,3\n", PAIR, {"header": False}, r"line 1: found 3 fields, expected 2"),
    "no header": ("x.csv", "7,2\n1,2\n", PAIR, {}, r"line 1: found numbers, expected names.*header=False"),
    "no header, counted": ("x.csv", "1,2\n1,2\n", PAIR, {}, r"line 1: found numbers.*header=False"),
    "no header, twice": ("x.csv", "2,2\n1,2\n", PAIR, {}, r"two columns are named '2'.*header=False"),
    "a header where none was said": ("x.csv", "t_0,t_1\n1,2\n", PAIR, {"header": False}, r"line 1: .* holds 't_0'"),
    "no rows": ("x.csv", "t_0,t_1\n", PAIR, {}, r"no series"),
    "no lines": ("x.csv", "", PAIR, {}, r"is empty"),
    "not UTF-8": ("x.csv", b"t_0,t_1\n1,2\n1,\xff\n", PAIR, {}, r"line 3: byte 3 \(0xff\) is not UTF-8"),
    "no label": ("x.csv", "t_0,t_1\n1,2\n", LABELLED, {}, r"no column 'label'"),
    "an unknown label": ("x.csv", "label,t_0,t_1\na,1,2\nc,1,2\n", LABELLED, {}, r"line 3: the label 'c' is not among"),
    "a missing label": ("x.csv", "label,t_0,t_1\n,1,2\n", LABELLED, {}, r"line 2: the label None is not among"),
    "no person": ("x.csv", "t_0,t_1\n1,2\n", PAIR, {"person": "who"}, r"no column 'who'"),
    "a missing person": ("x.csv", "t_0,t_1,who\n1,2,\n", PAIR, {"person": "who"}, r"line 2: nothing in the column 'who'"),
    "a column that is not there": ("x.csv", "t_0,t_1\n1,2\n", PAIR, {"columns": ["t_0", "x"]}, r"no column 'x'"),
    "no Parquet": ("x.parquet", b"no", PAIR, {}, r"cannot be read"),
    "no array": ("x.npy", b"no", PAIR, {}, r"is not \.npy of plain arrays"),
    "no arrays": ("x.npz", b"no", PAIR, {}, r"is not \.npz of plain arrays"),
    "long, too short": ("x.csv", "id,value\n1,2\n1,3\n2,5\n", PAIR, LONG, r"the series of id='2' has another length"),
    "long, text": ("x.csv", "id,value\n1,2\n1,x\n", PAIR, LONG, r"line 3: the column 'value' holds 'x'"),
    "long, no id": ("x.csv", "id,value\n1,2\n,3\n", PAIR, LONG, r"line 3: nothing in the column 'id'"),
    "long, no column": ("x.csv", "value\n2\n", PAIR, LONG, r"no column 'id'"),
    "long, no rows": ("x.csv", "id,value\n", PAIR, LONG, r"no series"),
    "long, beyond": ("x.csv", "id,value\n1,2\n1,30\n", PAIR, LONG, r"the series of id='1': the reading t_1 is 30"),
    "long, two channels": ("x.csv", "id,value\n1,2\n1,3\n", TWO, LONG, r"1 columns of channels, expected 2"),
    "long, a window": ("x.csv", "value\n1\n2\n3\n", PAIR, {"form": "long"}, r"the series from row 3 on has another length"),
    "long, no time": ("x.csv", "d,value\nx,1\n", PAIR, {"form": "long", "day": "d"}, r"line 2: .* holds 'x': expected a"),
    "long, a zone": ("x.csv", "d,value\n2024-01-01 00:00Z,1\n", PAIR, {"form": "long", "day": "d"}, r"without a zone"),
    "long, two labels": (
        "x.csv", "id,value,label\n1,2,a\n1,3,b\n", LABELLED, LONG, r"the series of id='1': the label changes within it",
    ),
    "long, two persons": (
        "x.csv", "id,value,p\n1,2,a\n1,3,b\n", PAIR, {**LONG, "person": "p"}, r"the series of id='1' has another length",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_bad_files_get_one_clear_line(tmp_path, name):
    file, text, schema, options, words = FILES[name]
    (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadRecords, match=words) as error:
        read_series(tmp_path / file, schema, **options)
    assert "\n" not in str(error.value)


FRAME = pd.DataFrame({"t_0": [1.0], "t_1": [2.0]})
BAD = {
    "no file": ("no_such.csv", PAIR, {}, MissingData, "no_such.csv"),
    "a folder": (".", PAIR, {}, MissingData, r"\. is a folder without \.parquet files: expected a file"),
    "no array": ("no_such.npy", PAIR, {}, MissingData, "no_such.npy"),
    "a list": ([[1, 2]], PAIR, {}, BadRecords, "list"),
    "another length": (np.ones((4, 3)), PAIR, {}, BadRecords, r"\(4, 3\): expected \(N, 2\) or \(N, 2, 1\)"),
    "channels first": (np.ones((4, 3, 2)), SeriesSchema(2, 0, 1, ("a", "b", "c")), {}, BadRecords, "channels last"),
    "one series": (np.ones(2), PAIR, {}, BadRecords, "shape"),
    "objects": (np.array([["a", "b"]]), PAIR, {}, BadRecords, "dtype"),
    "complex": (np.ones((1, 2), complex), PAIR, {}, BadRecords, "dtype"),
    "none": (np.ones((0, 2)), PAIR, {}, BadRecords, "no series"),
    "NaN": (np.array([[1, np.nan]]), PAIR, {}, BadRecords, "series 1: the reading t_1 is missing"),
    "no labels": (np.ones((1, 2)), LABELLED, {}, BadRecords, "no labels"),
    "too few labels": (np.ones((1, 2)), LABELLED, {"label": []}, BadRecords, "label"),
    "an unknown label": (np.ones((1, 2)), LABELLED, {"label": ["c"]}, BadRecords, "series 1: the label 'c'"),
    "too many persons": (np.ones((1, 2)), PAIR, {"person": [1, 2]}, BadRecords, "person"),
    "a missing person": (np.ones((1, 2)), PAIR, {"person": [None]}, BadRecords, "person"),
    "a column of an array": (np.ones((1, 2)), PAIR, {"columns": ["a"]}, ValueError, "columns: an array"),
    "a long array": (np.ones((1, 2)), PAIR, {"form": "long"}, ValueError, "form: an array"),
    "another form": (FRAME, PAIR, {"form": "square"}, ValueError, "form='square'"),
    "another rule": (FRAME, PAIR, {"outside": "drop"}, ValueError, "outside='drop'"),
    "wide by": (FRAME, PAIR, {"by": "id"}, ValueError, "form=long"),
    "persons in windows": (FRAME, PAIR, {"form": "long", "person": "who"}, ValueError, "with neither by nor day"),
    "a persons' array": (FRAME, PAIR, {"person": [1]}, ValueError, "such as a name"),
    "a labels' array": (FRAME, LABELLED, {"label": np.ones(1)}, ValueError, "such as a name"),
    "a separator of another kind": (FRAME, PAIR, {"separator": 5}, ValueError, "separator=5"),
    "columns of another kind": (FRAME, PAIR, {"columns": 5}, ValueError, "columns=5"),
    "columns that are no names": (FRAME, PAIR, {"columns": [None, "t_0"]}, ValueError, "expected a list of names"),
    "nested persons": (FRAME.assign(p=[[1]]), PAIR, {"person": "p"}, BadRecords, "list"),
    "nested labels": (FRAME.assign(label=[[1]]), LABELLED, {}, BadRecords, "column 'label' holds a list"),
    "a label of another kind": (np.ones((1, 2)), LABELLED, {"label": 5}, BadRecords, "label=5"),
    "ragged persons": (np.ones((2, 2)), PAIR, {"person": [[1], [1, 2]]}, BadRecords, "list"),
    "booleans": (pd.DataFrame({"t_0": [True], "t_1": [2.0]}), PAIR, {}, BadRecords, "is of bool"),
    "mixed": (pd.DataFrame({"t_0": ["a", 1], "t_1": [2.0, 1.0]}), PAIR, {}, BadRecords, "row 0 .*'t_0' holds 'a'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_records_get_one_clear_line(name):
    source, schema, options, kind, words = BAD[name]
    with pytest.raises(kind, match=words) as error:
        read_series(source, schema, **options)
    assert "\n" not in str(error.value)
