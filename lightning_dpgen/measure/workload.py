"""Statistics that are measured together, from one access, and the results."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import gaussian, rounded_gaussian
from lightning_dpgen.privacy.pld import ADD_OR_REMOVE_ONE
from lightning_dpgen.privacy.stage_spec import StageSpec
from lightning_dpgen.privacy.whole_sums import check_multiples, check_steps
from lightning_dpgen.sampling.lots import persons_of


@dataclass(frozen=True)
class Measured:
    """Noisy sums. Public.

    Args:
        sums: the sums in the statistic's shape, float64.
        deviation: standard deviation of the noise of each number; 0 without noise.
        run: the run whose ledger holds them.
    """

    sums: Tensor
    deviation: float
    run: str = ""


# The measurements of a run so far: by stage, for each access that was made, by the names of the statistics.
State = Mapping[str, Sequence[Mapping[str, Measured]]]


@dataclass(frozen=True)
class Workload:
    """Statistics that are measured together, from one access, or from several of a kind one after the other.

    Args:
        stage: name of the access in plan and ledger.
        noise_shares: weights by which the inverse squared noise is divided among the statistics, by their names: each has
            noise in proportion to its bound over the root of its weight.
        max_noise: about the number of records behind a number: if the noise outweighs them all, a plan is refused.
        share: share of what a recipe may spend, in mu^2.
        rounds: number of accesses; the statistics of one may depend on the results of those before it.

    Raises:
        ValueError: for shares that are not positive, or no share; for rounds or a `max_noise` that are not.
    """

    stage: str
    noise_shares: Mapping[str, float]
    max_noise: float
    share: float = 1.0
    rounds: int = 1

    def __post_init__(self) -> None:
        weighed = (
            isinstance(self.noise_shares, Mapping) and self.noise_shares and all(map(_positive, self.noise_shares.values()))
        )
        if not weighed:
            raise ValueError(
                f"stage {self.stage!r}: noise_shares={self.noise_shares}, expected a positive number a statistic"
            )
        if not _positive(self.max_noise):
            raise ValueError(
                f"stage {self.stage!r}: max_noise={self.max_noise!r}, expected about how many records, above 0"
            )
        if not _positive(self.share):
            raise ValueError(f"stage {self.stage!r}: share={self.share!r}, expected a number above 0")
        if type(self.rounds) is not int or self.rounds < 1:
            raise ValueError(f"stage {self.stage!r}: rounds={self.rounds!r}, expected a whole number, 1 or more")

    def spec(self, share: float) -> StageSpec:
        """Return the accesses as they are planned, for a recipe's share of the budget's mu^2.

        Raises:
            ValueError: for a share that is not positive.
        """
        if not _positive(share):
            raise ValueError(f"stage {self.stage!r}: share={share!r}, expected a number above 0")
        return StageSpec(self.stage, self.noise_shares, self.rounds, max_noise=self.max_noise, share=share * self.share)

    def measure(
        self, statistics: Mapping[str, Statistic], records: Records, component: Tensor, account: Account
    ) -> Mapping[str, Measured]:
        """Measure the noisy sums of each statistic, from the next access.

        Args:
            statistics: the statistics by their names in `noise_shares`.
            records: private.
            component: (N,) the component of each, int64 from 0: a function of the record itself and of what is public, such
                as centres that were released. One that follows from the other records, as k-means without noise gives it,
                moves with them, and no bound holds. Private.
            account: the account whose plan holds the spec.

        Guarantee:
            One record added or removed moves the sums of a statistic by its bound, and a person by as many times that as
            they have records; the noise is the plan's multiplier times that (`mechanisms.gaussian`).

        Raises:
            ValueError: for other statistics than were planned, one without a bound, or records without persons where the
                plan is about persons.
            BadRecords: for a person with more records than the plan says.
            LedgerError: for a plan under replace-one, since bounds are those of a record added or removed; for an account
                that has measured other records before.
            Nothing has been spent then.
        """
        self.check(statistics, records, component, account)
        # Slow work is done before the access, which an interrupt would lose.
        sums_of = {name: statistic.of_all(records, component) for name, statistic in statistics.items()}
        exact = {name: torch.as_tensor(sums).detach().clone() for name, sums in sums_of.items()}
        for name, sums in exact.items():
            shape = tuple(statistics[name].shape)
            if sums.dtype == torch.int64 and tuple(sums.shape) == shape:
                check_multiples(f"statistic {name}", sums)
                continue
            if (tuple(sums.shape), sums.dtype) != (shape, torch.float64):
                raise ValueError(
                    f"statistic {name!r}: sums over all records of shape {tuple(sums.shape)} and {sums.dtype}, expected "
                    f"{shape}, that of the statistic, and torch.float64"
                )
            if not sums.isfinite().all():
                raise ValueError(
                    f"statistic {name!r}: sums that are not finite, so its bound does not hold; numbers of a record that "
                    "are not finite have to become 0"
                )
        found = {}
        with account.open(self.stage, of=records) as access:
            for name, sums in exact.items():
                bound = statistics[name].bound
                unit = statistics[name].unit
                deviation = access.access.multipliers[name] * bound * access.max_rows
                if sums.dtype == torch.int64:
                    noisy = rounded_gaussian(access, name, sums, sensitivity=bound / unit) * unit
                else:
                    noisy = gaussian(access, name, sums, sensitivity=bound)
                found[name] = Measured(noisy, deviation, account.ledger.run)
        return found

    def check(self, statistics: Mapping[str, Statistic], records: Records, component: Tensor, account: Account) -> None:
        """Refuse what the plan does not cover, before anything is spent; see `measure`."""
        if account.plan.relation != ADD_OR_REMOVE_ONE:
            raise LedgerError(
                f"the plan is under {account.plan.relation}: expected {ADD_OR_REMOVE_ONE}, for which the bounds hold"
            )
        persons_of(records, None, account.plan.max_rows)
        if not isinstance(component, Tensor):
            raise ValueError(f"component: {type(component).__name__}, expected a tensor of int64, one for each record")
        if component.shape != (len(records),) or component.dtype != torch.int64:
            # The number of records is private, and is not said.
            raise ValueError(f"component: {component.dim()} axes of {component.dtype}, expected int64, one for each record")
        if set(statistics) != set(self.noise_shares):
            raise ValueError(f"statistics {sorted(statistics)}: expected those of the plan, {sorted(self.noise_shares)}")
        for name, statistic in statistics.items():
            if (layout := getattr(statistic, "layout", None)) not in (None, records.schema.layout):
                raise ValueError(
                    f"statistic {name!r} is made for records of the layout {layout}, and its bound holds for no others: "
                    f"expected that of these records, {records.schema.layout}"
                )
            k = getattr(statistic, "k", None)
            if k is not None and len(component) and not (component.min() >= 0 and component.max() < k):
                raise ValueError(f"component: statistic {name!r} tells {k} apart, expected numbers from 0 to {k - 1}")
            bound = getattr(statistic, "bound", None)
            if not (isinstance(bound, numbers.Real) and 1e-200 <= bound <= 1e200):
                raise ValueError(
                    f"statistic {name!r} has bound={bound}: expected a number from 1e-200 to 1e200, the most by which "
                    "one record moves its sums in L2; shorten what a record adds"
                )
            multiplier = account.plan.stage(self.stage).access.multipliers.get(name, 0.0)
            check_steps(name, multiplier * bound * account.plan.max_rows / getattr(statistic, "unit", 1.0))


def _positive(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0.0 < value < float("inf")


def check_share(name: str, share: object, *, none: bool = False) -> None:
    """Raise ValueError unless a share is above 0 and below 1.

    Args:
        none: whether 0 is fine, too.

    Raises:
        ValueError: naming it.
    """
    if not (_positive(share) and share < 1.0) and not (none and share == 0 and not isinstance(share, bool)):
        expected = "a number from 0, below 1" if none else "a number above 0, below 1"
        raise ValueError(f"{name}={share!r}: expected {expected}")
