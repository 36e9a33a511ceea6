"""Warnings of what is allowed and rarely meant, before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_dpgen.gradients.clipping import Decay
from lightning_dpgen.privacy.epsilon_range import caution
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.specs.argument_names import as_settings
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import Settings


def seed_warning(seed: int | None) -> str | None:
    """Return a warning of noise that is repeatable."""
    if seed is None:
        return None
    return f"debug.private_seed={seed}: NOT PRIVATE, since who has the seed can remove the noise"


def delta_warning(spec: RunSpec) -> str | None:
    """Return a warning of a delta that is large."""
    delta, n = spec.privacy.delta, spec.data.n
    if not spec.privacy.private or delta <= 0.1 / n:
        return None
    return f"privacy.delta={delta:g} is above 1/(10 n) = {0.1 / n:.3g}: a smaller delta is the custom"


def plan_warnings(settings: Settings, plan: Plan) -> Iterator[str | None]:
    """Yield warnings of a plan: a large epsilon or delta, clusters and measurements that hold more noise than records."""
    yield caution(plan.epsilon if plan.private else None)
    yield delta_warning(settings.spec)
    if isinstance(settings.clipping, Decay) and getattr(settings.spec.model, "optimizer", None) == "adam":
        yield (
            "clipping=decay with model.optimizer=adam: Adam divides gradients by their size, so the decay changes next to "
            "nothing; with model.optimizer=sgd it decays the steps"
        )
    if (warning := settings.split.warning(plan, settings.n)) is not None:
        yield as_settings(warning, "split", settings.spec.split)
    if not settings.trained:
        yield settings.recipe.warning(plan)
