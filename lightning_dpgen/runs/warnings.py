"""Warnings of what is allowed and rarely meant, before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.discovery.value_grid import VALUES_OF, without_level
from lightning_dpgen.data.discovery.value_tree import CERTAIN_SIGMAS
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.grouped import MOST_KINDS
from lightning_dpgen.gradients.clipping import Decay
from lightning_dpgen.privacy.accounting.epsilon_range import caution
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.projection.choice import PAIRS
from lightning_dpgen.release.pages.text import sentence
from lightning_dpgen.specs.first_pass import findable_warning
from lightning_dpgen.specs.projection_settings import ProjectionSettings
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import Settings
from lightning_dpgen.specs.spec import as_settings

# A distribution of fewer pieces than these that stand out from noise says little.
_FEWEST_PIECES = 20


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
    return f"privacy.delta={delta:g} is above 1/(10 n) = {0.1 / n:.3g}: a smaller delta is usual"


def noise_warnings(settings: Settings, plan: Plan) -> Iterator[str]:
    """Yield warnings of clusters and measurements that hold more noise than records: of plan, n and schema alone."""
    if (warning := settings.split.warning(plan, settings.n)) is not None:
        yield as_settings(warning, "split", settings.spec.split)
    if not settings.trains_network:
        yield from settings.recipe.warnings(plan)
    yield from _kinds_warnings(settings.schema)
    if plan.private:
        rare = findable_warning(settings.spec.data, settings.n, settings.parts, plan.stages[0].access)
        yield from (warning for warning in (rare, _values_warning(settings, plan)) if warning is not None)


def _kinds_warnings(schema: Schema) -> Iterator[str]:
    """Yield warnings of constraints that tell more values apart than groups of rare ones do (`grouped`)."""
    for name, texts in schema.ungrouped.items():
        yield (
            f"rare values of {name} are learned in groups that mix what constraints tell apart, since that is more "
            f"than {MOST_KINDS} kinds ({listed(texts)}): what goes with a kind is told of its group alone, and rows that "
            "break a constraint are drawn again; data.bins_share=0 learns each value by itself"
        )


def _values_warning(settings: Settings, plan: Plan) -> str | None:
    """Return a warning of bins that follow the records, where noise hides most of them (`value_tree`)."""
    first = plan.stages[0].access.multipliers
    trees = {without_level(noise): multiplier for noise, multiplier in first.items() if noise != without_level(noise)}
    least = CERTAIN_SIGMAS * max(trees.values(), default=0.0) * plan.max_rows
    if least * _FEWEST_PIECES <= settings.n:
        return None
    counted = {VALUES_OF + name for name, part in settings.parts.items() if part.counted}
    columns = listed(noise.removeprefix(VALUES_OF) for noise in trees if noise not in counted)
    if not columns:
        return None
    return (
        f"of numbers whose bins follow the records ({columns}) what fewer than {least:,.0f} of {settings.n:,} records "
        "share is not told from noise, and is spread evenly over its numbers; declare how many bins (bins: 10), leave out "
        "columns of little use, lower data.max_rows, or raise epsilon"
    )


def persons_warning(spec: RunSpec, schema: Schema) -> str | None:
    """Return a warning of a column that names what each row belongs to, where rows alone are protected."""
    made_up = schema.made_up
    if not made_up or not spec.privacy.private or spec.data.column_of_persons is not None:
        return None
    return (
        f"{made_up[0]} is made up anew (type: fake), and no column names persons: a person with several rows is protected "
        f"less than one row is; if it names persons, set data.person={made_up[0]} and data.max_rows, or release histories "
        f"(dpgen schema --person {made_up[0]} FILE)"
    )


def lost_histories_warning(spec: RunSpec) -> str | None:
    """Return a warning that records of a person are learned as if they were those of several."""
    person, most = spec.data.column_of_persons, spec.data.most_rows
    if person is None or most == 1 or not spec.privacy.private:
        return None
    return (
        f"data.person={person} protects persons, and synthetic records belong to none: the order of a person's "
        "records, and what stays the same in them, are lost; data=histories learns both, and "
        f"dpgen schema --person {person} FILE drafts its description"
    )


def plan_limits(settings: Settings, plan: Plan) -> tuple[str, ...]:
    """Return what is warned of, in sentences for the readers of a release; those of its certificate aside. Public."""
    return tuple(map(sentence, noise_warnings(settings, plan))) if plan.private else ()


def projection_warnings(settings: ProjectionSettings, n: int = 0, pulled_back: int | None = None) -> Iterator[str]:
    """Yield warnings of a projection, of its settings, and of the noisy count of rows that were pulled back: all public."""
    spec, best = settings.spec, settings.best
    if not settings.private:
        return
    typical = f"squared distances of about {settings.typical**2:.3g}"
    if best.error_of_mean > 1.0:
        yield (
            f"these rows estimate nothing: even the mean of {PAIRS:,} {typical} has a standard deviation of "
            f"{best.error_of_mean:.2g} times their size; give more epsilon or a smaller radius, or do not release them"
        )
    elif best.error > 1.0:
        yield (
            f"no single distance can be estimated: {typical} have a standard deviation of {best.error:.2g} times their "
            "size, and averages over many pairs alone mean anything; give more epsilon, or a smaller radius"
        )
    if spec.project.unit == "element":
        yield (
            "project.unit=element: protects one number of one row. Where a person's numbers change together, as in a whole "
            "row, it protects them as many times less; project.unit=row is for that"
        )
    if spec.project.distance is not None:
        yield (
            f"project.distance={spec.project.distance:g}: is declared and not enforced, so {spec.project.unit}s that "
            "differ by more are protected less; project.radius covers any replacement"
        )
    if pulled_back is not None and pulled_back > n / 2:
        yield (
            f"project.radius={spec.project.radius:g}: pulls back most rows, so distances between them shrink; choose a "
            "larger one"
        )


def plan_warnings(settings: Settings, plan: Plan) -> Iterator[str | None]:
    """Yield warnings of a plan: a large epsilon or delta, clusters and measurements that hold more noise than records."""
    yield caution(plan.epsilon if plan.private else None)
    yield delta_warning(settings.spec)
    yield persons_warning(settings.spec, settings.schema)
    if isinstance(settings.clipping, Decay) and getattr(settings.spec.model, "optimizer", None) == "adam":
        yield (
            "clipping=decay with model.optimizer=adam: Adam divides gradients by their size, so the decay changes next to "
            "nothing; with model.optimizer=sgd it decays the steps"
        )
    yield from noise_warnings(settings, plan)
