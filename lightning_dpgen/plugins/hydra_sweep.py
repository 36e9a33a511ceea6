"""The trainings of a Hydra sweep of a person's own: a list beside its jobs, and what all of them tell together.

A job that begins a `PrivateTraining` in no study enters it in the list before its first step, so that one that fails later
counts, too. The processes of all launchers share the list where they share the folder of the sweep. Nothing of Hydra is
imported for programs that do not run under it.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_dpgen.common.folders import make_private, read_plain
from lightning_dpgen.common.strict_json import check_shape, parse_json, shape
from lightning_dpgen.privacy import chain, durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.events import decode, encode
from lightning_dpgen.privacy.errors import LedgerError

_FOLDER, _FILE = ".lightning_dpgen", "trainings.json"
# Seconds that a job waits for others to write.
_PATIENCE = 60.0
_LARGEST_FILE = 2**28
_ENTRY = {
    "type": "object",
    "required": ["run", "event", "delta"],
    "properties": {"run": {"type": "string"}, "event": {"type": "object"}, "delta": {"type": "number"}},
}
_SHAPE = shape(trainings={"type": "array", "items": _ENTRY})
_LOG = logging.getLogger("lightning_dpgen.sweep")


@dataclass(frozen=True)
class SweepList:
    """The list of the trainings of a sweep.

    Records may differ between the jobs: one person may be in several preparations of the same data, so all trainings are
    composed, and the line says for whom that holds.

    Args:
        folder: of the sweep (`hydra.sweep.dir`).
    """

    folder: Path

    @classmethod
    def of_this_job(cls) -> SweepList | None:
        """Return the list of the sweep that this process runs a job of; None where it runs none."""
        loaded = sys.modules.get("hydra.core.hydra_config")
        if loaded is None or not loaded.HydraConfig.initialized():
            return None
        settings = loaded.HydraConfig.get()
        if getattr(settings.mode, "name", None) != "MULTIRUN":
            return None
        return cls(Path(settings.runtime.cwd, settings.sweep.dir))

    @property
    def _path(self) -> Path:
        return self.folder / _FOLDER / _FILE

    def enter(self, account: Account) -> None:
        """Enter a training with all that its plan draws; one that goes on is entered once.

        Raises:
            LedgerError: if the file of the list is damaged.
            OSError: if it cannot be written.
        """
        plan = account.plan
        if not plan.private:
            return
        make_private(self._path.parent, _FILE)
        with chain.hold(self._path, _PATIENCE):
            others = [entry for entry in self._read() if entry["run"] != account.ledger.run]
            entry = {"run": account.ledger.run, "event": encode(plan.event), "delta": plan.delta}
            durable.write(self._path, json.dumps({"trainings": [*others, entry]}).encode())

    def describe(self) -> str | None:
        """Return what the trainings so far tell together; None for less than two.

        Raises:
            LedgerError: if the file of the list is damaged.
        """
        # Imported where something is composed.
        from lightning_dpgen.privacy.accounting.joint import say_together

        runs = self._read()
        if len(runs) < 2:
            return None
        delta = max(run["delta"] for run in runs)
        together = say_together([decode(run["event"]) for run in runs], delta, "trainings of this sweep")
        return (
            f"{together}. Choosing one by how it compares with these records uses all of them; public or simulated "
            "records have no such people. A Study holds such a sum below a total"
        )

    def tell(self) -> None:
        """Log what the trainings so far tell together, by the logger lightning_dpgen.sweep."""
        if (text := self.describe()) is not None:
            _LOG.warning(text)

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        try:
            content = parse_json(read_plain(self._path, _LARGEST_FILE))
            check_shape(content, _SHAPE)
        except ValueError:
            raise LedgerError(
                f"{self._path}: is damaged, so what the trainings of this sweep tell together is not known; move it away, "
                "and add what their certificates say"
            ) from None
        return content["trainings"]
