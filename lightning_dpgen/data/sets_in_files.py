"""Public sets whose records are in files: where these are, how they are read, and what is publicly known of them."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from lightning_dpgen.data.baskets.reading import read_baskets
from lightning_dpgen.data.baskets.schema import BasketSchema, read_items
from lightning_dpgen.data.names import quote
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.public_sets import PublicSet
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import read_schema
from lightning_dpgen.sampling.errors import BadRecords

_BUNDLED = Path(__file__).parent / "bundled"
_HALF_HOURS = tuple(f"{minute // 60:02d}:{minute % 60:02d}" for minute in range(0, 1440, 30))
_TEN_MINUTES = tuple(f"{minute // 60:02d}:{minute % 60:02d}" for minute in range(0, 1440, 10))
# Trading days of a record of sp500: a month, as long as the series in the pictures of dp-GAN's repository.
_MONTH = 30


def make_digits() -> PublicSet:
    def read(files: list[Path], schema: ImageSchema, held_out: bool) -> Reading:
        from sklearn.datasets import load_digits

        # Pictures are in the order of their writers, the last of whom are held out.
        bunch = load_digits()
        images, labels = _part(bunch.images, 1500, held_out), _part(bunch.target, 1500, held_out)
        return Reading(schema.encode(images, labels if schema.classes else None), None, {})

    return PublicSet(ImageSchema(8, 8, levels=16, classes=10), n=1500, read=read)


def make_mnist() -> PublicSet:
    return _idx("mnist")


def make_fashion_mnist() -> PublicSet:
    return _idx("fashion_mnist")


def _idx(name: str) -> PublicSet:
    def read(files: list[Path], schema: ImageSchema, held_out: bool) -> Reading:
        images, labels = map(_read_idx, files)
        return Reading(schema.encode(images, labels if schema.classes else None), None, {})

    files, held_out = (
        tuple(f"{name}/{part}-{what}-ubyte.gz" for what in ("images-idx3", "labels-idx1")) for part in ("train", "t10k")
    )
    return PublicSet(ImageSchema(28, 28, levels=255, classes=10), n=60_000, read=read, files=files, held_out=held_out)


def _read_idx(path: Path) -> np.ndarray:
    """Load the array of a gzipped idx file: a magic number whose last byte counts the dimensions, their sizes, then bytes.

    Raises:
        BadRecords: if it is none.
    """
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise BadRecords(f"{path} is not a whole gzip file: {error}") from None
    dimensions = raw[3] if len(raw) > 3 else 0
    start = 4 + 4 * dimensions
    whole = len(raw) >= start and raw[:3] == b"\x00\x00\x08"
    sizes = np.frombuffer(raw[4:start], dtype=">u4").astype(int) if whole else []
    if not whole or len(raw) - start != math.prod(int(size) for size in sizes):
        raise BadRecords(f"{path} is not an idx file of unsigned bytes")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(sizes)


def make_adult() -> PublicSet:
    def read(files: list[Path], schema: Schema, held_out: bool) -> Reading:
        if not held_out:
            return read_table(files[0], schema, values=True)
        names = [column.name for column in schema.columns]
        # The file begins with a remark, and its labels end in a full stop.
        frame = pd.read_csv(files[0], names=names, skipinitialspace=True, comment="|", dtype=str, keep_default_na=False)
        return read_table(frame.assign(income=frame["income"].str.rstrip(".")), schema, values=True)

    schema = read_schema(_BUNDLED / "adult.schema.yaml")
    return PublicSet(schema, n=32_561, read=read, files=("adult/adult.data.gz",), held_out=("adult/adult.test.gz",))


def make_mushroom() -> PublicSet:
    def read(files: list[Path], schema: Schema, held_out: bool) -> Reading:
        reading = read_table(files[0], schema, values=True)
        # The file is not in a random order. This public draw makes the data set; the split is no part of a run.
        part = _part(np.random.default_rng(0).permutation(len(reading.encoded)), 5686, held_out)
        return Reading(reading.encoded[part], None, {}, reading.values[part])

    schema = read_schema(_BUNDLED / "mushroom.schema.yaml")
    return PublicSet(schema, n=5686, read=read, files=("mushroom/agaricus-lepiota.data.gz",))


def make_retail() -> PublicSet:
    # FIMI numbers the shop's 16,470 articles. max_items is three times the 13 of an average basket (Brijs et al. 1999).
    return _baskets(BasketSchema(read_items("1..16470"), max_items=40), 80_000, "retail/retail.dat.gz")


def make_bms_webview1() -> PublicSet:
    # The pages of products that KDD Cup 2000 published with the shop; a visit has a few (2.5 on average, as FIMI says).
    items = read_items(_BUNDLED / "bms_webview1.items.txt")
    return _baskets(BasketSchema(items, max_items=20), 50_000, "bms_webview1/BMS1.dat.gz")


def make_uk_demand() -> PublicSet:
    # Round numbers about the winter peaks (60 GW) and summer lows (under 20 GW) of the grid operator's yearly outlooks.
    schema = SeriesSchema(48, 10_000, 65_000, channels=("nd_mw",), decimals=0, steps=_HALF_HOURS)
    # Days with a gap are left out, as when clocks go forward.
    reader = partial(read_series, form="long", day="timestamp", outside="clamp")
    return PublicSet(schema, 4_925, _first(reader, 4_925), ("daily_load/uk_national_demand.csv.gz",))


def make_powercons() -> PublicSet:
    # kW; the next to smallest supply that French households subscribe to is 9 kVA. Seasons: 1 warm, 2 cold.
    schema = SeriesSchema(144, 0, 9, channels=("kw",), classes=(1, 2), decimals=2, steps=_TEN_MINUTES)
    train, test = ((f"daily_load/PowerCons_{part}.tsv.gz",) for part in ("TRAIN", "TEST"))
    return PublicSet(schema, 180, lambda files, schema, _: read_series(files[0], schema, header=False), train, test)


def make_ausgrid() -> PublicSet:
    # Half an hour at 20 kW, what a household's main fuse of 80 A lets through, and of the trial's largest panels, 10 kW.
    schema = SeriesSchema(48, 0, (10, 5), channels=("GC", "GG"), decimals=3, steps=_HALF_HOURS)

    def read(path: Path, schema: SeriesSchema) -> Reading:
        # The column of time stamps has no name in the file.
        frame = pd.read_csv(path, names=["time", "GC", "GG"], header=0)
        return read_series(frame, schema, form="long", day="time")

    return PublicSet(schema, 300, _first(read, 300), ("daily_load/ausgrid_customer12_2011-2012.csv.gz",))


def make_sp500() -> PublicSet:
    """Return prices of stocks: a record is 30 consecutive trading days of one company, the reading of a day the mean of its
    highest and lowest price, over that of the first of these days.

    The windows begin at every 30th trading day of the file, for all companies. These days are taken as public and fixed,
    since the exchange sets them.
    """

    def read(files: list[Path], schema: Schema, held_out: bool) -> Reading:
        try:
            frame = pd.read_csv(files[0], usecols=["date", "high", "low", "Name"], dtype=str)
            # Half of each, since the sum of two large prices has no number.
            prices = sum(_prices(files[0], frame[name]) / 2.0 for name in ("high", "low"))
            table = frame.assign(price=prices).pivot(index="date", columns="Name", values="price").to_numpy(np.float64)
        except (ValueError, TypeError) as error:
            if isinstance(error, BadRecords):
                raise
            raise BadRecords(
                f"{files[0]} is not the file of S&P 500 stocks, a row for each company and day (sandp500 of Kaggle, by "
                f"camnugent): {error}"
            ) from None
        months, companies = len(table) // _MONTH, table.shape[1]
        windows = table[: months * _MONTH].reshape(months, _MONTH, companies).transpose(2, 0, 1)
        whole = np.isfinite(windows).all(axis=2) & (windows[:, :, 0] > 0.0)
        if not whole.any():
            raise BadRecords(
                f"{files[0]}: {len(frame):,} rows have no company with a price on each day of a month of {_MONTH} days: "
                "expected a row for each company and day of five years"
            )
        reading = read_series(windows[whole] / windows[whole][:, :1], schema, outside="clamp", person=np.nonzero(whole)[0])
        # Months of the company in which the first n records end are not held out.
        part = np.arange(len(reading.encoded))
        later = reading.persons > reading.persons[:n][-1]
        part = part[later] if held_out else part[:n]
        return Reading(reading.encoded[part], reading.persons[part], reading.counted)

    n = 16_000
    # A price seldom halves or grows by a half within a month.
    schema = SeriesSchema(_MONTH, 0.5, 1.5, channels=("price",), decimals=4)
    return PublicSet(schema, n, read, ("sp500/all_stocks_5yr.csv",), person="Name")


def _prices(file: Path, column: pd.Series) -> pd.Series:
    """Return the prices of a column of text, NaN where one is missing.

    Raises:
        BadRecords: for text that is no price.
    """
    prices = pd.to_numeric(column, errors="coerce").astype(np.float64)
    wrong = column.notna() & ~np.isfinite(prices)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise BadRecords(
            f"{file}: column {column.name}, line {row + 2}: {quote(column[row])}: expected a price, as in 67.54"
        )
    return prices


def _baskets(schema: BasketSchema, n: int, file: str) -> PublicSet:
    return PublicSet(schema, n, _first(read_baskets, n), (file,))


def _first(reader: Callable[..., Reading], n: int) -> Callable[[list[Path], Schema, bool], Reading]:
    """Take the first n records for training, and hold out those after them."""

    def read(files: list[Path], schema: Schema, held_out: bool) -> Reading:
        reading = reader(files[0], schema)
        return Reading(_part(reading.encoded, n, held_out), None, reading.counted)

    return read


def _part(records, n: int, held_out: bool):
    return records[n:] if held_out else records[:n]
