"""A schema as `dpgen budget` and `dpgen train` take it, for a declared number of records and a budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.kinds.tables import TableFile
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.runs.warnings import plan_warnings
from lightning_dpgen.specs.compose import written
from lightning_dpgen.specs.data import TableSpec
from lightning_dpgen.specs.run import read_run
from lightning_dpgen.specs.settings import fill
from lightning_dpgen.specs.usage_error import UsageError

# A share that stands for the one that is to be given.
_SHARE = "data.discovery_share=0.05"


def objections(path: Path, schema: TableSchema, n: int, epsilon: float) -> Iterator[tuple[bool, str]]:
    """Yield what would be said of a schema, and whether the run would be refused; no record is read.

    It is checked by the very code of a run. What a setting cures is said, and the rest is checked as if it were given.

    Args:
        path: its file, for messages.
    """
    words = ["data=table", written("data.schema", path), f"data.n={n}", f"privacy.epsilon={epsilon!r}"]
    if schema.open:
        names = ", ".join(column.name for column in schema.open)
        yield (
            False,
            f"what is found privately ({names}) is paid for: add {_SHARE}, or another share, to the settings of a run",
        )
        words.append(_SHARE)
    try:
        spec = read_run(words)
        assert isinstance(spec.data, TableSpec), "data=table is one"
        settings = fill(spec, TableFile(spec.data, schema=schema))
        plan = settings.plan()
    except (UsageError, BudgetTooSmall) as refusal:
        yield True, str(refusal)
        return
    if settings.chosen is not None and "passed over" in settings.chosen:
        yield False, settings.chosen
    for text in plan_warnings(settings, plan):
        if text is not None:
            yield False, text
