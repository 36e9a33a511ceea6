"""`model=measured`: what there is to set for each kind of records, its defaults, and the accesses that it plans."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lightning_dpgen.cli.configuration import Conf
from lightning_dpgen.cli.defaults import Defaults
from lightning_dpgen.cli.usage_error import UsageError
from lightning_dpgen.clustering.settings import SplitSettings, default_radius
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.measure.basket_mixture import BasketRecipe
from lightning_dpgen.measure.gaussians import GaussianRecipe
from lightning_dpgen.measure.products import ProductRecipe, tells_of_labels, what_to_leave_out
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.models.symmetries import SETS, Symmetries
from lightning_dpgen.privacy.calibration import StageSpec

# What one kind of records has and another has not.
_OF_KINDS = (
    "waves", "radius", "spread", "means_share", "components", "pairs_share", "label_share", "label_sharpness",
)  # fmt: skip
_MOST_COMPONENTS = 10_000
_NAMES = {TableSchema.kind: "tables", BasketSchema.kind: "baskets"}
# Of tables of two columns, twice: what a fit of minutes and a GiB of memory can look at.
_MOST_CELLS = 1 << 26


def measures(conf: Conf) -> bool:
    """Whether statistics are measured: for the model itself, or for a network that learns from such a model besides."""
    return conf.model.name == "measured" or conf.model.measured_share is not None


def needs_clusters(schema: Schema) -> bool:
    """Whether the private split tells records apart where nobody says: pictures and series without labels."""
    return schema.layout.label is None and isinstance(schema, ImageSchema | SeriesSchema)


def complete_measured(conf: Conf, schema: Schema, chosen: Defaults) -> None:
    """Fill in what is left out, and refuse what records of this kind have no use for.

    Args:
        conf: its group ``model`` is changed in place; all else is complete.
        schema: of the records.
        chosen: defaults that follow from the data.

    Raises:
        UsageError: naming the setting.
    """
    model, layout = conf.model, schema.layout
    defaults: dict[str, Any]
    if isinstance(schema, ImageSchema | SeriesSchema):
        radius = default_radius(layout) if model.radius is None else model.radius
        defaults = {"waves": chosen.waves, "radius": radius, "spread": max(radius / 2, 1e-6), "means_share": 0.15}
    elif isinstance(schema, TableSchema):
        label_share = chosen.label_share if tells_of_labels(layout) else 0.0
        defaults = {"components": chosen.components, "pairs_share": 0.8, "label_share": label_share}
        if model.label_share or (model.label_share is None and label_share):
            defaults["label_sharpness"] = 1.0
    else:
        defaults = {"components": chosen.components, "pairs_share": 0.7}
    if schema.kind in _NAMES and conf.split.k not in (None, 1):
        raise UsageError(
            f"split.k={conf.split.k}: model=measured does not split {_NAMES[schema.kind]}; model.components says how "
            "many components are fitted to what is measured"
        )
    if isinstance(schema, TableSchema):
        cells = layout.width**2 * (1 if layout.label is None else layout.groups[layout.label])
        if cells > _MOST_CELLS:
            raise UsageError(
                f"model=measured: the tables of each two columns by the label would have about {cells / 2:.1g} cells, most "
                f"of them nothing but noise: expected {_MOST_CELLS / 2:.1g} or fewer; {what_to_leave_out(schema)}"
            )
    if isinstance(schema, BasketSchema) and layout.units < 2:
        raise UsageError("data.items: model=measured asks which items go together, and there is one alone; use model=vae")
    if isinstance(schema, TableSchema) and model.label_sharpness is not None and "label_sharpness" not in defaults:
        raise UsageError(
            f"model.label_sharpness={model.label_sharpness:g}: is of labels that model.label_share has paid for, and it is "
            "0 here; give it a share, as in model.label_share=0.3, or leave this out"
        )
    for name in ("radius", "spread"):
        value = getattr(model, name)
        if value is not None and not 1e-6 <= value <= 1e6:
            raise UsageError(f"model.{name}={value:g}: expected a number from 1e-06 to 1e+06")
    model.symmetries = _symmetries(model.symmetries, schema)
    for name in _OF_KINDS:
        value = getattr(model, name)
        if value is not None and name not in defaults:
            raise UsageError(f"model.{name}={value}: model=measured has no such setting for records of kind {schema.kind}")
        if value is None and name in defaults:
            setattr(model, name, defaults[name])
    limits = {"waves": layout.units, "components": _MOST_COMPONENTS}
    for name, most in limits.items():
        value = getattr(model, name)
        if value is not None and not 1 <= value <= most:
            raise UsageError(f"model.{name}={value}: expected a whole number from 1 to {most:,}")
    if model.waves is not None and (numbers := _components(conf, schema) * model.waves**2) > _MOST_CELLS:
        raise UsageError(
            f"split.k={conf.split.k}, model.waves={model.waves}: the second moments of {_components(conf, schema):,} "
            f"components are {numbers:.1g} numbers: expected {_MOST_CELLS:.1g} or fewer; set smaller ones"
        )
    for name in ("means_share", "pairs_share"):
        value = getattr(model, name)
        if value is not None and not 0.0 < value < 1.0:
            raise UsageError(f"model.{name}={value:g}: expected a number above 0, below 1")
    if model.label_share is not None and not 0.0 <= model.label_share < 1.0:
        raise UsageError(f"model.label_share={model.label_share:g}: expected a number from 0, below 1")
    if model.label_sharpness is not None and not 0.1 <= model.label_sharpness <= 100.0:
        raise UsageError(f"model.label_sharpness={model.label_sharpness:g}: expected a number from 0.1 to 100")
    if model.label_share and not tells_of_labels(layout):
        raise UsageError(
            f"model.label_share={model.label_share:g}: expected 0 where there is no label, or nothing besides it"
        )


def _symmetries(asked: Any, schema: Schema) -> dict[str, Any] | None:
    """What was declared by name or by numbers, as all of its numbers; None for none."""
    expected = f"{', '.join(SETS)}, null for none, or numbers, as in model.symmetries={{turn: 5, shear: 0.1}}"
    if asked is None:
        return None
    if asked == {}:
        raise UsageError(f"model.symmetries={{}}: expected {expected}")
    if not isinstance(schema, ImageSchema):
        raise UsageError(f"model.symmetries={asked}: are of pictures, and these are {schema.kind}; leave it out")
    try:
        found = SETS[asked] if isinstance(asked, str) else Symmetries(**asked)
    except (KeyError, TypeError):  # no such name, or no such number
        raise UsageError(f"model.symmetries={asked}: expected {expected}") from None
    except ValueError as error:
        raise UsageError(f"model.symmetries: {error}") from None
    return asdict(found)


def recipe_of(conf: Conf, schema: Schema) -> Recipe:
    """What is measured, and what is fitted to it."""
    model, n = conf.model, conf.data.n
    if isinstance(schema, TableSchema):
        return ProductRecipe(
            schema,
            model.components,
            n,
            pairs_share=model.pairs_share,
            seed=conf.seed,
            label_share=model.label_share,
            label_sharpness=1.0 if model.label_sharpness is None else model.label_sharpness,
        )
    if isinstance(schema, BasketSchema):
        return BasketRecipe(schema, model.components, n, pairs_share=model.pairs_share, seed=conf.seed)
    k, declared = _components(conf, schema), model.symmetries
    symmetries = None if declared is None else Symmetries(**declared)
    return GaussianRecipe(schema, k, n, model.waves, model.radius, model.spread, model.means_share, symmetries)


def _components(conf: Conf, schema: Schema) -> int:
    """Of pictures and series: one for each label and cluster."""
    layout = schema.layout
    return conf.split.k * (1 if layout.label is None else layout.groups[layout.label])


def measured_specs(conf: Conf, schema: Schema, split: SplitSettings, left: float) -> list[StageSpec]:
    """The accesses of the split, where there are several clusters, and of what is measured, for the budget that is left.

    Args:
        conf, schema, split: complete.
        left: share of the budget that other accesses leave.
    """
    specs = [] if split.k == 1 else split.specs(conf.data.n, means=False)
    rest = left - sum(spec.share for spec in specs)
    if rest <= 0.0:
        raise UsageError(
            f"the shares of the budget that are given leave {rest:.2g} to measure with: set smaller ones (data.n_share, "
            "privacy.fidelity_share, split.moments_share, split.lloyd_share)"
        )
    return specs + recipe_of(conf, schema).specs(rest)
