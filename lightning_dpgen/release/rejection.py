"""Synthetic records that fulfil conditions and keep constraints: drawn until enough do, and how long that is tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from tqdm import tqdm

from lightning_dpgen.data.conditions import Condition, Where
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.kept_values import draw_kept_values
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.models.mixture import Mixture

# A draw is given up after so many records for each that is asked for, or so many in all,
MOST_DRAWN_EACH, MOST_DRAWN = 1_000, 100_000
# and after so many as soon as that would hardly be enough.
FIRST_LOOK = 1_000_000
# Records that break a constraint are drawn anew so often, and repaired then.
_ROUNDS = 20


class TooRare(ValueError):
    """The model makes too few records that fit the conditions."""


@dataclass(frozen=True)
class Drawn:
    """Synthetic records.

    Args:
        encoded: as they are encoded.
        values: the recorded columns of a table, where these have been looked at; else None.
    """

    encoded: Encoded
    values: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, rows: np.ndarray) -> Drawn:
        return Drawn(self.encoded[rows], None if self.values is None else self.values.take(pa.array(rows)))


def draw_all(mixture: Mixture, n: int, generator: torch.Generator, random: np.random.Generator) -> Drawn:
    """Draw n records that keep the constraints of their schema.

    Of a record that breaks one, the values of its bins are drawn anew, and then the record. After some rounds what is left
    is repaired (`RowRules.repaired`), and only a record that cannot be is drawn again.

    Raises:
        TooRare: if hardly any record can be repaired.
    """
    schema = mixture.network.schema
    if not isinstance(schema, TableSchema) or not schema.rules.restrict:
        return Drawn(mixture.sample(n, generator))
    parts, found, drawn = [], 0, 0
    while found < n or not parts:
        check_rate("the constraints of the schema", n, found, drawn)
        encoded = mixture.sample(n - found, generator)
        values, kept = draw_kept_values(schema, encoded, random)
        drawn += len(encoded)
        if len(parts) >= _ROUNDS:
            values, kept = schema.rules.repaired(values)
            # A row that cannot be repaired may be none of the schema's.
            values, kept = values.filter(pa.array(kept)), kept[kept]
            encoded = schema.encode(values)
        parts.append(Drawn(encoded, values)[np.flatnonzero(kept)])
        found += len(parts[-1])
    # The order of rounds would tell which rows are rare.
    return _joined(parts)[random.permutation(found)]


@contextmanager
def shown_progress(n: int, *, hidden: bool) -> Iterator[tqdm]:
    """Show how many of n records that fit have been drawn, on a terminal alone."""
    with tqdm(total=n, desc="records that fit", disable=hidden or None, leave=False, dynamic_ncols=True) as bar:
        yield bar


def draw_fitting(
    mixture: Mixture,
    n: int,
    asked: int,
    step: int,
    where: Where,
    conditions: Mapping[str, Sequence[Condition]],
    generator: torch.Generator,
    random: np.random.Generator,
    bar: tqdm,
) -> Drawn:
    """Draw until n records fulfil all conditions, by rejection: each is drawn like all others.

    Args:
        n: those of a block, and `asked` those of all blocks.
        step: the number of records that are drawn at a time.
        conditions: those of `where`, by column.
        bar: told how far it is.

    Raises:
        TooRare: see `check_rate`.
    """
    said, schema = _in_words(where), mixture.network.schema
    parts, found, drawn = [], 0, 0
    while found < n or not parts:
        # The last block may have few records, of which as many may be drawn as of another.
        check_rate(said, min(asked, step), found, drawn, asked)
        part = Drawn(mixture.sample_independent(step if n else 0, generator))
        drawn += len(part)
        part = _fitting(part, schema, conditions, random)
        part = part[np.arange(min(len(part), n - found))]
        found += len(part)
        parts.append(part)
        bar.set_postfix_str(f"of {drawn:,} drawn in a block", refresh=False)
        bar.update(len(part))
    return _joined(parts)


def _fitting(
    part: Drawn, schema: object, conditions: Mapping[str, Sequence[Condition]], random: np.random.Generator
) -> Drawn:
    """Return the records that fulfil conditions, and keep the constraints of a table."""
    fits, every = np.ones(len(part), bool), [one for several in conditions.values() for one in several]
    for condition in every:
        if condition.group is not None:
            fits &= np.isin(part.encoded.codes[:, condition.group], list(condition.may))
    part = part[np.flatnonzero(fits)]
    if not isinstance(schema, TableSchema) or not (schema.rules.restrict or any(one.test for one in every)):
        return part
    values, fits = draw_kept_values(schema, part.encoded, random)
    for column, several in conditions.items():
        for condition in several:
            if condition.test is not None:
                fits &= condition.test(values.column(column))
    return Drawn(part.encoded, values)[np.flatnonzero(fits)]


def _joined(parts: Sequence[Drawn]) -> Drawn:
    encoded = Encoded.joined([part.encoded for part in parts])
    if parts[0].values is None:
        return Drawn(encoded)
    table = pa.Table.from_batches([part.values for part in parts]).combine_chunks()
    batches = table.to_batches()
    return Drawn(encoded, batches[0] if batches else parts[0].values)


def _in_words(where: Where) -> str:
    if isinstance(where, Mapping):
        return "where " + ", ".join(f"{column}={'' if value is None else value}" for column, value in where.items())
    return "where " + (where if isinstance(where, str) else ", ".join(where))


def check_rate(said: str, n: int, found: int, drawn: int, asked: int | None = None) -> None:
    """Give up a draw of n records that has come to its end, or that hardly ever would come to a good one.

    Args:
        said: the conditions in words.
        asked: the number of records that was asked for, of which n are drawn here; None for n.

    Raises:
        TooRare: naming the rate: of those `drawn` so far, `found` fit the conditions.

    Example:
        >>> check_rate("where sex=F", n=5_000, found=3_000, drawn=2_000_000)
        >>> check_rate("where sex=F", n=100_000, found=104, drawn=1_000_000)
        Traceback (most recent call last):
        lightning_dpgen.release.rejection.TooRare: where sex=F: 104 of 1,000,000 records drawn fit, about 1 in 9,615, and \
100,000 were asked for: ask for 10 at most, or for what more records fit
    """
    most = max(MOST_DRAWN, MOST_DRAWN_EACH * n)
    # Five standard deviations more than were seen, so that a draw that would succeed is hardly ever given up.
    at_most = (found + 5.0 * math.sqrt(found) + 25.0) / max(1, drawn) * most
    if drawn < most and (drawn < FIRST_LOOK or at_most >= n):
        return
    rate = f", about 1 in {drawn / found:,.0f}" if found else ""
    enough = found * MOST_DRAWN // drawn
    advice = f"ask for {enough:,} at most, or for what more records fit" if enough else "ask for what more records fit"
    wanted = n if asked is None else asked
    raise TooRare(f"{said}: {found:,} of {drawn:,} records drawn fit{rate}, and {wanted:,} were asked for: {advice}")
