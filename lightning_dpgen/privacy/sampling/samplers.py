"""Samplers: who takes part in an access, how that is drawn, and what it makes of the cost of the noise.

A sampler is one class: plan, ledger, account, calibration and certificate ask it, and know no sampler by name. A new one is
accepted where an upper bound of its cost is proved; `sampler_choice.py` makes them by name, and refuses others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import dp_accounting
import numpy as np
from scipy.special import betainc

from lightning_dpgen.common.arguments import check_number, read_whole
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.common.strict_json import check_shape, shape
from lightning_dpgen.privacy.accounting.event_parts import SMALLEST_FAILURE, CorrelatedGaussianDpEvent, EpsilonDeltaDpEvent
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.errors import LedgerError, PlanMismatch
from lightning_dpgen.privacy.sampling.strategy import CYCLIC, Strategy

if TYPE_CHECKING:
    from lightning_dpgen.privacy.noise.stream import PrivateStream
    from lightning_dpgen.privacy.sampling.correlated_noise import CorrelatedState

POISSON, TRUNCATED = "poisson", "truncated_poisson"
# Far more than the incomplete beta function is off, or rounding moves a product of a rate, and far less than a record.
_ROUNDING = 1e-9
_LARGEST = 10**12
_WHOLE = {"type": "integer", "minimum": 1, "maximum": _LARGEST}
_TRUNCATION = shape(largest_lot=_WHOLE, at_most=_WHOLE)


@dataclass(frozen=True)
class Sampler:
    """The law by which units take part in an access.

    Args:
        sample_rate: the expected part of the units (records, or persons) in an access, in (0, 1]; 1 is a full pass.

    Raises:
        ValueError: for another rate.
    """

    sample_rate: float
    name: ClassVar[str]
    law: ClassVar[str]
    # Lots belong to one step each, and all steps together are one event: lost ones are not made again.
    in_turn: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        # A plan is read back by the name, and one that was inherited would stand for another law.
        if not isinstance(vars(cls).get("name"), str):
            raise TypeError(f"class {cls.__name__}: expected a name of its own, name: ClassVar[str] = ...")

    def __post_init__(self) -> None:
        check_number("sample_rate", self.sample_rate, lambda rate: 0.0 < rate <= 1.0, "above 0, up to 1")
        object.__setattr__(self, "sample_rate", float(self.sample_rate))

    @property
    def sampling_probability(self) -> float:
        """The probability with which a unit takes part whose turn it is."""
        return self.sample_rate

    @property
    def noise_strategy(self) -> Strategy | None:
        """The strategy of correlated noise; None where the noises of accesses are independent."""
        return None

    @property
    def fails(self) -> bool:
        """True if an access spends a part of delta beside its noise."""
        return self.truncation is not None

    @property
    def truncation(self) -> dict[str, int] | None:
        """The numbers of a cut, as certificates state them; None where lots are whole."""
        return None

    def without_failures(self) -> Sampler:
        """Return the sampler whose accesses cost what is left of these without their failures."""
        return self

    def explain_failures(self, count: int, delta: float) -> str:
        """Return the message about so many accesses whose failures use up delta."""
        raise NotImplementedError

    def event(self, noise: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Return the cost of an access with a noise, under add-or-remove-one; for lots in turn that of all steps."""
        raise NotImplementedError

    def draw(self, stage: str, units: int, step: int, stream: PrivateStream, state: CorrelatedState) -> np.ndarray:
        """Draw the sorted positions of the units in an access, of so many; private."""
        raise NotImplementedError

    def check_noises(self, stage: str, names: Collection[str], kinds: Mapping[str, str], deltas: Collection[str]) -> None:
        """Refuse noises for which the cost of this sampler is not proved.

        Raises:
            ValueError: naming them.
        """
        if self.sample_rate < 1.0 and kinds:
            raise ValueError(f"stage {stage!r}: noise of a sampled access must be gaussian, found {dict(kinds)}")
        if self.sample_rate < 1.0 and deltas:
            raise ValueError(
                f"stage {stage!r}: an access with deltas is a full pass, found sample_rate={self.sample_rate:g}"
            )

    def check_count(self, stage: str, count: int | None) -> None:
        """Refuse a number of accesses that this sampler was not made for."""

    def check_plan(self, stage: str, count: int, relation: str, max_rows: int, n: int | None) -> None:
        """Refuse a plan for which the cost of this sampler is not proved.

        Raises:
            ValueError: naming what does not fit.
        """

    def check_ranks(self, stage: str, size: int) -> None:
        """Refuse several processes where each may not draw its part by itself."""

    def check_units(self, stage: str, units: int) -> None:
        """Refuse a number of units that breaks a bound of the sampler; the message does not say how many there are."""

    def check_persons(self, stage: str) -> None:
        """Refuse persons of several records where the cost is proved for one record alone."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as they stand in a plan: the name, too, but for those that are known by their fields.

        Raises:
            ValueError: for a class that has the name of another one.
        """
        kind = type(self)
        if {sampler.name: sampler for sampler in SAMPLERS}.get(kind.name, kind) is not kind:
            raise ValueError(f"{kind.__name__}: name={kind.name!r} is that of another sampler: take a name of its own")
        if kind in _BY_FIELDS:
            return {"sample_rate": self.sample_rate}
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)} | {"sampler": kind.name}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self | None:
        """Return the sampler of the fields of an access, whose shape was checked; None if they are of another kind.

        Raises:
            ValueError: if they describe none.
        """
        return cls(**{one.name: fields[one.name] for one in dataclasses.fields(cls) if one.name in fields})

    def as_line(self) -> dict[str, Any]:
        """Return the fields as they stand in a line of a ledger."""
        return self.as_json()

    def is_close(self, other: Sampler) -> bool:
        """Return whether two samplers draw the same, but for rounding."""
        if type(self) is not type(other) or not math.isclose(self.sample_rate, other.sample_rate, rel_tol=_ROUNDING):
            return False
        return dataclasses.replace(self, sample_rate=other.sample_rate) == other


