"""Columns of very many choices in histories: the next row has the one before, an earlier one, or a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lightning_dpgen.models.history_steps import Steps

# The kinds of a choice: another one than all before, that of the row before, and one of the rows before that.
NEW, SAME, EARLIER = range(3)


def allowed_again(earlier: np.ndarray, barred: np.ndarray | None) -> np.ndarray:
    """Return which of the choices so far (places, n) are others than the last one, and may come again, bool.

    Args:
        earlier: (places, n).
        barred: (choices, n) what rules do not let a person have; None for nothing.
    """
    others = earlier != earlier[-1]
    return others if barred is None else others & ~np.take_along_axis(barred, earlier, axis=0)


def choices_seen(earlier: np.ndarray, size: int) -> np.ndarray:
    """Return which choices (size, n) persons have had, bool, from those so far (places, n)."""
    seen = np.zeros((size, earlier.shape[1]), bool)
    np.put_along_axis(seen, earlier, True, axis=0)
    return seen


def barred_kinds(earlier: np.ndarray, allowed: np.ndarray, seen: np.ndarray, barred: np.ndarray | None) -> np.ndarray:
    """Return the kinds (3, n) that the next row cannot have, bool.

    Args:
        earlier, allowed, barred: as for `allowed_again`, and what it returns.
        seen: (choices, n), as of `choices_seen`.
    """
    kinds = np.zeros((3, earlier.shape[1]), bool)
    kinds[EARLIER] = ~allowed.any(axis=0)
    kinds[NEW] = (seen if barred is None else seen | barred).all(axis=0)
    if barred is not None:
        kinds[SAME] = np.take_along_axis(barred, earlier[-1:], axis=0)[0]
    return kinds


def known_choices(kind: np.ndarray, earlier: np.ndarray, allowed: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return the choices (n,) that follow from those so far; that of the row before, where there is to be a new one.

    Args:
        kind: (n,).
        earlier, allowed: (places, n), as of `allowed_again`.
        uniform: (n,) the numbers that decided the kinds; the digits behind decide among earlier choices.
    """
    chosen = earlier[-1].copy()
    if len(back := np.flatnonzero(kind == EARLIER)):
        others = allowed[:, back]
        rank = ((uniform[back] * 2.0**12) % 1.0 * others.sum(axis=0)).astype(np.int64)
        chosen[back] = earlier[(others.cumsum(axis=0) <= rank).sum(axis=0).clip(max=len(earlier) - 1), back]
    return chosen


class WideColumn:
    """New choices of a column, given the other columns of the row.

    Args:
        steps: of the table.
        name: of the target.
        level: (choices,).
        tables: one for each of its features.

    Attributes:
        ties: by other columns of the row, the logarithms (choices of the other, choices) of the factors by which both go
            together; none where all are 0.
    """

    def __init__(self, steps: Steps, name: str, level: np.ndarray, tables: Sequence[np.ndarray]) -> None:
        self._level = (level + tables[0][0]).astype(np.float32)
        self.ties = {
            feature.name.removeprefix("now: "): own.astype(np.float32)
            for feature, own in zip(steps.features[name][1:], tables[1:], strict=True) if own.any()
        }  # fmt: skip

    def draw_new(
        self,
        known: np.ndarray,
        kind: np.ndarray,
        codes: Mapping[str, np.ndarray],
        uniform: np.ndarray,
        seen: np.ndarray | None,
        barred: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the choices (n,), and which of them keep no constraint (n,).

        Args:
            known: (n,) those that follow from the rows so far.
            kind: (n,).
            codes: of the columns of the row, each (n,).
            uniform: (n,) numbers.
            seen: (choices, n) those of rows so far, of which none is new; None for no rows.
            barred: (choices, n) of each constraint, where a choice breaks it.
        """
        chosen, lost, new = known.copy(), np.zeros(len(known), bool), np.flatnonzero(kind == NEW)
        for part in np.array_split(new, 1 + (len(new) * len(self._level) >> 22)) if len(new) else ():
            logits = np.tile(self._level[:, None], len(part))
            for column, own in self.ties.items():
                logits += own.T[:, codes[f"now: {column}"][part]]
            if seen is not None:
                logits[seen[:, part]] = -np.inf
            for none in barred:
                logits[none[:, part]] = -np.inf
            stuck = np.isneginf(logits).all(axis=0)
            logits[:, stuck], lost[part] = 0.0, stuck
            np.exp(logits - logits.max(axis=0), out=logits)
            sums = logits.cumsum(axis=0, dtype=np.float64)
            # Rounding may leave the last sum below the number.
            chosen[part] = (sums[:-1] <= uniform[part] * sums[-1]).sum(axis=0)
        for none in barred:
            lost |= none[chosen, np.arange(len(chosen))]
        return chosen, lost
