"""The private state of correlated noise and of groups that take turns, beside the ledger of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.sampling.correlated_noise import CorrelatedNoise


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
        self._held: dict[str, Any] | None = None

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
        known = [held.pop(stage, None) for held in (self._noises, self._groups, self._saved())]
        if self._path is not None and any(value is not None for value in known):
            self._path.unlink(missing_ok=True)
            self.save()

    def _saved(self) -> dict[str, Any]:
        """Return what the file holds of this run, by stage.

        Raises:
            DamagedState: for a file that is no such thing, or a part of it.
        """
        if self._held is None:
            held: dict[str, Any] = {}
            if self._path is not None and self._path.exists():
                content = durable.load(self._path, "run", "stages")
                # A file of another run is not this one's.
                held = content["stages"] if content["run"] == self._run else {}
            self._held = held
        return self._held
