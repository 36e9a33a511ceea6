"""`model=measured`: what there is to set for each kind of records, its defaults, and the recipe that it makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lightning_dpgen.data.declarations import shown
from lightning_dpgen.data.kinds import kind_of
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.classifier import ClassifierRecipe, classifier_sizes
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.models.labelled import can_label, is_classified
from lightning_dpgen.models.poses import SETS, Symmetries
from lightning_dpgen.privacy.planning.calibration import StageSpec
from lightning_dpgen.specs.defaults import Defaults, labels_of
from lightning_dpgen.specs.label import check_label
from lightning_dpgen.specs.model import ClassifierSpec, MeasuredSpec
from lightning_dpgen.specs.usage_error import UsageError

# Tables of two columns, twice: what a fit of minutes and a GiB of memory can look at.
_MOST_CELLS = 1 << 26
# The share of a classifier that is what is asked for.
_CLASSIFIER_SHARE = 0.75


def complete_measured(spec: MeasuredSpec, schema: Schema, defaults: Defaults) -> MeasuredSpec:
    """Return the settings with what is left out filled in; refuse what records of this kind have no use for.

    Raises:
        UsageError: naming the setting.
    """
    layout = schema.layout
    if isinstance(spec, ClassifierSpec):
        spec = _with_classifier(spec, schema)
    try:
        has = kind_of(schema).complete_measured(spec, schema, defaults)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if "label_share" in has:
        check_label(spec, schema, has["label_share"] if spec.label_share is None else spec.label_share)
    for name, value in spec.given().items():
        if name not in (*has, "name", "symmetries") and not (name == "crossings" and value is False):
            # Pairs of so many columns are not counted.
            which = f"a table of {len(schema.choices):,} columns" if not has else f"records of kind {schema.kind}"
            raise UsageError(f"model.{name}={shown(value)}: model={spec.name} has no such setting for {which}")
    symmetries = _symmetries(spec.symmetries, schema, "symmetries" in has)
    spec = spec.changed(**has | spec.given(*has) | {"symmetries": symmetries})
    spec = spec.changed(crossings=spec.crossings or None)
    if spec.waves is not None and spec.waves > layout.units:
        raise UsageError(f"model.waves={spec.waves}: expected a whole number from 1 to {layout.units:,}")
    if spec.cells is not None:
        components = labels_of(layout) * spec.cells
        if (numbers := components * spec.waves**2) > _MOST_CELLS:
            raise UsageError(
                f"model.cells={spec.cells}, model.waves={spec.waves}: the second moments of {components:,} "
                f"cells are {numbers:.1g} numbers: expected {_MOST_CELLS:.1g} or fewer; set smaller ones"
            )
    return spec


def _with_classifier(spec: ClassifierSpec, schema: Schema) -> ClassifierSpec:
    """Return the settings with the share of the classifier; refuse records of which none is learned."""
    if schema.layout.label is None:
        raise UsageError(
            f"model=classifier: learns the label of a record, and these records of kind {schema.kind} have none: "
            "declare one, or take model=measured"
        )
    if not can_label(schema):
        raise UsageError(
            "model=classifier: applies only to pictures, series, and tables of several columns, and these records are of "
            f"kind {schema.kind}; take model=measured"
        )
    return spec if spec.label_share is not None else spec.changed(label_share=_CLASSIFIER_SHARE)


def _symmetries(asked: Any, schema: Schema, applies: bool) -> dict[str, Any] | None:
    """Return what was declared by name or by numbers as all of its numbers; None for none."""
    expected = f"{', '.join(SETS)}, null for none, or numbers, as in model.symmetries={{turn: 5, shear: 0.1}}"
    if asked is None:
        return None
    if asked == {}:
        raise UsageError(f"model.symmetries={{}}: expected {expected}")
    if not applies:
        raise UsageError(
            f"model.symmetries={asked}: apply only to pictures, and these records are of kind {schema.kind}; leave it out"
        )
    try:
        found = SETS[asked] if isinstance(asked, str) else Symmetries(**asked)
    except (KeyError, TypeError):  # no such name, or no such number
        raise UsageError(f"model.symmetries={asked}: expected {expected}") from None
    except ValueError as error:
        raise UsageError(f"model.symmetries: {error}") from None
    return asdict(found)


def make_recipe(
    spec: MeasuredSpec, schema: Schema, *, n: int, seed: int, strength: float, sets: Sequence[Sequence[str]] = ()
) -> Recipe:
    """Return what is measured, and what is fitted to it.

    Args:
        spec: complete.
        strength: the declared number of records in units of the noise that the budget buys (`Defaults`).
        sets: names of columns of a table, whose tables of counts are asked for.
    """
    recipe = kind_of(schema).recipe(spec, schema, n=n, seed=seed, strength=strength, sets=sets)
    if not (spec.label_share and is_classified(schema)):
        return recipe
    sizes = classifier_sizes(strength * math.sqrt(spec.label_share))
    return ClassifierRecipe(recipe, schema, spec.label_share, *sizes, seed)


def measured_specs(recipe: Recipe, left: float) -> list[StageSpec]:
    """Return the stages of what is measured.

    Args:
        left: share of the budget that other accesses leave.

    Raises:
        UsageError: if nothing is left to measure with.
    """
    if left <= 0.0:
        raise UsageError(
            f"the shares of the budget that are given leave {left:.2g} to measure with: set smaller ones (data.n_share, "
            "privacy.fidelity_share)"
        )
    return recipe.specs(left)
