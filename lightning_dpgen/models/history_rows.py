"""Rows of histories drawn one after the other, of many persons at once: small tables in NumPy, in one thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lightning_dpgen.models.history_steps import Steps, mean_codes, share_codes


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
) -> Iterator[DrawnRows]:
    """Draw the second rows of persons in a table, then the third ones, and so on.

    Args:
        steps: of the table.
        levels: of each target, (choices,).
        tables: of each target, one for each of its features.
        fixed: the codes (N,) of the features that stay the same for a person.
        head: (N, groups) choices of each person up to the first row.
        generator: of a uniform number for each choice.
    """
    table, spans, now, order = steps.table, _spans_of(steps), {}, steps.table.order
    few = {name: level for name, level in zip(spans, levels, strict=True) if name not in steps.wide}
    wide = {name: _WideColumn(steps, name, level, tables[name]) for name, level in zip(spans, levels, strict=True)
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
    before_of = {feature.removeprefix("before: "): own for feature, span, own in moving
                 if feature.startswith("before: column ") and span == spans[feature.removeprefix("before: ")]}  # fmt: skip
    counts, state = head[:, 0], _State(steps, head)
    places = list(spans)
    barred = [
        (f"now: column {first}", f"column {second}", own.T)
        if places.index(f"column {first}") < places.index(f"column {second}")
        else (f"now: column {second}", f"column {first}", own)
        for first, second, own in table.pairs
    ]
    for place in range(1, table.max_rows):
        who = np.flatnonzero(counts > place)
        if not len(who):
            return
        codes = state.codes(who, place) | {"last": (counts[who] == place + 1).astype(np.int64)}
        logits = base.take(who, axis=1)
        if order is not None:
            logits += time_table.take(codes["time"], axis=1)
        for feature, span, own in moving:
            if not feature.startswith("before: column ") or not steps.wide:
                logits[span] += own.take(codes[feature], axis=1)
        quarters: dict[str, np.ndarray] = {}
        known: dict[str, np.ndarray] = {}
        uniform, stuck = torch.rand(len(spans), len(who), generator=generator).numpy(), np.zeros(len(who), bool)
        for j, (name, span) in enumerate(spans.items()):
            if name in steps.wide:
                none = [own[:, codes[before]] for before, target, own in barred if target == name]
                kind = codes[f"now: same: {name}"]
                chosen, lost = wide[name].draw_new(known[name], kind, codes, uniform[j], none)
                stuck |= lost
                codes |= {f"now: {name}": chosen, f"new: {name}": np.where(kind == 0, 0, -1)}
                continue
            shares = logits[span]
            if steps.wide and (own := before_of.get(name)) is not None:
                shares += own.take(steps.before(name, codes), axis=1)
            if name.startswith("same: "):
                shares[2, ~state.has_older(name.removeprefix("same: "), who, place)] = -np.inf
            if name in memories:
                quarters[name] = state.quarters(name, who, place)
                shares += memories[name][quarters[name]]
            if name == "gap" and order.end is not None:
                shares[state.beyond(who)] = -np.inf
            for before, target, own in barred:
                if target == name:
                    shares[own[:, codes[before]]] = -np.inf
            if barred and (none := np.isneginf(shares).all(axis=0)).any():
                shares[:, none], stuck = 0.0, stuck | none
            np.exp(shares - shares.max(axis=0), out=shares)
            sums = shares.cumsum(axis=0)
            # Rounding may leave the last sum below the number.
            chosen = (sums[:-1] <= uniform[j] * sums[-1]).sum(axis=0)
            codes[f"now: {name}"] = chosen
            if name.startswith("same: "):
                of = name.removeprefix("same: ")
                known[of] = wide[of].known(chosen, state.rows_of(of, who, place), uniform[j])
                kept = np.flatnonzero(chosen)
                for column, own in wide[of].ties.items():
                    logits[spans[column]][:, kept] += own[:, known[of][kept]]
            if (following := now.get(f"now: {name}")) is not None:
                logits[span.stop :] += following[span.stop :].take(chosen, axis=1)
        # Where columns drawn before leave a column no choice, the row is that before, which keeps all constraints.
        for i in range(table.per_row if stuck.any() else 0):
            codes[f"now: column {i}"] = np.where(stuck, codes[f"before: column {i}"], codes[f"now: column {i}"])
            if f"column {i}" in steps.wide:
                codes[f"now: same: column {i}"] = np.where(stuck, 1, codes[f"now: same: column {i}"])
                codes[f"new: column {i}"] = np.where(stuck, -1, codes[f"new: column {i}"])
        for name, own in quarters.items():
            codes[f"memory: {name}"] = own[codes[f"now: {name}"], np.arange(len(who))]
        yield DrawnRows(who, place, codes)
        state.move(who, codes)


class _WideColumn:
    """A column of very many choices: it stays, comes back to an earlier one, or gets a new one, given the rest of the row.

    Args:
        steps: of the table.
        name: of the target.
        level: (choices,).
        tables: one for each of its features.
    """

    def __init__(self, steps: Steps, name: str, level: np.ndarray, tables: Sequence[np.ndarray]) -> None:
        self.name, self._level = name, (level + tables[0][0]).astype(np.float32)
        self.ties = {
            feature.name.removeprefix("now: "): own.astype(np.float32)
            for feature, own in zip(steps.features[name][1:], tables[1:], strict=True) if own.any()
        }  # fmt: skip

    def known(self, kind: np.ndarray, earlier: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return the choices (n,) that follow from those so far; that of the row before, where there is to be a new one.

        Args:
            kind: (n,) 1 for those that stay, 2 for earlier ones, 0 for new ones.
            earlier: (places, n) the choices so far.
            uniform: (n,) numbers.
        """
        chosen = earlier[-1].copy()
        if len(back := np.flatnonzero(kind == 2)):
            others = earlier[:, back] != earlier[-1, back]
            # The digits behind those that decided the kind.
            rank = ((uniform[back] * 2.0**12) % 1.0 * others.sum(axis=0)).astype(np.int64)
            chosen[back] = earlier[(others.cumsum(axis=0) <= rank).sum(axis=0).clip(max=len(earlier) - 1), back]
        return chosen

    def draw_new(
        self,
        known: np.ndarray,
        kind: np.ndarray,
        codes: Mapping[str, np.ndarray],
        uniform: np.ndarray,
        barred: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the choices (n,), and which of them keep no constraint.

        Args:
            known: (n,) as `known` gives them.
            codes: of the columns of the row, each (n,).
            barred: (choices, n) of each constraint, where a choice breaks it.
        """
        chosen, lost, new = known.copy(), np.zeros(len(known), bool), np.flatnonzero(kind == 0)
        for part in np.array_split(new, 1 + (len(new) * len(self._level) >> 22)) if len(new) else ():
            logits = np.tile(self._level[:, None], len(part))
            for column, own in self.ties.items():
                logits += own.T[:, codes[f"now: {column}"][part]]
            logits[known[part], np.arange(len(part))] = -np.inf
            for none in barred:
                logits[none[:, part]] = -np.inf
            dead = np.isneginf(logits).all(axis=0)
            logits[:, dead], lost[part] = 0.0, dead
            np.exp(logits - logits.max(axis=0), out=logits)
            sums = logits.cumsum(axis=0, dtype=np.float64)
            # Rounding may leave the last sum below the number.
            chosen[part] = (sums[:-1] <= uniform[part] * sums[-1]).sum(axis=0)
        for none in barred:
            lost |= none[chosen, np.arange(len(chosen))]
        return chosen, lost


class _State:
    """The rows that persons have so far: the last one, its time, and sums of columns in an order over those before it."""

    def __init__(self, steps: Steps, head: np.ndarray) -> None:
        self._steps, table = steps, steps.table
        self._sizes, self._most = table.rows.layout.groups, {i: most for i, most in enumerate(steps.numbers) if most}
        first = head[:, table.head - table.per_row :]
        self._before = {f"before: column {i}": first[:, i].copy() for i in range(table.per_row)}
        if table.order is not None:
            middles, self._distances = steps.middles
            self._ticks = middles[np.minimum(head[:, 1], len(middles) - 1)]
            self._lowest = table.order.lowest[0][np.minimum(head[:, 1], len(middles) - 1)]
            self._before["before: gap"] = np.full(len(head), table.order.gap.choices)
        self._rows_of = {name: [first[:, int(name.split()[-1])].astype(np.int32)] for name in steps.wide}
        self._seen = {f"column {i}": np.zeros((self._sizes[i], len(head)), np.int16) for i in steps.remembered}
        self._see(np.arange(len(head)), {name: first[:, int(name.split()[-1])] for name in self._seen})
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

    def has_older(self, name: str, who: np.ndarray, place: int) -> np.ndarray:
        """Return whether there is another choice of a wide column than the last one (n,) among the rows so far."""
        last = self._rows_of[name][place - 1][who]
        return np.any([own[who] != last for own in self._rows_of[name][: place - 1]] or [np.zeros(len(who), bool)], axis=0)

    def _see(self, who: np.ndarray, now: Mapping[str, np.ndarray]) -> None:
        for name, seen in self._seen.items():
            there = now[name] < len(seen)
            seen[now[name][there], who[there]] += 1

    def beyond(self, who: np.ndarray) -> np.ndarray:
        """Return which bins of distances (bins, n) pass the end even if all distances are lowest; one is always left."""
        order = self._steps.table.order
        past = order.lowest[1][:, None] + self._lowest[who] > order.last
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
