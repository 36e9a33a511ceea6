"""The promise of training in a plan, from its clipping rules and public numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsIndex

from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.privacy.number_arguments import check_number, read_whole
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.samplers import POISSON, check_sampler
from lightning_dpgen.privacy.segments import Pieces, is_schedule, read_segments
from lightning_dpgen.privacy.stage_spec import StageSpec


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
        sampler: the law of the lots: ``poisson``, with independent records.

    Raises:
        ValueError: for another clipping, n, sample_rate or schedule; for a sampler whose cost is not proved; if nothing is
            left for the gradient; if two noises have one name.

    Example:
        >>> from lightning_dpgen import DPNorm
        >>> training_stage(DPNorm(c_max=10.0), n=60_000, sample_rate=0.004, steps=1000).max_noise
        240.0
    """
    rules = (clipping,) if isinstance(clipping, ClippingRule) else clipping
    if not (isinstance(rules, Sequence) and rules and all(isinstance(rule, ClippingRule) for rule in rules)):
        raise ValueError(f"clipping={clipping!r}: expected a rule of lightning_dpgen.clipping, or one for each term")
    check_sampler(sampler)
    n = read_whole("n", n, of=" of records")
    steps = None if steps is None else read_whole("steps", steps)
    if is_schedule(sample_rate) or noise_schedule is not None:
        segments = read_segments(sample_rate, noise_schedule, steps)
    else:
        check_number("sample_rate", sample_rate, lambda value: 0.0 < value <= 1.0, "above 0, up to 1")
        segments = ()
    pairs = [*(embeddings or {}).items(), *(pair for rule in rules for pair in rule.noise_shares.items())]
    extra = dict(pairs)
    if len(extra) < len(pairs):
        raise ValueError(
            f"two noises of a lot have the same name among {[name for name, _ in pairs]}: name them by noise=..."
        )
    left = 1.0 - sum(extra.values())
    if left <= 0.0:
        raise ValueError(f"shares {extra} of a lot's inverse squared noise leave nothing for the gradient")
    return StageSpec(
        stage,
        extra | {"gradient": left},
        steps,
        max_noise=n * min((own.sample_rate / own.noise for own in segments), default=sample_rate),
        sample_rate=segments[0].sample_rate if segments else sample_rate,
        share=share,
        noise=noise,
        n=n,
        segments=segments,
    )


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
