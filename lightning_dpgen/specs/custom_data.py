"""`data=own data.target=package.function`: records that a function of somebody's own hands over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.reading import read_table, table_bytes
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.configuration import DataConf
from lightning_dpgen.specs.target import named, options_of, said
from lightning_dpgen.specs.usage_error import UsageError

_SCHEMAS = (ImageSchema, TableSchema, BasketSchema, SeriesSchema)


@dataclass(frozen=True, eq=False, repr=False)
class OwnData:
    """What the function has handed over. Private, but for the schema.

    Args:
        schema: the public description.
        records: encoded, or a table for a `TableSchema`.
    """

    schema: Schema
    records: Records | pd.DataFrame | pa.Table


def own_data(conf: DataConf) -> OwnData:
    """What the function ``data.target`` gives, called once: (schema, `Encoded` or `Records`), or (frame, `TableSchema`).

    Raises:
        UsageError: if there is no such function, it fails, or gives anything else.
    """
    if isinstance(conf.memory, OwnData):
        return conf.memory
    function, where = named("data.target", conf.target), f"data.target={conf.target}"
    if not callable(function):
        raise UsageError(f"{where}: is a {type(function).__name__}; expected a function that gives schema and records")
    options = options_of("data.options", conf.options)
    try:
        given = function(**options)
    except Exception as error:
        raise UsageError(f"{where}: it failed when it was called ({said(error)})") from None
    schema = records = None
    if isinstance(given, tuple) and len(given) == 2:
        schema, records = given if isinstance(given[0], _SCHEMAS) else given[::-1]
    if isinstance(schema, _SCHEMAS) and isinstance(records, Encoded | Records):
        try:
            if isinstance(records, Encoded):
                records = Records(schema, records)
            if records.schema != schema:
                raise BadRecords("the records are of another schema")
        except (BadRecords, BadSchema, ValueError) as error:
            raise UsageError(f"{where}: {error}") from None
        conf.memory = OwnData(schema, records)
    elif isinstance(schema, TableSchema) and isinstance(records, pd.DataFrame | pa.Table):
        conf.memory = OwnData(schema, records)
    else:
        parts = ", ".join(type(part).__name__ for part in given) if isinstance(given, tuple) else type(given).__name__
        raise UsageError(f"{where}: it gave ({parts}): expected (schema, Encoded or Records), or (frame, TableSchema)")
    return conf.memory


def read_own(conf: DataConf, schema: Schema) -> Reading:
    """The records, by that schema.

    Raises:
        UsageError: for settings that say of records of whom they are, when these do not, or the other way round.
        BadRecords: if the records are not of the schema.
    """
    own = own_data(conf)
    if not isinstance(own.records, Records):
        if not isinstance(schema, TableSchema):
            raise BadRecords(f"data.target={conf.target}: it gave a table: expected records of {schema.kind}")
        return read_table(own.records, schema, outside=conf.outside or "refuse", person=conf.person)
    if schema != own.schema:
        raise BadRecords(f"data.target={conf.target}: its records are encoded by another schema than the release's")
    if (own.records.persons is None) != (conf.max_rows is None):
        raise UsageError(
            f"data.target={conf.target}: its records say{' not' if own.records.persons is None else ''} whose they are: "
            "expected data.person and data.max_rows exactly if they do"
        )
    return Reading(own.records.encoded, own.records.persons, {})


def own_bytes(conf: DataConf) -> Iterator[np.ndarray]:
    """The records as bytes, for a fingerprint."""
    own = own_data(conf)
    if isinstance(own.records, Records):
        yield from own.records.arrays
    else:
        yield from table_bytes(own.records, own.schema, conf.person)
