"""The command `train` once its settings are read: one run, on one device or several."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from lightning_dpgen.cli import launch
from lightning_dpgen.cli.guarded import guarded, tell_release
from lightning_dpgen.common import pace
from lightning_dpgen.measure.labels import LABELS
from lightning_dpgen.runs import folder as run_folder
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.initial import with_kept_initial
from lightning_dpgen.runs.reporter import TerminalReporter
from lightning_dpgen.runs.run import settle, train, trains_on_ray
from lightning_dpgen.specs.compute import RaySpec
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import OK, RANK_LOST, UsageError


def run(argv: Sequence[str], spec: RunSpec, source: Source) -> int:
    folder = run_folder.choose(spec.run_dir)
    # Whatever is wrong with the settings is said before processes are started.
    if isinstance(spec.compute, RaySpec) and trains_on_ray(_begun(spec, folder), source):
        # It imports what starts workers, which other runs do not wait for.
        from lightning_dpgen.cli import ray_launch

        ray_launch.check_trainer(spec.trainer, spec.compute)
        with pace.hidden():
            return _tell(ray_launch.launch(argv, folder, spec), folder)
    if launch.to_launch(spec.trainer):
        settle(_begun(spec, folder), source)
        # The first of them shows how far all are.
        with pace.hidden():
            return launch.launch(argv, folder, spec.trainer.devices)
    reporter = TerminalReporter()
    with launch.together(spec.trainer) as ranks:
        if not ranks.leads:
            # It imports what networks are trained with, as `runs/learn.py` does where it trains one.
            from lightning_dpgen.runs.worker import run_worker

            return run_worker(spec, source, folder, ranks)
        try:
            certificate = guarded("train", argv, folder, lambda asked: train(spec, source, folder, asked, reporter, ranks))
        except UsageError as mistake:
            if mistake.status == RANK_LOST and launch.watched():
                return RANK_LOST
            raise
    return _tell(certificate, folder, reporter.warned)


def _begun(spec: RunSpec, folder: RunFolder) -> RunSpec:
    """Return the settings with the network that an unfinished run has started from."""
    return with_kept_initial(spec, folder) if folder.unfinished else spec


def _tell(certificate: dict[str, Any], folder: RunFolder, warned: Sequence[str] = ()) -> int:
    """Print what there is now, what was warned of, and return the exit status."""
    labelled = any(stage["name"] == LABELS for stage in certificate["stages"])
    predict = shlex.join(["dpgen", "predict", str(folder.release), "FILE", "-o", "labels.csv"])
    logs = shlex.join(["tensorboard", "--logdir", str(folder.private)])
    tell_release(
        certificate,
        folder,
        f"{'one person' if 'max_rows' in certificate['declared'] else 'one record'} added or removed",
        shlex.join(["dpgen", "sample", str(folder.release), "-n", "1000", "-o", "more.parquet"]),
        *([predict] if labelled else []),
        f"open {shlex.quote(str(folder.release / 'report.html'))} in a browser; {logs}",
        warned=warned,
    )
    return OK
