"""A callback of Hydra that says at the end of a sweep what its trainings tell together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from lightning_dpgen.plugins.hydra_sweep import SweepList


class JointEpsilon(Callback):
    """Logs, once all jobs have ended, what the `PrivateTraining`s of a sweep tell together.

    Each job says it without this callback, for the trainings so far; the callback says it once more in the process that
    has started them, whichever ended last. It takes one line of the configuration:

    Example:
        >>> from hydra.utils import instantiate
        >>> instantiate({"_target_": "lightning_dpgen.plugins.hydra_callback.JointEpsilon"})  # hydra.callbacks.dpgen
        JointEpsilon()
    """

    def __repr__(self) -> str:
        return "JointEpsilon()"

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        SweepList(Path(config.hydra.runtime.cwd, config.hydra.sweep.dir)).tell()
