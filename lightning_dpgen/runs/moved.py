"""Records that were changed or left out where they were read: reported, and a reason to stop before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lightning_dpgen.data.persons import MORE_ROWS
from lightning_dpgen.data.tables.column import shortened
from lightning_dpgen.data.tables.description import VALUES
from lightning_dpgen.data.tables.record_check import MOVES
from lightning_dpgen.data.tables.row_rules import LEFT_OUT, REPAIRED
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.source import Source

# The word for persons in what is counted of histories.
_OF_PERSONS = "persons: "
# Columns that a message names.
_MOST_NAMED = 4


def moved_lines(counted: Mapping[str, int], n: int) -> Iterator[str]:
    """Yield what was changed or left out on the way, and how often, of n records that take part. Private."""
    for what, count in counted.items():
        of = _rows(counted, n) if _is_move(what) else n if _OF_PERSONS in what else 0
        share = f" ({count / of:.1%})" if of else ""
        yield f"reading (private, stays here): {what}: {count:,}{share}"


def check_moved(source: Source, counted: Mapping[str, int], n: int) -> None:
    """Stop where more of a column was moved than the settings allow, or of the records that a constraint is about.

    That is known to the curator alone, who has the records; nothing of it is written. What is found privately is not looked
    at: it is not known yet, and afterwards a stop would tell of it (D35).

    Args:
        counted: the changes on the way of n records that take part. Private.

    Raises:
        BadRecords: naming columns, shares and what to do; nothing has been spent.
    """
    most = getattr(source.spec, "max_moved", None)
    if most is None:
        return
    unknown = {name for name, part in source.open_parts.items() if part.find != VALUES}
    moved: dict[str, float] = {}
    for what, count in counted.items():
        name = what.rpartition(": ")[0]
        if _is_move(what) and name not in unknown:
            moved[name] = moved.get(name, 0.0) + count / _rows(counted, n)
    above = {name: share for name, share in moved.items() if share > most}
    if not above:
        return
    # A second reading costs nothing but time, which large files have no need to take.
    check = None if source.in_blocks else source.check_table()
    causes = {} if check is None else {one.column: one for one in reversed(check.findings) if one.becomes is not None}
    moves = []
    for name, share in list(above.items())[:_MOST_NAMED]:
        cause = causes.get(name)
        why = f" ({cause.what}: {', '.join(cause.examples or cause.places)}: {cause.cure})" if cause else ""
        moves.append(f"{shortened(name)} {share:.1%}{why}")
    more = f" and of {len(above) - _MOST_NAMED} more" * (len(above) > _MOST_NAMED)
    raise BadRecords(
        f"data.max_moved={most:g}: outside=clamp would move more of {', '.join(moves)}{more}. dpgen check FILE SCHEMA "
        "lists all of it (in Python check_table); correct the schema or the records, or allow a larger share. "
        "Nothing was spent"
    )


def _is_move(what: str) -> bool:
    return what.rpartition(": ")[2] in (*MOVES, REPAIRED, LEFT_OUT)


def _rows(counted: Mapping[str, int], n: int) -> int:
    """Return how many records were read."""
    left_out = sum(count for what, count in counted.items() if what.rpartition(": ")[2] == LEFT_OUT)
    return n + left_out + counted.get(MORE_ROWS, 0)
