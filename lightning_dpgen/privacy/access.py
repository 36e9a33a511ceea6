"""One access to the records: what is drawn, at which rate, what it costs; the lot that it is opened against; its noises."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import dp_accounting
import numpy as np

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.common.strict_json import check_shape, shape
from lightning_dpgen.privacy.accounting.event_parts import SMALLEST_FAILURE, EpsilonDeltaDpEvent
from lightning_dpgen.privacy.accounting.events import decode, encode
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE
from lightning_dpgen.privacy.accounting.private_selection import LARGEST_MEAN, SHAPES, SMALLEST_MEAN, one_of
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.sampling.samplers import FULL_PASS, Sampler, as_sampler, sampler_from_json

if TYPE_CHECKING:
    from lightning_dpgen.privacy.drawn_noise import DrawnNoise
    from lightning_dpgen.privacy.noise.stream import PrivateStream
    from lightning_dpgen.privacy.ranks import Ranks
    from lightning_dpgen.privacy.sampling.correlated_noise import CorrelatedNoise

# Kinds of noise. A pure one is known only by its epsilon: exponential mechanism, spherical noise.
GAUSSIAN, LAPLACE, PURE = "gaussian", "laplace", "pure"
# The laws from which a secret number of trials is drawn count as kinds, too.
KINDS = (GAUSSIAN, LAPLACE, PURE, *SHAPES)
_NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}
_SHAPE = shape(
    stage={"type": "string"},
    sample_rate={"type": "number"},
    multipliers=_NUMBERS,
    kinds_={"type": "object", "additionalProperties": {"type": "string"}},
    deltas_=_NUMBERS,
    trials_={"type": "array"},
    strategy_={"type": "object"},
    truncation_={"type": "object"},
)


@dataclass(frozen=True)
class Access:
    """One look at the records: one lot, or one pass over all of them.

    All draws from the same look are one access, because they share the sampled records: composing them as separate
    subsampled releases under-reports (docs/guarantees/lots.md, "One lot, one event").

    Args:
        multipliers: for each noise drawn from this look, its *multiplier* under add-or-remove-one: for a Gaussian the
            standard deviation over the L2 sensitivity, for Laplace noise the scale over the L1 sensitivity, for a pure
            mechanism the inverse of its epsilon. Zero means no noise at all, and then nothing is private. In a plan under
            replace-one, sensitivities are those of a record replaced, and a Gaussian's multiplier is twice the ratio, since
            its accountant takes a replaced record for one removed and one added. For a secret number of trials, its mean.
        sampler: who takes part in it.
        kinds: ``gaussian``, ``laplace`` or ``pure``, by name, or the law of a number of trials; Gaussian where it is not
            given.
        deltas: for each Gaussian noise that stands before a threshold (`mechanisms.select_keys`), the probability with
            which keys that one record alone holds are seen.
        trials: the cost of a trial of a selection, one event for each of the settings among which it draws; a selection
            draws its number of trials and nothing else.

    Raises:
        ValueError: for no multiplier, one that is negative or not finite, an unknown kind, a delta that is no probability
            or belongs to no Gaussian noise, noises for which the sampler has no account, or trials without the law of
            their number, or the reverse.

    Example:
        >>> from lightning_dpgen.privacy import Poisson
        >>> lot = Access("training", {"norms": 4.0, "gradient": 1.0}, Poisson(0.01))
        >>> round(lot.multiplier, 3)
        0.97
    """

    stage: str
    multipliers: Mapping[str, float]
    sampler: Sampler = FULL_PASS
    kinds: Mapping[str, str] = field(default_factory=dict)
    deltas: Mapping[str, float] = field(default_factory=dict)
    trials: tuple[dp_accounting.DpEvent, ...] = ()

    def __post_init__(self) -> None:
        # Python floats only: the RDP accountant silently drops an event whose multiplier is an int or np.float32.
        multipliers = {name: float(value) for name, value in self.multipliers.items()}
        object.__setattr__(self, "multipliers", MappingProxyType(multipliers))
        object.__setattr__(self, "kinds", MappingProxyType({n: k for n, k in self.kinds.items() if k != GAUSSIAN}))
        object.__setattr__(self, "deltas", MappingProxyType({n: float(d) for n, d in self.deltas.items()}))
        if not multipliers:
            raise ValueError(f"stage {self.stage!r}: an access must list the noises that are drawn from it")
        for name, value in multipliers.items():
            if not (value == 0.0 or 1e-12 < value < 1e12):
                raise ValueError(f"noise multiplier {name}={value}: expected 0, or a number from 1e-12 to 1e12")
        for name, kind in self.kinds.items():
            if name not in multipliers or kind not in KINDS:
                raise ValueError(f"kind {name}={kind!r}: expected one of {KINDS} for a noise that is listed")
        if bool(self.trials) != any(kind in SHAPES for kind in self.kinds.values()):
            raise ValueError(f"stage {self.stage!r}: trials are those of a selection, which draws their number")
        if self.trials and (len(multipliers) > 1 or not SMALLEST_MEAN <= self._mean <= LARGEST_MEAN):
            raise ValueError(
                f"stage {self.stage!r}: expected a mean number of trials from {SMALLEST_MEAN:g} to {LARGEST_MEAN:g}, and "
                f"nothing else; found {multipliers}"
            )
        for name, delta in self.deltas.items():
            if name not in multipliers or name in self.kinds or not SMALLEST_FAILURE <= delta < 1.0:
                raise ValueError(
                    f"delta {name}={delta}: expected {SMALLEST_FAILURE:g} to 1, of a gaussian noise that is listed"
                )
        as_sampler(self.sampler).check_noises(self.stage, self.multipliers, self.kinds, self.deltas)

    def __reduce__(self):
        return Access, (self.stage, dict(self.multipliers), self.sampler, dict(self.kinds), dict(self.deltas), self.trials)

    @property
    def sample_rate(self) -> float:
        """The expected part of the records in this access; 1 is a full pass."""
        return self.sampler.sample_rate

    def kind(self, name: str) -> str:
        """Return the kind of the noise `name`."""
        return self.kinds.get(name, GAUSSIAN)

    @property
    def _mean(self) -> float:
        """The mean number of trials."""
        return next(iter(self.multipliers.values()))

    @property
    def private(self) -> bool:
        """True if every release of this access is noised."""
        return all(self.multipliers.values())

    @property
    def multiplier(self) -> float:
        """The multiplier of the one Gaussian that costs the same as its Gaussians: ``(sum of m^-2)^-1/2``.

        Given the sample, the Gaussians of one access compose adaptively with shifts 1/m, which one Gaussian with
        the squares added dominates (Dong, Roth and Su 2019, GDP composition); sampling acts on all of them at once.
        Zero if the access is not private, infinite if it has no Gaussian.
        """
        if not self.private:
            return 0.0
        squares = sum(m**-2 for name, m in self.multipliers.items() if self.kind(name) == GAUSSIAN)
        return 1.0 / math.sqrt(squares) if squares else math.inf

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The cost of this access, under add-or-remove-one, in a composition at a delta above 0.

        With correlated noise it is that of all steps.
        """
        return self.event_at(pure=False)

    def event_at(self, *, pure: bool) -> dp_accounting.DpEvent:
        """Return the cost of this access, under add-or-remove-one.

        Args:
            pure: whether the composition is stated at delta = 0. There an e-private mechanism counts as Laplace noise of
                multiplier 1/e. Above 0 its whole loss distribution matters, and it counts as the Laplace noise that
                dominates every e-private mechanism (`dominating_laplace`).
        """
        if not self.private:
            return dp_accounting.NonPrivateDpEvent()
        if self.trials:
            shape = SHAPES[next(iter(self.kinds.values()))]
            return dp_accounting.dp_event.RepeatAndSelectDpEvent(one_of(self.trials), self._mean, shape)
        events: list[dp_accounting.DpEvent] = []
        if math.isfinite(self.multiplier):
            events.append(dp_accounting.GaussianDpEvent(self.multiplier))
        for name in sorted(self.kinds):
            m = self.multipliers[name]
            dominated = self.kinds[name] == PURE and not pure
            events.append(dp_accounting.LaplaceDpEvent(dominating_laplace(1.0 / m) if dominated else m))
        events += [EpsilonDeltaDpEvent(0.0, self.deltas[name]) for name in sorted(self.deltas)]
        event = events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)
        return self.sampler.event(event)

    def as_json(self) -> dict[str, object]:
        """Return the fields as JSON."""
        return self._fields(self.sampler.as_json())

    def as_line(self) -> dict[str, object]:
        """Return the fields of a ledger line."""
        return self._fields(self.sampler.as_line())

    def _fields(self, sampler: Mapping[str, Any]) -> dict[str, object]:
        fields: dict[str, object] = {"kinds": dict(self.kinds), "deltas": dict(self.deltas)}
        fields["trials"] = [encode(trial) for trial in self.trials]
        optional = {name: value for name, value in fields.items() if value}
        first = {"stage": self.stage, "sample_rate": self.sample_rate, "multipliers": dict(self.multipliers)}
        return first | optional | dict(sampler)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Access:
        """Return the access that `as_json` described.

        Raises:
            ValueError: if the fields describe none.
        """
        check_shape(fields, _SHAPE)
        trials = tuple(decode(trial) for trial in fields.get("trials", ()))
        kinds, deltas = fields.get("kinds", {}), fields.get("deltas", {})
        return cls(fields["stage"], fields["multipliers"], sampler_from_json(fields), kinds, deltas, trials)


