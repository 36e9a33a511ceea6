"""Synthetic records drawn in blocks, which fulfil conditions, complete given rows or keep constraints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch

from lightning_dpgen.common.pace import Stage
from lightning_dpgen.data.conditions import Condition
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.given import GivenRows
from lightning_dpgen.data.tables.value_set import ValueSet
from lightning_dpgen.data.tables.values import draw_kept_values
from lightning_dpgen.models.conditional import ConditionalSampler, is_conditional
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.drawing.description import balanced_group
from lightning_dpgen.sampling.randomness import WORDS, make_twister_state

# The most records of a block, and numbers of their layout: so few that memory is used again and not fetched anew. Choices
# are drawn from sums that records have in common, and their values take a while for each block.
LARGEST_BLOCK = 10_000
_NUMBERS, _NUMBERS_OF_CHOICES = 1 << 22, 1 << 24
# A column of very many takes longer than its records do, so a block has more of these.
_MANY_GROUPS, _AT_LEAST = 1000, 500


def block_rows(layout: Layout) -> int:
    """Return the number of records of a block: 1, 2 or 5 and zeros, so that `LARGEST_BLOCK` is a multiple of it.

    Example:
        >>> [block_rows(Layout(units=units)) for units in (20, 784, 100_000)]
        [10000, 5000, 20]
        >>> block_rows(Layout(units=0, groups=(1_000,)))
        10000
    """
    least = _AT_LEAST if len(layout.groups) >= _MANY_GROUPS else 1
    most = min(LARGEST_BLOCK, max(least, (_NUMBERS if layout.units else _NUMBERS_OF_CHOICES) // layout.width))
    return max(step * 10**zeros for step in (1, 2, 5) for zeros in range(5) if step * 10**zeros <= most)


def block_streams(seed: int, block: int) -> tuple[torch.Generator, np.random.Generator]:
    """Return the two generators of a block, which no other block and no other seed has.

    Args:
        seed: of all blocks, 0 or more; public.
        block: its number, from 0.

    Example:
        >>> one, other = (block_streams(7, block)[1].random() for block in (0, 1))
        >>> one == other, one == block_streams(7, 0)[1].random()
        (False, True)
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(block,))
    words = sequence.generate_state(1 + WORDS, np.uint64)
    state = make_twister_state(words[:1], words[1:] >> np.uint64(32))
    return torch.Generator().set_state(state), np.random.default_rng(sequence.spawn(1)[0])


# A draw is given up after so many records for each that is asked for, or so many in all,
MOST_DRAWN_EACH, MOST_DRAWN = 1_000, 100_000
# and after so many as soon as that would hardly be enough.
FIRST_LOOK = 1_000_000
# Records that break a constraint are drawn anew so often, and repaired then.
_ROUNDS = 20
# Given rows that break a constraint are filled anew so often. After the first rounds no choice is drawn with which no row
# keeps the constraints, and several records are tried for each row; in the last rounds they are repaired, and in the very
# last one any choices are drawn.
_ROUNDS_GIVEN, _NARROWED, _REPAIRED, _TRIED_EACH = 40, 1, 3, 50
# Conditions that have the logarithm of a smaller chance are never fulfilled: no share of a model is so small.
_LEAST_CHANCE = math.log(1e-20)


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


