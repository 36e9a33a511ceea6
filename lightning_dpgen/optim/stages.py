"""The promise of training in a plan, from its clipping rules and public numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.privacy.stage_spec import StageSpec


def training_stage(
    clipping: ClippingRule | Sequence[ClippingRule],
    *,
    n: int,
    sample_rate: float,
    steps: int | None,
    noise: float | None = None,
    embeddings: Mapping[str, float] | None = None,
    stage: str = "training",
) -> StageSpec:
    """Return the spec of a stage of private steps, for `make_plan`.

    Args:
        clipping: the rule, or one for each term; their extra noises have a share of each lot.
        n: the declared number of records.
        sample_rate: the probability with which each record takes part in a lot.
        steps: the number of lots; None leaves it to be solved for.
        noise: the noise multiplier of a lot; None leaves it to be solved for.
        embeddings: the further noises of `EmbeddingGradients`, and their shares.

    Raises:
        ValueError: for another clipping, n or sample_rate; if nothing is left for the gradient; if two noises have one
            name.

    Example:
        >>> from lightning_dpgen import DPNorm
        >>> training_stage(DPNorm(c_max=10.0), n=60_000, sample_rate=0.004, steps=1000).max_noise
        240.0
    """
    rules = (clipping,) if isinstance(clipping, ClippingRule) else clipping
    if not (isinstance(rules, Sequence) and rules and all(isinstance(rule, ClippingRule) for rule in rules)):
        raise ValueError(f"clipping={clipping!r}: expected a rule of lightning_dpgen.clipping, or one for each term")
    if type(n) is not int or n < 1:
        raise ValueError(f"n={n!r}: expected the declared number of records, a whole number (int), 1 or more")
    if isinstance(sample_rate, bool) or not isinstance(sample_rate, int | float) or not 0.0 < sample_rate <= 1.0:
        raise ValueError(f"sample_rate={sample_rate!r}: expected a number above 0, up to 1")
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
        stage, extra | {"gradient": left}, steps, max_noise=sample_rate * n, sample_rate=sample_rate, noise=noise, n=n
    )
