"""`model=measured`: its settings, and the accesses that it plans."""

from __future__ import annotations

from lightning_dpgen.cli.configuration import Conf, ModelConf
from lightning_dpgen.cli.mistake import Mistake
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.measure.gaussians import GaussianRecipe
from lightning_dpgen.privacy.calibration import Draft


def check_measured(model: ModelConf, schema: Schema) -> None:
    """Check its settings, which are complete.

    Raises:
        Mistake: naming the setting.
    """
    if not isinstance(schema, ImageSchema | SeriesSchema):
        raise Mistake(f"model=measured: is for pictures and series, and these records are a {schema.kind}; use model=vae")
    if not 1 <= model.waves <= schema.layout.units:
        raise Mistake(f"model.waves={model.waves}: expected 1 to {schema.layout.units}, as many as a record has numbers")
    for name in ("radius", "spread"):
        value = getattr(model, name)
        if not 1e-6 <= value <= 1e6:
            raise Mistake(f"model.{name}={value:g}: expected a number from 1e-06 to 1e+06")
    if not 0.0 < model.means_share < 1.0:
        raise Mistake(f"model.means_share={model.means_share:g}: expected a number above 0, below 1")


def recipe_of(conf: Conf, schema: Schema) -> GaussianRecipe:
    """What is measured, and what is fitted to it."""
    model, layout = conf.model, schema.layout
    return GaussianRecipe(
        schema,
        conf.split.k * (1 if layout.label is None else layout.groups[layout.label]),
        conf.data.n,
        model.waves,
        model.radius,
        model.spread,
        model.means_share,
        model.sharpened,
    )


def measured_drafts(conf: Conf, schema: Schema, split: SplitSettings, left: float) -> list[Draft]:
    """The accesses of the split, where there are several clusters, and of what is measured, for the budget that is left."""
    drafts = [] if split.k == 1 else split.drafts(conf.data.n, means=False)
    return drafts + recipe_of(conf, schema).drafts(left - sum(draft.share for draft in drafts))
