"""What is allowed and rarely meant: sentences for whoever asked for it, before anything is spent."""

from __future__ import annotations

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.specs.configuration import Conf
from lightning_dpgen.specs.measured import measures, recipe_of


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
    """Of measured numbers that hold more noise than records."""
    return recipe_of(conf, schema).doubt(plan) if measures(conf) else None