def dominating_laplace(epsilon: float) -> float:
    """Return the multiplier of the Laplace noise that dominates every `epsilon`-private mechanism, at every delta.

    The worst of these is randomised response, of total variation ``(e^eps - 1) / (e^eps + 1)``; Laplace noise with as
    large a total variation has multiplier ``1 / (2 ln((1 + e^eps) / 2))``, and is above it everywhere.

    Example:
        >>> dominating_laplace(1.0) < 1.0
        True
    """
    # ln((1 + e^eps) / 2), without overflow.
    return 1.0 / (2.0 * (epsilon + math.log1p(math.exp(-epsilon)) - math.log(2.0)))


@dataclass(frozen=True, eq=False)
class LotId:
    """One draw of records, for one access.

    `Account.sample` issues the draws that an access may be opened against. One that is made by hand belongs to records
    that no sampler has drawn: gradients may be computed from them, but no step can be taken.

    Args:
        size: the number of records; private.
        parts: the number of processes that have a part of the lot each.
        persons: (size,) the person of each record, counted from 0 within the lot; private. None where each is a unit alone.
        step: the number of the step that it was drawn for, where records take turns; None for any.
    """

    stage: str | None = None
    size: int | None = field(default=None, repr=False)
    parts: int = 1
    persons: np.ndarray | None = field(default=None, repr=False)
    step: int | None = None

    @property
    def units(self) -> int | None:
        """The number of units of privacy, persons or records; private. None where `size` is."""
        return self.size if self.persons is None else len(np.unique(self.persons))


