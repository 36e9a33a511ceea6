"""The checks of a release that makes records: its model, and all that follows from the settings of its run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_dpgen.data.schema import KindMissing, kind_named
from lightning_dpgen.models.forests import StackedForests, StackedProducts
from lightning_dpgen.models.labelled import without_label
from lightning_dpgen.release.drawing.model_files import NETWORKS
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.files import MODEL, WEIGHTS, NotARelease
from lightning_dpgen.release.verdict import Verdict
from lightning_dpgen.verification.answers_check import check_answers
from lightning_dpgen.verification.declared_settings import declared_unit
from lightning_dpgen.verification.outline_check import follows_from_settings
from lightning_dpgen.verification.plan_check import check_plan
from lightning_dpgen.verification.projection_check import check_projection

__all__ = [
    "check_answers",
    "check_loads",
    "check_plan",
    "check_projection",
    "declared_unit",
    "follows_from_settings",
    "missing_kind",
]

# Shares are written as float32, and those of components are divided once more where they are drawn.
_ROUNDING = 1e-3


def missing_kind(model: dict[str, Any]) -> str | None:
    """Say why the kind of the described records is not known here; None if it is."""
    schema = model.get("schema")
    if not isinstance(schema, dict) or not isinstance(schema.get("kind"), str):
        return None
    try:
        kind_named(schema["kind"])
    except KindMissing as error:
        return str(error)
    return None


def check_loads(folder: Path, model: dict[str, Any], verdict: Verdict) -> None:
    """Check that the model of a release can be drawn from, if its kind is known; custom code is never loaded."""
    if not isinstance(kind := model.get("model"), str) or kind not in NETWORKS:
        return
    try:
        mixture = load_release(folder).mixture
    except NotARelease as error:
        verdict.problems.append(str(error))
        return
    before = len(verdict.problems)
    verdict.problems += _no_shares(mixture.weights, without_label(mixture.network))
    if len(verdict.problems) == before:
        verdict.checks.append(f"the model loads: {WEIGHTS} holds finite numbers of the sizes that {MODEL} says")


def _no_shares(weights: Tensor, network: Any) -> Iterator[str]:
    """Yield what should be shares and are none."""
    if abs(float(weights.sum()) - 1.0) > _ROUNDING:
        yield f"{MODEL}: mixture_weights add up to {float(weights.sum()):g}: expected 1"
    tables: list[tuple[str, Tensor]] = []
    if isinstance(network, StackedForests):
        tables = [(f"table_{group}", table) for group, table in enumerate(network.tables)]
        spans = network.schema.layout.spans
        # A factor may be too small for a float32, but not those of all choices of a group.
        if (network.tilts < 0.0).any() or any((network.tilts[:, span].amax(dim=1) <= 0.0).any() for span in spans):
            yield f"{WEIGHTS}: tilts: expected factors of 0 or more, some of each group above 0"
    elif isinstance(network, StackedProducts):
        tables = [("means", network.means[:, span]) for span in network.schema.layout.spans]
    for name, table in tables:
        if (table < 0.0).any() or ((table.double().sum(dim=1) - 1.0).abs() > _ROUNDING).any():
            yield f"{WEIGHTS}: {name}: expected shares, 0 or more, in rows that add up to 1"
