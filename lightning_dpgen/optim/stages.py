"""The promise of training in a plan, from its clipping rules and public numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsIndex

from lightning_dpgen.common.arguments import read_whole
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.privacy.plan import TRAINING, Plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Poisson, Sampler, as_sampler

# The name of the noise on sums of numbers that a step computes of its records (`PrivateOptimizer.set_gradients`).
METRICS = "metrics"


def training_stage(
    clipping: ClippingRule | Sequence[ClippingRule],
    *,
    n: SupportsIndex,
    sample_rate: float | None = None,
    steps: SupportsIndex | None,
    noise: float | None = None,
    share: float | None = None,
    embeddings: Mapping[str, float] | None = None,
    metrics: float | None = None,
    stage: str = TRAINING,
    sampler: Sampler | None = None,
) -> StageSpec:
    """Return the spec of a stage of private steps, for `make_plan`.

    Args:
        clipping: the rule, or one for each term; their extra noises have a share of each lot.
        n: the declared number of records.
        sample_rate: the probability with which each record takes part in a lot, independently (Poisson sampling).
        steps: the number of lots; None leaves it to be solved for.
        noise: the noise multiplier of a lot; None leaves it to be solved for.
        share: the share of the plan's budget that the stage may use, where a plan has several stages; None for what the
            others leave, which one stage of a plan may have.
        embeddings: the further noises of `EmbeddingGradients`, and their shares.
        metrics: the share of a lot's inverse squared noise that buys noisy means of what the steps compute of its records;
            None for none.
        stage: the name of the stage.
        sampler: who takes part in a lot (`make_sampler`), in place of `sample_rate`. One with correlated noise is for rules
            that draw no noise and whose bounds are known before a step.

    Raises:
        ValueError: for another clipping, n or sample_rate; unless either a rate or a sampler is given; if nothing is left
            for the gradient; if two noises have one name; for correlated noise beside other noises.

    Example:
        >>> from lightning_dpgen import DPNorm
        >>> training_stage(DPNorm(c_max=10.0), n=60_000, sample_rate=0.004, steps=1000).max_noise
        240.0
    """
    rules = (clipping,) if isinstance(clipping, ClippingRule) else clipping
    if not (isinstance(rules, Sequence) and rules and all(isinstance(rule, ClippingRule) for rule in rules)):
        raise ValueError(f"clipping={clipping!r}: expected a rule of lightning_dpgen.clipping, or one for each term")
    n = read_whole("n", n, of=" of records")
    if (sample_rate is None) == (sampler is None):
        raise ValueError(f"sample_rate={sample_rate}, sampler={sampler}: expected one of both")
    sampler = as_sampler(sampler if sample_rate is None else Poisson(sample_rate))
    steps = None if steps is None else read_whole("steps", steps)
    pairs = [*(embeddings or {}).items(), *(pair for rule in rules for pair in rule.noise_shares.items())]
    pairs += [] if metrics is None else [(METRICS, metrics)]
    extra = dict(pairs)
    if len(extra) < len(pairs):
        raise ValueError(
            f"two noises of a lot have the same name among {[name for name, _ in pairs]}: name them by noise=..."
        )
    for_gradient = 1.0 - sum(extra.values())
    if for_gradient <= 0.0:
        raise ValueError(f"shares {extra} of a lot's inverse squared noise leave nothing for the gradient")
    strategy = sampler.noise_strategy
    if strategy is not None:
        _check_correlated(rules, embeddings or {}, metrics)
    return StageSpec(
        stage,
        extra | {"gradient": for_gradient},
        steps,
        # The independent part of correlated noise is larger by the sensitivity.
        max_noise=n * sampler.sample_rate / (1.0 if strategy is None else strategy.sensitivity),
        sampler=sampler,
        share=share,
        noise=noise,
        n=n,
    )


def _check_correlated(rules: Sequence[ClippingRule], embeddings: Mapping[str, float], metrics: float | None) -> None:
    """Refuse what draws noise of its own, or needs it, beside correlated noise."""
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
    if metrics is not None:
        raise ValueError(
            "metrics with correlated noise: expected none, since they draw noise of their own; validation=... buys numbers "
            "of other records, or of these, in accesses of its own"
        )


def check_noises(plan: Plan, stage: str, rules: Sequence[ClippingRule], embeddings: Sequence[str]) -> None:
    """Refuse a plan whose stage does not list the noises that its steps draw.

    Raises:
        ValueError: naming both.
    """
    planned = sorted(plan.stage(stage).access.multipliers.keys() - {METRICS})
    drawn = sorted(["gradient", *embeddings, *(name for rule in rules for name in rule.noise_shares)])
    if drawn != planned:
        raise ValueError(
            f"stage {stage!r} of the plan lists the noises {planned}, and the clipping rules and terms draw {drawn}: make "
            "the plan with the noise_shares of these rules, each under a name of its own, and with these embeddings"
        )
