"""A stage of a plan as it is asked for, and the declared number of records, which all other parts take from the plan."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

from lightning_dpgen.common.arguments import check_number, read_whole
from lightning_dpgen.privacy.access import GAUSSIAN, Access
from lightning_dpgen.privacy.accounting.epsilon_range import check_epsilon
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import FULL_PASS, Sampler, as_sampler

# Far more than rounding moves a product, and far less than one record.
_ROUNDING = 1e-6
# A declared number that is so many times the true one, or one in so many, is worth a word.
_FAR = 1.1


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
        interleaved: whether accesses are made between those of the stages behind it, and not before them.

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
    interleaved: bool = False

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
    def has_closed_form(self) -> bool:
        """True if the accesses together are one Gaussian, for which there is a closed form: equal full passes."""
        return self.sampler == FULL_PASS and not self.kinds

    def access(self, multiplier: float) -> Access:
        """Return an access whose noises cost as much as one of this multiplier, if all are Gaussian (0: no noise)."""
        total = sum(self.noise_shares.values())
        multipliers = {name: multiplier / math.sqrt(w / total) for name, w in self.noise_shares.items()}
        return Access(self.stage, multipliers, self.sampler, self.kinds, self.deltas)

    def make_stage(self, multiplier: float, share: float = 1.0) -> Stage:
        """Return the stage with this multiplier of noise; see `access`."""
        return Stage(self.access(multiplier), self.known_count, share, self.multiple, self.interleaved)


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
    rest_share = 1.0 - math.fsum(given)
    if any(not 0.0 < share <= 1.0 for share in given) or (rest and rest_share <= 0.0) or rest_share < -1e-9:
        raise ValueError(
            f"shares {given} of the budget: expected positive numbers that add up to less than 1, or to 1 if no stage "
            "takes what is left"
        )
    if rest:
        return [rest_share if spec.share is None else spec.share for spec in specs]
    if abs(rest_share) <= 1e-9:
        # Shares add up to the whole but for rounding, so they stay: a stage has the same share in every plan.
        return given
    return [share / math.fsum(given) for share in given]


def records_of(specs: Sequence[StageSpec], promise: Plan | None = None) -> int | None:
    """Return the number of records that a plan of these stages is for, None if none of them says.

    Raises:
        ValueError: if two of them, or one of them and the promise, say different numbers.
    """
    stated = [(f"stage {spec.stage!r}", spec.n) for spec in specs if spec.n is not None]
    if promise is not None and promise.n is not None:
        stated.append(("the plan that was promised", promise.n))
    for who, n in stated[1:]:
        if n != stated[0][1]:
            raise ValueError(
                f"{stated[0][0]} is for n={stated[0][1]} records and {who} for n={n}: expected the same number"
            )
    return stated[0][1] if stated else None


def declared_records(plan: Plan, n: SupportsIndex | None) -> int:
    """Return the declared number of records: the plan's, or `n` where the plan has none.

    Raises:
        ValueError: if neither says it, or they differ, or `n` is no whole number.
    """
    if n is None:
        if plan.n is None:
            raise ValueError("n=None: the plan has no number of records: pass the declared one, or plan with n=...")
        return plan.n
    n = read_whole("n", n, of=" of records")
    if plan.n not in (None, n):
        raise ValueError(f"n={n}: the plan was made for n={plan.n} records: leave n out, or make the plan for {n}")
    return n


def declared_warning(n: int, records: int, *, setting: str = "n", word: str = "record", shown: bool = False) -> str | None:
    """Return a warning of a declared number that is far from the number of records that take part; None for another.

    It is private, as that number is: it is said at the curator's terminal and in files of theirs alone.

    Args:
        setting: the name by which the caller declares it.
        word: for a record.
        shown: whether the warning says the number of records.
    """
    if n / _FAR <= records <= n * _FAR:
        return None
    part = f": {records:,} {word}{'s take' if records != 1 else ' takes'} part" if shown else ""
    follows = (
        "which is too large, so means are too small beside their noise and less is learned"
        if n > records
        else "which is too small, so means are too large, as with larger steps, and rate and noise are chosen for fewer"
    )
    return (
        f"{setting}={n:,} is far from the number of {word}s (private, stays here{part}): sums are divided by {setting}, "
        f"{follows}; declare a public number near it, such as one that was published, and none that is read off the data"
    )


def warn_of_declared(n: int | None, records: int, stacklevel: int = 3) -> None:
    """Warn of a declared number, if there is one, that is far from the number of records that take part.

    Args:
        stacklevel: as for `warnings.warn`; 3 names the line that called the caller.
    """
    if n is not None and (warning := declared_warning(n, records)) is not None:
        warnings.warn(warning, stacklevel=stacklevel)


def expected_lot_size(plan: Plan, stage: str, size: float | None) -> float:
    """Return the expected number of records in a lot of a stage: rate times declared number, or `size` without a number.

    Args:
        size: what the caller takes it for; None leaves it to the plan.

    Raises:
        ValueError: if neither the plan nor `size` says it, if they differ by more than rounding, or for a size that is no
            positive number.
    """
    rate = plan.stage(stage).access.sample_rate
    if size is None:
        if plan.n is None:
            raise ValueError(
                "expected_batch_size=None: the plan has no number of records: pass sample_rate * n, or plan with n=..."
            )
        return rate * plan.n
    check_number("expected_batch_size", size, lambda value: 0.0 < value < math.inf, "above 0, finite")
    if plan.n is not None and not math.isclose(size, rate * plan.n, rel_tol=_ROUNDING):
        raise ValueError(
            f"expected_batch_size={size:g}: the plan says sample_rate * n = {rate:g} * {plan.n} = {rate * plan.n:g}: leave "
            "it out, or make the plan with other numbers"
        )
    return size
