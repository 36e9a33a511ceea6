"""Constraints and the rows of a model as it first draws them: the share that keeps all, and single shares of those."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.common import pace
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.values import draw_kept_values
from lightning_dpgen.models.forests import StackedForests
from lightning_dpgen.models.mixture import Mixture

# Rows by which the share is told, and those by which shares are moved; public.
_ROWS, _MADE_UP, _SEED = 10_000, 30_000, 0
# Below this share, leaving rows out moves what is left.
ENOUGH = 0.95
# Shares are put right in so many rounds at most, until so much is kept and all are within so many deviations of the chance
# of made-up rows. A round moves a share by this power of what it lacks, and by this factor at most.
_ROUNDS, _NEARLY_ALL, _CHANCE, _POWER, _MOST = 20, 0.99, 4.0, 0.9, 3.0
# Components are moved where less is kept, in so many of these rounds; each counts as so many records like all.
_MANY, _FIRST, _LIKE = 0.985, 15, 20.0
_LEAST = 1e-4
# Shares of what is kept that are so much below the best are no matter of chance.
_WORSE = 0.03


@dataclass(frozen=True)
class FirstDraw:
    """Rows of a model as it first draws them. Public.

    Args:
        at_once: the share that keeps all constraints.
        kept: the share of which this can be said once values are drawn again within their bins; the others are left out.
        rule: the constraint that most of the others break, in words.
    """

    at_once: float
    kept: float
    rule: str | None

    @property
    def in_words(self) -> str:
        """The shares of rows that keep all constraints, in words."""
        text = f"{100 * self.at_once:.1f}% of the rows keep all constraints as the model first draws them"
        again = f"{100 * self.kept:.1f}% with values drawn again within their bins"
        return text if self.at_once == self.kept else f"{text}, {again}"

    @property
    def said(self) -> str:
        """The shares in a line of a log."""
        return f"rules: {self.in_words}"

    @property
    def warning(self) -> str | None:
        """A warning with advice where too few rows are kept; None where enough are."""
        if self.kept >= ENOUGH:
            return None
        return (
            f"only {self.in_words}, and leaving the "
            f"others out moves shares: {self.rule} leaves out most; correct it if some records only seem to keep it, let a "
            "column follow from the others (relative_to, or =), cut its columns into more bins, or raise epsilon"
        )


def look_at_first_draw(mixture: Mixture) -> FirstDraw | None:
    """Draw rows of a model and see how many keep the constraints; None for records without constraints."""
    schema = mixture.network.schema
    if not schema.restricts:
        return None
    encoded = mixture.sample(_ROWS, torch.Generator().manual_seed(_SEED))
    at_once = schema.rules.kept(schema.values(encoded, np.random.default_rng(_SEED)))
    values, kept = draw_kept_values(schema, encoded, np.random.default_rng(_SEED))
    broken = schema.rules.broken_most(values.filter(~kept)) if not kept.all() else None
    return FirstDraw(float(at_once.mean()), float(kept.mean()), broken)


def put_shares_right(mixture: Mixture, shares: Sequence[np.ndarray], free: Collection[int] = ()) -> None:
    """Move the tables of a mixture of forests so that the rows which keep the constraints have these shares of choices.

    Leaving rows out moves shares, which are known: each choice becomes more or less likely in all components by the ratio
    of what it should have and what it has. Where many are left out, by constraints of three columns, each component
    becomes more like those of its rows that are kept, too. What no row can have stays so. Post-processing.

    Args:
        mixture: of `StackedForests`; its tables are changed.
        shares: of the choices of each group.
        free: groups whose shares are not put right.
    """
    network = mixture.network
    schema, layout = network.schema, network.schema.layout
    assert isinstance(network, StackedForests)
    if not schema.restricts:
        return
    generator, random = torch.Generator().manual_seed(_SEED), np.random.default_rng(_SEED)
    best, best_state = 0.0, {}
    for place in pace.counted("putting shares right", range(_ROUNDS)):
        component = torch.multinomial(mixture.weights.double(), _MADE_UP, replacement=True, generator=generator)
        encoded = mixture.sample_components(component, generator)
        _, kept = draw_kept_values(schema, encoded, random)
        if kept.mean() < best - _WORSE:
            # Where the model cannot keep a rule, choices that it leaves out would become ever more likely.
            network.load_state_dict(best_state)
            break
        if kept.mean() > best:
            best, best_state = kept.mean(), {name: own.clone() for name, own in network.state_dict().items()}
        rows, moved = encoded[np.flatnonzero(kept)], False
        if not len(rows):
            break
        for group, (table, span) in enumerate(zip(network.tables, layout.spans, strict=True)):
            if group in free:
                continue
            if kept.mean() < _MANY and place < _FIRST:
                before = _by_component(encoded, component, group, layout.groups[group], network.k)
                after = _by_component(rows, component[torch.from_numpy(kept)], group, layout.groups[group], network.k)
                network.tilts[:, span] *= _factors(after, before)
            there = np.bincount(rows.codes[:, group], minlength=layout.groups[group]) / len(rows)
            # Choices that differ by chance stay as they are, or chance would be learned.
            wrong = np.abs(there - shares[group]) > _CHANCE * np.sqrt((shares[group] + _LEAST) / len(rows))
            moved |= bool(wrong.any())
            ratios = (shares[group] + _LEAST) / (there + _LEAST)
            table *= _factors(np.where(wrong, ratios, 1.0) ** _POWER, np.ones(1))
            table /= table.sum(dim=1, keepdim=True)
        if kept.mean() >= _NEARLY_ALL and not moved:
            break


def _by_component(encoded: Encoded, component: Tensor, group: int, size: int, k: int) -> np.ndarray:
    """Return the shares (k, choices) of a group's choices in each component; few records count as like all."""
    counts = np.bincount(component.numpy() * size + encoded.codes[:, group], minlength=k * size).reshape(k, size)
    counts = counts + _LIKE * counts.sum(axis=0) / counts.sum()
    return counts / counts.sum(axis=1, keepdims=True)


def _factors(wanted: np.ndarray, there: np.ndarray) -> Tensor:
    return torch.from_numpy(np.clip(wanted / np.maximum(there, _LEAST), 1.0 / _MOST, _MOST)).float()
