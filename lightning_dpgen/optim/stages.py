"""The promise of training in a plan, from its clipping rules and public numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsIndex

from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.privacy.number_arguments import read_whole
from lightning_dpgen.privacy.plain_text import listed
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.samplers import POISSON, TRUNCATED, check_sampler
from lightning_dpgen.privacy.segments import Pieces, Segment, is_schedule, read_rate, read_segments
from lightning_dpgen.privacy.stage_spec import StageSpec
from lightning_dpgen.privacy.strategy import CYCLIC, FIXED_ORDER, Strategy
from lightning_dpgen.privacy.truncation import Truncation


def training_stage(
    clipping: ClippingRule | Sequence[ClippingRule],
    *,
    n: SupportsIndex,
    sample_rate: float | Pieces,
    steps: SupportsIndex | None,
    noise: float | None = None,
    noise_schedule: Pieces | None = None,
    share: float | None = None,
    embeddings: Mapping[str, float] | None = None,
    stage: str = "training",
    sampler: str = POISSON,
    largest_lot: SupportsIndex | None = None,
    at_most: SupportsIndex | None = None,
    strategy: Strategy | None = None,
) -> StageSpec:
    """Return the spec of a stage of private steps, for `make_plan`.

    Args:
        clipping: the rule, or one for each term; their extra noises have a share of each lot.
        n: the declared number of records.
        sample_rate: the probability with which each record takes part in a lot; or a schedule of it, pairs of a number of
            steps and their rate, ``[(100, 0.01), (200, 0.02)]``.
        steps: the number of lots; None leaves it to be solved for.
        noise: the noise multiplier of a lot; None leaves it to be solved for.
        noise_schedule: pairs of a number of steps and their noise relative to the others, ``[(150, 2.0), (150, 1.0)]``: one
            factor on all of them is solved for, or is `noise`.
        share: the share of the plan's budget that the stage may use, where a plan has several stages; None for what the
            others leave, which one stage of a plan may have.
        embeddings: the further noises of `EmbeddingGradients`, and their shares.
        stage: the name of the stage.
        sampler: the law of the lots: ``poisson``, with independent records; or ``truncated_poisson``, where a lot of more
            than `largest_lot` records is cut to so many, at a small part of delta; or that of the strategy.
        largest_lot: the most units (records, or persons with all of theirs) in a truncated lot.
        at_most: for truncated lots, a number of units that no data set of this kind can pass. It is public, and it must be
            certain, which the declared `n` need not be.
        strategy: that of correlated noise, or of records that take turns (`make_strategy`), for rules that draw no noise
            and whose bounds are known before a step.

    Raises:
        ValueError: for another clipping, n, sample_rate or schedule; for a sampler whose cost is not proved; if nothing is
            left for the gradient; if two noises have one name; for a strategy with another rule, a schedule, or further
            noises.

    Example:
        >>> from lightning_dpgen import DPNorm
        >>> training_stage(DPNorm(c_max=10.0), n=60_000, sample_rate=0.004, steps=1000).max_noise
        240.0
    """
    rules = (clipping,) if isinstance(clipping, ClippingRule) else clipping
    if not (isinstance(rules, Sequence) and rules and all(isinstance(rule, ClippingRule) for rule in rules)):
        raise ValueError(f"clipping={clipping!r}: expected a rule of lightning_dpgen.clipping, or one for each term")
    n = read_whole("n", n, of=" of records")
    truncation = _truncation(sampler, largest_lot, at_most)
    steps = None if steps is None else read_whole("steps", steps)
    segments: tuple[Segment, ...] = ()
    if is_schedule(sample_rate) or noise_schedule is not None:
        segments = read_segments(sample_rate, noise_schedule, steps)
    rate = segments[0].sample_rate if segments else read_rate(sample_rate)
    pairs = [*(embeddings or {}).items(), *(pair for rule in rules for pair in rule.noise_shares.items())]
    extra = dict(pairs)
    if len(extra) < len(pairs):
        raise ValueError(
            f"two noises of a lot have the same name among {[name for name, _ in pairs]}: name them by noise=..."
        )
    left = 1.0 - sum(extra.values())
    if left <= 0.0:
        raise ValueError(f"shares {extra} of a lot's inverse squared noise leave nothing for the gradient")
    _check_strategy(strategy, sampler, segments, rules, embeddings or {})
    return StageSpec(
        stage,
        extra | {"gradient": left},
        steps,
        # The independent part of correlated noise is larger by the sensitivity.
        max_noise=n
        * min((own.sample_rate / own.noise for own in segments), default=rate)
        / (1.0 if strategy is None else strategy.sensitivity),
        sample_rate=rate,
        share=share,
        noise=noise,
        n=n,
        segments=segments,
        truncation=truncation,
        strategy=strategy,
    )


def _check_strategy(
    strategy: Strategy | None,
    sampler: str,
    segments: tuple[Segment, ...],
    rules: Sequence[ClippingRule],
    embeddings: Mapping[str, float],
) -> None:
    if strategy is None:
        if sampler in (CYCLIC, FIXED_ORDER):
            raise ValueError(
                f"sampler={sampler!r}: its steps are planned together: expected strategy=make_strategy({sampler!r}, ...)"
            )
        return
    if sampler not in (POISSON, strategy.sampler):
        raise ValueError(f"sampler={sampler!r} with a strategy of {strategy.sampler!r}: expected the same, or none")
    if segments:
        raise ValueError("a schedule of noise or rate with correlated noise: expected one rate, and equal noise")
    for rule in rules:
        if rule.noise_shares or rule.known(0) is None or rule.by_person:
            raise ValueError(
                f"clipping={rule!r} with correlated noise: expected a rule that draws no noise and whose bounds are known "
                "before each step, such as Fixed or Decay, of a record and not of a person"
            )
    if embeddings:
        raise ValueError(
            f"embeddings {listed(sorted(embeddings))} with correlated noise: expected none, since each draws its own"
        )


def _truncation(sampler: str, largest_lot: SupportsIndex | None, at_most: SupportsIndex | None) -> Truncation | None:
    check_sampler(sampler)
    if sampler != TRUNCATED:
        if largest_lot is not None or at_most is not None:
            raise ValueError(
                f"largest_lot={largest_lot}, at_most={at_most}: lots of sampler={sampler!r} are not cut: leave both out, "
                f"or take sampler={TRUNCATED!r}"
            )
        return None
    if largest_lot is None or at_most is None:
        raise ValueError(
            f"sampler={TRUNCATED!r}: expected largest_lot=..., the most records of a lot, and at_most=..., a number of "
            f"records that no data set of this kind can exceed; found largest_lot={largest_lot}, at_most={at_most}"
        )
    return Truncation(read_whole("largest_lot", largest_lot), read_whole("at_most", at_most, of=" of records"))


def check_noises(plan: Plan, stage: str, rules: Sequence[ClippingRule], embeddings: Sequence[str]) -> None:
    """Refuse a plan whose stage does not list the noises that its steps draw.

    Raises:
        ValueError: naming both.
    """
    listed = sorted(plan.stage(stage).access.multipliers)
    drawn = sorted(["gradient", *embeddings, *(name for rule in rules for name in rule.noise_shares)])
    if drawn != listed:
        raise ValueError(
            f"stage {stage!r} of the plan lists the noises {listed}, and the clipping rules and terms draw {drawn}: make "
            "the plan with the noise_shares of these rules, each under a name of its own, and with these embeddings"
        )
