"""Baskets: where they are read, what is measured of them, and how they are released, shown and written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.baskets.files import check_basket_columns
from lightning_dpgen.data.baskets.form import BASKET, ITEM, LINES, BasketForm
from lightning_dpgen.data.baskets.reading import OUTSIDE_COUNTED, basket_keys, read_baskets
from lightning_dpgen.data.baskets.schema import MOST_ITEMS, NO_UNIVERSE, BasketSchema, read_items
from lightning_dpgen.data.files.kinds import JSON_LINES, PARQUET
from lightning_dpgen.data.names import is_name, names_type, quote
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.tables.description import KEYS, PRIVATE
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.kinds.kind import Kind
from lightning_dpgen.release.rows.output_format import OutputFormat, WrittenRecords, as_they_are
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.data import BasketsSpec, PublicBasketsSpec
from lightning_dpgen.specs.source import PublicSource, Source
from lightning_dpgen.specs.spec import as_settings
from lightning_dpgen.specs.usage_error import UsageError

# Settings of the form of files.
_FORM = ("form", "separator", "columns", "label", "header")


class BasketFile(Source):
    """Baskets in a file."""

    word = "basket"

    def declare(self, discovery: dict[str, Any] | None = None) -> BasketSchema:
        spec, private = self.spec, self.spec.items == PRIVATE
        if private:
            # A name that no file could hold is left out.
            items = [name for name in discovery["items"] if is_name(name)] if discovery else ["a", "b"]
        elif spec.items in (None, ""):
            missing = as_settings(NO_UNIVERSE, "data", spec)
            raise UsageError(
                f"data.{missing}, or have it found privately from a share of the budget (data.items=private "
                "data.discovery_share=0.05 data.outside=clamp)"
            )
        else:
            with self._settings_named():
                items = spec.items if isinstance(spec.items, list) else read_items(spec.items)
        if not isinstance(spec.classes, list | tuple | None):
            raise UsageError(
                f"data.classes={quote(spec.classes)}: expected names in a list, as in data.classes=[day,night]"
            )
        # Fewer may be found than a basket holds.
        most = min(spec.max_items, len(items)) if private else spec.max_items
        return BasketSchema(tuple(items), most, tuple(spec.classes or ()), dataclasses.replace(spec.written, person=None))

    def check_records(self) -> None:
        with self._settings_named():
            check_basket_columns(self.spec.path, self.spec.written)

    @property
    def record(self) -> str:
        return f"basket (all rows of one {self.spec.columns[0]})" if self.spec.columns else self.word

    def _read(self, schema: BasketSchema, held_out: bool) -> Reading:
        reading = read_baskets(self.spec.path, schema, **self.spec.given("outside", "person", *_FORM))
        # Items that were found privately, as those of a release may be, leave out what is rare.
        declared = self.spec.items not in (None, PRIVATE)
        if declared and (outside := reading.counted.get(OUTSIDE_COUNTED, 0)) > reading.encoded.units.nnz:
            raise BadRecords(
                f"{outside:,} items in baskets are outside the universe (data.items), more than are in it: correct the "
                "separator, the form or the list of items"
            )
        return reading

    @property
    def open_parts(self) -> dict[str, Part]:
        if self.spec.items != PRIVATE:
            return {}
        if not 1 <= self.spec.max_items <= MOST_ITEMS:
            raise UsageError(f"data.max_items={self.spec.max_items}: expected a whole number from 1 to {MOST_ITEMS:,}")
        return {"items": Part(KEYS, self.spec.most_rows * self.spec.max_items)}

    def raw_parts(self, rows: Any = None) -> tuple[dict[str, Any], list[pa.Array] | None]:
        spec = self.spec
        with self._settings_named():
            keys = basket_keys(spec.path, form=dataclasses.replace(spec.written, person=None))
        return {"items": (keys.indptr, keys.ids, keys.names)}, None


class Baskets(Kind):
    """Sets of items out of a public universe."""

    name, schema, word = "baskets", BasketSchema, "basket"
    parts = "the items, the largest number of them in a basket, and its labels"
    discoverable = "items"
    measured_networks = ("product_mixture",)
    endings = LINES

    def source(self, spec: BasketsSpec | PublicBasketsSpec) -> Source:
        return BasketFile(spec) if isinstance(spec, BasketsSpec) else PublicSource(spec)

    def complete_measured(self, spec: Any, schema: BasketSchema, defaults: Any) -> dict[str, Any]:
        if schema.layout.units < 2:
            raise UsageError(
                "data.items: model=measured asks which items go together, and there is one alone; use model=vae"
            )
        return {"components": defaults.components, "pairs_share": 0.7}

    def recipe(self, spec: Any, schema: BasketSchema, *, n: int, seed: int, strength: float, sets: Any = ()) -> Any:
        from lightning_dpgen.measure.basket_mixture import BasketRecipe

        return BasketRecipe(schema, spec.components, n, pairs_share=spec.pairs_share, seed=seed)

    def describe(self, schema: BasketSchema) -> tuple[str, list[Any]]:
        from lightning_dpgen.release.drawing.described import Described, describe_label
        from lightning_dpgen.release.pages.text import join_values

        most = f"at most {schema.max_items:,} of {len(schema.items):,}"
        items = Described("items", "set", join_values(schema.items), most)
        return f"sets of {most} items", [items, *describe_label(schema)]

    def show(self, path: Path, schema: BasketSchema) -> Any:
        from lightning_dpgen.release.pages.distributions import show_baskets

        return show_baskets(path, schema)

    def output_format(self, schema: BasketSchema, release: Any, ending: str, form: str | None, declared: Any) -> Any:
        return written_baskets(schema, ending)


KIND = Baskets()


_WITH_LISTS = (PARQUET, *JSON_LINES)


def written_baskets(schema: BasketSchema, ending: str) -> WrittenRecords:
    """Return the form in which synthetic baskets are written to files of an ending, by which the same settings read them.

    Example:
        >>> schema = BasketSchema(("tea", "milk"), 2, written=BasketForm(columns=("bill", "article")))
        >>> baskets = pa.record_batch({"items": [["tea", "milk"], []]})
        >>> next(written_baskets(schema, ".csv").rows([baskets], 0)).to_pydict()
        {'bill': [1, 1, 2], 'article': ['tea', 'milk', None]}
    """
    written, file = schema.written, Path(f"x{ending}")
    # No matrix is written: the form of a file is then that of its ending.
    by = BasketForm() if written.form == "matrix" else written
    if by.by_name(file) == "lines":
        separator = written.separator_of(file, schema.items) or " "
        if len(separator.encode()) != 1 and any(separator in str(name) for name in (*schema.items, *schema.classes)):
            raise ValueError(f"the separator {separator!r} stands in names of items: expected one of one character")
        return as_they_are(schema.arrow, OutputFormat(separator, header=bool(written.header), as_lines=True))
    if ending in _WITH_LISTS and written.form != "rows" and written.columns is None:
        return as_they_are(schema.arrow)
    columns = [*zip(written.columns or (BASKET, ITEM), (pa.int64(), names_type(schema.items)), strict=True)]
    if schema.classes:
        columns.append((written.label_name, names_type(schema.classes)))
    form = OutputFormat(written.separator, header=written.header is not False)
    return WrittenRecords(pa.schema(columns), partial(_rows, pa.schema(columns)), form, None)


def _rows(columns: pa.Schema, chunks: Iterable[pa.RecordBatch], before: int) -> Iterator[pa.RecordBatch]:
    """Return baskets one item a row, each under its number from 1; an empty one is a row without an item."""
    for chunk in chunks:
        lists = chunk.column(0)
        sizes = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        baskets = np.repeat(np.arange(chunk.num_rows), np.maximum(sizes, 1))
        # The place of each row's item among all; none for an empty basket.
        places = pa.array(np.maximum(np.cumsum(sizes[baskets] > 0) - 1, 0), mask=sizes[baskets] == 0)
        items = lists.flatten().take(places) if sizes.any() else pa.nulls(len(baskets), columns.types[1])
        more = [column.take(pa.array(baskets)) for column in chunk.columns[1:]]
        yield pa.record_batch([pa.array(baskets + before + 1), items, *more], schema=columns)
        before += chunk.num_rows
