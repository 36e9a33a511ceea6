"""A stage of a plan as it is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightning_dpgen.common.number_arguments import check_number, read_whole
from lightning_dpgen.privacy.access import GAUSSIAN, Access
from lightning_dpgen.privacy.accounting.epsilon_range import check_epsilon
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import FULL_PASS, Sampler, as_sampler


@dataclass(frozen=True)
class StageSpec:
    """A stage as it is asked for.

    Args:
        stage: the name of the stage.
        noise_shares: the parts of the inverse squared noise of one access, one for each noise drawn from it.
        count: the number of accesses; None for as many as the budget buys at the given noise.
        sampler: who takes part in an access; its failures, if any, are taken off the plan's delta, too.
        share: the share of the whole budget's mu^2 (Gaussian-DP) that the stage may use, at delta = 0 of epsilon; None for
            the one stage that takes what is left. Without such a stage, shares are divided by their sum.
        noise: the multiplier of one access (of the one Gaussian that costs as much), if it is given and not solved for.
        max_noise: the noise multiplier beyond which a single noisy number outweighs all that the records of an access
            can add up to; a plan that needs more is refused.
        kinds: the kinds of the noises that are not Gaussian; see `Access`.
        deltas: the deltas of the noises that stand before a threshold, for one access; see `Access`. They are taken off the
            plan's delta before anything is shared out.
        n: the number of records that the numbers above were chosen for, kept in the plan; None where none of them depends
            on it.
        multiple: a count that is solved for, or shortened after a crash, is a multiple of this.

    Raises:
        ValueError: for a count, an n or a multiple that is no whole number, 1 or more; for a count that the sampler was not
            made for.
    """

    stage: str
    noise_shares: Mapping[str, float]
    count: int | None
    max_noise: float
    sampler: Sampler = FULL_PASS
    share: float | None = None
    noise: float | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    deltas: Mapping[str, float] = field(default_factory=dict)
    n: int | None = None
    multiple: int = 1

    def __post_init__(self) -> None:
        for name, of in (("count", ""), ("n", " of records"), ("multiple", "")):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, read_whole(f"stage {self.stage!r}: {name}", value, of=of))
        object.__setattr__(self, "kinds", {name: kind for name, kind in self.kinds.items() if kind != GAUSSIAN})
        as_sampler(self.sampler).check_count(self.stage, self.count)

    @property
    def sample_rate(self) -> float:
        """The expected part of the records in an access; 1 is a full pass."""
        return self.sampler.sample_rate

    @property
    def known_count(self) -> int:
        """The number of accesses, which is given or was solved for.

        Raises:
            ValueError: if it is neither.
        """
        if self.count is None:
            raise ValueError(f"stage {self.stage!r}: count=None: expected a number, since no finite epsilon says how many")
        return self.count

    @property
    def fails(self) -> bool:
        """True if an access spends a part of delta of its own, beside its noise."""
        return bool(self.deltas) or self.sampler.fails

    @property
    def closed(self) -> bool:
        """True if the accesses together are one Gaussian, for which there is a closed form: equal full passes."""
        return self.sampler == FULL_PASS and not self.kinds

    def access(self, multiplier: float) -> Access:
        """Return an access whose noises cost as much as one of this multiplier, if all are Gaussian (0: no noise)."""
        total = sum(self.noise_shares.values())
        multipliers = {name: multiplier / math.sqrt(w / total) for name, w in self.noise_shares.items()}
        return Access(self.stage, multipliers, self.sampler, self.kinds, self.deltas)

    def planned(self, multiplier: float, share: float = 1.0) -> Stage:
        """Return the stage with this multiplier of noise; see `access`."""
        return Stage(self.access(multiplier), self.known_count, share, self.multiple)


def check_specs(specs: Sequence[StageSpec], epsilon: float | None) -> None:
    if epsilon not in (None, math.inf):
        check_epsilon(epsilon)
    names = [spec.stage for spec in specs]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"stages {names}: expected at least one, and no name twice")
    for spec in specs:
        if not spec.noise_shares:
            raise ValueError(f"stage {spec.stage!r}: noise_shares={{}}: expected the share of at least one noise")
        for name, share in spec.noise_shares.items():
            check_number(f"stage {spec.stage!r}: noise_shares[{name!r}]", share, _is_positive, "above 0, finite")
        if spec.noise is not None:
            check_number(f"stage {spec.stage!r}: noise", spec.noise, _is_positive, "above 0, finite: a multiplier")
    open_counts = [spec for spec in specs if spec.count is None]
    if len(open_counts) > 1 or any(d.noise is None for d in open_counts) or (open_counts and epsilon is None):
        raise ValueError(
            "epsilon, noise and steps: give two of them. A stage without a count needs its noise and an epsilon, and one "
            "stage may have no count"
        )
    if epsilon is None and all(spec.noise is None for spec in specs):
        raise ValueError("without an epsilon, at least one stage must have its noise given")


def _is_positive(value: float) -> bool:
    return 0.0 < value < math.inf


def shares_of(specs: Sequence[StageSpec]) -> list[float]:
    rest = [spec for spec in specs if spec.share is None]
    given = [spec.share for spec in specs if spec.share is not None]
    if len(rest) > 1:
        raise ValueError(f"at most one stage may take what is left of the budget, found {len(rest)}")
    left = 1.0 - math.fsum(given)
    if any(not 0.0 < share <= 1.0 for share in given) or (rest and left <= 0.0) or left < -1e-9:
        raise ValueError(
            f"shares {given} of the budget: expected positive numbers that add up to less than 1, or to 1 if no stage "
            "takes what is left"
        )
    if rest:
        return [left if spec.share is None else spec.share for spec in specs]
    if abs(left) <= 1e-9:
        # Shares add up to the whole but for rounding, so they stay: a stage has the same share in every plan.
        return given
    return [share / math.fsum(given) for share in given]


def records_of(specs: Sequence[StageSpec], promise: Plan | None = None) -> int | None:
    """Return the number of records that a plan of these stages is for, None if none of them says.

    Raises:
        ValueError: if two of them, or one of them and the promise, say different numbers.
    """
    said = [(f"stage {spec.stage!r}", spec.n) for spec in specs if spec.n is not None]
    if promise is not None and promise.n is not None:
        said.append(("the plan that was promised", promise.n))
    for who, n in said[1:]:
        if n != said[0][1]:
            raise ValueError(f"{said[0][0]} is for n={said[0][1]} records and {who} for n={n}: expected the same number")
    return said[0][1] if said else None
