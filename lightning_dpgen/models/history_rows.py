"""Rows of histories drawn one after the other, of many persons at once: small tables in NumPy, in one thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lightning_dpgen.models.history_masks import RowMasks
from lightning_dpgen.models.history_steps import Steps, column_of, mean_codes, share_codes
from lightning_dpgen.models.wide_columns import WideColumn, allowed_again, barred_kinds, choices_seen, known_choices


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """The rows of one place in one table that some persons have.

    Args:
        who: (n,) the persons.
        place: of the row, from 1.
        codes: of each feature that changes from row to row, and of each target, (n,).
    """

    who: np.ndarray
    place: int
    codes: dict[str, np.ndarray]


def _spans_of(steps: Steps) -> dict[str, slice]:
    """Return the place of each target's choices among those of all; wide columns have none."""
    sizes = [0 if name in steps.wide else size for name, size, _ in steps.targets]
    ends = np.cumsum([0, *sizes])
    return {name: slice(ends[j], ends[j + 1]) for j, (name, _, _) in enumerate(steps.targets)}


def draw_rows(
    steps: Steps,
    levels: Sequence[np.ndarray],
    tables: Mapping[str, Sequence[np.ndarray]],
    fixed: Mapping[str, np.ndarray],
    head: np.ndarray,
    generator: torch.Generator,
    masks: RowMasks,
) -> Iterator[DrawnRows]:
    """Draw the second rows of persons in a table, then the third ones, and so on.

    Where rules leave a person no further row, there is none.

    Args:
        steps: of the table.
        levels: of each target, (choices,).
        tables: of each target, one for each of its features.
        fixed: the codes (N,) of the features that stay the same for a person.
        head: (N, groups) choices of each person up to the first row.
        generator: of a uniform number for each choice.
        masks: of the rules of the table.
    """
    table, spans, now, order = steps.table, _spans_of(steps), {}, steps.table.order
    few = {name: level for name, level in zip(spans, levels, strict=True) if name not in steps.wide}
    wide = {name: WideColumn(steps, name, level, tables[name]) for name, level in zip(spans, levels, strict=True)
            if name in steps.wide}  # fmt: skip
    width = sum(map(len, few.values()))
    # Features that stay the same, and the time, which all targets have, are looked up once for all of them. Choices are
    # along the first axis, so that numbers of persons are added at once.
    base = np.tile(np.concatenate(list(few.values())).astype(np.float32)[:, None], len(head))
    time_table, moving, memories = np.zeros((width, 0), np.float32), [], {}
    for name in few:
        span = spans[name]
        for own, feature in zip(tables[name], steps.features[name], strict=True):
            if feature.name in fixed:
                if own.any():
                    base[span] += own.T[:, fixed[feature.name]]
            elif feature.name == "time":
                time_table = time_table if time_table.size else np.zeros((width, feature.size), np.float32)
                time_table[span] = own.T
            elif feature.of_memory:
                memories[name] = own[0].astype(np.float32)
            elif feature.name.startswith("now: "):
                following = now.setdefault(feature.name, np.zeros((width, feature.size), np.float32))
                following[span] = own.T
            else:
                moving.append((feature.name, span, own.T.copy()))
    # With a wide column, the row before counts anew for a column where the wide one has changed, which is drawn first.
    before_of = {name: own for feature, span, own in moving for name in few
                 if steps.wide and feature == f"before: {name}" and name != "gap" and span == spans[name]}  # fmt: skip
    moving = [own for own in moving if own[0].removeprefix("before: ") not in before_of or own[1] == spans.get("gap")]
    counts, state = head[:, 0].copy(), _State(steps, head, masks)
    places = list(spans)
    barred = [
        (f"now: column {first}", f"column {second}", own.T)
        if places.index(f"column {first}") < places.index(f"column {second}")
        else (f"now: column {second}", f"column {first}", own)
        for first, second, own in table.pairs
    ]
    masks.see(there := np.flatnonzero(counts), dict(enumerate(head[there, table.head - table.per_row :].T)))
    for place in range(1, table.max_rows):
        who = np.flatnonzero(counts > place)
        if not len(who):
            return
        last = counts[who] == place + 1
        codes = state.codes(who, place) | {"last": last.astype(np.int64)}
        logits = base.take(who, axis=1)
        if order is not None:
            logits += time_table.take(codes["time"], axis=1)
        for feature, span, own in moving:
            logits[span] += own.take(codes[feature], axis=1)
        quarters: dict[str, np.ndarray] = {}
        known, seen = dict[str, np.ndarray](), dict[str, np.ndarray]()
        uniform, stuck = torch.rand(len(spans), len(who), generator=generator).numpy(), np.zeros(len(who), bool)
        for j, (name, span) in enumerate(spans.items()):
            mask = None if name == "gap" else masks.barred(column_of(name), who, place, last)
            if name in steps.wide:
                none = [own[:, codes[before]] for before, target, own in barred if target == name]
                none += [] if mask is None else [mask]
                kind = codes[f"now: same: {name}"]
                chosen, lost = wide[name].draw_new(known[name], kind, codes, uniform[j], seen[name], none)
                stuck |= lost
                codes |= {f"now: {name}": chosen, f"new: {name}": np.where(kind == 0, 0, -1)}
                continue
            shares = logits[span]
            if (own := before_of.get(name)) is not None:
                shares += own.take(steps.before(name, codes), axis=1)
            if name in memories:
                quarters[name] = state.quarters(name, who, place)
                shares += memories[name][quarters[name]]
            if name == "gap" and masks.latest is not None:
                shares[state.beyond(who, counts[who] - place - 1)] = -np.inf
            if name.startswith("same: "):
                column = name.removeprefix("same: ")
                earlier = state.rows_of(column, who, place)
                allowed = allowed_again(earlier, mask)
                seen[column] = choices_seen(earlier, table.rows.layout.groups[column_of(name)])
                mask = barred_kinds(earlier, allowed, seen[column], mask)
            if mask is not None:
                shares[mask] = -np.inf
            for before, target, own in barred:
                if target == name:
                    shares[own[:, codes[before]]] = -np.inf
            if (barred or mask is not None) and (none := np.isneginf(shares).all(axis=0)).any():
                shares[:, none], stuck = 0.0, stuck | none
            np.exp(shares - shares.max(axis=0), out=shares)
            sums = shares.cumsum(axis=0)
            # Rounding may leave the last sum below the number.
            chosen = (sums[:-1] <= uniform[j] * sums[-1]).sum(axis=0)
            codes[f"now: {name}"] = chosen
            if name.startswith("same: "):
                known[column] = known_choices(chosen, earlier, allowed, uniform[j])
                kept = np.flatnonzero(chosen)
                for other, own in wide[column].ties.items():
                    logits[spans[other]][:, kept] += own[:, known[column][kept]]
            if (following := now.get(f"now: {name}")) is not None:
                logits[span.stop :] += following[span.stop :].take(chosen, axis=1)
        # Where columns drawn before leave a column no choice, the row is that before, which keeps all constraints; or there
        # is none, where rules do not let that one be again.
        for i in range(table.per_row if stuck.any() else 0):
            if (mask := masks.barred(i, who, place, last)) is not None:
                counts[who[stuck & mask[codes[f"before: column {i}"], np.arange(len(who))]]] = place
            codes[f"now: column {i}"] = np.where(stuck, codes[f"before: column {i}"], codes[f"now: column {i}"])
            if f"column {i}" in steps.wide:
                codes[f"now: same: column {i}"] = np.where(stuck, 1, codes[f"now: same: column {i}"])
                codes[f"new: column {i}"] = np.where(stuck, -1, codes[f"new: column {i}"])
        for name, own in quarters.items():
            codes[f"memory: {name}"] = own[codes[f"now: {name}"], np.arange(len(who))]
        if stuck.any():
            there = counts[who] > place
            who, codes = who[there], {name: own[there] for name, own in codes.items()}
        yield DrawnRows(who, place, codes)
        state.move(who, codes)
        masks.see(who, {i: codes[f"now: column {i}"] for i in range(table.per_row)})


