"""Histories: what is measured of them, and how they are released and described."""

from __future__ import annotations

from typing import Any

from lightning_dpgen.data.files.kinds import JSON_LINES, PARQUET
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.kinds.kind import Kind
from lightning_dpgen.release.rows.output_format import WrittenRecords, as_they_are

_WITH_LISTS = (PARQUET, *JSON_LINES)


class Histories(Kind):
    """Persons with attributes, and the rows of each in the order of time."""

    name, schema, word = "histories", HistorySchema, "person"
    parts = "the attributes of a person, the columns of a row, and the largest number of rows"
    measured_networks = ("histories",)

    def complete_measured(self, spec: Any, schema: HistorySchema, defaults: Any) -> dict[str, Any]:
        return {"components": defaults.components}

    def recipe(self, spec: Any, schema: HistorySchema, *, n: int, seed: int, strength: float, sets: Any = ()) -> Any:
        from lightning_dpgen.measure.histories import HistoryRecipe

        return HistoryRecipe(schema, spec.components, n, seed=seed)

    def describe(self, schema: HistorySchema) -> tuple[str, list[Any]]:
        from lightning_dpgen.data.schema import kind_of
        from lightning_dpgen.release.drawing.described import Described

        parts: list[Any] = []
        for table in (schema.persons, schema.rows):
            parts += [] if table is None else kind_of(table).describe(table)[1]
        if schema.order is not None:
            start, gap = schema.order.start, schema.order.gap
            values = f"{start.low} to {start.high}, then {gap.low} to {gap.high} from row to row"
            parts.insert(len(parts) - len(schema.rows.columns), Described(schema.order.name, start.type, values))
        return f"persons with up to {schema.max_rows:,} rows each", parts

    def output_format(
        self, schema: HistorySchema, release: Any, ending: str, form: str | None, declared: Any
    ) -> WrittenRecords:
        if ending not in _WITH_LISTS:
            raise ValueError(f"{ending}: a person has a list of rows: expected {', '.join(_WITH_LISTS)}")
        return as_they_are(schema.arrow)

    def sides(self, schema: HistorySchema) -> dict[str, Any]:
        return {"schema": schema}


KIND = Histories()
