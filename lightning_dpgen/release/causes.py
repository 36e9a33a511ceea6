"""Known causes that columns of a release, and pairs of them, are off: rules of its rows, and noise beside its counts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from lightning_dpgen.data.conditions import quoted_name
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.values import TableValues, draw_kept_values
from lightning_dpgen.measure.first_draw import ENOUGH
from lightning_dpgen.measure.tables import TABLES
from lightning_dpgen.metrics.judgement import Cause
from lightning_dpgen.metrics.sides import ROWS
from lightning_dpgen.metrics.summaries import spreads
from lightning_dpgen.metrics.table_columns import column_distance
from lightning_dpgen.models.mixture import Mixture

Names = tuple[str, ...]
# Rows by which it is seen what rules do; and the mean of the absolute value of a standard normal number.
_ROWS, _SEED, _MEAN = 10_000, 0, math.sqrt(2.0 / math.pi)


def known_causes(
    mixture: Mixture, certificate: Mapping[str, Any], real: TableValues, names: Collection[Names]
) -> dict[Names, list[Cause]]:
    """Return causes by the names of one column or of two, of those asked for.

    They are private where they are of rules, since `real` records tell what these do; noise is that of the certificate.
    """
    causes = defaultdict(list)
    for own, cause in (*_of_rules(mixture, real, names), *_of_noise(real.schema, certificate, names)):
        causes[own].append(cause)
    return causes


def _of_rules(mixture: Mixture, real: TableValues, names: Collection[Names]) -> Iterator[tuple[Names, Cause]]:
    """Yield how much farther columns are off once the rows are left out that break the constraints.

    Measured models put shares right for that (`put_shares_right`), which fails where too few rows are kept: then all of the
    distance of a column of such a rule counts.
    """
    schema = mixture.network.schema
    if not schema.restricts:
        return
    encoded, random = mixture.sample(_ROWS, torch.Generator().manual_seed(_SEED)), np.random.default_rng(_SEED)
    rows = TableValues.of(schema.values(encoded, random), schema)
    values, is_kept = draw_kept_values(schema, encoded, random)
    if is_kept.all() or not is_kept.any():
        return
    kept, real = TableValues.of(values.filter(is_kept), schema), real[:: -(-len(real) // ROWS)]
    lengths = dict(zip((column.name for column in real.of_numbers), spreads(real).tolist(), strict=True))
    # In the order of all constraints, as their columns are.
    broken = list(zip(schema.rules.broken(rows.rows()), schema.rules.tied, strict=True))
    for column in [column for column in schema.recorded if (column.name,) in names]:
        name, true = column.name, real.column(column.name)
        before, far = (column_distance(column, true, side.column(name), lengths.get(name)) for side in (rows, kept))
        own = [rule for rule, tied in broken if name in tied]
        text, share = max(own or [rule for rule, _ in broken], key=lambda rule: rule[1])
        because = f"the rule {text} moves it: {share:.0%} of the rows of the model break it, and rows that break rules are "
        because += f"left out; with them it would be off by {before:.3f}"
        cure = f"for {quoted_name(name)}: correct the rule {text}, if some records only seem to keep it, or let a column "
        part = far if own and is_kept.mean() < ENOUGH else far - before
        yield (name,), Cause(part, because, f"{cure}follow from the others (relative_to, or =)")


def _of_noise(schema: Schema, certificate: Mapping[str, Any], names: Collection[Names]) -> Iterator[tuple[Names, Cause]]:
    """Yield the distances that noise alone makes of columns and pairs whose counts were measured."""
    n, sums = certificate.get("declared", {}).get("n"), certificate.get("noise", {}).get("sums", ())
    scales = {own["names"][0]: own["scale"] for own in sums if own["stage"] == TABLES and len(own["names"]) == 1}
    if "singles" not in scales or not isinstance(n, int) or n < 1:
        return
    sizes = {column.name: column.choices for column in schema.modelled if column.choices}
    single, pair = scales["singles"], scales.get("pairs", math.inf)
    for name, size in [own for own in sizes.items() if own[:1] in names]:
        # Counts of a column are known by its own table, and by those with each other column.
        noise = (single**-2 + pair**-2 * (sum(1.0 / other for other in sizes.values()) - 1.0 / size)) ** -0.5
        because = f"a count of its {size:,} values or bins has noise of about {noise:,.0f}, and {n / size:,.0f} records"
        cure = f"for {quoted_name(name)}: fewer values (other) or bins"
        yield (name,), Cause(0.5 * size * _MEAN * noise / n, because, cure)
    for one, other in [own for own in names if len(own) == 2 and "pairs" in scales and set(own) <= sizes.keys()]:
        cells, wide = sizes[one] * sizes[other], max(one, other, key=sizes.__getitem__)
        because = f"a cell of their table holds {n / cells:,.0f} records on average, and noise of {pair:,.0f}"
        cure = f"for {quoted_name(wide)}, which has {sizes[wide]:,}: fewer values (other) or bins"
        yield (one, other), Cause(0.5 * cells * _MEAN * pair / n, because, cure)
