"""Noise that takes back a part of what earlier steps have added, and its private state beside the ledger of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.noise.units import round_to_grid_
from lightning_dpgen.privacy.sampling.strategy import Strategy

if TYPE_CHECKING:
    from lightning_dpgen.privacy.access import Access


class CorrelatedNoise:
    """The rows of ``C^-1 Z``, one after the other: Z is drawn anew in each step, and earlier rows are kept in memory.

    With coefficients c a row is ``x_t = z_t - sum_i c_i x_{t-i}``, and the memory holds the last rows. It is as secret as
    the noise of released steps, which it is made of.

    Rows whose memory was lost count as zeros. This costs no privacy, only accuracy: the matrix that was then followed has
    zeros in place of some entries of C, so that no record reaches farther (docs/guarantees/correlated_noise.md, "Correlated
    noise").

    Attributes:
        step: the number of steps that the memory stands after.

    Example:
        >>> noise = CorrelatedNoise(Strategy(steps=4, period=4, coefficients=(1.0, 0.5)), PrivateStream())
        >>> noise.add_(torch.zeros(3), step=0, multiplier=1.0, scale=0.1).shape
        torch.Size([3])
        >>> noise.step
        1
    """

    def __init__(self, strategy: Strategy, stream: PrivateStream) -> None:
        self._strategy, self._stream = strategy, stream
        self.step = 0
        # (bands - 1, d), the last rows: that of step t stands at t modulo their number.
        self._memory: Tensor | None = None

    @property
    def _slots(self) -> int:
        return len(self._strategy.coefficients) - 1

    def add_(self, out: Tensor, step: int, multiplier: float, scale: float) -> Tensor:
        """Add ``scale`` times the row of a step to `out`, in place, and round the sum to the grid of the noise drawn anew.

        The memory keeps the row as it was drawn: what is released is then a function of the sums with all rows.

        Args:
            out: a contiguous tensor of d numbers; of the same d in each step.
            step: the number of the step, from 0; steps that were left out count as rows that were lost.
            multiplier: the standard deviation of the independent noise Z over the sensitivity of the strategy.
            scale: the sensitivity of this step's numbers to one record, public.

        Raises:
            ValueError: for a step that the memory stands behind, or another number of numbers than before.
        """
        if step < self.step:
            raise ValueError(f"step={step}: noise of {self.step} steps was drawn, and none is drawn twice")
        deviation = multiplier * self._strategy.sensitivity
        row = self._stream.add_normal_(torch.zeros_like(out).view(-1), deviation)
        if self._slots:
            memory = self._memory_for(row)
            for lost in range(self.step, step):
                memory[lost % self._slots] = 0.0
            row.addmv_(memory.T, self._weights(step).to(row), alpha=-1.0)
            memory[step % self._slots] = row
        self.step = step + 1
        out.view(-1).add_(row, alpha=scale)
        return round_to_grid_(out, deviation * scale)

    def _memory_for(self, row: Tensor) -> Tensor:
        """Return the memory, on the device of a row."""
        if self._memory is None:
            self._memory = row.new_zeros(self._slots, len(row))
        if self._memory.shape[1] != len(row):
            raise ValueError(
                f"{len(row)} numbers, and {self._memory.shape[1]} in the steps before: correlated noise needs the same "
                "parameters in every step"
            )
        self._memory = self._memory.to(row)
        return self._memory

    def _weights(self, step: int) -> Tensor:
        """Return the (slots,) parts of the memory that a step takes back."""
        weights = torch.empty(self._slots, dtype=torch.float64)
        places = (step - 1 - torch.arange(self._slots)) % self._slots
        weights[places] = torch.tensor(self._strategy.coefficients[1:], dtype=torch.float64)
        return weights

    @property
    def state(self) -> dict[str, Any]:
        """The memory and the number of steps that it stands after; as secret as the noise."""
        return {"step": self.step, "memory": None if self._memory is None else self._memory.cpu()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.step, self._memory = state["step"], state["memory"]


class CorrelatedState:
    """The memory of correlated noise, and the group of each record, of the stages of one account.

    Both are secret for ever: with the memory the noise of released steps can be computed, and with the groups it is known
    whose turn a step was. They stand in a file beside the ledger, which its owner alone may read, and nowhere else: in no
    checkpoint, no state of an optimizer and no release. Groups are written before they are first used, the memory when the
    run is saved, and the file is erased after the last step.

    Args:
        ledger: the file of the ledger; None keeps all of it in memory.
        run: the identity of the ledger.
    """

    def __init__(self, ledger: Path | None, run: str, stream: PrivateStream) -> None:
        self._path = None if ledger is None else ledger.with_name(f"{ledger.name}.noise")
        self._run, self._stream = run, stream
        self._noises: dict[str, CorrelatedNoise] = {}
        self._groups: dict[str, np.ndarray] = {}
        # Contents of the file when it was first looked at, by stage; None before.
        self._stages: dict[str, Any] | None = None

    def noise(self, access: Access, step: int) -> CorrelatedNoise | None:
        """Return the noise of the steps of an access; None where it is independent.

        A memory that was not saved is gone, which costs accuracy alone (`CorrelatedNoise`).
        """
        strategy = access.sampler.noise_strategy
        if strategy is None or not access.private:
            return None
        if access.stage not in self._noises:
            self._noises[access.stage] = CorrelatedNoise(strategy, self._stream)
            saved = self._saved().get(access.stage, {}).get("noise")
            if step and saved is not None and saved["step"] <= step:
                self._noises[access.stage].restore(saved)
        return self._noises[access.stage]

    def turn(self, stage: str, period: int, step: int, units: int) -> np.ndarray:
        """Return the sorted positions of the records whose turn a step is, of those in `period` groups; private.

        Raises:
            LedgerError: if the groups of a run that goes on are gone, or are those of another number of records.
        """
        if period == 1:
            return np.arange(units)
        if stage not in self._groups:
            saved = self._saved().get(stage, {}).get("groups")
            if saved is None and step:
                raise LedgerError(
                    f"stage {stage!r}: the groups of its records, {self._path}, are gone, and with others its cost "
                    "is not the planned one: begin a new run, whose cost adds to what this one has spent"
                )
            if saved is None:
                self._groups[stage] = self._stream.integers(units, period).astype(np.int32)
                self.save()
            else:
                self._groups[stage] = saved.numpy()
        groups = self._groups[stage]
        if len(groups) != units:
            raise LedgerError(f"stage {stage!r}: its groups are those of other records: pass the same ones")
        return np.flatnonzero(groups == step % period)

    def save(self) -> None:
        """Write what has to be known again after a crash."""
        if self._path is None or not (self._noises or self._groups):
            return
        stages = dict(self._saved())
        for name in {*self._noises, *self._groups}:
            # Parts that were not taken up from the file yet stay in it.
            stages[name] = {"noise": None, "groups": None} | stages.get(name, {})
            if name in self._noises:
                stages[name]["noise"] = self._noises[name].state
            if name in self._groups:
                stages[name]["groups"] = torch.from_numpy(self._groups[name])
        durable.save(self._path, {"run": self._run, "stages": stages})

    def erase(self, stage: str) -> None:
        """Forget a stage that is complete, here and in the file."""
        known = [by_stage.pop(stage, None) for by_stage in (self._noises, self._groups, self._saved())]
        if self._path is not None and any(value is not None for value in known):
            self._path.unlink(missing_ok=True)
            self.save()

    def _saved(self) -> dict[str, Any]:
        """Return what the file holds of this run, by stage; raise DamagedState for a part of a file."""
        if self._stages is None:
            stages: dict[str, Any] = {}
            if self._path is not None and self._path.exists():
                content = durable.load(self._path, "run", "stages")
                # A file of another run is not this one's.
                stages = content["stages"] if content["run"] == self._run else {}
            self._stages = stages
        return self._stages
