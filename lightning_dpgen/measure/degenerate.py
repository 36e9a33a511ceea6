"""Columns of a table whose synthetic rows have collapsed to one value or two, where noisy shares say otherwise."""

from __future__ import annotations

import math

import numpy as np
import torch

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.schema import kind_of
from lightning_dpgen.models.mixture import Margins, Mixture

# Rows that are looked at; public. Two values of a column may have this share of them.
_ROWS, _SEED, _TWO = 2_000, 0, 2.0 / 3.0
# A noisy share says otherwise if it is so many deviations of its noise lower, and for two values by so much more. Beside a
# value that is alone, so many rows of others are expected.
_SIGMAS, _FAR, _OTHERS = 4.0, 0.15, 20.0
# Columns of which a warning says all.
_TOLD = 3


def degenerate_warning(mixture: Mixture) -> str | None:
    """Draw rows of a model, and warn of columns that have one value, or two in two thirds of the rows; None without any.

    The warning follows from the model and from noisy shares that were released with it (`Mixture.margins`): it is public,
    and costs nothing. Noise alone leads to one in 30,000 columns. Without such shares only columns of one value are told,
    as nothing says what others should be.

    Args:
        mixture: of any records; those of other kinds than tables are not looked at.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import schema_of
        >>> from lightning_dpgen.models.forests import StackedForests
        >>> schema = schema_of({"columns": {"smoker": {"type": "boolean"}, "ill": {"type": "boolean"}}})
        >>> network = StackedForests(schema, 1, [-1, -1])
        >>> margins = Margins(torch.tensor([0.7, 0.3, 0.6, 0.4]), 0.01)
        >>> degenerate_warning(Mixture(network, torch.ones(1), margins=margins)) is None
        True
        >>> network.tables[0].copy_(torch.tensor([[1.0, 0.0]]))
        tensor([[1., 0.]])
        >>> print(degenerate_warning(Mixture(network, torch.ones(1), margins=margins)).partition(":")[0])
        the rows are degenerate, as smoker is false in 100% of them (a noisy share says 70.0%)
    """
    schema, margins = mixture.network.schema, mixture.margins
    if not kind_of(schema).tabular:
        return None
    codes = mixture.sample(_ROWS, torch.Generator().manual_seed(_SEED)).codes
    found = {}
    for group, span in enumerate(schema.layout.spans):
        counts = np.bincount(codes[:, group], minlength=span.stop - span.start)
        if (collapsed := _collapsed(counts, margins, span)) is not None:
            found[group] = collapsed
    if not found:
        return None
    columns = list(schema.choices.items())
    if margins is None:
        alone = listed(columns[group][0] for group in found)
        return (
            f"in {_ROWS:,} rows of the model each of these columns has one value: {alone}; nothing was bought that says "
            "whether that is so, and model.bias=means buys noisy shares"
        )
    texts = []
    for group, (top, drawn, said) in list(found.items())[:_TOLD]:
        name, choices = columns[group]
        values = " or ".join(listed([choices[code]]) for code in top)
        texts.append(f"{listed([name])} is {values} in {drawn:.0%} of them (a noisy share says {max(said, 0.0):.1%})")
    more = f", and {len(found) - _TOLD} more columns are alike" if len(found) > _TOLD else ""
    return (
        f"the rows are degenerate, as {', '.join(texts)}{more}: do not publish them; train longer, at another learning "
        "rate or with more epsilon, or take model=measured"
    )


def _collapsed(counts: np.ndarray, margins: Margins | None, span: slice) -> tuple[list[int], float, float] | None:
    """Return the one or two values (codes) that hold too many rows, their share of these, and the noisy one."""
    top = np.argsort(-counts, kind="stable")[:2].tolist()
    alone = counts[top[0]] == counts.sum()
    if alone:
        top = top[:1]
    drawn = float(counts[top].sum() / counts.sum())
    if margins is None:
        return (top, drawn, math.nan) if alone else None
    said = float(margins.shares[span][top].sum())
    more = drawn - said - _SIGMAS * margins.deviation * math.sqrt(len(top))
    if alone:
        return (top, drawn, said) if more > 0.0 and (drawn - said) * counts.sum() > _OTHERS else None
    return (top, drawn, said) if len(counts) > 2 and drawn >= _TWO and more > _FAR else None
