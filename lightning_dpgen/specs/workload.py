"""`data.workload`: the sets of columns whose tables of counts are asked for, each name checked before anything is spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.declarations import shown
from lightning_dpgen.data.errors import MissingData
from lightning_dpgen.data.files.text import check_there
from lightning_dpgen.data.kinds import kind_of
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.schema_file import read_yaml
from lightning_dpgen.measure.tables import WORKLOAD_SHARE
from lightning_dpgen.specs.defaults import strength_of
from lightning_dpgen.specs.typed import typed
from lightning_dpgen.specs.usage_error import UsageError, describe_os_error

# The most cells of all tables together: each is a row of a file of the release.
MOST_CELLS = 200_000
_MOST_SETS, _MOST_COLUMNS = 1000, 4
_EXPECTED = f"lists of 1 to {_MOST_COLUMNS} names of columns, as in data.workload=[[age,sex],[region]]"


def read_sets(asked: str | Sequence[Any]) -> list[list[str]]:
    """Return the sets of columns that are asked for, or that a YAML or JSON file has under `workload`.

    Raises:
        UsageError: if there is no such file, or it holds anything else.

    Example:
        >>> read_sets([["age", "sex"], ["region"]])
        [['age', 'sex'], ['region']]
    """
    told = "data.workload"
    if isinstance(asked, str):
        told = f"data.workload={asked}"
        path = Path(asked)
        try:
            check_there(path, "data.workload")
            content = read_yaml(path, "workload")
        except MissingData as error:
            raise UsageError(str(error)) from None
        except BadSchema as error:
            fault, form = str(error).removeprefix(str(path)), "workload: [[age, sex], [region]]"
            raise UsageError(f"{told}{fault} (expected a file of YAML or JSON as in {form})") from None
        except OSError as error:
            raise UsageError(f"{told}: {describe_os_error(error)}") from None
        asked = content.get("workload")
        if list(content) != ["workload"]:
            raise UsageError(f"{told}: holds the keys {listed(content) if content else 'none'}: expected workload alone")
    lists = isinstance(asked, list) and asked and all(isinstance(own, list) and own for own in asked)
    if not lists or not all(isinstance(name, str | int) and not isinstance(name, bool) for own in asked for name in own):
        raise UsageError(f"{told}: {shown(asked)}: expected {_EXPECTED}")
    return [[name if isinstance(name, str) else typed(name) for name in own] for own in asked]


def check_sets(
    sets: Sequence[Sequence[str]], schema: Schema, *, n: int, epsilon: float | None, delta: float, max_rows: int = 1
) -> None:
    """Refuse sets of columns of which no table of counts can be measured.

    Args:
        n, epsilon, delta, max_rows: the declared number of records and the budget, from which the expected noise follows.

    Raises:
        UsageError: naming the set and the column.
    """
    if not kind_of(schema).tabular:
        raise UsageError(f"data.workload: applies only to tables, and these records are {schema.kind}; leave it out")
    _check_names(sets, schema)
    sizes = dict(zip(schema.choices, schema.layout.groups, strict=True))
    if single := sorted({name for own in sets for name in own} - sizes.keys()):
        raise UsageError(f"data.workload: column {single[0]!r} has one value only, which tells nothing; leave it out")
    cells = [math.prod(sizes[name] for name in own) for own in sets]
    if sum(cells) > MOST_CELLS:
        noise = n / strength_of(n, epsilon, delta, max_rows) * math.sqrt(len(sets) / WORKLOAD_SHARE)
        most = max(cells)
        raise UsageError(
            f"data.workload: its tables have {sum(cells):,} cells together, and that of {listed(sets[cells.index(most)])} "
            f"has {most:,}, with {n / most:.2g} records in a cell on average and noise of standard deviation about "
            f"{noise:,.1f}: expected {MOST_CELLS:,} cells or fewer; leave out a column, or cut numbers into fewer bins"
        )


def _check_names(sets: Sequence[Sequence[str]], schema: Schema) -> None:
    if len(sets) > _MOST_SETS:
        raise UsageError(f"data.workload: {len(sets):,} sets of columns: expected at most {_MOST_SETS:,}")
    relatives, derived = schema.rules.relatives, schema.rules.derived
    counted = [column.name for column in schema.modelled if column.name not in relatives]
    columns = {column.name for column in schema.columns}
    seen: set[frozenset[str]] = set()
    for own in sets:
        told = f"data.workload: [{listed(map(shown, own))}]"
        if len(own) > _MOST_COLUMNS:
            raise UsageError(f"{told}: has {len(own):,} columns: expected 1 to {_MOST_COLUMNS}")
        for name in own:
            if name in counted:
                continue
            if name in derived:
                raise UsageError(f"{told}: column {name!r} follows from other columns; name those in its place")
            if name in relatives:
                raise UsageError(f"{told}: column {name!r} is learned by its distance from another column; leave it out")
            if name in columns:
                raise UsageError(f"{told}: column {name!r} is not learned (type: drop or fake); leave it out")
            near = suggest(name, counted)
            raise UsageError(f"{told}: there is no column {shown(name)!r}: expected some of {listed(counted)}{near}")
        if len(set(own)) < len(own):
            raise UsageError(f"{told}: names a column twice: expected each once")
        if frozenset(own) in seen:
            raise UsageError(f"{told}: is there twice, perhaps in another order: expected each set once")
        seen.add(frozenset(own))
