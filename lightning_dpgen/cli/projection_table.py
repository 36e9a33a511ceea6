"""The cost of a projection, and which k, matrix and noise keep distances best; no record is read."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_dpgen.projection.choice import PAIRS, Option
from lightning_dpgen.runs.table import aligned, budget_table
from lightning_dpgen.specs.projection_settings import ProjectionSettings, all_options, fill_projection
from lightning_dpgen.specs.run import read_projection
from lightning_dpgen.specs.usage_error import UsageError

_HEADER = ("k", "matrix", "noise", "scale", "error of one distance", f"of the mean of {PAIRS:,}")


def planned_projection(argv: Sequence[str]) -> ProjectionSettings:
    """Return a projection as its settings have it.

    Raises:
        UsageError: as `read_projection` and `fill_projection`; and if the number of columns is not declared.
    """
    spec = read_projection(argv)
    if spec.data.d is None:
        raise UsageError("data.d=null: the budget is computed without reading the rows; declare how many columns they have")
    return fill_projection(spec, spec.data.d)


def projection_table(settings: ProjectionSettings) -> str:
    """Return the budget table of a projection, and its options: the best for each k, the best of all, and raw rivals."""
    found = all_options(settings.spec, settings.spec.data.d)
    best = {option.k: option for option in reversed(found)}
    rows = [_HEADER, *(_cells(best[k]) for k in sorted(best))]
    raw = next((option for option in found if option.matrix == "identity"), None)
    return "\n".join(
        [
            budget_table(settings.plan()),
            "",
            "the best matrix and noise for each k, by the standard deviation of recovered squared distances, relative, "
            f"where the true distance is {settings.typical:.4g}:",
            aligned(rows),
            "",
            _advice(settings.chosen, raw),
        ]
    )


def _cells(option: Option) -> tuple[str, ...]:
    errors = (f"{option.error:.0%}", f"{option.error_of_mean:.1%}")
    return (str(option.k), option.matrix, option.noise, f"{option.scale:.3g}", *errors)


def _advice(chosen: Option, raw: Option | None) -> str:
    best = f"best: project.k={chosen.k} project.matrix={chosen.matrix} project.noise={chosen.noise}"
    if raw is None:
        return best
    if chosen.matrix == "identity":
        return f"{best}: noise on the rows as they are. A projection pays only where fewer columns are wanted in themselves"
    if chosen.error_of_mean > 1.0:
        best += f" (at this budget not even the mean of {PAIRS:,} distances survives: more epsilon, or a smaller radius)"
    elif chosen.error > 1.0:
        best += " (no single distance survives at this budget, only averages over many pairs)"
    gain = 1.0 - chosen.error_of_mean / raw.error_of_mean
    return f"{best}: {gain:.0%} less error of means than {raw.noise} noise on the rows as they are"
