"""An autoregressive network of histories: each choice follows from the person, rows before, and choices before it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.data.histories.row_table import RowTable
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.models.column_networks import ColumnNetworks, width_of
from lightning_dpgen.models.history_masks import RowMasks, barred_starts
from lightning_dpgen.models.mixture import Diverged
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.outputs import chosen
from lightning_dpgen.sampling.lots import Lot

# Waves by which a network sees times.
_TIME_WAVES = 6
# Histories that are drawn to see what a network makes, most and fewest, and the choices of all of them; how often this is
# done, and the least share of a choice that is compared.
_DRAWN, _FEWEST, _CODES, _ROUNDS, _LEAST = 8192, 512, 1 << 20, 8, 1e-3


class HistoryNetwork(nn.Module):
    """Histories as choices that are drawn one after the other, each from all before it (Frey 1998; Germain et al. 2015).

    A person's attributes come first, then the numbers of rows in all tables, then row by row each table. A row follows from
    the person, from the row before it, from the mean of all rows before it, from its time (its place, where rows have
    none), and from whether it is the last; and from the means of tables before its own. These are functions of a person's
    own earlier choices, so nothing recurrent has to be learned through the noise. Places behind the last row have no part
    in the loss, and are never drawn.

    Args:
        schema: the public description of histories.
        k: the number of components, 1: what tells persons apart is among their choices.
        hidden: units of the network of each column.
        fixed_bias: keep the biases of choices out of training, at the shares that were released before.
        generator: public generator of the initial weights.

    Raises:
        ValueError: for other records, more components, or a size below 1.

    Example:
        >>> from lightning_dpgen.data.histories.schema import HistorySchema
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> rows = parse_schema("columns: {ward: {type: category, values: [a, b]}}")
        >>> network = HistoryNetwork(HistorySchema(None, (RowTable("visits", rows, max_rows=3),)), k=1, hidden=4)
        >>> network.draw(torch.zeros(2, dtype=torch.int64), torch.Generator().manual_seed(0)).shape
        torch.Size([2, 4])
    """

    kind = "history_network"

    def __init__(
        self,
        schema: Any,
        k: int = 1,
        *,
        hidden: int = 16,
        fixed_bias: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        check_sizes(k=k, hidden=hidden)
        if schema.kind != "histories":
            raise ValueError(f"records of kind {schema.kind}: expected histories")
        if k != 1:
            raise ValueError(f"k={k}: expected 1 component")
        super().__init__()
        self.schema, self.k, self.hidden, self.fixed_bias = schema, k, hidden, fixed_bias
        groups, ordered = schema.layout.groups[: schema.attributes], schema.layout.ordered[: schema.attributes]
        counts = [table.max_rows + 1 for table in schema.tables]
        options = (hidden, fixed_bias, generator)
        # A constant stands where there is nothing before.
        self.persons = ColumnNetworks([*groups, *counts], [*ordered, *counts], 1, *options)
        self.tables, before = nn.ModuleList(), sum(self.persons.widths)
        for t, table in enumerate(schema.tables):
            times = [] if table.order is None else [table.order.start, table.order.gap]
            sizes = [*(own.choices for own in times), *table.rows.layout.groups]
            in_order = [*(own.ordered for own in times), *table.ordered_columns]
            width = sum(width_of(*own) for own in zip(sizes, in_order, strict=True))
            self.tables.append(ColumnNetworks(sizes, in_order, before + 1 + 2 * width + _TIME_WAVES, *options))
            self.register_buffer(f"ticks_{t}", _ticks(table))
            before += width

    @property
    def settings(self) -> dict[str, Any]:
        return {"hidden": self.hidden, "fixed_bias": self.fixed_bias}

    @property
    def _of_persons(self) -> list[int]:
        """The groups of persons: attributes, and numbers of rows."""
        return [*range(self.schema.attributes), *(part.start for part in self.schema.parts)]

    def _parted(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the persons' columns (..., choices), and of each table its rows (..., m, choices of all columns).

        A place without a row has zeros, and so has the time that a row has not: a first row has no distance, and others
        have no first time.
        """
        spans, rows = self.schema.layout.spans, []
        for table, part in zip(self.schema.tables, self.schema.parts, strict=True):
            places, order = [], table.order
            for place in range(table.max_rows):
                columns = table.place(place)
                groups = range(part.start + columns.start - (order is not None), part.start + columns.stop)
                row = [x[..., spans[i].start : spans[i].stop - 1] for i in groups]
                if order is not None:
                    row.insert(place == 0, x.new_zeros(*x.shape[:-1], (order.start if place else order.gap).choices))
                places.append(torch.cat(row, dim=-1))
            rows.append(torch.stack(places, dim=-2))
        return [x[..., spans[i]] for i in self._of_persons], rows

    def loss(self, lot: Lot, noise: Tensor) -> Tensor:
        """Return the negative log likelihood (B,) of each person's choices, in nats.

        That of rows is divided by the root of their number, so that long histories leave something of a clipped gradient
        to what is said of persons.
        """
        persons, rows = self._parted(lot.records)
        seen = [torch.ones_like(persons[0][..., :1])]
        losses = 0.0 * seen[0][..., 0]
        for j, x in enumerate(persons):
            losses = losses + _entropy(x, self.persons.logits(j, seen))
            seen.append(self.persons.seen(j, x))
        before = torch.cat(seen[1:], dim=-1)
        for t, x in enumerate(rows):
            count = persons[self.schema.attributes + t]
            number = (count * torch.arange(count.shape[-1], device=x.device)).sum(dim=-1).clamp(min=1.0)
            of_rows, total = self._loss_of_rows(t, before, count, x)
            losses = losses + of_rows / number.sqrt()
            before = torch.cat([before, total / number.unsqueeze(-1)], dim=-1)
        return losses

    def _loss_of_rows(self, t: int, before: Tensor, count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the negative log likelihood (...,) of all rows of a table, and the sum (..., features) of them.

        Args:
            before: (..., features) of persons, and of tables before.
            count: (..., m + 1) the number of rows.
            x: (..., m, choices of all columns) the rows.
        """
        columns, table = self.tables[t], self.schema.tables[t]
        choices, places = x.split(columns.sizes, dim=-1), torch.arange(table.max_rows, device=x.device)
        seen = [columns.seen(j, column) for j, column in enumerate(choices)]
        whole = torch.cat(seen, dim=-1)
        total = torch.cumsum(whole, dim=-2)
        last, mean = _after(whole), _after(total) / places.clamp(min=1)[:, None]
        context = [before.unsqueeze(-2).expand(*whole.shape[:-1], -1), count[..., 1:].unsqueeze(-1), last, mean]
        now = (x @ self.get_buffer(f"ticks_{t}")).unsqueeze(-1).cumsum(dim=-2)
        if table.order is None:
            now = now + (places / table.max_rows)[:, None]
        earlier, now = self._waves(_after(now)), self._waves(now)
        losses = x.new_zeros(())
        for j, column in enumerate(choices):
            time = earlier if j < self._timed(t) else now
            losses = losses + _entropy(column, columns.logits(j, [*context, time, *seen[:j]])).sum(dim=-1)
        return losses, total[..., -1, :]

    def _timed(self, t: int) -> int:
        """Return how many columns of a row are times: the first one and the distance, or none."""
        return 0 if self.schema.tables[t].order is None else 2

    def _waves(self, times: Tensor) -> Tensor:
        """Return waves (..., waves) of times (..., 1) from 0 to 1."""
        numbers = torch.arange(1, _TIME_WAVES + 1, device=times.device)
        return torch.cos(math.pi * times.clamp(0.0, 1.0) * numbers) * math.sqrt(2.0) / numbers

    @property
    def term(self) -> PerRecord:
        return PerRecord(self.loss)

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the biases so that each column first has the shares of its choices, over all places.

        Args:
            means: (1, width) already released means of records.
        """
        for bias, shares, _ in self._shares(means[0]):
            bias.copy_(torch.log(_normalised(shares)))

    @torch.no_grad()
    def hold_at(self, means: Tensor, noise: Tensor) -> None:
        """Set the biases so that shares of choices over all places are the best estimates of released ones.

        Clipped gradients move the average record, and noise the biases. A column's shares are moved by the part of their
        squared distance from the released ones that noise does not explain (the linear Bayes estimate). It is a function
        of the arguments alone: nothing is spent.

        Args:
            means: (1, width) already released means of records.
            noise: (1,) standard deviation of the noise of each number of the means.
        """
        wanted: list[Tensor | None] = []
        for number in range(_ROUNDS):
            columns = zip(self._shares(means[0]), self._shares(self._mean(number).to(means)), strict=True)
            for i, ((bias, released, places), (_, drawn, _)) in enumerate(columns):
                drawn = _normalised(drawn)
                if not number:
                    off = _normalised(released) - drawn
                    deviation = float(noise[0]) / max(float(released.sum()), _LEAST)
                    explained = len(off) * places * deviation**2 / max(float(off.square().sum()), 1e-12)
                    wanted.append(drawn + (1.0 - explained) * off if explained < 1.0 else None)
                if (shares := wanted[i]) is not None:
                    # The first steps lead there, and later ones average out what chance does to a draw.
                    bias.add_(torch.log(_normalised(shares) / drawn) / max(1, number - 1))

    def _shares(self, means: Tensor) -> list[tuple[Tensor, Tensor, int]]:
        """Return the bias of each column, how often a record has each of its choices, and in how many places it may."""
        persons, rows = self._parted(means)
        shares = [(bias, x, 1) for bias, x in zip(self.persons.biases, persons, strict=True)]
        for columns, x in zip(self.tables, rows, strict=True):
            by_column = zip(columns.biases, x.sum(dim=-2).split(columns.sizes), strict=True)
            shares += [(bias, choices, len(x)) for bias, choices in by_column]
        return shares

    def _mean(self, seed: int) -> Tensor:
        """Return the mean (width,) of histories that are drawn, fewer where they are long."""
        groups = self.schema.layout.groups
        n = max(_FEWEST, min(_DRAWN, _CODES // len(groups)))
        codes = self.draw(torch.zeros(n, dtype=torch.int64), torch.Generator().manual_seed(seed))
        shares = [torch.bincount(codes[:, i], minlength=size) / n for i, size in enumerate(groups)]
        return torch.cat(shares)

    @torch.no_grad()
    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw histories (n, width), one-hot."""
        codes = self.draw(torch.zeros(offsets[-1], dtype=torch.int64), generator)
        groups = self.schema.layout.groups
        return torch.cat([F.one_hot(codes[:, i], size).float() for i, size in enumerate(groups)], dim=1)

    @torch.no_grad()
    def draw(self, component: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the choices (n, groups), int64, of as many records: on the CPU, in their order."""
        n = len(component)
        codes = (torch.tensor(self.schema.layout.groups) - 1).repeat(n, 1)
        seen = [self.persons.inner_bias[0].new_ones(n, 1)]
        for j, group in enumerate(self._of_persons):
            codes[:, group] = _drawn(self.persons.logits(j, seen), generator)
            seen.append(self.persons.seen_of(j, codes[:, group]))
        before = torch.cat(seen[1:], dim=1)
        for t, part in enumerate(self.schema.parts):
            limits = _Limits(self.schema, t, codes[:, : self.schema.attributes])
            before = torch.cat([before, self._draw_rows(t, before, codes[:, part], limits, generator)], dim=1)
        return codes

    def _draw_rows(self, t: int, before: Tensor, codes: Tensor, limits: _Limits, generator: torch.Generator) -> Tensor:
        """Draw the rows of persons in a table into their codes (n, groups of it); return the mean (n, features) of rows.

        Where nothing is left for a row, a history ends with the one before.

        Args:
            before: (n, features) of persons, and of tables before.
        """
        table, columns, ticks, timed = self.schema.tables[t], self.tables[t], self.get_buffer(f"ticks_{t}"), self._timed(t)
        starts = list(itertools.accumulate(columns.sizes, initial=0))
        last, total, time = (ticks.new_zeros(len(codes), width) for width in (*[sum(columns.widths)] * 2, 1))
        for place in range(table.max_rows):
            who = (codes[:, 0] > place).nonzero()[:, 0]
            if not len(who):
                break
            ends, now = codes[who, 0] == place + 1, time[who]
            context = [before[who], ends[:, None].to(ticks), last[who], total[who] / max(place, 1)]
            seen, row, stuck = list[Tensor](), list[Tensor](), torch.zeros(len(who), dtype=torch.bool)
            for j, width in enumerate(columns.widths):
                if j < timed and j != (place > 0):
                    seen.append(ticks.new_zeros(len(who), width))
                    continue
                barred = limits.barred(j - timed, who, place, ends, row[timed // 2 :])
                logits = columns.logits(j, [*context, self._waves(now), *seen])
                if barred is not None:
                    none = barred.all(dim=1)
                    stuck |= none
                    logits = logits.masked_fill(barred & ~none[:, None], -torch.inf)
                row.append(_drawn(logits, generator))
                seen.append(columns.seen_of(j, row[-1]))
                now = now + ticks[starts[j] + row[-1]][:, None]
            codes[who[stuck], 0] = place
            who, kept = who[~stuck], ~stuck
            codes[who, table.place(place).start - timed // 2 : table.place(place).stop] = torch.stack(row, dim=1)[kept]
            last[who], time[who] = torch.cat(seen, dim=1)[kept], now[kept] + (not timed) / table.max_rows
            total[who] += last[who]
            limits.see(who, place, torch.stack(row, dim=1)[kept])
        return total / codes[:, :1].clamp(min=1)


class _Limits:
    """The choices that persons may not take next in a table: by pairs within a row, and rules beyond one (`RowMasks`)."""

    def __init__(self, schema: Any, t: int, attributes: Tensor) -> None:
        self._rules, self._table, self._attributes = schema.rules[t], schema.tables[t], attributes.numpy()
        self._masks = RowMasks(self._rules, self._table, self._attributes)
        self._pairs = [(*own, torch.from_numpy(barred)) for *own, barred in self._table.pairs]
        order = self._table.order
        self._lowest = [] if order is None else [torch.from_numpy(own) for own in order.lowest]
        self._earliest = torch.from_numpy(self._masks.earliest).clone()

    def _times(self, who: Tensor, place: int) -> Tensor | None:
        """Return first times (n, choices) out of the bounds of persons (n,), or distances that pass them at the least."""
        if place == 0:
            return torch.from_numpy(barred_starts(self._rules, self._table, self._attributes[who.numpy()]))
        if self._masks.latest is None:
            return None
        return self._earliest[who][:, None] + self._lowest[1] > torch.from_numpy(self._masks.latest)[who][:, None]

    def barred(self, column: int, who: Tensor, place: int, last: Tensor, row: Sequence[Tensor]) -> Tensor | None:
        """Return which choices (n, choices) of a column no row has; None for no limits.

        Args:
            column: from 0; below it, the time of the row.
            who: (n,) the persons.
            place: of the row, from 0.
            last: (n,) whether it is the last one.
            row: (n,) the choices of each column before.
        """
        if column < 0:
            return self._times(who, place)
        barred = [pairs[row[first]] for first, second, pairs in self._pairs if second == column]
        if (mask := self._masks.barred(column, who.numpy(), place, last.numpy())) is not None:
            barred.append(torch.from_numpy(mask).T)
        return torch.stack(barred).any(dim=0) if barred else None

    def see(self, who: Tensor, place: int, row: Tensor) -> None:
        """Take the rows (n, columns) of persons (n,), with their times, if there are any, first."""
        if self._lowest:
            lowest = self._lowest[place > 0][row[:, 0]]
            self._earliest[who] = lowest.maximum(self._earliest[who]) if place == 0 else self._earliest[who] + lowest
            row = row[:, 1:]
        self._masks.see(who.numpy(), dict(enumerate(row.T.numpy())))


def _ticks(table: RowTable) -> Tensor:
    """Return how far each choice of a row moves its time, as a part of the time from the first to the last one."""
    order, sizes = table.order, list(table.rows.layout.groups)
    if order is None:
        return torch.zeros(sum(sizes))
    start, gap = ([(low + high) // 2 for low, high in column.ranges] for column in (order.start, order.gap))
    low = int(order.start.limits[0])
    latest = start[-1] + (table.max_rows - 1) * gap[-1]
    whole = max(min(order.last, latest) - low, 1)
    return torch.tensor([*((tick - low) / whole for tick in start), *(tick / whole for tick in gap), *[0.0] * sum(sizes)])


def _after(x: Tensor) -> Tensor:
    """Return (..., m, n) moved on by one place; zeros stand in the first."""
    return torch.cat([x[..., :1, :] * 0.0, x[..., :-1, :]], dim=-2)


def _entropy(choices: Tensor, logits: Tensor) -> Tensor:
    """Return the negative log likelihood (...,) of choices (..., n), one-hot; 0 where there is none."""
    return -(choices * F.log_softmax(logits, dim=-1)).sum(dim=-1)


def _drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw choices (n,), none of which is without a share.

    Raises:
        Diverged: for numbers that are not finite.
    """
    shares = torch.softmax(logits, dim=-1)
    if shares.isnan().any():
        raise Diverged("network: holds numbers that are not finite, or too large: it has no shares of choices")
    choices = chosen(shares, torch.rand(len(logits), generator=generator))
    # Rounding may lead to the last one.
    return torch.where(shares.gather(-1, choices[:, None])[:, 0] > 0.0, choices, shares.argmax(dim=-1))


def _normalised(shares: Tensor) -> Tensor:
    """Return shares of choices that sum to 1, none of which is 0."""
    shares = (shares / shares.sum().clamp(min=_LEAST)).clamp(min=_LEAST)
    return shares / shares.sum()
