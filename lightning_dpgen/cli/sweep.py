"""`dpgen train -m`: a run for each combination of settings, by Hydra's launchers, and a table at the end.

The grid is spelled in Hydra's words and expanded before anything runs: each combination is checked as `dpgen train` would.
What Hydra is then asked to sweep over are the numbers of the jobs, so that its launchers (its own, joblib, submitit) start
them, here or elsewhere, and each job is `dpgen train` with its own words and folder. A job on several devices starts its
ranks with these words, too, and never the sweep again.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from lightning_dpgen.cli import launch
from lightning_dpgen.cli.hydra_flags import CommandLine, explaining
from lightning_dpgen.common.folders import owner_only, restrict
from lightning_dpgen.common.plain_text import align_columns
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.accounting.events import decode
from lightning_dpgen.privacy.accounting.joint import say_together
from lightning_dpgen.release.files import CERTIFICATE
from lightning_dpgen.runs import run_folder
from lightning_dpgen.runs.paths import remove_blocks
from lightning_dpgen.runs.run import check_run
from lightning_dpgen.runs.run_folder import JOBS, RunFolder
from lightning_dpgen.specs.config_files import NO_FILES, conf_dir, open_hydra
from lightning_dpgen.specs.grid import Job, expand_grid
from lightning_dpgen.specs.run import load_settings
from lightning_dpgen.specs.source import source_of
from lightning_dpgen.specs.usage_error import FAULT, INTERRUPTED, OK, UsageError
from lightning_dpgen.specs.words import name_of, refuse_interpolations, replace_setting, write_word

_SUMMARY = "summary.csv"
# Launchers whose jobs print where the command was given.
_HERE = ("basic", "joblib")
_DONE, _NOT_PRIVATE = "done", "NOT PRIVATE"


def sweep(line: CommandLine) -> int:
    """Run all combinations; gives 0 if all of them ended in a release, else the first other status.

    Raises:
        UsageError: for a grid that makes no sense, or a combination that `dpgen train` would refuse.
    """
    refuse_interpolations(line.hydra)
    if launch.is_launched():
        raise UsageError("-m: start a sweep as one process, without torchrun or srun; each job starts its devices itself")
    jobs, varied = expand_grid(line.words, line.files)
    if "run_dir" in varied:
        raise UsageError("run_dir: expected one folder, in which each run gets a folder")
    run_dir = None
    for number, job in enumerate(jobs):
        try:
            spec = load_settings(job.words)
            run_dir = spec.run_dir
            launch.to_launch(spec.trainer)
            check_run(spec, source_of(spec.data))
        except UsageError as mistake:
            raise UsageError(f"job {number} ({str(job) or 'the only one'}): {mistake}", mistake.status) from None
    with explaining(line.hydra), open_hydra(NO_FILES) as hydra_itself:
        hydra_itself.compose_config("sweep", ["root=.", *line.hydra], RunMode.MULTIRUN)
    root = _root(run_dir, [_words_of(job) for job in jobs])
    what = "1 run" if len(jobs) == 1 else f"{len(jobs)} runs"
    print(f"sweep of {what} in {root}: each is a release of its own, and what they cost adds up", flush=True)
    try:
        _launch(root, len(jobs), line.hydra)
    except KeyboardInterrupt:
        typed = [*line.files.flags(), *line.words, *line.hydra]
        again = shlex.join(["dpgen", "train", "-m", *replace_setting(typed, "run_dir", root)])
        raise UsageError(f"interrupted; what is done stays. To go on with the rest: {again}", INTERRUPTED) from None
    return _print_summary(root, jobs, varied)


@contextmanager
def _output_kept_private(path: Path) -> Iterator[None]:
    """Write what a job prints to a file of the sweep, where its launcher would write it to one of the cluster's.

    A job says privately how many records take part, and how it goes.
    """
    choice = HydraConfig.get().runtime.choices["hydra/launcher"] if HydraConfig.initialized() else _HERE[0]
    if choice in _HERE:
        yield
        return
    with open(path, "a", encoding="utf-8", opener=owner_only) as file, redirect_stdout(file), redirect_stderr(file):
        yield


def _words_of(job: Job) -> list[str]:
    return [word for word in job.words if name_of(word) != "run_dir"]


def job(configuration: DictConfig) -> None:
    """Run one of the jobs, wherever a launcher has started this; a job that fails does not stop the others."""
    from lightning_dpgen.cli.main import main

    root, number = Path(configuration.root), int(configuration.job)
    jobs = json.loads((root / "private" / JOBS).read_text(encoding="utf-8"))
    # A launcher may start it elsewhere, and the words may name files from where the command was given.
    os.chdir(configuration.place)
    folder = RunFolder(root / str(number))
    if folder.release.exists():
        if folder.finished:
            remove_blocks(folder.root)
        return
    begin = time.monotonic()
    with _output_kept_private(root / "private" / f"job{number}.log"):
        numbers = "1" if len(jobs) == 1 else f"0 to {len(jobs) - 1}"
        print(f"\njob {number} of {numbers}: {shlex.join(jobs[number])}", flush=True)
        try:
            status = main(["train", *replace_setting(jobs[number], "run_dir", folder.root)])
        except Exception:
            # A fault of ours: the others need not suffer from it.
            sys.excepthook(*sys.exc_info())
            status = FAULT
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    ended = {"status": status, "seconds": time.monotonic() - begin}
    durable.write(root / "private" / f"job{number}.json", json.dumps(ended).encode())


def _root(run_dir: str | None, jobs: Sequence[Sequence[str]]) -> Path:
    """Return the folder of the sweep, with its jobs written down; an earlier one of the same jobs goes on."""
    folder = run_folder.choose_sweep(run_dir)
    root = folder.root
    jobs_file = root / "private" / JOBS
    if jobs_file.exists():
        if json.loads(jobs_file.read_text(encoding="utf-8")) != [list(words) for words in jobs]:
            raise UsageError(
                f"run_dir={root}: holds a sweep over other settings: give the same settings to go on, or choose another "
                "run_dir"
            )
        run_folder.take(folder)
        return root.absolute()
    if folder.unfinished or (root.exists() and any(root.iterdir())):
        raise UsageError(f"run_dir={root}: is not empty, and holds no sweep; choose another run_dir")
    run_folder.take(folder)
    durable.write(folder.private / JOBS, json.dumps([list(words) for words in jobs]).encode())
    return folder.root.absolute()


def _launch(root: Path, count: int, hydras: Sequence[str]) -> None:
    numbers = f"job={','.join(map(str, range(count)))}"
    places = [write_word("root", root), write_word("place", os.getcwd()), write_word("hydra.sweep.dir", root / "private")]
    # Hydra's application reads the words of its command line, and ends the process where it does not like them.
    with explaining(hydras), _called_with(["dpgen", "--multirun", *places, numbers, *hydras]):
        try:
            hydra.main(config_path=str(conf_dir()), config_name="sweep", version_base="1.3")(job)()
        finally:
            # Hydra and its launchers write there, too.
            restrict(root / "private")


@contextmanager
def _called_with(words: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before


def _print_summary(root: Path, jobs: Sequence[Job], varied: Sequence[str]) -> int:
    """Print and keep the table of what has become of each job; gives the status of the sweep."""
    rows, certificates, statuses = [["job", *varied, "epsilon", "delta", "seconds", "ended"]], [], []
    for number, job in enumerate(jobs):
        state = root / "private" / f"job{number}.json"
        ended = json.loads(state.read_text(encoding="utf-8")) if state.exists() else {"status": FAULT, "seconds": math.nan}
        path, epsilon, delta, how = root / str(number) / "release" / CERTIFICATE, "-", "-", f"status {ended['status']}"
        if path.exists():
            certificate = json.loads(path.read_text(encoding="utf-8"))
            certificates.append(certificate)
            ended["status"], how = OK, _DONE if certificate["private"] else _NOT_PRIVATE
            delta = f"{certificate['delta']:g}"
            epsilon = f"{certificate['epsilon']:g}" if certificate["private"] else "-"
        statuses.append(ended["status"])
        rows.append([str(number), *job.varied.values(), epsilon, delta, f"{ended['seconds']:.1f}", how])
    print(f"\n{align_columns(rows)}\n")
    table = io.StringIO()
    csv.writer(table).writerows(rows)
    (root / _SUMMARY).write_text(table.getvalue(), encoding="utf-8")
    print(_together(certificates))
    print(f"releases: {root}/<job>/release; this table: {root / _SUMMARY}")
    return next((status for status in statuses if status != OK), OK)


def _together(certificates: Sequence[dict[str, Any]]) -> str:
    """Return what all of them cost the people who are in the records of all."""
    private = [certificate for certificate in certificates if certificate["private"]]
    if len(private) < 2:
        return "what was released before from records of the same people adds to this"
    delta = max(certificate["delta"] for certificate in private)
    return (
        f"{say_together([decode(certificate['event']) for certificate in private], delta)}. One who takes one of them for "
        "how it compares with real records has used all; tuning on public or simulated data costs nothing"
    )
