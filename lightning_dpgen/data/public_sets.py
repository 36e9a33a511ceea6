"""Public sets of records that are known by name, and the public knowledge of each."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd

from lightning_dpgen.data.baskets.reading import read_baskets
from lightning_dpgen.data.baskets.schema import BasketSchema, read_items
from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.pictures.schema import ImageSchema
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


@dataclass(frozen=True)
class PublicSet:
    """A set known by name.

    Args:
        schema: public knowledge of its records.
        n: declared number of records for training.
        read: records for training, or held out, from their files by a schema.
        files: for training, as places under ``$DPGEN_DATA``.
        held_out: those of the held-out records, where they have files of their own.
    """

    schema: Schema
    n: int
    read: Callable[[list[Path], Schema, bool], Reading]
    files: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()


def _digits() -> PublicSet:
    def read(files: list[Path], schema: ImageSchema, held_out: bool) -> Reading:
        from sklearn.datasets import load_digits

        # Pictures are in the order of their writers, the last of whom are held out.
        bunch = load_digits()
        images, labels = _part(bunch.images, 1500, held_out), _part(bunch.target, 1500, held_out)
        return Reading(schema.encode(images, labels if schema.classes else None), None, {})

    return PublicSet(ImageSchema(8, 8, levels=16, classes=10), n=1500, read=read)


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


def _adult() -> PublicSet:
    def read(files: list[Path], schema: Schema, held_out: bool) -> Reading:
        if not held_out:
            return read_table(files[0], schema, values=True)
        names = [column.name for column in schema.columns]
        # The file begins with a remark, and its labels end in a full stop.
        frame = pd.read_csv(files[0], names=names, skipinitialspace=True, comment="|", dtype=str, keep_default_na=False)
        return read_table(frame.assign(income=frame["income"].str.rstrip(".")), schema, values=True)

    schema = read_schema(_BUNDLED / "adult.schema.yaml")
    return PublicSet(schema, n=32_561, read=read, files=("adult/adult.data.gz",), held_out=("adult/adult.test.gz",))


def _mushroom() -> PublicSet:
    def read(files: list[Path], schema: Schema, held_out: bool) -> Reading:
        reading = read_table(files[0], schema, values=True)
        # The file is not in a random order. This public draw makes the data set; the split is no part of a run.
        part = _part(np.random.default_rng(0).permutation(len(reading.encoded)), 5686, held_out)
        return Reading(reading.encoded[part], None, {}, reading.values[part])

    schema = read_schema(_BUNDLED / "mushroom.schema.yaml")
    return PublicSet(schema, n=5686, read=read, files=("mushroom/agaricus-lepiota.data.gz",))


def _retail() -> PublicSet:
    # FIMI numbers the shop's 16,470 articles. max_items is three times the 13 of an average basket (Brijs et al. 1999).
    return _baskets(BasketSchema(read_items("1..16470"), max_items=40), 80_000, "retail/retail.dat.gz")


def _bms_webview1() -> PublicSet:
    # The pages of products that KDD Cup 2000 published with the shop; a visit has a few (2.5 on average, as FIMI says).
    items = read_items(_BUNDLED / "bms_webview1.items.txt")
    return _baskets(BasketSchema(items, max_items=20), 50_000, "bms_webview1/BMS1.dat.gz")


def _uk_demand() -> PublicSet:
    # Round numbers about the winter peaks (60 GW) and summer lows (under 20 GW) of the grid operator's yearly outlooks.
    schema = SeriesSchema(48, 10_000, 65_000, channels=("nd_mw",), decimals=0, steps=_HALF_HOURS)
    # Days with a gap are left out, as when clocks go forward.
    reader = partial(read_series, form="long", day="timestamp", outside="clamp")
    return PublicSet(schema, 4_925, _first(reader, 4_925), ("daily_load/uk_national_demand.csv.gz",))


def _powercons() -> PublicSet:
    # kW; the next to smallest supply that French households subscribe to is 9 kVA. Seasons: 1 warm, 2 cold.
    schema = SeriesSchema(144, 0, 9, channels=("kw",), classes=(1, 2), decimals=2, steps=_TEN_MINUTES)
    train, test = ((f"daily_load/PowerCons_{part}.tsv.gz",) for part in ("TRAIN", "TEST"))
    return PublicSet(schema, 180, lambda files, schema, _: read_series(files[0], schema, header=False), train, test)


def _ausgrid() -> PublicSet:
    # Half an hour at 20 kW, what a household's main fuse of 80 A lets through, and of the trial's largest panels, 10 kW.
    schema = SeriesSchema(48, 0, (10, 5), channels=("GC", "GG"), decimals=3, steps=_HALF_HOURS)
    # The column of time stamps has no name.
    reader = partial(read_series, form="long", day="")
    return PublicSet(schema, 300, _first(reader, 300), ("daily_load/ausgrid_customer12_2011-2012.csv.gz",))


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


_SETS = {
    "digits": _digits,
    "mnist": partial(_idx, "mnist"),
    "fashion_mnist": partial(_idx, "fashion_mnist"),
    "adult": _adult,
    "mushroom": _mushroom,
    "retail": _retail,
    "bms_webview1": _bms_webview1,
    "uk_demand": _uk_demand,
    "powercons": _powercons,
    "ausgrid": _ausgrid,
}
NAMES = tuple(_SETS)


@cache
def public_set(name: str) -> PublicSet:
    """Return what is publicly known of a set; no record is read.

    Raises:
        ValueError: for an unknown name.

    Example:
        >>> public_set("powercons").schema.layout.units, public_set("powercons").n
        (144, 180)
    """
    if name not in _SETS:
        raise ValueError(f"name={name}: expected one of {', '.join(_SETS)}")
    return _SETS[name]()


def find_public_set(name: str, *, held_out: bool = False) -> list[Path]:
    """Return the files of a set, not read; arguments as for `load_public_set`.

    Raises:
        MissingData: if one is not there; says where it was looked for.
        ValueError: for an unknown name.
    """
    known = public_set(name)
    wanted, root = (held_out and known.held_out) or known.files, os.environ.get("DPGEN_DATA")
    if wanted and not root:
        raise MissingData(
            f"{name} needs its files: set the environment variable DPGEN_DATA to the folder that holds {wanted[0]}"
        )
    files = [Path(root or "") / file for file in wanted]
    for file in files:
        if not file.is_file():
            raise MissingData(f"no file {file} (looked for under DPGEN_DATA={root})")
    return files


def load_public_set(name: str, schema: Schema | None = None, *, held_out: bool = False) -> Reading:
    """Load the records of a set.

    Args:
        name: one of `NAMES`.
        schema: their encoding; None takes the set's own.
        held_out: the records that no training sees.

    Raises:
        MissingData: if a file is not there; says where it was looked for.
        BadRecords: if it is another file than the one known by this name.
    """
    return public_set(name).read(find_public_set(name, held_out=held_out), schema or public_set(name).schema, held_out)