class Poisson(Sampler):
    """Each unit takes part in each access independently.

    Example:
        >>> Poisson(0.01).event(dp_accounting.GaussianDpEvent(1.0)).sampling_probability
        0.01
    """

    name = POISSON
    law = "each record takes part in each lot independently, with probability sample_rate"

    def event(self, noise: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        return noise if self.sample_rate == 1.0 else dp_accounting.PoissonSampledDpEvent(self.sample_rate, noise)

    def draw(self, stage: str, units: int, step: int, stream: PrivateStream, state: CorrelatedState) -> np.ndarray:
        return stream.poisson_sample(units, self.sample_rate)


FULL_PASS = Poisson(1.0)


@dataclass(frozen=True)
class TruncatedPoisson(Poisson):
    """A Poisson lot, of which `largest_lot` units are chosen at random, each set alike, where it holds more.

    Whether a record meets a full lot follows from the coins of the others alone. With no more than `at_most` units in all,
    that has a probability below `failure`, and otherwise the lot is an ordinary one (docs/guarantees/lots.md, "Truncated
    lots").

    Args:
        largest_lot: the most units in a lot.
        at_most: the most units that any data set of this kind can hold: public, and certain.

    Raises:
        ValueError: for numbers that are no whole ones, from 1 to 10^12, or a full pass.

    Example:
        >>> 1e-12 < TruncatedPoisson(0.1, largest_lot=160, at_most=1000).failure < 1e-8
        True
    """

    largest_lot: int
    at_most: int
    name = TRUNCATED
    law = "a Poisson lot, of which largest_lot records are chosen at random where it holds more"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "largest_lot", read_whole("largest_lot", self.largest_lot))
        object.__setattr__(self, "at_most", read_whole("at_most", self.at_most, of=" of records"))
        for name in ("largest_lot", "at_most"):
            if getattr(self, name) > _LARGEST:
                raise ValueError(f"{name}={getattr(self, name)}: expected a whole number from 1 to {_LARGEST:,}")
        if self.sample_rate == 1.0:
            raise ValueError("sample_rate=1: a full pass holds all records, so no lot of it is cut")

    @property
    def failure(self) -> float:
        """An upper bound of the probability that a record meets a full lot; see `truncation_failure`."""
        return truncation_failure(self.sample_rate, self.largest_lot, self.at_most)

    def without_failures(self) -> Sampler:
        return Poisson(self.sample_rate)

    def event(self, noise: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        sampled = super().event(noise)
        failure = self.failure
        return dp_accounting.ComposedDpEvent([sampled, EpsilonDeltaDpEvent(0.0, failure)]) if failure else sampled

    def draw(self, stage: str, units: int, step: int, stream: PrivateStream, state: CorrelatedState) -> np.ndarray:
        return stream.subset(super().draw(stage, units, step, stream, state), self.largest_lot)

    def check_plan(self, stage: str, count: int, relation: str, max_rows: int, n: int | None) -> None:
        if n is not None and self.at_most * max_rows < n:
            raise ValueError(
                f"at_most={self.at_most}: so many units of at most {max_rows} records each are fewer than the declared "
                f"n={n} records: give a number that no data of this kind can exceed"
            )

    def check_ranks(self, stage: str, size: int) -> None:
        if size > 1:
            raise PlanMismatch(
                f"stage {stage!r}: a truncated lot is cut as a whole, and {size} processes have a part of it each: train "
                f"in one process, or with sampler={POISSON!r}"
            )

    def check_units(self, stage: str, units: int) -> None:
        if units > self.at_most:
            raise PlanMismatch(
                f"stage {stage!r}: there are more records, or persons, than at_most={self.at_most}, and the guarantee "
                "holds for no more: give a bound that is known of all data of this kind (a population, a capacity) and not "
                "found by trying; nothing was charged"
            )

    def explain_failures(self, count: int, delta: float) -> str:
        # It says which largest lot would take a hundredth of delta at most.
        low, high = self.largest_lot, self.at_most
        while high - low > 1:
            middle = (low + high) // 2
            fails = count * truncation_failure(self.sample_rate, middle, self.at_most)
            low, high = (middle, high) if fails > delta / 100.0 else (low, middle)
        return (
            f"largest_lot={self.largest_lot}: of at_most={self.at_most} records so many meet in a lot so often that "
            f"nothing is left of delta={delta:g}: largest_lot={high} would take a hundredth of it"
        )

    @property
    def truncation(self) -> dict[str, int]:
        return {"largest_lot": self.largest_lot, "at_most": self.at_most}

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"truncation": self.truncation}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self | None:
        if "truncation" not in fields:
            return None
        return cls(fields["sample_rate"], *read_truncation(fields["truncation"]))

    def is_close(self, other: Sampler) -> bool:
        return isinstance(other, TruncatedPoisson) and super().is_close(other) and self.truncation == other.truncation


