"""Code of the user's own, by the name that a person has written, never by one found in a release, and records from it."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.row_sample import RowSample
from lightning_dpgen.data.schema import KindMissing, Schema, kind_of
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.record_check import TableCheck
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.data import CustomDataSpec
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import UsageError

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def import_by_name(setting: str, target: str | None) -> Any:
    """Return the object of a dotted name, such as ``package.module.function``; also of a module in the working directory.

    Args:
        setting: that holds the name, for messages.

    Raises:
        UsageError: if there is no such thing, or its module cannot be imported.

    Example:
        >>> import_by_name("data.target", "json.loads").__name__
        'loads'
    """
    if not target:
        raise UsageError(f"{setting}: must be given, as in {setting}=package.name")
    if not _NAME.fullmatch(target):
        raise UsageError(f"{setting}={target}: expected a module and a name in it, as in package.name")
    module, _, name = target.rpartition(".")
    # As `python -m` would find it; last, so that it hides nothing.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        imported = importlib.import_module(module)
    # A script ends the program.
    except (Exception, SystemExit) as error:
        raise UsageError(f"{setting}={target}: {module} cannot be imported ({describe_error(error)})") from None
    if not hasattr(imported, name):
        raise UsageError(f"{setting}={target}: the module {module} has no {name}")
    return getattr(imported, name)


def options_of(setting: str, options: Any) -> dict[str, Any]:
    """Return options as keyword arguments: plain values. They are public: the certificate of a release shows them as given.

    Raises:
        UsageError: for anything else.

    Example:
        >>> options_of("data.options", {"rows": 5})
        {'rows': 5}
    """
    options = {} if options is None else options
    if not isinstance(options, Mapping) or not all(isinstance(name, str) and name.isidentifier() for name in options):
        raise UsageError(f"{setting}={options}: expected names and values, as in {setting}='{{width: 3}}'")
    for name, value in options.items():
        if not isinstance(value, str | bool | int | float | None):
            raise UsageError(f"{setting}.{name}={value}: expected text, a number, true or false")
    return dict(options)


def describe_error(error: BaseException) -> str:
    """Return an error of the user's code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


class CustomSource(Source):
    """Records of a function, which is called once, and not before something is asked of them."""

    @cached_property
    def _source(self) -> Source:
        """The source of what the function returns.

        Raises:
            UsageError: if there is no such function, it fails, or gives anything else than (schema, `Encoded` or
                `Records`), or a frame and its schema.
        """
        function, where = import_by_name("data.target", self.spec.target), f"data.target={self.spec.target}"
        if not callable(function):
            raise UsageError(
                f"{where}: is a {type(function).__name__}; expected a function that returns schema and records"
            )
        options = options_of("data.options", self.spec.options)
        try:
            given = function(**options)
        # It may end the program, too.
        except (Exception, SystemExit) as error:
            raise UsageError(f"{where}: it failed when it was called ({describe_error(error)})") from None
        schema = records = None
        if isinstance(given, tuple) and len(given) == 2:
            schema, records = given if isinstance(given[0], Schema) else given[::-1]
        if isinstance(schema, Schema):
            try:
                kind_of(schema)
            except KindMissing as error:
                raise UsageError(
                    f"{where}: {error}; a kind of your own is known by an entry point of its package, or by register_kind "
                    "in the module of this function"
                ) from None
        if isinstance(schema, Schema) and isinstance(records, Encoded | Records):
            try:
                return EncodedSource(self.spec, schema, records)
            except (BadRecords, BadSchema, ValueError) as error:
                raise UsageError(f"{where}: {error}") from None
        if isinstance(schema, Schema) and isinstance(records, pd.DataFrame | pa.Table):
            source = kind_of(schema).frame_source(self.spec, schema, records)
            if source is not None:
                return source
        parts = ", ".join(type(part).__name__ for part in given) if isinstance(given, tuple) else type(given).__name__
        raise UsageError(f"{where}: it returned ({parts}): expected (schema, Encoded or Records), or (frame, TableSchema)")

    def declare(self, found: dict[str, Any] | None = None) -> Schema:
        return self._source.declare(found)

    @property
    def description(self) -> dict[str, Any]:
        return self._source.description

    @property
    def open_parts(self) -> dict[str, Part]:
        return self._source.open_parts

    def raw_parts(self, rows: Any = None) -> tuple[dict[str, Any], list[pa.Array] | None]:
        return self._source.raw_parts(rows)

    def check_table(self) -> TableCheck | None:
        return self._source.check_table()

    def found_in_words(self, found: dict[str, Any]) -> dict[str, str]:
        return self._source.found_in_words(found)

    def files(self, held_out: bool = False) -> list[Path]:
        return []

    def contents(self) -> Iterator[np.ndarray]:
        return self._source.contents()

    def _read_values(self, schema: Any, held_out: bool, sample: RowSample | None = None) -> Reading:
        return self._source._read_values(schema, held_out, sample)

    def _read(self, schema: Schema, held_out: bool) -> Reading:
        return self._source._read(schema, held_out)


class EncodedSource(Source):
    """Records in memory that are encoded already.

    Args:
        spec: the settings that name the function they are from.
        schema: their description.

    Raises:
        BadRecords, BadSchema, ValueError: for records of another description.
    """

    def __init__(self, spec: CustomDataSpec, schema: Schema, records: Encoded | Records) -> None:
        super().__init__(spec)
        self._schema, self._records = schema, records if isinstance(records, Records) else Records(schema, records)
        if self._records.schema != schema:
            raise BadRecords("the records are of another schema")

    def declare(self, found: dict[str, Any] | None = None) -> Schema:
        return self._schema

    def contents(self) -> Iterator[np.ndarray]:
        yield from self._records.arrays

    def _read(self, schema: Schema, held_out: bool) -> Reading:
        where, persons = f"data.target={self.spec.target}", self._records.persons
        if schema != self._schema:
            raise BadRecords(f"{where}: its records are encoded by another schema than the release's")
        if (persons is None) != (self.spec.max_rows is None):
            raise UsageError(
                f"{where}: its records say{' not' if persons is None else ''} whose they are: "
                "expected data.person and data.max_rows exactly if they do"
            )
        return Reading(self._records.encoded, persons, {})
