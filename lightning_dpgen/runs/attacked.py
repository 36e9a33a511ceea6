"""A run of measurements as an audit makes it: all accesses and no fit, to data sets that are made up from a schema."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse

from lightning_dpgen.audit.canaries import canaries_of
from lightning_dpgen.audit.replay import HeldRecipe
from lightning_dpgen.audit.whole_run import Neighbours
from lightning_dpgen.data.discovery.counts import KeyOwners
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema, kind_of
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.measure.gaussians import label_components
from lightning_dpgen.measure.recipe import MostlyNoise
from lightning_dpgen.metrics.fidelity import measure_fidelity, measure_table_fidelity
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.runs import discover
from lightning_dpgen.specs.first_pass import has_first_pass
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import Settings, complete_settings, make_schema
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import UsageError

# Made-up records that stand beside those of the pair; copies of the one that is added.
_BESIDE, _COPIES = 10, 10
# Copies for each deviation of the noise of a first pass, which looks closely where there are many.
_FOR_NOISE = 7.0
# Records of each pattern of the lowest and the highest numbers.
_ENDS = 3


@dataclass(frozen=True, eq=False, repr=False)
class MadeUpData:
    """A data set of made-up records.

    Args:
        records: the records, as they are encoded.
        look: the same records as a first pass sees them; None where there is none.
    """

    records: Records
    look: discover.InMemoryRecords | None


class MeasuredRun:
    """A run of measurements, as `dpgen train` makes it with these settings, and neighbours at which it is attacked.

    All accesses are made by the run's own code: the first pass, the measurements and the public figure. What
    lies between them and takes seconds (bins and a plan by what was found, a fit, synthetic records) is that of one run: it
    is post-processing, and bounds have to hold for any of its results.

    Args:
        spec: the settings.
        source: the source of the records, none of which is read.
        count: the number of made-up records among which the worst is looked for.

    Attributes:
        settings, plan: of the run.

    Raises:
        UsageError: for settings of which no such run can be made.
    """

    def __init__(self, spec: RunSpec, source: Source, count: int) -> None:
        self._spec, self._source = spec, source
        source.check()
        self._rows, self._raw = None, None
        if buys := has_first_pass(spec, source.open_parts):
            self._prepare_first_pass(count)
        else:
            self.settings: Settings = complete_settings(spec, source)
            self.plan: Plan = self.settings.plan()
        self._buys = buys
        self._pool, self._values, self._count = self._made_up(count)
        records = self._data(np.arange(len(self._pool))).records
        self._recipe = HeldRecipe.of(self.settings.recipe, records, label_components(records), self.plan)

    def __call__(self, account: Account, data: MadeUpData) -> Any:
        """Make all accesses of the plan, and return what is public of them."""
        released: list[Any] = []
        if self._buys:
            bought = discover.run_discovery(self._spec, self._source, data.look, account)
            released += [bought.n, bought.parts]
        records = data.records
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MostlyNoise)
            state = self._recipe.measure_state(records, label_components(records), account)
        for accesses in state.values():
            released += [{name: (one.sums, one.deviation) for name, one in measured.items()} for measured in accesses]
        if self.settings.spec.privacy.fidelity_share is not None:
            released.append(self._figure(account, records))
        account.verify_complete()
        return released

    @property
    def after_fit(self) -> frozenset[str]:
        """The stages that follow from a fit, which is that of one run."""
        return self._recipe.held

    def neighbours(self) -> Iterator[Neighbours]:
        """Yield pairs of data sets, one with one more record, or one more person.

        Beside it are a few records, and perhaps copies. Copies of the same record make a first pass look closely, and its
        items frequent; those of its twin with another label keep the label from being learned.
        """
        beside = np.arange(_BESIDE)
        like = _copies(self.plan) if self._buys else _COPIES
        for place in range(_BESIDE, self._count):
            copied = [np.full(like, place), *([] if self._buys else [beside[:0]])]
            if len(self._pool) > self._count:
                copied.append(np.full(like, self._count + place))
            rows = self._spec.data.most_rows
            # A person's rows are all alike, which moves one sum most, or all different, which moves most keys.
            persons = [np.full(rows, place)]
            if rows > 1 and place + rows <= self._count:
                persons.append(np.arange(place, place + rows))
            for copies in copied:
                some = np.concatenate([beside, copies])
                for more in persons:
                    yield Neighbours(self._data(some), self._data(some, more))

    def _prepare_first_pass(self, count: int) -> None:
        """Make rows up before anything is found of them, and find it in one run."""
        spec, source = self._spec, self._source
        if "items" in source.open_parts:
            raise UsageError("data.items=private: an audit attacks what is found of tables; declare the items for it")
        promise, rows = discover.plan_first_pass(spec, source).plan, count
        schema = make_schema(spec, source)
        if kind_of(schema).tabular:
            self._rows = _with_twins(schema, count, spec.seed)
            rows, table = self._rows.num_rows, self._rows
            person = spec.data.column_of_persons
            if person is not None and person not in table.schema.names:
                table = table.append_column(person, pa.array(np.arange(rows)))
            self._raw = source.raw_parts(table)[0]
        bought = discover.run_discovery(
            spec, source, self._look(np.arange(rows).repeat(_copies(promise)), None), Account(promise)
        )
        self.settings = discover.with_discovery(spec, source, bought)
        self.plan = self.settings.plan(promise)

    def _made_up(self, count: int) -> tuple[Encoded, TableValues | None, int]:
        """Return made-up records and those of a table by their values, those that stand beside a pair first, and the number
        of those that are no twins."""
        schema, seed = self.settings.schema, self._spec.seed
        if not kind_of(schema).tabular:
            encoded = _with_ends(canaries_of(schema, count, seed).encoded, schema.layout.levels or 1)
            return encoded, None, len(encoded)
        if self._rows is None:
            self._rows = _with_twins(schema, count, seed)
        reading = read_table(self._rows, schema, outside="clamp", values=True)
        twins = schema.label is not None
        return reading.encoded, reading.values, len(reading.encoded) // (2 if twins else 1)

    def _data(self, rows: np.ndarray, more: np.ndarray | None = None) -> MadeUpData:
        """Return the made-up records at some places, and more of them that belong to one person."""
        persons = None
        if more is not None:
            rows, persons = np.concatenate([rows, more]), np.minimum(np.arange(len(rows) + len(more)), len(rows))
        elif self._spec.data.column_of_persons is not None:
            persons = np.arange(len(rows))
        if self._spec.data.column_of_persons is None:
            persons = None
        values = None if self._values is None else self._values[rows]
        records = Records(self.settings.schema, self._pool[rows], persons, values)
        return MadeUpData(records, self._look(rows, persons) if self._buys else None)

    def _look(self, rows: np.ndarray, persons: np.ndarray | None) -> discover.InMemoryRecords:
        """Return the rows at some places as a first pass sees them."""
        if persons is None and self._spec.data.column_of_persons is not None:
            persons = np.arange(len(rows))
        parts = {}
        for name, raw in (self._raw or {}).items():
            values = raw[rows] if isinstance(raw, np.ndarray) else raw.take(pa.array(rows))
            parts[name] = values if isinstance(values, np.ndarray) else KeyOwners.of_column(values, persons)
        return discover.InMemoryRecords(len(rows), parts, persons)

    def _figure(self, account: Account, records: Records) -> dict[str, float]:
        """Measure the public figure beside made-up records of one label, from which nothing has to be fitted."""
        label = self.settings.schema.layout.label
        codes = self._pool.codes
        alike = np.arange(len(codes)) if label is None else np.flatnonzero(codes[:, label] == codes[_BESIDE, label])
        if self._values is not None:
            return measure_table_fidelity(account, records, self._values[alike])
        return measure_fidelity(account, records, self._pool[alike], radius=self.settings.split.radius)


def _with_twins(schema: Schema, count: int, seed: int) -> pa.Table:
    """Return made-up rows of a table, and after them, where there is a label, the same rows with other labels."""
    rows = schema.decode(canaries_of(schema, count, seed).encoded, np.random.default_rng(seed))
    if schema.label is None:
        return pa.table(_fitting(schema, [rows])[0])
    labels = rows.column(schema.label)
    values = labels.unique()
    place = pc.index_in(labels, values).to_numpy(zero_copy_only=False)
    others = values.take(pa.array((place + 1) % len(values)))
    twins = rows.set_column(rows.schema.get_field_index(schema.label), schema.label, others)
    return pa.concat_tables([pa.table(part) for part in _fitting(schema, [rows, twins])])


def _fitting(schema: Schema, parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows that fit the constraints of the schema in all parts."""
    fits = np.ones(parts[0].num_rows, bool)
    for part in parts:
        fits &= schema.rules.conformed(part, outside="clamp", counted=Counter())[1]
    return [part.filter(pa.array(fits)) for part in parts]


def _copies(plan: Plan) -> int:
    """Return so many copies of a record that a first pass finds it."""
    return math.ceil(_FOR_NOISE * plan.max_rows * max(plan.stages[0].access.multipliers.values()))


def _with_ends(encoded: Encoded, highest: int) -> Encoded:
    """Return made-up records, and a few that have the lowest and the highest numbers alone."""
    units, codes = encoded.units, encoded.codes[_BESIDE : _BESIDE + _ENDS]
    if scipy.sparse.issparse(units) or not units.shape[1]:
        return encoded
    patterns = [np.zeros(units.shape[1]), np.ones(units.shape[1])]
    patterns += [np.arange(units.shape[1]) % period < period // 2 for period in (2, 4)]
    ends = [(highest * np.tile(pattern, (len(codes), 1))).astype(units.dtype) for pattern in patterns]
    return Encoded.joined([encoded, *(Encoded(units, codes) for units in ends)])