@dataclass(frozen=True)
class Wanted:
    """The choices and values that all records of a draw are to have.

    Args:
        allowed: (1, width) for each choice 1 where a record may have it, else 0.
        shares: (1, width) at most this share of the records with a choice is as wanted, 0 where it is not allowed.
        tests: columns of a table, and tests of their values (n,) that give (n,) bool.
        given: a row of which some cells are given.
        fits: tests of n records, as they are encoded, that give (n,) bool.
    """

    allowed: torch.Tensor
    shares: torch.Tensor
    tests: tuple[tuple[str, Callable[[pa.Array], np.ndarray]], ...] = ()
    given: GivenRows | None = None
    fits: tuple[Callable[[Encoded], np.ndarray], ...] = ()

    @classmethod
    def of(cls, layout: Layout, conditions: Mapping[str, Sequence[Condition]]) -> Wanted:
        """Return what conditions on columns ask for."""
        allowed, shares, tests = torch.ones(1, layout.width), torch.ones(1, layout.width, dtype=torch.float64), []
        fits = [one.fits for several in conditions.values() for one in several if one.fits is not None]
        for column, several in conditions.items():
            for condition in several:
                if condition.group is not None:
                    span = layout.spans[condition.group]
                    rest = [span.start + code for code in range(span.stop - span.start) if code not in condition.may]
                    allowed[:, rest] = 0.0
                    for code, share in condition.shares.items():
                        # Several conditions may be fulfilled by the same values.
                        shares[:, span.start + code] = min(float(shares[0, span.start + code]), share)
                if condition.test is not None:
                    tests.append((column, condition.test))
        return cls(allowed, shares * allowed, tuple(tests), fits=tuple(fits))

    def with_choice(self, span: slice, code: int) -> Wanted:
        """Return the same, of one choice of the group with this place alone."""
        others = torch.ones_like(self.allowed)
        others[:, span] = 0.0
        others[:, span.start + code] = 1.0
        return replace(self, allowed=self.allowed * others, shares=self.shares * others)


@dataclass(frozen=True)
class Request:
    """Records that are as wanted.

    Args:
        asked: the number of records of all blocks together.
        step: the number that is drawn at a time.
        in_words, wanted: what is wanted.
        shown: told how far it is.
    """

    mixture: Mixture
    asked: int
    step: int
    in_words: str
    wanted: Wanted
    shown: Stage


def draw_all(mixture: Mixture, n: int, generator: torch.Generator, random: np.random.Generator) -> Drawn:
    """Draw n records that keep the constraints of their schema.

    Of a record that breaks one, the values of its bins are drawn anew, and then the record. After some rounds what is left
    is repaired (`RowRules.repaired`), and only a record that cannot be is drawn again.

    Raises:
        TooRare: if hardly any record can be repaired.
    """
    schema = mixture.network.schema
    if not schema.restricts:
        return Drawn(mixture.sample(n, generator))
    parts, kept_count, drawn = [], 0, 0
    while kept_count < n or not parts:
        check_rate("the constraints of the schema", n, kept_count, drawn)
        encoded = mixture.sample(n - kept_count, generator)
        values, kept = draw_kept_values(schema, encoded, random)
        drawn += len(encoded)
        if len(parts) >= _ROUNDS:
            values, kept = schema.rules.repaired(values)
            # A row that cannot be repaired may be none of the schema's.
            values, kept = values.filter(pa.array(kept)), kept[kept]
            encoded = schema.encode(values)
        parts.append(Drawn(encoded, values)[np.flatnonzero(kept)])
        kept_count += len(parts[-1])
    # The order of rounds would tell which rows are rare.
    return _joined(parts)[random.permutation(kept_count)]


