"""What is publicly known to move columns of a release and pairs of them: rules of its rows, and noise beside its counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lightning_dpgen.data.conditions import quoted_name
from lightning_dpgen.data.schema import kind_of
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.values import TableValues, draw_kept_values
from lightning_dpgen.measure.tables import TABLES
from lightning_dpgen.metrics.judgement import Cause
from lightning_dpgen.metrics.summaries import spreads
from lightning_dpgen.metrics.table_columns import column_distances
from lightning_dpgen.models.mixture import Mixture

# Rows by which it is seen what rules do; public.
_ROWS, _SEED = 10_000, 0
# The mean of the absolute value of a standard normal number.
_MEAN = math.sqrt(2.0 / math.pi)


def known_causes(mixture: Mixture, certificate: Mapping[str, Any]) -> dict[Any, list[Cause]]:
    """Return causes by the names of one column or of two, from public facts alone.

    Args:
        mixture: of any records; those of other kinds than tables have none.
        certificate: that of the release; empty where there is none.
    """
    schema = mixture.network.schema
    if not kind_of(schema).tabular:
        return {}
    causes = {names: [cause] for names, cause in _of_rules(mixture).items()}
    for names, cause in _of_noise(schema, certificate).items():
        causes.setdefault(names, []).append(cause)
    return causes


def _of_rules(mixture: Mixture) -> dict[Any, Cause]:
    """Return how far each column of all rows that the model draws is from that of the rows which keep the constraints."""
    schema = mixture.network.schema
    if not schema.restricts:
        return {}
    encoded, random = mixture.sample(_ROWS, torch.Generator().manual_seed(_SEED)), np.random.default_rng(_SEED)
    rows = TableValues.of(schema.values(encoded, random), schema)
    values, is_kept = draw_kept_values(schema, encoded, random)
    if is_kept.all() or not is_kept.any():
        return {}
    kept = TableValues.of(values.filter(is_kept), schema)
    # In the order of all constraints, as their columns are.
    broken = list(zip(schema.rules.broken(rows.rows()), schema.rules.tied, strict=True))
    causes = {}
    for name, part in column_distances(rows, kept, spreads(rows)).items():
        own = [rule for rule, tied in broken if name in tied] or [rule for rule, _ in broken]
        text, share = max(own, key=lambda rule: rule[1])
        because = f"the rule {text}, which {share:.0%} of the rows of the model break, moves it: leaving out rows that "
        because += f"break rules puts it off by {part:.2f}"
        cure = f"for {quoted_name(name)}: correct the rule {text}, if some records only seem to keep it, or let a column "
        causes[name,] = Cause(part, because, f"{cure}follow from the others (relative_to, or =)")
    return causes


def _of_noise(schema: TableSchema, certificate: Mapping[str, Any]) -> dict[Any, Cause]:
    """Return the distances that noise alone makes of columns and pairs whose counts were measured; none of others."""
    n = certificate.get("declared", {}).get("n")
    scales = {
        entry["names"][0]: entry["scale"]
        for entry in certificate.get("noise", {}).get("sums", ())
        if entry["stage"] == TABLES and len(entry["names"]) == 1
    }
    if "singles" not in scales or not isinstance(n, int) or n < 1:
        return {}
    sizes = {column.name: column.choices for column in schema.modelled if column.choices}
    single, pair, causes = scales["singles"], scales.get("pairs", math.inf), {}
    for name, size in sizes.items():
        # Counts of a column are known by its own table, and by those with each other column.
        noise = (single**-2 + sum(pair**-2 / other for column, other in sizes.items() if column != name)) ** -0.5
        because = f"a count of its {size:,} values or bins has noise of about {noise:,.0f}, and {n / size:,.0f} records"
        cure = f"for {quoted_name(name)}: fewer values (other) or bins"
        causes[name,] = Cause(0.5 * size * _MEAN * noise / n, because, cure)
    for one, other in itertools.permutations(sizes, 2) if "pairs" in scales else ():
        cells, wide = sizes[one] * sizes[other], max(one, other, key=sizes.__getitem__)
        because = f"a cell of their table holds {n / cells:,.0f} records on average, and noise of {pair:,.0f}"
        cure = f"for {quoted_name(wide)}, which has {sizes[wide]:,}: fewer values (other) or bins"
        causes[one, other] = Cause(0.5 * cells * _MEAN * pair / n, because, cure)
    return causes
