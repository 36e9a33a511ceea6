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
    and costs nothing. Noise alone leads to one in 30,000 columns. Without such shares columns of numbers are held against
    the densities that were bought for their bins, and of others only one value is told, as nothing says what is right.

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
    schema = mixture.network.schema
    if not kind_of(schema).tabular:
        return None
    codes, found = mixture.sample(_ROWS, torch.Generator().manual_seed(_SEED)).codes, {}
    densities = {column.name: column.noisy_shares for column in schema.modelled}
    names = list(schema.choices.items())
    for group, ((name, choices), span) in enumerate(zip(names, schema.layout.spans, strict=True)):
        counts = np.bincount(codes[:, group], minlength=len(choices))
        said = densities.get(name) if mixture.margins is None else _shares_in(mixture.margins, span)
        if said is not None and len(said[0]) < len(counts):
            # Special and missing values are no part of a density.
            ordinary = counts[: len(said[0])]
            counts, said = (ordinary, said) if ordinary.sum() > _OTHERS else (counts, None)
        if (collapsed := _collapsed(counts, said)) is not None:
            found[group] = collapsed
    if not any(said for *_, said in found.values()):
        if not found:
            return None
        alone = listed(names[group][0] for group in found)
        return (
            f"in {_ROWS:,} rows of the model each of these columns has one value: {alone}; look at them before you publish "
            "them, since nothing was bought that says whether that is so; networks with bias=means buy noisy shares"
        )
    texts = []
    for group, (top, drawn, said) in list(found.items())[:_TOLD]:
        name, choices = names[group]
        values = " or ".join(listed([choices[code]]) for code in top)
        texts.append(f"{listed([name])} is {values} in {drawn:.0%} of them{said and f' (a noisy share says {said})'}")
    more = f", and {len(found) - _TOLD} more columns are alike" if len(found) > _TOLD else ""
    return (
        f"the rows are degenerate, as {', '.join(texts)}{more}: do not publish them; train longer, at another learning "
        "rate or with more epsilon, or take model=measured"
    )


def _shares_in(margins: Margins, span: slice) -> tuple[np.ndarray, float]:
    return margins.shares[span].double().numpy(), margins.deviation


def _collapsed(counts: np.ndarray, said: tuple[np.ndarray, float] | None) -> tuple[list[int], float, str] | None:
    """Return the one or two choices that hold too many rows, their share of these, and the noisy one in words, if any.

    Args:
        counts: (choices,) of rows.
        said: noisy shares (choices,) of these choices, and the standard deviation of the noise in each; None for none.
    """
    rows, top = int(counts.sum()), np.argsort(-counts, kind="stable")[:2].tolist()
    alone = counts[top[0]] == rows
    if alone:
        top = top[:1]
    drawn = float(counts[top].sum() / rows)
    if said is None:
        return (top, drawn, "") if alone else None
    shares, deviation = said
    lacking, doubt = drawn - float(shares[top].sum()), _SIGMAS * deviation * math.sqrt(len(top))
    if alone:
        sure = lacking > doubt and lacking * rows > _OTHERS
    else:
        sure = len(counts) > 2 and drawn >= _TWO and lacking > doubt + _FAR
    return (top, drawn, f"{max(drawn - lacking, 0.0):.1%}") if sure else None
