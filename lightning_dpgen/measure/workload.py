"""Statistics that are measured together, from one access, and the results, which can be split into two."""

from __future__ import annotations

import hashlib
import numbers
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.passes.reduce import InBlocks
from lightning_dpgen.privacy.access import PURE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import report_noisy_max, rounded_gaussian
from lightning_dpgen.privacy.noise.units import check_multiples, check_steps
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
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


# Gives the component (B,) of each record, int64 from 0: a function of that record, and of what is public.
Components: TypeAlias = Callable[[Records], Tensor]

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
        units: of how many of its units the bound of a statistic is at most, by names; others have coarse units. Noise of
            too many units is refused with the plan.
        chooses: whether an access tells which of the scores of its statistic is large, by the exponential mechanism
            (`mechanisms.report_noisy_max`), and no sums.

    Raises:
        ValueError: for shares that are not positive, or no share; for rounds or a `max_noise` that are not.
    """

    stage: str
    noise_shares: Mapping[str, float]
    max_noise: float
    share: float = 1.0
    rounds: int = 1
    chooses: bool = False
    units: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        weights = self.noise_shares
        if not (isinstance(weights, Mapping) and weights and all(map(_positive, weights.values()))):
            raise ValueError(
                f"stage {self.stage!r}: noise_shares={self.noise_shares}, expected a positive number for each statistic"
            )
        if not _positive(self.max_noise):
            raise ValueError(
                f"stage {self.stage!r}: max_noise={self.max_noise!r}, expected the approximate number of records, above 0"
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
        kinds = dict.fromkeys(self.noise_shares, PURE) if self.chooses else {}
        return StageSpec(
            self.stage, self.noise_shares, self.rounds, max_noise=self.max_noise, share=share * self.share, kinds=kinds
        )

    def check_units(self, plan: Plan) -> None:
        """Raise ValueError for a plan whose noise has more units than are drawn, before anything is spent."""
        multipliers = plan.stage(self.stage).access.multipliers
        for name in self.noise_shares.keys() & self.units:
            check_steps(f"{self.stage}: {name}", multipliers[name] * self.units[name] * plan.max_rows)

    def measure(
        self,
        statistics: Mapping[str, Statistic],
        records: Records | InBlocks,
        component: Tensor | Components,
        account: Account,
    ) -> Mapping[str, Measured]:
        """Measure the noisy sums of each statistic, from the next access.

        Args:
            statistics: the statistics by their names in `noise_shares`.
            records: in memory or in blocks. Private.
            component: (N,) the component of each, int64 from 0, or a function of records that returns it, as records in
                blocks need. It follows from the record itself and from what is public, such as centres that were released.
                One that follows from the other records, as k-means without noise gives it, moves with them, and no bound
                holds. Private.
            account: the account whose plan holds the spec.

        Guarantee:
            One record added or removed moves the sums of a statistic by its bound, and a person by as many times that as
            they have records; the noise is the plan's multiplier times that (`mechanisms.rounded_gaussian`).

        Raises:
            ValueError: for other statistics than were planned, one without a bound or unit, or records without persons
                where the plan is about persons.
            BadRecords: for a person with more records than the plan says.
            LedgerError: for a plan under replace-one, since bounds are those of a record added or removed; for an account
                that has measured other records before.
            Nothing has been spent then.
        """
        if isinstance(records, Records) and not isinstance(component, Tensor) and callable(component):
            component = component(records)
        self.check(statistics, records, component, account)
        # Slow work is done before the access, which an interrupt would lose.
        if isinstance(records, InBlocks):
            function = StatisticSums(statistics, component)
            # Sums that were kept are those of the same statistics.
            sums_of = records.reduce(function, of=hashlib.blake2b(pickle.dumps(function), digest_size=16).hexdigest())
        else:
            sums_of = {name: statistic.of_all(records, component) for name, statistic in statistics.items()}
        exact = {name: torch.as_tensor(sums).detach().clone() for name, sums in sums_of.items()}
        for name, sums in exact.items():
            shape = tuple(statistics[name].shape)
            if (tuple(sums.shape), sums.dtype) != (shape, torch.int64):
                raise ValueError(
                    f"statistic {name!r}: sums over all records of shape {tuple(sums.shape)} and {sums.dtype}, expected "
                    f"{shape}, that of the statistic, and torch.int64: whole multiples of its unit"
                )
            check_multiples(f"statistic {name}", sums)
        measured = {}
        with account.open(self.stage, of=records) as access:
            for name, sums in exact.items():
                bound, unit = statistics[name].bound, statistics[name].unit
                scores = statistics[name].scores(sums)
                if self.chooses:
                    place, deviation = report_noisy_max(access, name, scores, unit=unit, sensitivity=bound), 0.0
                    released = torch.tensor([float(place)], dtype=torch.float64)
                else:
                    released = rounded_gaussian(access, name, scores, unit=unit, sensitivity=bound)
                    deviation = access.access.multipliers[name] * bound * access.max_rows
                measured[name] = Measured(released, deviation, account.ledger.run)
        return measured

    def check(
        self,
        statistics: Mapping[str, Statistic],
        records: Records | InBlocks,
        component: Tensor | Components,
        account: Account,
    ) -> None:
        """Refuse what the plan does not cover, before anything is spent; see `measure`."""
        if account.plan.relation != ADD_OR_REMOVE_ONE:
            raise LedgerError(
                f"the plan is under {account.plan.relation}: expected {ADD_OR_REMOVE_ONE}, for which the bounds hold"
            )
        if isinstance(records, InBlocks):
            records.blocks.check_persons(account.plan.max_rows)
            if isinstance(component, Tensor) or not callable(component):
                raise ValueError(f"component: {type(component).__name__}, expected a function of the records of a block")
        else:
            persons_of(records, None, account.plan.max_rows)
            _check_components(component, len(records), statistics)
        if set(statistics) != set(self.noise_shares):
            raise ValueError(
                f"statistics {listed(sorted(statistics))}: expected those of the plan, {listed(sorted(self.noise_shares))}"
            )
        for name, statistic in statistics.items():
            if (layout := getattr(statistic, "layout", None)) not in (None, records.schema.layout):
                raise ValueError(
                    f"statistic {name!r} is made for records of the layout {layout}, and its bound holds for no others: "
                    f"expected that of these records, {records.schema.layout}"
                )
            bound = getattr(statistic, "bound", None)
            if not (isinstance(bound, numbers.Real) and 1e-200 <= bound <= 1e200):
                raise ValueError(
                    f"statistic {name!r} has bound={bound}: expected a number from 1e-200 to 1e200, the most by which "
                    "one record moves its sums in L2; shorten what a record adds"
                )
            unit = getattr(statistic, "unit", None)
            if not (isinstance(unit, numbers.Real) and 1e-250 <= unit <= bound):
                raise ValueError(
                    f"statistic {name!r} has unit={unit!r}: expected a number from 1e-250 to its bound, {bound:g}: what a "
                    "multiple of 1 in its sums stands for"
                )
            multiplier = account.plan.stage(self.stage).access.multipliers.get(name, 0.0)
            check_steps(name, multiplier * bound * account.plan.max_rows / unit)


class StatisticSums:
    """The sums of statistics over the records of a block (`passes.reduce.BlockSums`).

    Args:
        statistics: by name, in whole numbers.
        component: the component of each record of a block, a function of that record.

    Raises:
        ValueError: when it is called, for components that a statistic does not tell apart.
    """

    def __init__(self, statistics: Mapping[str, Statistic], component: Components) -> None:
        self._statistics, self._component = dict(statistics), component
        self.shapes = {name: tuple(statistic.shape) for name, statistic in statistics.items()}

    def __call__(self, records: Records) -> dict[str, Tensor]:
        component = self._component(records)
        _check_components(component, len(records), self._statistics)
        return {name: statistic.of_all(records, component) for name, statistic in self._statistics.items()}


def _check_components(component: object, count: int, statistics: Mapping[str, Statistic]) -> None:
    if not isinstance(component, Tensor):
        raise ValueError(f"component: {type(component).__name__}, expected a tensor of int64, one for each record")
    if component.shape != (count,) or component.dtype != torch.int64:
        # The number of records is private, and is not said.
        raise ValueError(f"component: {component.dim()} axes of {component.dtype}, expected int64, one for each record")
    for name, statistic in statistics.items():
        k = getattr(statistic, "k", None)
        if k is not None and len(component) and not (component.min() >= 0 and component.max() < k):
            raise ValueError(f"component: statistic {name!r} tells {k} apart, expected numbers from 0 to {k - 1}")


def _positive(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0.0 < value < float("inf")


def check_share(name: str, share: object, *, none: bool = False) -> None:
    """Raise ValueError, naming it, unless a share is above 0 and below 1; with `none` 0 is fine, too."""
    if not (_positive(share) and share < 1.0) and not (none and share == 0 and not isinstance(share, bool)):
        expected = "a number from 0, below 1" if none else "a number above 0, below 1"
        raise ValueError(f"{name}={share!r}: expected {expected}")


def split_noise(
    measured: Mapping[str, Measured], part: float, seed: int, chance: Mapping[str, Tensor] | None = None
) -> tuple[dict[str, Measured], dict[str, Measured]]:
    """Split noisy sums into two of the same records, whose noise is independent. Post-processing.

    A fit to the first is judged by its distance from the second, as by records that are held out (data fission, Leiner et
    al. 2023). With noise n of deviation d and z drawn anew from the same distribution, the sums are moved by ``part z`` and
    by ``-z / part``. Then ``n + part z`` and ``n - z / part`` are both normal, and their covariance is ``d^2 - d^2 = 0``.

    Args:
        measured: noisy sums by name; those without noise are in both as they are.
        part: the deviation that is added to the first, in units of d.
        seed: public.
        chance: variances of the sums beside that of their noise, by name, where these are to be split, too: records are a
            sample, and a fit that repeats its chance is not better. Chance that several sums share is split in each alone.

    Returns:
        Measurements of deviation ``d sqrt(1 + part^2)``, and of ``d sqrt(1 + part^-2)``.

    Example:
        >>> one, other = split_noise({"items": Measured(torch.zeros(3, dtype=torch.float64), 4.0)}, 0.75, seed=0)
        >>> one["items"].deviation, round(other["items"].deviation, 3)
        (5.0, 6.667)
    """
    generator = torch.Generator().manual_seed(seed)
    seen, held_out = {}, {}
    for name, noisy in measured.items():
        variance = noisy.deviation**2 + (0.0 if chance is None else chance[name])
        drawn = variance**0.5 * torch.randn(noisy.sums.shape, dtype=torch.float64, generator=generator)
        seen[name] = Measured(noisy.sums + part * drawn, noisy.deviation * (1.0 + part**2) ** 0.5, noisy.run)
        held_out[name] = Measured(noisy.sums - drawn / part, noisy.deviation * (1.0 + part**-2) ** 0.5, noisy.run)
    return seen, held_out