@dataclass(frozen=True)
class Cyclic(Sampler):
    """Each record belongs to one of several groups, by a draw of its own; a step draws a Poisson sample of the next group.

    A record takes part at most once within the reach of the noise, so noise may be correlated over as many steps as there
    are groups (docs/guarantees/correlated_noise.md, "Correlated noise").

    Args:
        strategy: the groups, and how the noise of a step follows from that of the steps before it.

    Raises:
        ValueError: for a rate above ``1 / period``.
    """

    strategy: Strategy
    name = CYCLIC
    law = "each record belongs to one of several groups, by a draw of its own, and takes part by another in its turn"
    in_turn = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample_rate * self.strategy.period > 1.0 + _ROUNDING:
            raise ValueError(
                f"sample_rate={self.sample_rate:g} with period={self.strategy.period}: expected at most 1/period, since a "
                "step takes its records from one group"
            )

    @property
    def sampling_probability(self) -> float:
        return min(1.0, self.sample_rate * self.strategy.period)

    @property
    def noise_strategy(self) -> Strategy:
        return self.strategy

    def event(self, noise: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        assert isinstance(noise, dp_accounting.GaussianDpEvent), "check_noises allows no other"
        return CorrelatedGaussianDpEvent.of(noise.noise_multiplier, self.sampling_probability, self.strategy)

    def draw(self, stage: str, units: int, step: int, stream: PrivateStream, state: CorrelatedState) -> np.ndarray:
        members = state.turn(stage, self.strategy.period, step, units)
        return members[stream.poisson_sample(len(members), self.sampling_probability)]

    def check_noises(self, stage: str, names: Collection[str], kinds: Mapping[str, str], deltas: Collection[str]) -> None:
        if set(names) != {"gradient"} or kinds or deltas:
            raise ValueError(
                f"stage {stage!r}: correlated noise is that of the gradient alone, found {listed(sorted(names))}: take a "
                "clipping rule that draws no noise, such as Fixed"
            )

    def check_count(self, stage: str, count: int | None) -> None:
        if count != self.strategy.steps:
            raise ValueError(
                f"stage {stage!r}: count={count}, and its strategy is one of {self.strategy.steps} steps: expected the "
                "same number, since correlated noise is planned for all steps together"
            )

    def check_plan(self, stage: str, count: int, relation: str, max_rows: int, n: int | None) -> None:
        if max_rows > 1:
            raise ValueError(
                f"max_rows={max_rows}: correlated noise is proved for a unit of one record: expected max_rows=1, or noise "
                "that is not correlated"
            )
        if relation == REPLACE_ONE:
            raise ValueError(f"relation={relation!r}: cyclic sampling is proved under {ADD_OR_REMOVE_ONE!r}")
        if count > self.strategy.steps:
            raise ValueError(f"stage {stage!r}: {count} steps, and its strategy is one of {self.strategy.steps}")

    def check_ranks(self, stage: str, size: int) -> None:
        if size > 1:
            raise LedgerError(
                f"{size} processes: correlated noise is drawn by one alone: expected devices=1, or noise that is not "
                "correlated"
            )

    def check_persons(self, stage: str) -> None:
        raise ValueError(
            f"persons with sampler={CYCLIC!r}: correlated noise is proved for a unit of one record: expected no persons, "
            f"or sampler={POISSON!r}"
        )

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"strategy": self.strategy.as_json()}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self | None:
        if "strategy" not in fields:
            return None
        if "truncation" in fields:
            raise ValueError("lots of records that take turns are not cut: expected a strategy or a truncation")
        return cls(fields["sample_rate"], Strategy.from_json(fields["strategy"]))

    def as_line(self) -> dict[str, Any]:
        # The plan holds the strategy itself.
        return super().as_json() | {"strategy": self.strategy.digest}

    def is_close(self, other: Sampler) -> bool:
        return isinstance(other, Cyclic) and super().is_close(other) and self.strategy.is_close(other.strategy)


