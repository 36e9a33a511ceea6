"""`model=measured`: what there is to set for each kind of records, its defaults, and the recipe that it makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.declarations import shown
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.measure.basket_mixture import BasketRecipe
from lightning_dpgen.measure.classifier import ClassifierRecipe, classifier_sizes
from lightning_dpgen.measure.copulas import CopulaRecipe, takes_copula
from lightning_dpgen.measure.crossings import buys_crossings, can_cross
from lightning_dpgen.measure.gaussians import GaussianRecipe
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.series import SeriesRecipe
from lightning_dpgen.measure.tables import TableRecipe, pays_by_label, what_to_leave_out
from lightning_dpgen.models.classified import can_label
from lightning_dpgen.models.labelled import takes_label
from lightning_dpgen.models.symmetries import SETS, Symmetries
from lightning_dpgen.privacy.planning.calibration import StageSpec
from lightning_dpgen.specs.defaults import Defaults, labels_of
from lightning_dpgen.specs.label import check_label
from lightning_dpgen.specs.model import ClassifierSpec, MeasuredSpec
from lightning_dpgen.specs.usage_error import UsageError

# Tables of two columns, twice: what a fit of minutes and a GiB of memory can look at.
_MOST_CELLS = 1 << 26
# Components of series in the largest directions.
_COMPONENTS = 20
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
    if isinstance(schema, SeriesSchema):
        has = {"waves": defaults.waves_of_series, "components": _COMPONENTS, "label_share": 0.0}
    elif isinstance(schema, ImageSchema):
        radius = layout.default_radius if spec.radius is None else spec.radius
        has = {"waves": defaults.waves, "radius": radius, "spread": max(radius / 2, 1e-6), "means_share": 0.15}
        # Declared symmetries say it already.
        has["poses"] = "never" if isinstance(spec, ClassifierSpec) or spec.symmetries is not None else defaults.poses
        if spec.symmetries is not None and spec.poses not in (None, "never"):
            raise UsageError(f"model.poses={spec.poses}: expected never, or no model.symmetries")
        # A classifier tells shapes apart by itself.
        has["cells"] = 1 if isinstance(spec, ClassifierSpec) else defaults.cells
        if (has["cells"] if spec.cells is None else spec.cells) > 1:
            has["cells_share"] = defaults.cells_share
        has["label_share"] = 0.0
    elif isinstance(schema, TableSchema) and takes_copula(schema, defaults.n, defaults.strength):
        has = {}
        _check_choices(schema)
    elif isinstance(schema, TableSchema):
        has = {"components": defaults.components, "pairs_share": 0.8, "label_share": 0.0}
        has["label_share"] = defaults.label_share if takes_label(layout) else 0.0
        if spec.label_share or (spec.label_share is None and has["label_share"]):
            has["label_sharpness"] = 1.0
            # Only what is bought is declared, so that releases without it are planned as they were.
            has["crossings"] = buys_crossings(layout, defaults.n, defaults.strength) or None
        if spec.crossings and not ("crossings" in has and can_cross(layout)):
            raise UsageError(
                "model.crossings=true: applies only to a label that model.label_share pays for, beside two other columns: "
                "leave it out"
            )
        _check_choices(schema)
        _check_cells(schema, defaults.strength)
    else:
        has = {"components": defaults.components, "pairs_share": 0.7}
    if isinstance(schema, BasketSchema) and layout.units < 2:
        raise UsageError("data.items: model=measured asks which items go together, and there is one alone; use model=vae")
    if "label_share" in has:
        check_label(spec, schema, has["label_share"] if spec.label_share is None else spec.label_share)
    for name, value in spec.given().items():
        if name not in (*has, "name", "symmetries") and not (name == "crossings" and value is False):
            # Pairs of so many columns are not counted.
            which = f"a table of {len(schema.choices):,} columns" if not has else f"records of kind {schema.kind}"
            raise UsageError(f"model.{name}={shown(value)}: model={spec.name} has no such setting for {which}")
    spec = spec.changed(**has | spec.given(*has), symmetries=_symmetries(spec.symmetries, schema))
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


def _check_choices(schema: TableSchema) -> None:
    scaled = next((column.name for column in schema.modelled if column.scaled), None)
    if scaled is not None:
        raise UsageError(
            f"model=measured: counts choices, and column {scaled!r} is a real number (encoding: scaled): leave encoding "
            "out, so that it is put into bins, or take model=vae"
        )


def _check_cells(schema: TableSchema, strength: float) -> None:
    layout, label = schema.layout, None
    tables = 1
    if pays_by_label(layout, strength):
        label, tables = layout.label, labels_of(layout)
    sizes = [choices for group, choices in enumerate(layout.groups) if group != label]
    pairs = tables * (sum(sizes) ** 2 - sum(size**2 for size in sizes)) / 2
    # A fit holds the tables of all columns with all columns.
    if tables * layout.width**2 > _MOST_CELLS:
        raise UsageError(
            f"model=measured: the tables of each two columns would have {pairs:.1g} cells, most of them nothing but noise, "
            f"and columns {layout.width:,} choices: expected {math.isqrt(_MOST_CELLS // tables):,} choices or fewer; "
            f"{what_to_leave_out(schema)}"
        )


def _symmetries(asked: Any, schema: Schema) -> dict[str, Any] | None:
    """Return what was declared by name or by numbers as all of its numbers; None for none."""
    expected = f"{', '.join(SETS)}, null for none, or numbers, as in model.symmetries={{turn: 5, shear: 0.1}}"
    if asked is None:
        return None
    if asked == {}:
        raise UsageError(f"model.symmetries={{}}: expected {expected}")
    if not isinstance(schema, ImageSchema):
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
    # A copula has no components, which all other tables declare.
    if isinstance(schema, TableSchema) and spec.components is None:
        if sets:
            raise UsageError(
                f"data.workload: the table has {len(schema.layout.groups):,} columns, too many to count their pairs beside "
                "what is asked for; leave columns out, or data.workload"
            )
        return CopulaRecipe(schema, n)
    if isinstance(schema, TableSchema):
        groups = list(schema.choices)
        asked = tuple(tuple(map(groups.index, own)) for own in sets)
        sharpness = 1.0 if spec.label_sharpness is None else spec.label_sharpness
        return TableRecipe(
            schema, spec.components, n, pairs_share=spec.pairs_share, seed=seed, label_share=spec.label_share,
            label_sharpness=sharpness, by_label=pays_by_label(schema.layout, strength), asked=asked,
            crossed=bool(spec.crossings),
        )  # fmt: skip
    if isinstance(schema, BasketSchema):
        return BasketRecipe(schema, spec.components, n, pairs_share=spec.pairs_share, seed=seed)
    if isinstance(schema, SeriesSchema):
        recipe = SeriesRecipe(schema, n, spec.waves, spec.components, seed=seed)
    else:
        symmetries = None if spec.symmetries is None else Symmetries(**spec.symmetries)
        of_cells = {} if spec.cells == 1 else spec.given("cells_share")
        recipe = GaussianRecipe(
            schema, labels_of(schema.layout), n, spec.waves, spec.radius, spec.spread, spec.means_share, symmetries,
            spec.cells, poses=spec.poses, **of_cells,
        )  # fmt: skip
    if not spec.label_share:
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