class IssuedLots:
    """The draws of one account: those that no access was made from yet, and those that are spent."""

    def __init__(self) -> None:
        self._issued: weakref.WeakSet[LotId] = weakref.WeakSet()
        self._spent: weakref.WeakSet[LotId] = weakref.WeakSet()

    def issue(self, draw: LotId) -> LotId:
        """Add a draw, which one access may be opened against."""
        self._issued.add(draw)
        return draw

    def check(self, access: Access, draw: LotId) -> None:
        """Raise LedgerError unless a draw was issued for such an access and is not spent; see `Account.check_draw`."""
        if draw in self._spent:
            raise LedgerError(
                "these records were used for an access already: draw a new lot for each step, and let one optimizer take "
                "all that is computed from a lot"
            )
        stage = access.stage
        if draw in self._issued and draw.stage == stage:
            return
        which = f"were drawn for stage {draw.stage!r}, or with another account," if draw.stage else "were not drawn at all,"
        raise LedgerError(
            f"stage {stage!r}: these records {which} so the plan's rate of {access.sample_rate:g} says nothing about them: "
            f"take each lot from PoissonLots or poisson_loader(records, account, stage={stage!r}), or the batches of an "
            "Opacus loop from AccountEngine(account).make_private(...); a full lot is drawn so, too. Nothing was charged"
        )

    def take(self, access: Access, draw: LotId, step: int) -> None:
        """Take a draw for the one access that it may be used for, with the number of that.

        Raises:
            LedgerError: as `check`, and for a lot that was drawn for another step.
        """
        self.check(access, draw)
        if draw.step is not None and draw.step != step:
            raise LedgerError(
                f"stage {draw.stage!r}: these records were drawn for step {draw.step}, and step {step} is next: records "
                "take turns there, so draw its own lot for each step. Nothing was charged"
            )
        self._issued.discard(draw)
        self._spent.add(draw)


