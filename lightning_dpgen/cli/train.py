"""`dpgen train`: private records to a release, in one command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning_dpgen.cli import hydra_flags, shown_settings
from lightning_dpgen.cli.arguments import VERBOSE_HELP, loading
from lightning_dpgen.cli.hydra_flags import CommandLine, refuse_for_hydra, with_hydra_of_files
from lightning_dpgen.common import pace
from lightning_dpgen.common.folders import place_of
from lightning_dpgen.release.files import MODEL
from lightning_dpgen.release.unit_check import protects_persons
from lightning_dpgen.runs.interrupts import leaving_at_once
from lightning_dpgen.runs.paths import check_no_sweep, check_run_dir
from lightning_dpgen.specs.data import DataSpec
from lightning_dpgen.specs.grid import expand_grid
from lightning_dpgen.specs.groups import RaySpec
from lightning_dpgen.specs.plain_words import plain_words
from lightning_dpgen.specs.reference import help_of_settings
from lightning_dpgen.specs.run import (
    NoNumber,
    RunSpec,
    check_privacy,
    compose_run,
    load_settings,
    load_settings_without_slow_defaults,
    with_default_bins,
)
from lightning_dpgen.specs.usage_error import OK, RANK_LOST, UsageError
from lightning_dpgen.specs.words import asks_for_selection, name_of, replace_setting

if TYPE_CHECKING:
    from lightning_dpgen.runs.run_folder import RunFolder
    from lightning_dpgen.specs.source import Source

HELP = """usage: dpgen train [NAME=VALUE ...]

