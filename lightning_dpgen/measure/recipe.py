"""The base of all recipes: accesses, the statistics of each, and a mixture fitted to the measurements."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lightning_dpgen.common import pace
from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.measure.workload import Components, Measured, State, Workload
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.passes.reduce import InBlocks
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec

# The name of a stage of work that looks at no record.
LEARNING = "learning from what was measured"
_OF_SEVERAL = (
    "state: holds measurements of another run than that of the account: measurements of two data sets, or of one "
    "measured twice, make no model together; pass the state that this run has saved"
)


class MostlyNoise(UserWarning):
    """A warning that measurements hold more noise than records."""


class Recipe(ABC):
    """A few accesses, and a mixture that is fitted to them without another look at a record.

    Attributes:
        k: number of components.
        n: the declared number of records; public.

    Raises:
        ValueError: unless both are whole numbers, 1 or more.
    """

    k: int
    n: int

    def __post_init__(self) -> None:
        check_sizes(k=self.k, n=self.n)

    @property
    @abstractmethod
    def workloads(self) -> tuple[Workload, ...]:
        """The workloads of its accesses, in their order; their shares add up to 1."""

    @property
    def from_fits(self) -> frozenset[str]:
        """The stages whose statistics follow from a fit to earlier ones, which takes long or turns with their noise."""
        return frozenset()

    @property
    def dispensable(self) -> Mapping[str, str]:
        """The stages without whose measurements the fit goes on, where an interruption has lost them; and how, in words."""
        return {}

    @property
    def fit_bytes(self) -> int:
        """About how many bytes of memory a fit takes at most; public. 0 where that is little."""
        return 0

    @abstractmethod
    def statistics(self, stage: str, state: State) -> Mapping[str, Statistic]:
        """Return the statistics of the next access of a stage, given what has been measured already."""

    @abstractmethod
    def warnings(self, plan: Plan) -> list[str]:
        """Return what to expect of a plan whose numbers hold more noise than records; none for other plans."""

    @abstractmethod
    def _mixture(self, state: State) -> Mixture:
        """Fit the mixture to a state that holds an access of every stage that is not `dispensable`. Post-processing."""

    def fit(self, state: State) -> Mixture:
        """Fit the mixture, which remembers the run that has paid for it. Post-processing.

        Args:
            state: the measurements of at least one access of every stage that is not `dispensable`.

        Raises:
            ValueError: for measurements of several runs.
        """
        runs = _runs(state)
        if len(runs) > 1:
            raise ValueError(_OF_SEVERAL)
        mixture = self._mixture(state)
        return Mixture(mixture.network, mixture.weights, *runs, margins=mixture.margins)

    def specs(self, share: float) -> list[StageSpec]:
        """Return all accesses as they are planned, for a share of the budget's mu^2."""
        return [workload.spec(share) for workload in self.workloads]

    def measure(
        self,
        records: Records | InBlocks,
        component: Tensor | Components,
        account: Account | None,
        *,
        state: State | None = None,
        save: Callable[[State], None] = lambda _: None,
        reserve: Callable[[State], None] = lambda _: None,
    ) -> Mixture:
        """Measure what is not in the state yet, and fit the mixture, which remembers the run that has paid for it.

        Args:
            records: in memory or in blocks. Private.
            component: (N,) the component of each record, or a function of records that returns it, as for
                `Workload.measure`; recipes that tell none apart do not look at it. Private.
            account: the account whose plan holds `specs`; None if the state holds all of it.
            state: the state from which an interrupted run goes on; None to begin.
            save: called after each access with the state from which the run could go on.
            reserve: called before each access with a state of zeros in the place of what it measures, so that room can be
                made for what `save` is called with; it may raise to end the run, and nothing is spent on the access then.

        Guarantee:
            See `Workload.measure`, with the bound of each statistic.

        Raises:
            ValueError, BadRecords, LedgerError: see `Workload.measure`; ValueError for a state of another run or recipe, or
                an incomplete one without an account to pay for the rest.
        """
        return self.fit(self.measure_state(records, component, account, state=state, save=save, reserve=reserve))

    def measure_state(
        self,
        records: Records | InBlocks,
        component: Tensor | Components,
        account: Account | None,
        *,
        state: State | None = None,
        save: Callable[[State], None] = lambda _: None,
        reserve: Callable[[State], None] = lambda _: None,
    ) -> State:
        """Measure what is not in the state yet, and fit nothing; see `measure`."""
        if state is not None and not self.fits(state):
            holds = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"state: holds {holds}, which is not what this recipe measures")
        for warning in self.warnings(account.plan) if account is not None and not state else ():
            warnings.warn(warning, MostlyNoise, stacklevel=3)
        state = dict(state or {})
        if len(_runs(state) | ({account.ledger.run} if account is not None else set())) > 1:
            raise ValueError(_OF_SEVERAL)
        for workload in self.workloads:
            accesses = list(state.get(workload.stage, ()))
            if account is None:
                if not accesses and workload.stage not in self.dispensable:
                    raise ValueError(f"account=None: the state lacks {workload.stage!r}, which an account has to pay for")
                continue
            # The first statistics may follow from a fit, whose time says nothing of the others.
            follows_from_a_fit = workload.stage in self.from_fits
            with pace.stage(LEARNING if follows_from_a_fit else f"preparing to measure {workload.stage}"):
                statistics = self._next_statistics(workload, state, account)
            with pace.stage(f"measuring {workload.stage}", workload.rounds, done=len(accesses)) as progress:
                while statistics is not None:
                    reserve({**state, workload.stage: (*accesses, _zeros(statistics, account.ledger.run))})
                    accesses.append(workload.measure(statistics, records, component, account))
                    state = {**state, workload.stage: tuple(accesses)}
                    save(state)
                    progress.advance()
                    statistics = self._next_statistics(workload, state, account)
        return state

    def _next_statistics(self, workload: Workload, state: State, account: Account) -> Mapping[str, Statistic] | None:
        """Return the statistics of the next access of a workload; None where it has no more, or none is left to be paid."""
        accesses = state.get(workload.stage, ())
        # A run that goes on may have lost some accesses, and has fewer left then.
        lost = not accesses and workload.stage not in self.dispensable
        if len(accesses) < workload.rounds and (lost or account.remaining(workload.stage) > 0):
            return self.statistics(workload.stage, state)
        return None

    def fits(self, state: State) -> bool:
        """Return whether these accesses could have measured this state."""
        try:
            return self._fits(state)
        except (AttributeError, LookupError, TypeError, ValueError):  # not a state
            return False

    def _fits(self, state: State) -> bool:
        before: dict[str, tuple[Mapping[str, Measured], ...]] = {}
        for workload in self.workloads:
            accesses = state.get(workload.stage, ())
            if len(accesses) > workload.rounds:
                return False
            for measurements in accesses:
                due = self.statistics(workload.stage, before)
                if set(measurements) != set(due):
                    return False
                if any(tuple(measurements[name].sums.shape) != _released(due[name]) for name in due):
                    return False
                if not all(x.sums.isfinite().all() and 0.0 <= x.deviation < math.inf for x in measurements.values()):
                    return False
                before[workload.stage] = (*before.get(workload.stage, ()), measurements)
            if not accesses and workload.stage not in self.dispensable:
                break
        return set(before) == set(state)


def _zeros(statistics: Mapping[str, Statistic], run: str) -> dict[str, Measured]:
    """Return what is as large as the measurements of these statistics."""
    zeros = {name: torch.zeros(_released(statistic), dtype=torch.float64) for name, statistic in statistics.items()}
    return {name: Measured(sums, 0.0, run) for name, sums in zeros.items()}


def _released(statistic: Statistic) -> tuple[int, ...]:
    return tuple(statistic.shape if statistic.released is None else statistic.released)


def _runs(state: State) -> set[str]:
    """Return the runs whose ledgers hold the measurements."""
    return {measured.run for accesses in state.values() for one in accesses for measured in one.values()}
