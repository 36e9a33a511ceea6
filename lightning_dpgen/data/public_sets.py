"""Public sets of baskets and of series that are known by name, with what is publicly known of each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lightning_dpgen.data.baskets import BasketSchema
from lightning_dpgen.data.errors import MissingData
from lightning_dpgen.data.read_baskets import read_baskets
from lightning_dpgen.data.read_series import read_series
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.series import SeriesSchema
from lightning_dpgen.data.universe import read_items

_LISTS = Path(__file__).parent / "bundled"
_HALF_HOURS = tuple(f"{minute // 60:02d}:{minute % 60:02d}" for minute in range(0, 1440, 30))
_TEN_MINUTES = tuple(f"{minute // 60:02d}:{minute % 60:02d}" for minute in range(0, 1440, 10))


@dataclass(frozen=True)
class PublicSet:
    """A set known by name.

    Args:
        schema: what is publicly known of its records.
        n: declared number of records for training: the first ones of the file, those after them are held out.
        file: its place under ``$DPGEN_DATA``.
        held_out: the place of the held-out records, where they have a file of their own.
        options: how it is written, for the reader.
    """

    schema: BasketSchema | SeriesSchema
    n: int
    file: str
    held_out: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def _retail() -> PublicSet:
    # FIMI numbers the shop's 16,470 articles. Brijs et al. (1999) give 13 different ones on average; three times that.
    return PublicSet(BasketSchema(read_items("1..16470"), max_items=40), n=80_000, file="retail/retail.dat.gz")


def _bms_webview1() -> PublicSet:
    # The pages of products that KDD Cup 2000 published with the shop; a visit has a few (2.5 on average, as FIMI says).
    items = read_items(_LISTS / "bms_webview1.items.txt")
    return PublicSet(BasketSchema(items, max_items=20), n=50_000, file="bms_webview1/BMS1.dat.gz")


def _uk_demand() -> PublicSet:
    # Round numbers about the winter peaks (60 GW) and summer lows (under 20 GW) of the grid operator's yearly outlooks.
    schema = SeriesSchema(48, 10_000, 65_000, channels=("nd_mw",), decimals=0, steps=_HALF_HOURS)
    # Days with a gap are left out, as when clocks go forward.
    options = {"form": "long", "day": "timestamp", "outside": "clamp"}
    return PublicSet(schema, n=4_925, file="daily_load/uk_national_demand.csv.gz", options=options)


def _powercons() -> PublicSet:
    # kW; French households subscribe to 3, 6 or 9 kVA, larger ones to more. Seasons: 1 warm, 2 cold.
    schema = SeriesSchema(144, 0, 9, channels=("kw",), classes=(1, 2), decimals=2, steps=_TEN_MINUTES)
    train, test = (f"daily_load/PowerCons_{part}.tsv.gz" for part in ("TRAIN", "TEST"))
    return PublicSet(schema, n=180, file=train, held_out=test, options={"header": False})


def _ausgrid() -> PublicSet:
    # kWh in half an hour: at 20 kW, what a main fuse of 80 A lets through, and at 10 kW, the largest panels of the trial.
    schema = SeriesSchema(48, 0, (10, 5), channels=("GC", "GG"), decimals=3, steps=_HALF_HOURS)
    # The column of time stamps has no name.
    options = {"form": "long", "day": ""}
    return PublicSet(schema, n=300, file="daily_load/ausgrid_customer12_2011-2012.csv.gz", options=options)


_SETS = {
    "retail": _retail,
    "bms_webview1": _bms_webview1,
    "uk_demand": _uk_demand,
    "powercons": _powercons,
    "ausgrid": _ausgrid,
}
NAMES = tuple(_SETS)


@cache
def public_set(name: str) -> PublicSet:
    """What is publicly known of a set; no record is read.

    Raises:
        ValueError: for an unknown name.

    Example:
        >>> public_set("powercons").schema.layout.units, public_set("powercons").n
        (144, 180)
    """
    if name not in _SETS:
        raise ValueError(f"data.source={name}: expected one of {', '.join(_SETS)}")
    return _SETS[name]()


def find_public_set(name: str, *, held_out: bool = False) -> list[Path]:
    """The file of a set, not read; arguments as for `load_public_set`.

    Raises:
        MissingData: if it is not there; says where it was looked for.
        ValueError: for an unknown name.
    """
    known = public_set(name)
    root = os.environ.get("DPGEN_DATA")
    relative = known.held_out if held_out and known.held_out else known.file
    if not root:
        raise MissingData(
            f"data={name} needs its file: set the environment variable DPGEN_DATA to the folder that holds {relative}"
        )
    path = Path(root) / relative
    if not path.is_file():
        raise MissingData(f"no file {path} (looked for under DPGEN_DATA={root})")
    return [path]


def load_public_set(name: str, *, held_out: bool = False) -> Reading:
    """Records of a set, encoded by its schema.

    Args:
        name: one of `NAMES`.
        held_out: the records that no training sees: those after the first n, or a file of their own.

    Returns:
        Reading: what is counted goes for the whole file.

    Raises:
        MissingData: if the file is not there; says where it was looked for.
        BadRecords: if it is another one than that known by this name.
    """
    known, [path] = public_set(name), find_public_set(name, held_out=held_out)
    read = read_baskets if isinstance(known.schema, BasketSchema) else read_series
    reading = read(path, known.schema, **known.options)
    if known.held_out:
        return reading
    part = slice(known.n, None) if held_out else slice(known.n)
    return Reading(reading.encoded[part], None, reading.counted)