class OpenAccess:
    """An access whose ledger line is written: each of its noises may be drawn once, until it is closed.

    Attributes:
        number: the number of accesses of its stage that came before and left their mark; public.
        max_rows: the most records that the unit of privacy has.
        ranks: the processes that share the access: each has a part of the records and draws a part of the noise.
        correlated: the noise of earlier steps, of which this one's takes back a part; None for independent noise.
        step: the number of accesses of its stage that were made before, lost ones among them.
        drawn: the noises that were drawn so far, in order.
    """

    def __init__(
        self,
        access: Access,
        stream: PrivateStream,
        ranks: Ranks,
        relation: str = ADD_OR_REMOVE_ONE,
        number: int = 0,
        max_rows: int = 1,
        correlated: CorrelatedNoise | None = None,
        step: int = 0,
    ) -> None:
        self.access, self.stream, self.relation, self.number = access, stream, relation, number
        self.max_rows, self.ranks = max_rows, ranks
        self.correlated, self.step = correlated, step
        self.drawn: list[DrawnNoise] = []
        self._undrawn = dict(access.multipliers)
        self._open, self._process = True, os.getpid()

    @property
    def private(self) -> bool:
        """False in the non-private twin, where nothing is clipped and no noise is drawn."""
        return self.access.private

    def consume(self, name: str, kind: str = GAUSSIAN) -> float:
        """Return the multiplier of the noise `name`, which is thereby used up.

        Raises:
            LedgerError: if the access is closed, does not list the noise, lists it as another kind, or has given it out
                already; or in a forked child, where it would be drawn a second time.
        """
        if os.getpid() != self._process:
            raise LedgerError(f"noise {name!r}: this access belongs to process {self._process}, which forked since")
        if not self._open:
            raise LedgerError(f"noise {name!r}: the access of stage {self.access.stage!r} is closed")
        if name not in self._undrawn:
            raise LedgerError(
                f"noise {name!r} was drawn already or is not listed; stage {self.access.stage!r} has "
                f"{listed(sorted(self._undrawn)) or 'none'} left of {listed(sorted(self.access.multipliers))}"
            )
        if self.ranks.size > 1 and kind != GAUSSIAN:
            raise LedgerError(
                f"noise {name!r}: {kind} is not a sum of parts, so {self.ranks.size} processes cannot share it"
            )
        if self.access.kind(name) != kind:
            planned = self.access.kind(name)
            raise LedgerError(f"noise {name!r} of stage {self.access.stage!r} is {planned} in the plan, not {kind}")
        return self._undrawn.pop(name)

    def _close(self) -> None:
        self._open = False

    def _check_used_up(self) -> None:
        if self._undrawn and self.private:
            raise LedgerError(f"stage {self.access.stage!r}: {listed(sorted(self._undrawn))} was paid for and never drawn")