Learns a generative model from private records and writes a release with a privacy certificate.
With nothing else: the digits that come with scikit-learn, into runs/<time>.

  dpgen train data=mnist privacy.epsilon=1.74       MNIST from $DPGEN_DATA/mnist
  dpgen train experiment=dpgm_mnist                 the setting of the DPGM paper
  dpgen train data=mnist model=measured             no network: noisy statistics, measured once
  dpgen train data=mnist model=classifier           a classifier of the label, beside these
  dpgen train data=mnist model=auto                 what was best on such records, as for tables and baskets
  dpgen train data=images data.path=F.npz data.n=5000 data.height=16 data.width=16
  dpgen train data=table data.path=F.csv data.schema=F.schema.yaml data.n=5000
  dpgen train data=own data.target=package.function data.n=5000 model=own model.target=package.Class
  dpgen train -m privacy.epsilon=1,2,4 model=vae,rbm    a run for each combination, and a table (Hydra's launchers)
  dpgen train model.lr=1e-3,1e-2 privacy.selection=logarithmic privacy.selection_score=fidelity \\
      privacy.fidelity_share=0.1                    the best of a secret number of trials, all of it paid for
  dpgen train privacy=off                           the same without privacy, for comparison
  dpgen train ... run_dir=runs/NAME                 goes on with a run that did not end, given the same settings

Options:
  -m, --multirun  a run for each combination of the values that are listed"""
_SETTINGS = """
Settings (docs/reference/settings.md says what each is, its range and its default):"""


def run(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        flags = f"{hydra_flags.HELP}\n{hydra_flags.HELP_OF_TRAIN}"
        print(f"{HELP}\n{flags}\n{VERBOSE_HELP}\n{_SETTINGS}\n{help_of_settings(RunSpec)}")
        return OK
    line = hydra_flags.read_command_line(argv, "train")
    line = with_hydra_of_files(line)
    refuse_for_hydra(line)
    if line.hydra and not line.sweep and line.cfg not in ("hydra", "all"):
        raise UsageError(f"{line.hydra[0]}: says how a sweep is started, and works only with dpgen train -m")
    if line.cfg is not None:
        return shown_settings.show(line, "config", compose_run, load_settings)
    # Mistakes in settings are reported before the imports of a run.
    with leaving_at_once():
        if line.sweep or asks_for_selection(line.words):
            _check_words(line)
            return _sweep(line) if line.sweep else _select(line)
        with pace.stage("reading the settings"):
            words = plain_words(line.words, line.files)
            try:
                spec = load_settings_without_slow_defaults(words)
                check_privacy(spec)
            except NoNumber as mistake:
                # A missing file and a wrong schema are reported before a missing number of records.
                _checked_source(mistake.data)
                raise
            if line.info is not None:
                hydra_flags.show_info(line, line.words)
                return OK
            spec = with_default_bins(spec)
            if spec.run_dir is not None:
                root = place_of(spec.run_dir)
                check_run_dir(root)
                check_no_sweep(root)
            source = _checked_source(spec.data)
    return _train(words, spec, source)


def _checked_source(spec: DataSpec) -> Source:
    with loading():
        from lightning_dpgen.cli.real_records import check_source
    return check_source(spec)


def _check_words(line: CommandLine) -> None:
    """Refuse a value of a grid that no run may have: a combination for each value is looked at, which is quick.

    All combinations are checked where they are run.
    """
    jobs, varied = expand_grid(line.words, line.files)
    checked: set[str] = set()
    for number, job in enumerate(jobs):
        if checked.issuperset(job.words) and checked:
            continue
        checked.update(job.words)
        try:
            load_settings_without_slow_defaults(job.words)
        except UsageError as mistake:
            raise UsageError(f"job {number} ({job}): {mistake}" if varied else str(mistake), mistake.status) from None


def _train(argv: Sequence[str], spec: RunSpec, source: Source) -> int:
    """Make one run, on one device or several; gives the exit status."""
    with loading():
        from lightning_dpgen.cli import launch
        from lightning_dpgen.runs import run_folder
        from lightning_dpgen.runs.run import check_run, trains_on_ray
    folder = run_folder.choose(spec.run_dir)
    # Settings are checked before processes are started.
    if isinstance(spec.compute, RaySpec) and trains_on_ray(_with_initial_of_unfinished_run(spec, folder), source):
        # It imports what starts workers, which other runs do not wait for.
        from lightning_dpgen.cli import ray_launch

        ray_launch.check_trainer(spec.trainer, spec.compute)
        with pace.hide_progress():
            return _print_release(ray_launch.launch(argv, folder, spec), folder)
    if launch.to_launch(spec.trainer):
        check_run(_with_initial_of_unfinished_run(spec, folder), source)
        # The first of them shows how far all are.
        with pace.hide_progress():
            return launch.launch(argv, folder, spec.trainer.devices)
    return _train_here(argv, spec, source, folder)


def _train_here(argv: Sequence[str], spec: RunSpec, source: Source, folder: RunFolder) -> int:
    """Make one run in this process, or its part of one that several processes make."""
    from lightning_dpgen.cli import launch
    from lightning_dpgen.runs.reporter import TerminalReporter
    from lightning_dpgen.runs.run import train

    reporter = TerminalReporter()
    with launch.join_ranks(spec.trainer) as ranks:
        if not ranks.leads:
            # It imports what networks are trained with, as `runs/learn.py` does where it trains one.
            from lightning_dpgen.runs.train import run_worker

            return run_worker(spec, source, folder, ranks)
        try:
            certificate = launch.run_guarded(
                "train", argv, folder, lambda asked: train(spec, source, folder, asked, reporter, ranks)
            )
        except UsageError as mistake:
            if mistake.status == RANK_LOST and launch.is_watched():
                return RANK_LOST
            raise
    return _print_release(certificate, folder, reporter.warned)


def _with_initial_of_unfinished_run(spec: RunSpec, folder: RunFolder) -> RunSpec:
    """Return the settings with the network that an unfinished run has started from."""
    from lightning_dpgen.runs.initial import with_kept_initial

    return with_kept_initial(spec, folder) if folder.unfinished else spec


def _print_release(certificate: dict[str, Any], folder: RunFolder, warned: Sequence[str] = ()) -> int:
    """Print what there is now, what was warned of, and return the exit status."""
    from lightning_dpgen.cli.launch import print_release
    from lightning_dpgen.privacy.plan import LABELS

    labelled = any(stage["name"] == LABELS for stage in certificate["stages"])
    predict = shlex.join(["dpgen", "predict", str(folder.release), "FILE", "-o", "labels.csv"])
    logs = shlex.join(["tensorboard", "--logdir", str(folder.private)])
    print_release(
        certificate,
        folder,
        f"{'one person' if protects_persons(certificate) else 'one record'} added or removed",
        shlex.join(["dpgen", "sample", str(folder.release), "-n", "1000", "-o", "more.parquet"]),
        *([predict] if labelled else []),
        f"open {shlex.quote(str(folder.release / 'report.html'))} in a browser; {logs}",
        warned=warned,
    )
    return OK


def _select(line: CommandLine) -> int:
    """Make a secret number of trials, and release the best; gives the exit status."""
    with loading():
        from lightning_dpgen.cli.launch import is_launched, run_guarded
        from lightning_dpgen.runs import run_folder
        from lightning_dpgen.runs.candidates import read_candidates
        from lightning_dpgen.runs.reporter import TerminalReporter
        from lightning_dpgen.runs.run_folder import RunFolder
        from lightning_dpgen.runs.select import forget_what_is_left, select
    if line.hydra:
        raise UsageError(f"{line.hydra[0]}: trials of a selection are made one after the other; leave it out")
    if is_launched():
        raise UsageError(
            "privacy.selection: trials are made one after the other by one process, on one device; start it without "
            "torchrun or srun"
        )
    # Candidates do not differ in it.
    jobs, _ = expand_grid(line.words, line.files)
    run_dir = load_settings(jobs[0].words).run_dir
    if run_dir is not None:
        forget_what_is_left(RunFolder(place_of(run_dir)))
    folder = run_folder.choose(run_dir)
    reporter = TerminalReporter()
    # A selection that goes on starts from the network that it has kept, wherever the release is now.
    starts_from_saved_network = any(name_of(word) == "model.init" for word in jobs[0].words)
    starts_from_saved_network &= (folder.initial / MODEL).is_file()
    trial = replace_setting(line.words, "model.init", folder.initial) if starts_from_saved_network else line.words
    candidates = read_candidates(trial, reporter, line.files)
    # Files of a person's own may change, so what they say now is a part of what was asked for.
    asked_for = [job.words for job in jobs] if line.files else [line.words]
    words = [word for asked in asked_for for word in asked if name_of(word) != "run_dir"]
    again = [*line.files.flags(), *line.words]
    certificate = run_guarded("train", again, folder, lambda asked: select(candidates, words, folder, asked, reporter))
    print(f"\ndone: epsilon {certificate['epsilon']:g} at delta {certificate['delta']:g}")
    print(f"  release (may be published):  {folder.release}")
    print(f"  private (must not leave this machine):  {folder.private}")
    print("Keep to yourself how long this took, and what you saw of it: it tells how many trials there were.")
    return OK


def _sweep(line: CommandLine) -> int:
    with loading():
        from lightning_dpgen.cli.sweep import sweep
    return sweep(line)
