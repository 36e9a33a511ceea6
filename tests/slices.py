"""Records in memory as blocks."""

from dataclasses import dataclass

from lightning_dpgen.data.records import Records
from lightning_dpgen.sampling.lots import persons_of


@dataclass(frozen=True, eq=False, repr=False)
class Slices:
    """Records in memory as blocks of so many rows, the last of which may be shorter."""

    records: Records
    rows: int

    @property
    def schema(self):
        return self.records.schema

    @property
    def keys(self):
        return [f"slice {i}" for i in range(-(-len(self.records) // self.rows))]

    def __len__(self):
        return len(self.records)

    def check_persons(self, max_rows):
        persons_of(self.records, None, max_rows)

    def read(self, key):
        start = int(key.removeprefix("slice ")) * self.rows
        rows, records = slice(start, start + self.rows), self.records
        persons = None if records.persons is None else records.persons[rows]
        values = None if records.values is None else records.values[rows]
        return Records(records.schema, records.encoded[rows], persons, values)
