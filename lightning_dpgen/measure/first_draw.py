"""Constraints and the rows of a model as it first draws them: the share that keeps all, and single shares of those."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.kept_values import draw_kept_values
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.models.forests import StackedForests
from lightning_dpgen.models.mixture import Mixture

# Rows by which the share is told, and those by which shares are moved; public.
_ROWS, _MADE_UP, _SEED = 10_000, 50_000, 0
# Below this share, leaving rows out moves what is left.
ENOUGH = 0.95
# Single shares are put right where less is kept, in so many rounds, each of which moves a share by this power of what it
# lacks and by this factor at most.
_NEARLY_ALL, _ROUNDS, _POWER, _MOST = 0.995, 8, 0.7, 3.0


@dataclass(frozen=True)
class FirstDraw:
    """Rows of a model as it first draws them, with values within their bins as they can be chosen. Public.

    Args:
        kept: the share that keeps all constraints.
        rule: the constraint that most of the others break, in words.
    """

    kept: float
    rule: str | None

    @property
    def said(self) -> str:
        """The share in a line of a log."""
        return f"rules: {100 * self.kept:.1f}% of the rows keep all constraints as the model first draws them"

    @property
    def warning(self) -> str | None:
        """What to do where too few rows are kept; None where enough are."""
        if self.kept >= ENOUGH:
            return None
        return (
            f"only {100 * self.kept:.1f}% of the rows keep all constraints as the model first draws them, and leaving the "
            f"others out moves shares: {self.rule} leaves out most; correct it if some records only seem to keep it, let a "
            "column follow from the others (relative_to, or =), cut its columns into more bins, or raise epsilon"
        )


def look_at_first_draw(mixture: Mixture) -> FirstDraw | None:
    """Draw rows of a model and see how many keep the constraints; None for records without constraints."""
    schema = mixture.network.schema
    if not isinstance(schema, TableSchema) or not schema.rules.restrict:
        return None
    encoded = mixture.sample(_ROWS, torch.Generator().manual_seed(_SEED))
    values, kept = draw_kept_values(schema, encoded, np.random.default_rng(_SEED))
    broken = schema.rules.broken_most(values.filter(~kept)) if not kept.all() else None
    return FirstDraw(float(kept.mean()), broken)


def put_shares_right(mixture: Mixture, shares: Sequence[np.ndarray], free: Collection[int] = ()) -> None:
    """Move the tables of a mixture of forests so that the rows which keep the constraints have these shares of choices.

    Leaving rows out moves shares, which are known: each choice becomes more or less likely in all components by the ratio
    of what it should have and what it has. What no row can have stays so. Post-processing.

    Args:
        mixture: of `StackedForests`; its tables are changed.
        shares: of the choices of each group.
        free: groups whose shares are not put right.
    """
    network = mixture.network
    schema, layout = network.schema, network.schema.layout
    assert isinstance(network, StackedForests)
    if not isinstance(schema, TableSchema) or not schema.rules.restrict:
        return
    for _ in range(_ROUNDS):
        encoded = mixture.sample(_MADE_UP, torch.Generator().manual_seed(_SEED))
        _, kept = draw_kept_values(schema, encoded, np.random.default_rng(_SEED))
        if kept.mean() >= _NEARLY_ALL or not kept.any():
            break
        for group, table in enumerate(network.tables):
            if group not in free:
                there = _shares(encoded[np.flatnonzero(kept)], group, layout.groups[group])
                ratio = ((shares[group] + 1e-4) / (there + 1e-4)) ** _POWER
                table *= torch.from_numpy(np.clip(ratio, 1.0 / _MOST, _MOST)).float()
                table /= table.sum(dim=1, keepdim=True)


def _shares(encoded: Encoded, group: int, size: int) -> np.ndarray:
    return np.bincount(encoded.codes[:, group], minlength=size) / len(encoded)