def as_sampler(value: object) -> Sampler:
    """Return a value that is a sampler; else raise ValueError."""
    if not isinstance(value, Sampler):
        raise ValueError(f"sampler={value!r}: expected a Sampler, such as Poisson(0.01) (others: make_sampler)")
    return value


SAMPLERS: tuple[type[Sampler], ...] = (Poisson, TruncatedPoisson, Cyclic)
# Those that plans do not name. The plain one comes last, since it takes any fields.
_BY_FIELDS = (Cyclic, TruncatedPoisson, Poisson)


def sampler_from_json(fields: Mapping[str, Any]) -> Sampler:
    """Return the sampler that `Sampler.as_json` described; see `Sampler.from_fields`.

    Raises:
        ValueError: for fields that describe none, or a name that none of `SAMPLERS` has.
    """
    if "sampler" not in fields:
        return next(filter(None, (sampler.from_fields(fields) for sampler in _BY_FIELDS)))
    others = [sampler for sampler in SAMPLERS if sampler not in _BY_FIELDS]
    named = [sampler.from_fields(fields) for sampler in others if sampler.name == fields["sampler"]]
    if not named or named[0] is None:
        known = ", ".join(repr(sampler.name) for sampler in others) or "none"
        raise ValueError(f"sampler={str(fields['sampler'])[:60]!r}: expected one of {known}: its class joins SAMPLERS")
    return named[0]


def read_truncation(fields: Any) -> tuple[int, int]:
    """Return `largest_lot` and `at_most` of a `TruncatedPoisson.truncation`; fields may be anything that was read.

    Raises:
        ValueError: if they describe none.
    """
    check_shape(fields, _TRUNCATION)
    return int(fields["largest_lot"]), int(fields["at_most"])


def truncation_failure(sample_rate: float, largest_lot: int, at_most: int) -> float:
    """Return an upper bound of the probability that a record meets a full lot: that of as many others in it.

    It is 0 where there cannot be so many.

    Example:
        >>> 1e-12 < truncation_failure(0.1, largest_lot=160, at_most=1000) < 1e-8
        True
    """
    if at_most <= largest_lot:
        return 0.0
    tail = float(betainc(largest_lot, at_most - largest_lot, sample_rate))
    return min(1.0, max(tail * (1.0 + _ROUNDING), SMALLEST_FAILURE))
