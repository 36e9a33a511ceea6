"""Epsilon of twelve settings by four accountants, and the seconds of ours.

    python -m experiments.accounting.accountants

Ours is `privacy.accounting.accountant.compute_epsilon`. PRV and RDP are those of Opacus; PRV returns an upper bound,
with its error of 0.01 added, and neither takes Laplace noise. Quadrature (beside this file) shares no code with any of
them. The relation is add or remove one record.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import dp_accounting
from opacus.accountants import PRVAccountant, RDPAccountant

from experiments.accounting.quadrature import Part, epsilon_by_quadrature
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.event_parts import gaussian_history

PRV_ERROR = 0.01
TOLERANCE, SMALL = 0.005, 0.05


@dataclass(frozen=True)
class Setting:
    """A composition and the delta at which it is asked for."""

    name: str
    delta: float
    parts: tuple[Part, ...]

    @property
    def event(self) -> dp_accounting.DpEvent:
        return dp_accounting.ComposedDpEvent([_event(part) for part in self.parts])


def _event(part: Part) -> dp_accounting.DpEvent:
    if part.laplace:
        event: dp_accounting.DpEvent = dp_accounting.LaplaceDpEvent(part.multiplier)
    else:
        event = dp_accounting.GaussianDpEvent(part.multiplier)
    if part.rate < 1.0:
        event = dp_accounting.PoissonSampledDpEvent(part.rate, event)
    return dp_accounting.SelfComposedDpEvent(event, part.count)


def lots(rate: float, multiplier: float, count: int, delta: float) -> Setting:
    """Return the event of `count` equal Poisson lots."""
    return Setting(f"q={rate:g} m={multiplier:g} x {count}", delta, (Part(multiplier, count, rate),))


SETTINGS = [
    lots(1.0, 0.5, 1, 1e-5),
    lots(1.0, 10.0, 100, 1e-6),
    lots(0.5, 1.0, 1, 1e-5),
    lots(0.5, 7.0, 60, 1e-5),
    lots(0.1, 10.0, 2000, 1e-6),
    lots(0.05, 2.0, 300, 1e-6),
    lots(0.01, 1.0, 500, 1e-5),
    lots(0.0017, 0.97, 11_780, 1e-5),
    lots(2.2e-5, 0.5, 12_000, 1e-5),
    lots(2.2e-5, 0.97, 12_000, 1e-6),
    Setting("q=.01 m=1.5 x 1000, q=.02 m=3 x 2000", 1e-5, (Part(1.5, 1000, 0.01), Part(3.0, 2000, 0.02))),
    Setting(
        "2 Laplace m=8, Gaussian m=6, q=.01 m=1.2 x 800",
        1e-6,
        (Part(8.0, 2, laplace=True), Part(6.0), Part(1.2, 800, 0.01)),
    ),
]


@dataclass(frozen=True)
class Answers:
    """Epsilon and seconds by each accountant; None where it does not know the event."""

    ours: float
    prv: float | None
    rdp: float | None
    quadrature: float
    error: float
    seconds: tuple[float, float, float, float]

    @property
    def excess(self) -> float:
        """The excess of ours over quadrature, as a share of the latter."""
        return self.ours / self.quadrature - 1.0

    @property
    def agrees(self) -> bool:
        """True if ours is below by at most the quadrature's error, and above by at most 0.5 % unless epsilon is small."""
        sound = self.ours >= self.quadrature - self.error
        return sound and (self.quadrature <= SMALL or self.excess <= TOLERANCE)


def ask(setting: Setting) -> Answers:
    """Ask all four accountants about one setting."""
    ours, first = _timed(lambda: compute_epsilon(setting.event, setting.delta).epsilon)
    prv, second = _timed(lambda: by_opacus(setting, PRVAccountant, eps_error=PRV_ERROR))
    rdp, third = _timed(lambda: by_opacus(setting, RDPAccountant))
    (quadrature, error), fourth = _timed(lambda: epsilon_by_quadrature(setting.parts, setting.delta))
    return Answers(ours, prv, rdp, quadrature, error, (first, second, third, fourth))


def by_opacus(setting: Setting, accountant, **options) -> float | None:
    """Return epsilon by an accountant of Opacus, or None if it does not know some part."""
    history = gaussian_history(setting.event)
    if history is None:
        return None
    accountant = accountant()
    accountant.history = history
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta=setting.delta, **options))


def _timed(call):
    start = time.perf_counter()
    return call(), time.perf_counter() - start


def _number(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.5f'):>9}"


# name, most seconds, event
TIMES = [
    ("12,000 equal lots, q=.0017 m=.97", 3.0, lots(0.0017, 0.97, 12_000, 1e-5)),
    ("12,000 equal lots, q=2.2e-5 m=.97", 60.0, lots(2.2e-5, 0.97, 12_000, 1e-5)),
    (
        "200 noise levels, q=.0017 m=.8..2, 60 lots each",
        120.0,
        Setting("", 1e-5, tuple(Part(0.8 + 1.2 * i / 199, 60, 0.0017) for i in range(200))),
    ),
]


def main() -> None:
    print(f"PRV holds {PRV_ERROR} of its own error; - : not known to that accountant; s: seconds of each, in this order")
    print(f"{'setting':<48} {'delta':>6} {'ours':>9} {'PRV':>9} {'RDP':>9} {'quadrature':>10} {'+-':>7} {'ours/q-1':>9}  s")
    for setting in SETTINGS:
        a = ask(setting)
        seconds = " ".join(f"{s:.2f}" for s in a.seconds)
        print(
            f"{setting.name:<48} {setting.delta:>6.0e} {_number(a.ours)} {_number(a.prv)} {_number(a.rdp)} "
            f"{a.quadrature:>10.6f} {a.error:>7.0e} {a.excess:>9.1e}  {seconds}{'' if a.agrees else '  DISAGREES'}",
            flush=True,
        )
    print(f"{'time of one account':<48} {'s':>6} {'most':>6} {'epsilon':>9}")
    for name, most, setting in TIMES:
        answer, seconds = _timed(lambda setting=setting: compute_epsilon(setting.event, setting.delta).epsilon)
        late = "" if seconds <= most else "  TOO SLOW"
        print(f"{name:<48} {seconds:>6.2f} {most:>6.0f} {answer:>9.5f}{late}", flush=True)


if __name__ == "__main__":
    main()
