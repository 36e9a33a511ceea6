"""Rows whose numbers, dates and times are texts in a declared form: handed on as all programs read them."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.names import plain
from lightning_dpgen.data.numbers import are_numbers
from lightning_dpgen.data.tables.arrays import Misfit, shown
from lightning_dpgen.data.tables.column import shortened
from lightning_dpgen.data.tables.datetimes import MOMENTS
from lightning_dpgen.data.tables.likely_keys import likely_advice
from lightning_dpgen.data.tables.moment_form import MomentForm
from lightning_dpgen.data.tables.written_form import WrittenForm
from lightning_dpgen.sampling.errors import BadRecords


class Localized(RowSource):
    """A source in which some columns have a declared form, where they are text.

    Args:
        rows: as the file holds them.
        forms: the form of each of these columns.
        missing: the texts that stand for a missing value in each of them, which have no form.
    """

    def __init__(self, rows: RowSource, forms: Mapping[str, WrittenForm], missing: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(rows.where, rows.columns)
        self._rows, self._forms, self._missing = rows, forms, missing
        self.unnamed = rows.unnamed

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        done = 0
        for batch in self._rows.batches(columns):
            arrays = []
            for name, column in zip(columns, batch.columns, strict=True):
                try:
                    arrays.append(self._read(name, column))
                except Misfit as misfit:
                    where = f"{self.where}, {self.place(done + misfit.row)}: column {shortened(name)}"
                    raise BadRecords(f"{where}: {misfit.problem}; {misfit.advice}") from None
            yield pa.record_batch(arrays, names=columns)
            done += batch.num_rows

    def place(self, row: int) -> str:
        return self._rows.place(row)

    def advice_on(self, names: Collection[str]) -> str:
        return self._rows.advice_on(names)

    def commented(self) -> int:
        return self._rows.commented()

    def _read(self, name: str, column: pa.Array) -> pa.Array:
        form = self._forms.get(name)
        return column if form is None else read_in_form(column, form, self._missing.get(name, ()))


def read_in_form(column: pa.Array, form: WrittenForm, missing: Sequence[str]) -> pa.Array:
    """Return values whose texts have a declared form as all programs write them; those that are no text stay as they are.

    Args:
        missing: the texts that stand for a missing value, which have no form.

    Raises:
        Misfit: naming the first text of another form.
    """
    values = plain(column)
    if isinstance(form, MomentForm) and are_numbers(values.type):
        # Programs take dates of digits alone for numbers.
        values = form.of_numbers(values)
    if not pa.types.is_string(values.type):
        return column
    absent = pc.or_(pc.is_null(values), pc.is_in(values, pa.array(["", *missing], pa.string())))
    texts = values.fill_null("")
    present = ~absent.to_numpy(zero_copy_only=False)
    wrong = present & ~form.fits(texts)
    if wrong.any():
        raise _refusal(form, values, int(np.argmax(wrong)))
    read = form.read(texts)
    if isinstance(form, MomentForm):
        # A day that there is not, such as the 31st of February, is told as it stands in the file.
        rows = np.flatnonzero(present)
        try:
            MOMENTS[form.kind].ticks(read.filter(pa.array(present)))
        except Misfit as misfit:
            raise _refusal(form, values, misfit.moved(rows).row) from None
    return pc.if_else(absent, values, read)


def _refusal(form: WrittenForm, values: pa.Array, row: int) -> Misfit:
    """Return the refusal of a text that has not the declared form."""
    kinds = (form.kind,) if isinstance(form, MomentForm) else ("integer", "number")
    advice = likely_advice(values[row].as_py(), *kinds)
    likely = f"; {advice}" if advice else ""
    problem = f"{shown(values, row)}: expected {form.declared}, as the schema declares, such as {form.example}"
    return Misfit(row, problem, f"correct the value or the schema{likely}")
