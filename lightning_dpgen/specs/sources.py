"""The kinds of data by their names on the command line: which settings each has, what it declares, and how it is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_dpgen.data.baskets.files import BasketForm
from lightning_dpgen.data.baskets.keys import basket_keys
from lightning_dpgen.data.baskets.reading import read_baskets
from lightning_dpgen.data.baskets.schema import MOST_ITEMS, BasketSchema
from lightning_dpgen.data.baskets.universe import read_items
from lightning_dpgen.data.errors import MissingData
from lightning_dpgen.data.names import is_name, public_names, shown
from lightning_dpgen.data.persons import bounded
from lightning_dpgen.data.pictures.form import MOST_CLASSES
from lightning_dpgen.data.pictures.reading import read_pictures
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.public_sets import find_public_set, load_public_set, public_set
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.open_columns import BOUNDS, KEYS, PRIVATE
from lightning_dpgen.data.tables.reading import read_open_columns, read_table, table_bytes
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import read_schema
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.configuration import DataConf
from lightning_dpgen.specs.custom_data import own_bytes, own_data, read_own
from lightning_dpgen.specs.usage_error import UsageError

# What every kind has.
_ALWAYS = ("source", "n", "n_share")
_PERSONS = ("person", "max_rows", "outside")
# How their files are written.
_BASKETS = ("form", "separator", "columns", "label")
_SERIES = ("form", "separator", "columns", "label", "header", "by", "day")
_MOST_ROWS = 10_000


@dataclass(frozen=True)
class Kind:
    """A kind of data.

    Args:
        of: the kind of its schema; None if that may be any.
        settings: names of its settings in the group ``data``, besides those that all have.
        declare: the schema, from what is declared alone.
        find: the files, for training or held out, none of them read.
        read: their records, which it may count what it had to change of.
        held_out: whether there are records that no training sees.
        in_memory: the records as bytes, for a fingerprint, where they are in no file.
        record: what a record is, in a word or two.
    """

    of: str | None
    settings: tuple[str, ...]
    declare: Callable[[DataConf], Schema]
    find: Callable[[DataConf, bool], list[Path]]
    read: Callable[[DataConf, Schema, bool], Reading]
    held_out: bool = False
    in_memory: Callable[[DataConf], Iterator[np.ndarray]] | None = None
    record: str = "record"


def records_of(conf: DataConf, schema: Schema, *, held_out: bool = False) -> tuple[Records, dict[str, int]]:
    """The records of a kind of data, at most `max_rows` of a person, and what was changed or left out on the way.

    Raises:
        UsageError: for a setting that makes no sense of how they are written.
        MissingData: if a file is not there.
        BadRecords: if there are no records, or they do not fit the schema.
    """
    with _settings_refused():
        reading = KINDS[conf.source].read(conf, schema, held_out)
    if not len(reading.encoded):
        raise BadRecords(f"data={conf.source}: there are no records: expected at least one; see what data.path holds")
    if reading.persons is None:
        return Records(schema, reading.encoded), dict(reading.counted)
    kept = bounded(reading.encoded, reading.persons, conf.max_rows)
    left_out = len(reading.encoded) - len(kept)
    counted = dict(reading.counted) | ({"records: more than max_rows of a person": left_out} if left_out else {})
    return Records(schema, reading.encoded[kept], reading.persons[kept]), counted


def record(conf: DataConf) -> str:
    """What a record is, in words: whose presence is protected where nobody has several."""
    word = KINDS[conf.source].record
    of = [conf.by, conf.day and f"day of {conf.day}"]
    if conf.source == "baskets" and conf.columns:
        of = [conf.columns[0]]
    named = " and one ".join(name for name in of if name)
    return f"{word} (all rows of one {named})" if named else word


def description(conf: DataConf) -> dict[str, Any]:
    """What is publicly known of the records, and what of it is still to be found, as JSON."""
    return (_described(conf) if conf.source == "table" else KINDS[conf.source].declare(conf)).as_json()


@contextmanager
def _settings_refused() -> Iterator[None]:
    """What a reader has against its arguments is a mistake in the settings that they come from."""
    try:
        yield
    except (BadRecords, BadSchema):
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None


def contents(conf: DataConf) -> Iterator[np.ndarray]:
    """The bytes of the files, or of what is in memory, for a fingerprint."""
    kind = KINDS[conf.source]
    if conf.memory is not None:
        yield from kind.in_memory(conf)
    for file in kind.find(conf, False):
        yield np.memmap(file, np.uint8, "r") if file.stat().st_size else np.zeros(0, np.uint8)


@dataclass(frozen=True)
class Part:
    """Something that a description leaves to be found privately.

    Args:
        find: bounds or keys.
        most: of how many of them a unit (a record, or a person with all of theirs) has a part.
        whole: whether bounds are whole numbers.
    """

    find: str
    most: int
    whole: bool = False


def open_parts(conf: DataConf) -> dict[str, Part]:
    """What is to be found privately, by name."""
    rows = conf.max_rows or 1
    if conf.source == "baskets" and conf.items == PRIVATE:
        _needed(conf, "max_items")
        if not 1 <= conf.max_items <= MOST_ITEMS:
            raise UsageError(f"data.max_items={conf.max_items}: expected a whole number from 1 to {MOST_ITEMS:,}")
        return {"items": Part(KEYS, rows * conf.max_items)}
    if conf.source != "table" or not conf.schema:
        return {}
    return {
        column.name: Part(column.find, rows, column.find == BOUNDS and column.scale.whole)
        for column in _described(conf).open
    }


def raw_parts(conf: DataConf) -> tuple[dict[str, Any], np.ndarray | None]:
    """What these are to be found in (numbers, categories, or sets as `KeyOwners.of_sets` takes them), and persons.

    Raises:
        UsageError, MissingData, BadRecords: as `records_of`.
    """
    with _settings_refused():
        if conf.source == "table":
            return read_open_columns(_table_source(conf), _described(conf), person=conf.person)
        form = BasketForm(**_given(conf, "form", "separator", "columns"), label=conf.label or bool(conf.classes))
        keys = basket_keys(conf.path, form=form)
    return {"items": (keys.indptr, keys.ids, keys.names)}, None


def found_in_words(conf: DataConf, found: dict[str, Any]) -> dict[str, str]:
    """What was found privately, as a schema would say it."""
    columns = {column.name: column for column in _described(conf).open} if conf.source == "table" else {}
    said = {}
    for name, value in found.items():
        fields = columns[name].filled(value) if name in columns else {"values": value}
        if "low" in fields:
            said[name] = f"from {fields['low']} to {fields['high']}"
        else:
            names = [str(key) for key in fields["values"]]
            said[name] = ", ".join(names) if len(names) < 8 else f"{len(names):,} of them"
    return said


def check_reading(conf: DataConf) -> None:
    """Refuse settings that a kind does not have, and persons without a bound: all that reading records goes by.

    Raises:
        UsageError: naming the setting.
    """
    kind = KINDS[conf.source]
    has = {*_ALWAYS, *kind.settings}
    for field in dataclasses.fields(conf):
        value = None if field.name in ("found", "memory") else getattr(conf, field.name)
        if value is not None and field.name not in has:
            raise UsageError(f"data.{field.name}={value}: data={conf.source} has no such setting")
    if (conf.person is None) != (conf.max_rows is None):
        raise UsageError(
            f"data.person={conf.person} with data.max_rows={conf.max_rows}: expected both, the column that says whose a "
            "record is and how many records of a person take part at most, or neither"
        )
    if conf.max_rows is not None and not 1 <= conf.max_rows <= _MOST_ROWS:
        raise UsageError(f"data.max_rows={conf.max_rows}: expected a whole number from 1 to {_MOST_ROWS:,}")
    if conf.outside not in (None, "refuse", "clamp"):
        raise UsageError(f"data.outside={conf.outside}: expected refuse or clamp")


def check(conf: DataConf) -> None:
    """The same, and what a training needs besides: shares of the budget for what is to be found privately.

    Raises:
        UsageError: naming the setting.
    """
    check_reading(conf)
    opened = open_parts(conf)
    if bool(opened) != (conf.discovery_share is not None):
        raise UsageError(
            f"data.discovery_share={conf.discovery_share}: expected a share of the budget, as in "
            "data.discovery_share=0.05, exactly where something is to be found privately "
            f"({', '.join(opened) or 'nothing here'})"
        )
    if opened and conf.outside != "clamp":
        raise UsageError(
            f"data.outside={conf.outside or 'refuse'}: what is found privately does not cover every record, and a refusal "
            "would tell: set data.outside=clamp"
        )
    if "items" in opened and conf.person is not None:
        raise UsageError(f"data.items=private with data.person={conf.person}: declare the items where a person has several")


def _given(conf: DataConf, *names: str) -> dict[str, Any]:
    """Those settings that are given, by name."""
    return {name: value for name in names if (value := getattr(conf, name)) is not None}


def _needed(conf: DataConf, *names: str) -> None:
    for name in names:
        if getattr(conf, name) is None:
            raise UsageError(f"data.{name}: must be given, as in data.{name}=...")


def _file(conf: DataConf, held_out: bool) -> list[Path]:
    if conf.memory is not None:
        return []
    if not conf.path:
        raise MissingData(f"data={conf.source} needs data.path=..., the place of its records")
    path = Path(conf.path)
    if not path.exists():
        raise MissingData(f"no file {path} (data.path)")
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _public(
    of: str, settings: tuple[str, ...] = (), *, varied: Callable[[DataConf, Schema], Schema] = lambda _, schema: schema
) -> Kind:
    return Kind(
        of,
        settings,
        declare=lambda conf: varied(conf, public_set(conf.source).schema),
        find=lambda conf, held_out: find_public_set(conf.source, held_out=held_out),
        read=lambda conf, schema, held_out: load_public_set(conf.source, schema, held_out=held_out),
        held_out=True,
        record={"images": "picture", "table": "record", "baskets": "basket", "series": "series"}[of],
    )


def _varied_pictures(conf: DataConf, schema: ImageSchema) -> ImageSchema:
    return dataclasses.replace(schema, **_given(conf, "classes", "threshold"))


def _pictures(conf: DataConf) -> ImageSchema:
    _needed(conf, "height", "width")
    names = tuple(conf.classes) if isinstance(conf.classes, list) else ()
    if any(type(name) is int for name in names):
        raise UsageError(
            f"data.classes={list(names[:5])}: expected names as text, as in data.classes=[cats,dogs], or data.classes="
            f"{len(names)} for labels that are the whole numbers from 0 to {len(names) - 1}"
        )
    if names:
        public_names("classes", names, 2, MOST_CLASSES)
    classes = len(names) if names else conf.classes or 0
    given = _given(conf, "height", "width", "channels", "threshold")
    return ImageSchema(**{"levels": 255, "classes": classes, "names": names} | given)


def _read_pictures(conf: DataConf, schema: ImageSchema, held_out: bool) -> Reading:
    form = {"channels": schema.channels, "classes": list(schema.names) or schema.classes}
    images, labels = read_pictures(conf.path, schema.height, schema.width, **form, **_given(conf, "fit", "high"))
    return Reading(schema.encode(images, labels), None, {})


def _table(conf: DataConf) -> Schema:
    if not conf.schema:
        raise UsageError(
            "data=table needs data.schema=FILE.schema.yaml, the public description of its columns: dpgen schema FILE "
            "specs one"
        )
    schema = _described(conf)
    # Before anything was found, any will do.
    return schema.filled(conf.found or {c.name: [0, 1] if c.find == BOUNDS else ["a"] for c in schema.open})


def _described(conf: DataConf) -> TableSchema:
    if isinstance(conf.schema, TableSchema):
        return conf.schema
    # Hydra reads 12 and [a] as a number and a list.
    if not isinstance(conf.schema, str | Path):
        raise UsageError(
            f"data.schema={shown(conf.schema)}: expected the name of a file, as in data.schema=FILE.schema.yaml; a name "
            "that is a number needs its folder before it, as in data.schema=./12"
        )
    return read_schema(conf.schema)


def _table_source(conf: DataConf) -> Any:
    return conf.path if conf.memory is None else conf.memory


def _read_table(conf: DataConf, schema: TableSchema, held_out: bool) -> Reading:
    return read_table(_table_source(conf), schema, **_given(conf, "outside", "person"))


def _baskets(conf: DataConf) -> BasketSchema:
    if conf.items == PRIVATE:
        # What no file could hold as a name is left out.
        items = [name for name in conf.found["items"] if is_name(name)] if conf.found else ["a", "b"]
    else:
        items = conf.items if isinstance(conf.items, list) else read_items(conf.items)
    _needed(conf, "max_items")
    if not isinstance(conf.classes, list | tuple | None):
        raise UsageError(f"data.classes={shown(conf.classes)}: expected names in a list, as in data.classes=[day,night]")
    # Fewer may be found than a basket holds.
    most = min(conf.max_items, len(items)) if conf.items == PRIVATE else conf.max_items
    return BasketSchema(tuple(items), most, tuple(conf.classes or ()))


def _series(conf: DataConf) -> SeriesSchema:
    _needed(conf, "length", "low", "high")
    return SeriesSchema(**_given(conf, "length", "low", "high", "channels", "classes", "decimals"))


KINDS = {
    **{
        name: _public("images", ("classes", "threshold"), varied=_varied_pictures)
        for name in ("digits", "mnist", "fashion_mnist")
    },
    **{name: _public("table", ("bins",)) for name in ("adult", "mushroom")},
    **{name: _public("baskets") for name in ("retail", "bms_webview1")},
    **{name: _public("series") for name in ("uk_demand", "powercons", "ausgrid")},
    "images": Kind(
        "images",
        ("path", "height", "width", "channels", "classes", "threshold", "fit", "high"),
        _pictures,
        _file,
        _read_pictures,
        record="picture",
    ),
    "own": Kind(
        None,
        ("target", "options", "bins", *_PERSONS),
        lambda conf: own_data(conf).schema,
        lambda conf, held_out: [],
        lambda conf, schema, _: read_own(conf, schema),
        in_memory=own_bytes,
    ),
    "table": Kind(
        "table",
        ("path", "schema", "bins", "discovery_share", *_PERSONS),
        _table,
        _file,
        _read_table,
        in_memory=lambda conf: table_bytes(conf.memory, conf.schema, conf.person),
    ),
    "baskets": Kind(
        "baskets",
        ("path", "items", "max_items", "classes", "discovery_share", *_PERSONS, *_BASKETS),
        _baskets,
        _file,
        lambda conf, schema, _: read_baskets(conf.path, schema, **_given(conf, "outside", "person", *_BASKETS)),
        record="basket",
    ),
    "series": Kind(
        "series",
        ("path", "length", "low", "high", "channels", "classes", "decimals", *_PERSONS, *_SERIES),
        _series,
        _file,
        lambda conf, schema, _: read_series(conf.path, schema, **_given(conf, "outside", "person", *_SERIES)),
        record="series",
    ),
}