class _State:
    """The rows that persons have so far: the last one, its time, and sums of columns in an order over those before it."""

    def __init__(self, steps: Steps, head: np.ndarray, masks: RowMasks) -> None:
        self._steps, self._latest, table = steps, masks.latest, steps.table
        self._sizes, self._most = table.rows.layout.groups, {i: most for i, most in enumerate(steps.numbers) if most}
        first = head[:, table.head - table.per_row :]
        self._before = {f"before: column {i}": first[:, i].copy() for i in range(table.per_row)}
        if table.order is not None:
            middles, self._distances = steps.middles
            self._ticks = middles[np.minimum(head[:, 1], len(middles) - 1)]
            self._lowest = np.maximum(table.order.lowest[0][np.minimum(head[:, 1], len(middles) - 1)], masks.earliest)
            self._before["before: gap"] = np.full(len(head), table.order.gap.choices)
        self._rows_of = {name: [first[:, column_of(name)].astype(np.int32)] for name in steps.wide}
        self._seen = {f"column {i}": np.zeros((self._sizes[i], len(head)), np.int16) for i in steps.remembered}
        self._see(np.arange(len(head)), {name: first[:, column_of(name)] for name in self._seen})
        self._totals = {i: np.zeros(len(head), np.int64) for i in self._most}
        self._numbers = {i: np.zeros(len(head), np.int64) for i in self._most}

    def codes(self, who: np.ndarray, place: int) -> dict[str, np.ndarray]:
        """Return the codes of features that change from row to row."""
        codes = {name: own[who] for name, own in self._before.items()}
        for i in self._most:
            codes[f"mean: column {i}"] = mean_codes(self._totals[i][who], self._numbers[i][who], self._sizes[i])
        if self._steps.table.order is None:
            return codes | {"place": np.full(len(who), self._steps.counts_bin(np.array(place)))}
        return codes | {"time": self._steps.times(self._ticks[who])}

    def quarters(self, target: str, who: np.ndarray, place: int) -> np.ndarray:
        """Return in which quarter the share of each choice (choices, n) among the rows so far is; 0 for none of them."""
        return share_codes(self._seen[target].take(who, axis=1).astype(np.int64), place)

    def rows_of(self, name: str, who: np.ndarray, place: int) -> np.ndarray:
        """Return the choices (places, n) of a wide column in the rows so far."""
        return np.stack([own[who] for own in self._rows_of[name][:place]]).astype(np.int64)

    def _see(self, who: np.ndarray, now: Mapping[str, np.ndarray]) -> None:
        for name, seen in self._seen.items():
            there = now[name] < len(seen)
            seen[now[name][there], who[there]] += 1

    def beyond(self, who: np.ndarray, behind: np.ndarray) -> np.ndarray:
        """Return which bins of distances (bins, n) pass the end even if all distances are lowest; one is always left.

        Args:
            behind: (n,) how many rows follow.
        """
        order = self._steps.table.order
        past = order.lowest[1][:, None] + self._lowest[who] + behind * order.lowest[1].min() > self._latest[who]
        past[np.argmin(order.lowest[1])] = False
        return past

    def move(self, who: np.ndarray, codes: Mapping[str, np.ndarray]) -> None:
        """Take the rows that were drawn as the last ones."""
        for i, most in self._most.items():
            last = codes[f"before: column {i}"]
            there = last < most
            self._totals[i][who] += np.where(there, last, 0)
            self._numbers[i][who] += there
        self._see(who, {name: codes[f"now: {name}"] for name in self._seen})
        for name, rows in self._rows_of.items():
            rows.append(rows[-1].copy())
            rows[-1][who] = codes[f"now: {name}"]
        for name, own in self._before.items():
            own[who] = codes[name.replace("before: ", "now: ", 1)]
        if self._steps.table.order is not None:
            self._ticks[who] += self._distances[codes["now: gap"]]
            self._lowest[who] += self._steps.table.order.lowest[1][codes["now: gap"]]
