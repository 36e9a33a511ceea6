"""Training curves that are paid for: noisy means of numbers that the training step computes of each record.

Each step draws one noise more, in the access of its lot. With v_ij the number j of record i, clamped to public bounds of
middle m_j and half width h_j, and k such numbers:

    x_ij    <-  round(2^20 (v_ij - m_j) / h_j),   x_i0 = 2^20               private; whole, from -2^20 to 2^20
    s       <-  2^-20 sum_i x_i + N(0, (multiplier sqrt(k + 1))^2)          public; a record moves the sum by sqrt(k + 1)
    mean_j  <-  m_j + h_j (sum of s_j) / (sum of s_0), over the steps of a window

So a mean is divided by a noisy number of its records, which the lots and a declared number have only in expectation.

The records are those of the lot, so gradient and numbers are one subsampled Gaussian (docs/guarantees/lots.md, "One lot,
one event"), and the plan gives this noise a share of its inverse square. No forward pass is made for it, and a mean is over
all records of a window of steps, as a curve of training is anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_dpgen.common.arguments import check_number
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.optim.stages import METRICS
from lightning_dpgen.plugins.lot_log import ERROR, PRIVATE, PUBLIC
from lightning_dpgen.privacy.access import OpenAccess
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.sampling.lots import Lot

# The name of the loss that a training step returns.
LOSS = "loss"
# A number in whole multiples of its half width over this: their sums are exact, and float64 holds them.
_STEPS = 2**20
# The quantile of a normal that 95 % of its absolute values are below.
_NORMAL_95 = 1.959964


@dataclass(frozen=True)
class BoundedNumbers:
    """Numbers of a record, each with public bounds, to which it is clamped.

    Args:
        bounds: the least and the largest value of each, by the name that the module logs it by.

    Raises:
        ValueError: for no numbers, or bounds that are none.

    Example:
        >>> numbers = BoundedNumbers({"loss": (0, 4)})
        >>> numbers.sum_of({"loss": torch.tensor([0.0, 3.0, 9.0, float("nan")])}, 4) / 2**20
        tensor([0.5000, 4.0000])
    """

    bounds: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        if not isinstance(self.bounds, Mapping) or not self.bounds:
            raise ValueError(f"bounds={self.bounds!r}: expected the bounds of each number, as in {{'loss': (0, 5)}}")
        for name, pair in self.bounds.items():
            if not isinstance(name, str) or not name or name.endswith(ERROR) or name.startswith(PUBLIC):
                raise ValueError(
                    f"bounds[{name!r}]: expected the name by which the module logs the number, not under {PUBLIC} and "
                    f"without {ERROR} at its end, or {LOSS!r}"
                )
            if not (isinstance(pair, tuple | list) and len(pair) == 2):
                raise ValueError(f"bounds[{name!r}]={pair!r}: expected the least and the largest value, as in (0, 5)")
            for end in pair:
                check_number(f"bounds[{name!r}]", end, math.isfinite, "finite")
            if not pair[0] < pair[1] or math.isinf(pair[1] - pair[0]):
                raise ValueError(f"bounds[{name!r}]={pair!r}: expected the smaller one first, as in {pair[::-1]!r}")
        if len(set(self.public)) < len(self.bounds):
            raise ValueError(f"bounds {listed(sorted(self.bounds))}: two of them have the same name under {PUBLIC}")

    @property
    def public(self) -> list[str]:
        """The name of each mean."""
        return [PUBLIC + name.removeprefix(PRIVATE) for name in self.bounds]

    @property
    def sensitivity(self) -> float:
        """The most by which one record moves the sums and their number, in half widths, rounded up."""
        return math.nextafter(math.sqrt(len(self.bounds) + 1), math.inf)

    def check_scalar(self, name: str, value: Any) -> None:
        """Refuse more than one number of a record.

        Raises:
            ValueError: naming it.
        """
        if name in self.bounds and isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(
                f"self.log({name!r}, ...) of a tensor {tuple(value.shape)}, whose noisy mean is bought: expected a single "
                "number, such as the mean over the batch"
            )

    def check_logged(self, step: str, logged: Mapping[str, Any]) -> None:
        """Refuse names that a step does not log of its records.

        Args:
            step: the name of the step.
            logged: what it logs by name: a tensor of a number a row, or a number that follows from no record.

        Raises:
            ValueError: listing what it does log.
        """
        of_records = [name for name, x in logged.items() if isinstance(x, Tensor) and x.dim()]
        for name in self.bounds:
            if name in of_records:
                continue
            reason = "a number that follows from no record" if name in logged else "nothing by that name"
            raise ValueError(
                f"bounds[{name!r}]: {step} logs {reason}; of its records it has {listed(sorted(of_records)) or 'none'}: "
                "expected one of these names, or self.log(...) of the number"
            )

    def sum_of(self, values: Mapping[str, Tensor], size: int) -> Tensor:
        """Return the exact sums (k + 1,) over records, int64: in multiples of 2^-20 half widths from the middle, and their
        number as such multiples of 1.

        Args:
            values: the numbers (B,) of records by name; one that is not there adds nothing.
            size: B, for a lot without a record: what is there then is of made-up ones.

        A number that is not finite is at the end that it is nearer to, and NaN in the middle.
        """
        some = next((x for x in values.values() if isinstance(x, Tensor)), None)
        device = torch.device("cpu") if some is None else some.device
        if not size:
            return torch.zeros(len(self.bounds) + 1, dtype=torch.int64, device=device)
        # Each operation is on one number alone, so its bits follow from that number.
        rows = torch.zeros(len(self.bounds) + 1, size, dtype=_real(device), device=device)
        rows[-1] = 1.0
        for row, (name, (low, high)) in zip(rows[:-1], self.bounds.items(), strict=True):
            if name in values:
                middle, half = 0.5 * low + 0.5 * high, 0.5 * (high - low)
                row.copy_(values[name]).sub_(middle).div_(half)
        # Rounded after it is clamped, so no number is above 2^20.
        return rows.clamp_(-1.0, 1.0).nan_to_num_(nan=0.0).mul_(_STEPS).round_().to(torch.int64).sum(dim=1)

    @property
    def unit(self) -> float:
        """The half widths that 1 stands for in `sum_of`."""
        return 1.0 / _STEPS

    def in_half_widths(self, sums: Tensor) -> Tensor:
        """Return sums of `sum_of` as real numbers: exact, up to 2^33 records."""
        return sums.to(_real(sums.device)).mul_(self.unit)

    def of_records(self, logged: Mapping[str, Any], lot: Lot) -> dict[str, Tensor]:
        """Return the bought ones among logged numbers, (B,) for the records of a lot.

        Args:
            logged: what a step has logged of the lot by name, a number a row: those of slots, where the lot is in slots.

        Raises:
            ValueError: for numbers of other rows.
        """
        values = {}
        for name, rows in logged.items():
            # A number that follows from no record is none of a record.
            if name in self.bounds and isinstance(rows, Tensor) and rows.dim():
                values[name] = rows if lot.slots is None else rows[lot.slots.places_on(rows.device)]
                if len(lot) and values[name].shape != (len(lot),):
                    raise ValueError(f"self.log({name!r}, ...): expected one number of each record, which is alone there")
        return values

    def means(
        self, sums: Sequence[float], counts: Sequence[float], expected: Sequence[float], deviations: Sequence[float]
    ) -> dict[str, float]:
        """Return the noisy mean of each number that was there, and its error bar, by their names.

        A count that noise has moved by more than a factor of 2 is taken for half or twice the expected one. The error bar
        is 1.96 standard deviations of the quotient, by the delta method; it holds where noise is small beside the count.

        Args:
            sums, counts: the noisy sums (k,) in half widths, and the noisy numbers of the records behind them.
            expected: the expected numbers of these records; 0 leaves a number out.
            deviations: the standard deviations of the noise on each sum, and on its count.
        """
        found = {}
        for name, (low, high), total, count, about, deviation in zip(
            self.public, self.bounds.values(), sums, counts, expected, deviations, strict=True
        ):
            if about:
                count, half = min(max(count, 0.5 * about), 2.0 * about), 0.5 * (high - low)
                mean = total / count
                found[name] = 0.5 * low + 0.5 * high + half * mean
                found[name + ERROR] = _NORMAL_95 * half * deviation * math.hypot(1.0, min(abs(mean), 1.0)) / count
        return found


def check_purchase(share: float, every: int) -> None:
    """Refuse a share of the budget, or a number of steps, that is none.

    Raises:
        ValueError: naming it.
    """
    check_number("share", share, lambda part: 0.0 < part < 1.0, "above 0, below 1: the part of the budget that buys means")
    if type(every) is not int or every < 1:
        raise ValueError(f"every={every!r}: expected a whole number of steps (int), 1 or more")


@dataclass(frozen=True)
class NoisyMetrics:
    """Noisy means of what a training step computes of each record, for `PrivateTraining(metrics=...)`.

    After every so many steps, and after the last one, there is a new mean under ``public/NAME``, and its error bar under
    ``public/NAME_error``: in `trainer.callback_metrics`, in the bar and in every logger.

    Args:
        bounds: the least and the largest value of each number, public, by the name that `self.log` gets; ``loss`` is the
            loss that the training step returns. Values outside are clamped. Narrow bounds have less noise.
        share: the part of the budget that buys them, all numbers and all steps together.
        every: the number of steps over which a mean goes.

    Raises:
        ValueError: for bounds, a share or a number of steps that are none.

    Example:
        >>> NoisyMetrics({"loss": (0, 5), "train_acc": (0, 1)}, share=0.02, every=50).numbers.public
        ['public/loss', 'public/train_acc']
    """

    bounds: Mapping[str, tuple[float, float]]
    share: float = 0.02
    every: int = 50

    def __post_init__(self) -> None:
        check_purchase(self.share, self.every)
        # Bounds are checked where they are taken.
        _ = self.numbers

    @property
    def numbers(self) -> BoundedNumbers:
        return BoundedNumbers(self.bounds)

    def as_json(self) -> dict[str, Any]:
        """Return the purchase as a certificate declares it."""
        return {"bounds": {name: list(pair) for name, pair in self.bounds.items()}, "every": self.every}


class LotMetrics:
    """The sums of the numbers of each lot of a fit, their noise, and the means over windows of steps.

    Args:
        metrics: what is bought.
        account: the account of the fit.
        stage: the plan's stage of its steps.
    """

    def __init__(self, metrics: NoisyMetrics, account: Account, stage: str) -> None:
        self.numbers, self._every = metrics.numbers, metrics.every
        self._account, self._stage = account, stage
        # The exact sums of the parts of a lot; a lot is gone through twice where its norms choose the bound.
        self._parts: dict[int, Tensor] = {}
        self._checked = False
        self._logged: set[str] = set()
        # Noisy sums and counts (2, k) since the last mean, and the steps behind each; all of them are public.
        self._noisy: Tensor | None = None
        self._steps = [0] * len(metrics.bounds)

    def begin(self) -> None:
        """Forget the lot before."""
        self._parts.clear()
        self._logged.clear()

    def check_logged(self, logged: Mapping[str, Any], losses: Tensor | None) -> None:
        """Refuse a training step that does not log what is bought; see `BoundedNumbers.check_logged`.

        Args:
            losses: the losses that it returns, for some records; None for a step of terms.
        """
        self.numbers.check_logged("training_step", logged if losses is None else {LOSS: losses, **logged})
        self._checked = True

    def take(self, part: int, logged: Mapping[str, Any], losses: Tensor | None, lot: Lot) -> None:
        """Take the numbers of the records of a part of a lot.

        Args:
            part: its number.
            logged: what the training step has logged by name, a number a row: those of slots, where a lot is in slots.
            losses: (B,) the losses that it has returned; None for a step of terms.
            lot: the part.

        Raises:
            ValueError: as `BoundedNumbers.of_records`, and `check_logged`.
        """
        if not self._checked:
            # No made-up record could tell.
            self.check_logged(logged, losses)
        values = self.numbers.of_records(logged, lot)
        if losses is not None and LOSS in self.numbers.bounds:
            values.setdefault(LOSS, losses)
        self._parts[part] = self.numbers.sum_of(values, len(lot))
        # No record decides which names are logged (`gradients/isolation`).
        self._logged |= values.keys()

    def release(self, access: OpenAccess) -> None:
        """Add noise to the sums of a lot, in the access of its step."""
        # A step of groups alone has no numbers of records.
        parts = list(self._parts.values()) or [self.numbers.sum_of({}, 0)]
        exact = self.numbers.in_half_widths(torch.stack(parts).sum(dim=0))
        noisy = gaussian(access, METRICS, exact, sensitivity=self.numbers.sensitivity)
        there = torch.tensor([float(name in self._logged) for name in self.numbers.bounds]).to(noisy)
        both = torch.stack([noisy[:-1], noisy[-1].expand(len(there))]) * there
        self._noisy = both if self._noisy is None else both.add_(self._noisy.to(both))
        self._steps = [n + (name in self._logged) for n, name in zip(self._steps, self.numbers.bounds, strict=True)]

    def due(self) -> dict[str, float]:
        """Return the means of the steps since the last ones, with their error bars; nothing before it is their time."""
        step, plan = self._account.step_of(self._stage), self._account.plan
        if self._noisy is None or (step % self._every and self._account.remaining(self._stage)):
            return {}
        access = plan.stage(self._stage).access
        deviation = access.multipliers[METRICS] * self.numbers.sensitivity * plan.max_rows
        expected = [access.sample_rate * (plan.n or 1) * n for n in self._steps]
        sums, counts = self._noisy.tolist()
        means = self.numbers.means(sums, counts, expected, [deviation * math.sqrt(n) for n in self._steps])
        self._noisy, self._steps = None, [0] * len(self._steps)
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return what the next mean goes on from; public."""
        names = list(self.numbers.bounds)
        return {"names": names, "steps": self._steps, "noisy": None if self._noisy is None else self._noisy.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was; from nothing, if that was about other numbers."""
        if state["names"] == list(self.numbers.bounds) and state["noisy"] is not None:
            self._noisy, self._steps = torch.tensor(state["noisy"], dtype=torch.float64), list(state["steps"])


def _real(device: torch.device) -> torch.dtype:
    # Apple's devices have no float64.
    return torch.float32 if device.type == "mps" else torch.float64
