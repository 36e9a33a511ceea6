"""Columns of which a schema leaves something to be found privately: bounds of numbers, or the list of categories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.numbers import texts_of
from lightning_dpgen.data.reading import CLAMP, REFUSE
from lightning_dpgen.data.tables.arrays import Misfit, plain
from lightning_dpgen.data.tables.bins import Bins
from lightning_dpgen.data.tables.column import BadSchema, Beyond, Modelled, is_text
from lightning_dpgen.data.tables.likely_keys import with_likely_keys
from lightning_dpgen.data.tables.numeric import MOST_BINS, form_of, scale_of
from lightning_dpgen.data.tables.scales import LARGEST_WHOLE, Scale
from lightning_dpgen.data.tables.written_form import WrittenForm
from lightning_dpgen.data.value_grid import FOUND_LEVELS, Leaves, ValueGrid

# The word of a schema in the place of what is to be found.
PRIVATE = "private"
BOUNDS, KEYS, VALUES = "bounds", "keys", "values"
# The category of values that were not found.
OTHER = "other"
_TELLS = "what is found privately does not cover every record, and a refusal would tell"
# The references from which powers of two are counted for bounds: for days, the first of 2000. And the range of days.
_REFERENCES, _DAYS = {"integer": 0, "number": 0, "date": 10_957}, (-719_162, 2_932_896)

# The smallest number that found bounds tell from 0, and the default number of bins of a column.
_SMALLEST, _BINS = 2.0**-64, 50


@dataclass(frozen=True, kw_only=True)
class Open(Modelled):
    """A column that becomes one of another kind when it is known what was found.

    Args:
        described: what its schema says of it, with `PRIVATE` in some places.
        find: `BOUNDS` or `KEYS`.
    """

    described: Mapping[str, Any]
    find: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outside == REFUSE:
            raise BadSchema(f"{REFUSE}: {_TELLS}: leave it out, or write {CLAMP}", self.name, "outside")

    @property
    def scale(self) -> Scale:
        """The scale on which its values are numbers, where bounds are to be found."""
        return scale_of(self.described["type"], self.described.get("decimals"))

    def form(self, decimal: str = ".", thousands: str = "") -> WrittenForm | None:
        """Return the declared form of its texts; see `Numeric.form`."""
        if self.find == KEYS:
            return None
        return form_of(self.described, decimal, thousands)

    @property
    def present(self) -> int:
        raise BadSchema(f"its {self.find} are still to be found", self.name)

    @property
    def present_names(self) -> list[str]:
        return ["?"] * self.present

    def filled(self, found: Any) -> dict[str, Any]:
        """Return what a schema says of it when this was found.

        Args:
            found: bounds on the scale of `raw`; ``{"bounds": bounds, "pieces": ..., "noise": ...}``, if it was also found
                how numbers between them are distributed (`find_values`); or the categories.
        """
        fields = dict(self.described) | {"outside": CLAMP}
        if self.find == BOUNDS:
            found = found if isinstance(found, dict) else {"bounds": found}
            low, high = self._limits(found["bounds"])
            fields |= {"low": self.scale.declared(low), "high": self.scale.declared(high)}
            if "pieces" in found:
                density = [[self.scale.declared(start), mass] for start, mass in found["pieces"]]
                fields |= {"density": density, "density_noise": found["noise"]}
            return fields if self._can_be_cut(fields, low, high) else fields | {"transform": "linear"}
        other = fields.get("other") or OTHER
        # A key that a schema cannot hold counts as not found.
        known = [key for key in found if key != other and is_text(key) and key == key.strip()]
        return fields | {"values": [*known, other], "other": other}

    @property
    def undecided(self) -> bool:
        """True where it is cut into bins whose number is not declared."""
        said = self.described
        return self.find == BOUNDS and said.get("bins") is None and said.get("encoding", "bins") == "bins"

    def leaves_between(self, bounds: Sequence[int | float]) -> Leaves:
        """Return the leaves of a tree between bounds that were found, for numbers as `raw` gives them."""
        low, high = self._limits(bounds)
        grid = ValueGrid(low, high, self.scale.whole, FOUND_LEVELS)
        return Leaves(grid, _REFERENCES[self.described["type"]])

    def _limits(self, bounds: Sequence[int | float]) -> tuple[int | float, int | float]:
        """Return ticks that a schema can declare for bounds on the scale of `raw`."""
        low, high = (self._held(bound + _REFERENCES[self.described["type"]]) for bound in bounds)
        return (low, high) if low < high else self._room(low)

    def _room(self, tick: int | float) -> tuple[int | float, int | float]:
        """Return bounds around one value: a column of one value alone would have nothing to learn, or to scale."""
        if not self.scale.whole:
            return tick, tick + _SMALLEST
        return (tick, tick + 1) if self._held(tick + 1) > tick else (tick - 1, tick)

    def _can_be_cut(self, fields: Mapping[str, Any], low: int | float, high: int | float) -> bool:
        """Tell whether its transform makes bins that float64 tells apart: a logarithm's first are narrow far from 0."""
        transform, bins = fields.get("transform", "linear"), fields.get("bins") or _BINS
        if transform == "linear" or not isinstance(bins, int) or not 1 <= bins <= MOST_BINS:
            return True
        try:
            Bins.cut(low, high, self.scale.whole, bins, transform, self.scale.unit, np.zeros(0))
        except ValueError:
            return False
        return True

    def _held(self, tick: int | float) -> int | float:
        """Return the nearest tick that a schema can declare."""
        if not self.scale.whole:
            return tick
        # Numbers with decimals have 15 digits.
        most = LARGEST_WHOLE if self.scale.unit == 1 else 10**15
        least, most = _DAYS if self.described["type"] == "date" else (-most, most)
        return max(least, min(most, tick))

    def raw(self, values: pa.Array) -> np.ndarray | pa.Array:
        """Return ticks (n,) float64 from a public reference, or texts (n,); NaN or null where one is missing.

        Raises:
            Misfit: naming the first value that cannot be read.
        """
        values = plain(values)
        absent = self._absent(values)
        if self.find == KEYS:
            return pa.array(texts_of(values).to_numpy(zero_copy_only=False), pa.string(), mask=absent)
        ticks, rows = np.full(len(values), np.nan), np.flatnonzero(~absent)
        if len(rows):
            present = values.filter(pa.array(~absent))
            try:
                ticks[rows] = self.scale.ticks(present) - _REFERENCES[self.described["type"]]
            except Misfit as misfit:
                raise with_likely_keys(misfit, present, self.described["type"]).moved(rows) from None
        return ticks

    def encode_present(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> tuple[np.ndarray, np.ndarray | None]:
        return np.zeros(len(values), np.int64), np.full(len(values), self.present)

    def beyond(self, values: pa.Array) -> list[Beyond]:
        self.raw(values)
        return []

    def decode(self, codes: np.ndarray, units: np.ndarray | None, random: np.random.Generator) -> pa.Array:
        return pa.nulls(self.present)

    def alone(self, code: int) -> bool:
        return False

    def places(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> np.ndarray:
        return np.full(len(values), self.present)

    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pa.Array:
        return pa.nulls(self.present)

    def range_text(self, code: int) -> str:
        return self.present_names[code]

    @property
    def ranges(self) -> list[tuple[int | float, int | float]]:
        return [(0, 0)] * self.present

    @property
    def arrow(self) -> pa.DataType:
        return pa.string() if self.find == KEYS else self.scale.arrow

    def fields(self) -> dict[str, Any]:
        return dict(self.described)


def open_column(name: str, fields: Mapping[str, Any]) -> Open | None:
    """Return the column that is described so, if something of it is to be found; see `PRIVATE`.

    Raises:
        BadSchema: if something is that cannot be.

    Example:
        >>> open_column("age", {"type": "integer", "low": "private", "high": "private"}).find
        'bounds'
    """
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        return None
    where = [key for key, value in fields.items() if isinstance(value, str) and value == PRIVATE]
    about = {
        key: fields[key] for key in ("description", "missing", "missing_values", "outside") if fields.get(key) is not None
    }
    if fields.get("type") in _REFERENCES and sorted(where) == ["high", "low"]:
        if fields.get("edges") or fields.get("special"):
            raise BadSchema("edges and special values need declared bounds", name, "low")
        return Open(name=name, described=dict(fields), find=BOUNDS, **about)
    if fields.get("type") == "category" and where == ["values"]:
        if fields.get("other") is not None and not isinstance(fields["other"], str):
            raise BadSchema("categories that are found are texts: expected a text, or none", name, "other")
        return Open(name=name, described=dict(fields), find=KEYS, **about)
    if set(where) & {"low", "high"}:
        kinds = ", ".join(_REFERENCES)
        raise BadSchema(
            f"low and high are found together: write {PRIVATE} for both, of a column of type {kinds}", name, "low"
        )
    return None