def draw_fitting(request: Request, n: int, generator: torch.Generator, random: np.random.Generator) -> Drawn:
    """Draw until n records of a block are as wanted: each has the model's conditional distribution.

    Networks that `is_conditional` draw records that have allowed choices. Of others, and of what choices do not tell, those
    that do not fit are left out.

    Raises:
        TooRare: see `check_rate`.
    """
    mixture, wanted, step, in_words = request.mixture, request.wanted, request.step, request.in_words
    schema, sampler, most = mixture.network.schema, None, min(request.asked, step)
    if is_conditional(mixture.network):
        sampler = ConditionalSampler(mixture.network, mixture.weights)
        chance = float(sampler.log_chances(wanted.allowed))
        if chance < _LEAST_CHANCE:
            raise TooRare(f"{in_words}: the model makes no such record: ask for what it makes")
        check_share(in_words, most, math.exp(float(sampler.log_chances(wanted.shares)) - chance))
    parts, fitting, drawn = [], 0, 0
    while fitting < n or not parts:
        # The last block may have few records, of which as many may be drawn as of another.
        check_rate(in_words, most, fitting, drawn, request.asked)
        if sampler is None:
            part = Drawn(mixture.sample_independent(step if n else 0, generator))
        else:
            # As many as are likely to be enough; many more where hardly any of the last ones were.
            count = min(step, (n - fitting) * min(10, drawn // max(1, fitting) + 1) + 10) if drawn else n
            part = Drawn(sampler.draw(wanted.allowed, torch.zeros(count, dtype=torch.int64), generator))
        drawn += len(part)
        part = _fitting(part, schema, wanted, random)
        part = part[np.arange(min(len(part), n - fitting))]
        fitting += len(part)
        parts.append(part)
        request.shown.note = f"of {drawn:,} drawn in a block"
        request.shown.advance(len(part))
    return _joined(parts)


def draw_balanced(
    request: Request, column: str, first: int, n: int, generator: torch.Generator, random: np.random.Generator
) -> Drawn:
    """Draw n records as `draw_fitting` does, of which every choice of a column has an equal share, in random order.

    Args:
        column: one that `balanced_group` knows.
        first: the number of records in all blocks before, so that shares of all blocks together are equal, too.
    """
    schema, wanted = request.mixture.network.schema, request.wanted
    group, choices = balanced_group(schema, column)
    span = schema.layout.spans[group]
    codes = [code for code in range(choices) if wanted.allowed[0, span.start + code] > 0.0]
    places_of_codes, parts = (first + np.arange(n)) % len(codes), []
    for place, code in enumerate(codes):
        named = f"{column}={schema.choices[column][code]}{', ' if request.in_words else ''}{request.in_words}"
        some = wanted.with_choice(span, code)
        of_choice = replace(request, asked=-(-request.asked // len(codes)), in_words=named, wanted=some)
        parts.append(draw_fitting(of_choice, int((places_of_codes == place).sum()), generator, random))
    return _joined(parts)[random.permutation(n)]


def draw_given(
    mixture: Mixture, given: GivenRows, generator: torch.Generator, random: np.random.Generator, shown: Stage
) -> tuple[Drawn | None, dict[int, str]]:
    """Draw the other cells of given rows, so that all rows keep the declared constraints; they stay in their order.

    Each row has the model's distribution given its cells. Networks that `is_conditional` draw every row by its own. Of
    others, records are drawn for all rows of the same cells until they have these.

    Returns:
        The rows, or None where some cannot be completed; and by its place each of these, which the constraints do not allow
        or for which nothing was found that keeps them, and why.

    Raises:
        TooRare: naming a row, if another network makes too few records that have what is given.
    """
    if not is_conditional(mixture.network):
        return _draw_alike(mixture, given, generator, random, shown)
    schema, sampler = mixture.network.schema, ConditionalSampler(mixture.network, mixture.weights)
    allowed, waiting, values = torch.from_numpy(given.allowed()), np.arange(len(given)), None
    parts, places, tries, refused = [], [], 1, dict[int, str]()
    for turn in range(_ROUNDS_GIVEN):
        if turn == _NARROWED:
            narrowed = given[waiting].narrowed()
            allowed[waiting] = torch.from_numpy(narrowed.allowed)
            values = dict(zip(waiting.tolist(), narrowed.left, strict=True))
            refused = {int(waiting[row]): problem for row, problem in narrowed.impossible.items()}
            waiting = np.setdiff1d(waiting, list(refused))
            if not len(waiting):
                break
        if turn >= _NARROWED:
            tries = max(1, min(_TRIED_EACH, block_rows(schema.layout) // len(waiting)))
        rows = np.repeat(waiting, tries)
        some = given[rows]
        part = Drawn(sampler.draw(allowed[waiting], torch.arange(len(waiting)).repeat_interleave(tries), generator))
        if turn == _ROUNDS_GIVEN - 1:
            # The only way may be one that the model hardly makes.
            part = Drawn(Encoded(part.encoded.units, _any_choices(schema, allowed[waiting], tries, generator)))
        part, kept = _completed(part, some, schema, random)
        if turn >= _ROUNDS_GIVEN - _REPAIRED:
            part, kept = _repaired(part, some, [values[row] for row in rows], schema, random)
        # The first that fits is the row's own.
        fine, first = np.unique(rows[kept], return_index=True)
        parts.append(part[np.flatnonzero(kept)[first]])
        places.append(fine)
        shown.advance(len(fine))
        waiting = np.setdiff1d(waiting, fine)
        if not len(waiting):
            break
    for row in waiting.tolist():
        broken = schema.rules.broken_most(part.values.filter(pa.array(rows == row)))
        refused[row] = f"no values of its other cells were found that keep all constraints, and most broke {broken}"
    return None if refused else _joined(parts)[np.argsort(np.concatenate(places))], refused


def _any_choices(schema: Schema, allowed: torch.Tensor, tries: int, generator: torch.Generator) -> np.ndarray:
    """Draw codes (n * each, groups) evenly among the choices that are allowed (n, width)."""
    codes = np.zeros((len(allowed) * tries, len(schema.layout.spans)), np.int64)
    for group, span in enumerate(schema.layout.spans):
        may = allowed[:, span]
        # Where constraints leave no choice at all, none is better than another.
        may = torch.where(may.any(dim=1, keepdim=True), may, 1.0)
        codes[:, group] = torch.multinomial(may, tries, True, generator=generator).ravel().numpy()
    return codes


def _draw_alike(
    mixture: Mixture, given: GivenRows, generator: torch.Generator, random: np.random.Generator, shown: Stage
) -> tuple[Drawn | None, dict[int, str]]:
    """Draw the rows of the same cells together, by rejection."""
    schema, alike, parts, refused = mixture.network.schema, given.alike(), [], dict[int, str]()
    step = block_rows(schema.layout)
    for rows in alike:
        first = given[rows[:1]]
        if impossible := first.narrowed().impossible:
            refused |= dict.fromkeys(rows.tolist(), impossible[0])
            continue
        allowed = torch.from_numpy(first.allowed())
        wanted = Wanted(allowed, allowed.double(), given=first)
        in_words = f"{first.place(0)}: what is given, which a {mixture.network.kind} makes by chance alone"
        request = Request(mixture, len(rows), step, in_words, wanted, shown)
        parts.append(draw_fitting(request, len(rows), generator, random))
    return None if refused else _joined(parts)[np.argsort(np.concatenate(alike))], refused


def _fitting(part: Drawn, schema: Schema, wanted: Wanted, random: np.random.Generator) -> Drawn:
    """Return the records that are as wanted, and keep the constraints of a table."""
    fits, codes = np.ones(len(part), bool), part.encoded.codes
    for group, span in enumerate(schema.layout.spans):
        fits &= wanted.allowed[0, span].numpy()[codes[:, group]] > 0.0
    for test in wanted.fits:
        fits &= test(part.encoded)
    part = part[np.flatnonzero(fits)]
    if wanted.given is not None:
        part, fits = _completed(part, wanted.given[np.zeros(len(part), np.int64)], schema, random)
        return part[np.flatnonzero(fits)]
    if not (schema.restricts or wanted.tests):
        return part
    values, fits = draw_kept_values(schema, part.encoded, random)
    for column, test in wanted.tests:
        fits &= test(values.column(column))
    return Drawn(part.encoded, values)[np.flatnonzero(fits)]


def _completed(part: Drawn, given: GivenRows, schema: Schema, random: np.random.Generator) -> tuple[Drawn, np.ndarray]:
    """Return records with the given cells in their place, and which (n,) keep the constraints and have what was drawn."""
    values, kept = draw_kept_values(schema, part.encoded, random, given)
    return Drawn(part.encoded, values), kept & given.matches(values, part.encoded)


def _repaired(
    part: Drawn,
    given: GivenRows,
    still_possible: Sequence[Mapping[str, ValueSet]],
    schema: Schema,
    random: np.random.Generator,
) -> tuple[Drawn, np.ndarray]:
    """Return records moved to what is left of their cells, and which (n,) keep the constraints then."""
    # As the model draws them: a part for which a given sum was solved may be at its bound.
    values = schema.values(part.encoded, random, given.moved(schema.values(part.encoded, random), still_possible))
    values, _ = schema.rules.repaired(values, given.known)
    return Drawn(part.encoded, values), schema.rules.kept(values, given.known)


def _joined(parts: Sequence[Drawn]) -> Drawn:
    encoded = Encoded.joined([part.encoded for part in parts])
    if parts[0].values is None:
        return Drawn(encoded)
    table = pa.Table.from_batches([part.values for part in parts]).combine_chunks()
    batches = table.to_batches()
    return Drawn(encoded, batches[0] if batches else parts[0].values)


def check_share(in_words: str, n: int, share: float) -> None:
    """Refuse to draw n records that are hardly ever found among those that are drawn.

    Args:
        in_words: the conditions in words.
        share: at most this share of the records that are drawn fits.

    Raises:
        TooRare: where less than a tenth of them is to be expected.

    Example:
        >>> check_share("where age=50", n=10, share=1e-4)
        >>> check_share("where age=50", n=10, share=1e-6)
        Traceback (most recent call last):
        lightning_dpgen...TooRare: where age=50: about 1 in 1,000,000 records that are drawn fits, and \
10 were asked for: ask for a range of values, or for what more records fit
    """
    if share * max(MOST_DRAWN, MOST_DRAWN_EACH * n) < n / 10.0:
        some = f"about 1 in {1.0 / share:,.0f} records that are drawn fits" if share > 1e-20 else "none fits"
        raise TooRare(
            f"{in_words}: {some}, and {n:,} were asked for: ask for a range of values, or for what more records fit"
        )


def check_rate(in_words: str, n: int, fitting: int, drawn: int, asked: int | None = None) -> None:
    """Give up a draw of n records that has come to its end, or that hardly ever would come to a good one.

    Args:
        in_words: the conditions in words.
        asked: the number of records that was asked for, of which n are drawn here; None for n.

    Raises:
        TooRare: naming the rate: of those `drawn` so far, `fitting` fit the conditions.

    Example:
        >>> check_rate("where sex=F", n=5_000, fitting=3_000, drawn=2_000_000)
        >>> check_rate("where sex=F", n=100_000, fitting=104, drawn=1_000_000)
        Traceback (most recent call last):
        lightning_dpgen...TooRare: where sex=F: 104 of 1,000,000 records drawn fit, about 1 in 9,615, and \
100,000 were asked for: ask for 10 at most, or for what more records fit
    """
    most = max(MOST_DRAWN, MOST_DRAWN_EACH * n)
    # Five standard deviations more than were seen, so that a draw that would succeed is hardly ever given up.
    at_most = (fitting + 5.0 * math.sqrt(fitting) + 25.0) / max(1, drawn) * most
    if drawn < most and (drawn < FIRST_LOOK or at_most >= n):
        return
    rate = f", about 1 in {drawn / fitting:,.0f}" if fitting else ""
    enough = fitting * MOST_DRAWN // drawn
    advice = f"ask for {enough:,} at most, or for what more records fit" if enough else "ask for what more records fit"
    wanted = n if asked is None else asked
    raise TooRare(f"{in_words}: {fitting:,} of {drawn:,} records drawn fit{rate}, and {wanted:,} were asked for: {advice}")
