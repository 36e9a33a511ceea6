"""What is allowed and rarely meant: sentences for whoever asked for it, before anything is spent."""

from __future__ import annotations

import math

from lightning_dpgen.cli.configuration import Conf
from lightning_dpgen.cli.measured import recipe_of, what_to_leave_out
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.measure.basket_mixture import ITEMS, BasketRecipe
from lightning_dpgen.measure.gaussians import MEANS, GaussianRecipe
from lightning_dpgen.measure.products import TABLES, ProductRecipe
from lightning_dpgen.privacy.plan import Plan


def seed_warning(conf: Conf) -> str | None:
    """Of noise that is repeatable."""
    if conf.debug.private_seed is not None:
        return f"debug.private_seed={conf.debug.private_seed}: NOT PRIVATE, since who has the seed can remove the noise"
    return None


def delta_warning(conf: Conf) -> str | None:
    """Of a delta that is large."""
    if conf.privacy.noise != "off" and conf.privacy.delta > 0.1 / conf.data.n:
        return (
            f"privacy.delta={conf.privacy.delta:g} is above 1/(10 n) = {0.1 / conf.data.n:.3g}: "
            "a smaller delta is the custom"
        )
    return None


def cells_warning(conf: Conf, schema: Schema, plan: Plan) -> str | None:
    """Of measured numbers that hold more noise than records: what is to be expected of them, and what to leave out."""
    if conf.model.name != "measured":
        return None
    recipe = recipe_of(conf, schema)
    if isinstance(recipe, GaussianRecipe):
        return _of_means(recipe, plan)
    if isinstance(recipe, BasketRecipe):
        return _of_items(recipe, plan)
    return _of_tables(conf, schema, recipe, plan)


def _of_means(recipe: GaussianRecipe, plan: Plan) -> str | None:
    deviation = plan.stage(MEANS).access.multipliers["means"] * recipe.radius * plan.max_rows
    off = deviation * math.sqrt(recipe.size) * recipe.k / recipe.n
    # Units are numbers from 0 to 1.
    longest = min(recipe.spread, math.sqrt(recipe.schema.layout.units))
    if off <= longest:
        return None
    return (
        f"the mean of a component is off by {off:,.2g} for the noise, and records differ by {longest:,.2g} at most: "
        "hardly anything is found; take fewer components (split.k), fewer model.waves, a smaller "
        "model.radius, or raise privacy.epsilon"
    )


def _of_items(recipe: BasketRecipe, plan: Plan) -> str | None:
    deviation = plan.stage(ITEMS).access.multipliers["items"] * plan.max_rows
    mean = recipe.n / recipe.schema.layout.units
    if deviation <= mean:
        return None
    return (
        f"there are {mean:,.1f} baskets an item, and what is measured of an item has noise of standard deviation "
        f"{deviation:,.1f}: those that are rare are not told apart; declare fewer (data.items), or raise privacy.epsilon"
    )


def _of_tables(conf: Conf, schema: TableSchema, recipe: ProductRecipe, plan: Plan) -> str | None:
    tables = recipe.tables.get("pairs")
    if tables is None:
        return None
    multiplier = plan.stage(TABLES).access.multipliers["pairs"]
    measured = min(conf.model.pairs or len(tables.tables), len(tables.tables))
    deviation = multiplier * math.sqrt(measured) * plan.max_rows
    mean = conf.data.n * len(tables.tables) / sum(map(math.prod, tables.sizes))
    if deviation <= mean:
        return None
    return (
        f"of the tables of two columns a cell holds {mean:,.1f} records on average, and noise of standard deviation "
        f"{deviation:,.1f}: what goes together is found only where it is plain; {what_to_leave_out(schema)}; or raise "
        "privacy.epsilon"
    )
