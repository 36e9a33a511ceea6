"""`dpgen train`: private records to a release, in one command."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_dpgen.cli import shown_settings, verbose
from lightning_dpgen.cli.imported import imported
from lightning_dpgen.common import pace
from lightning_dpgen.common.folders import place_of
from lightning_dpgen.runs.interrupts import leaving_at_once
from lightning_dpgen.runs.run_dir import check_no_sweep, check_run_dir
from lightning_dpgen.specs.compose import FLAGS, asks_for_selection, expanded, is_for_hydra, name_of
from lightning_dpgen.specs.reference import listed
from lightning_dpgen.specs.run import (
    NoNumber,
    RunSpec,
    check_privacy,
    read_run,
    read_words,
    run_settings,
    with_default_bins,
)
from lightning_dpgen.specs.usage_error import UsageError

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
        print(f"{HELP}\n{shown_settings.HELP}\n{verbose.HELP}\n{_SETTINGS}\n{listed(RunSpec)}")
        return 0
    argv, kind = shown_settings.asked_for(argv)
    if kind is not None:
        return shown_settings.show(argv, kind, run_settings, read_run)
    # A mistake in a setting is told before what a run needs is imported.
    with leaving_at_once():
        swept = any(word in FLAGS for word in argv)
        if swept or asks_for_selection(argv):
            _check_words(argv)
            return imported("sweep" if swept else "select").run(argv)
        with pace.stage("reading the settings"):
            try:
                spec = read_words(argv)
                check_privacy(spec)
            except NoNumber as mistake:
                # A file that is not there, or a wrong schema, is told first.
                imported("real_records").checked_source(mistake.data)
                raise
            spec = with_default_bins(spec)
            if spec.run_dir is not None:
                root = place_of(spec.run_dir)
                check_run_dir(root)
                check_no_sweep(root)
            source = imported("real_records").checked_source(spec.data)
    return imported("training").run(argv, spec, source)


def _check_words(argv: Sequence[str]) -> None:
    """Refuse a value of a grid that no run may have: a combination for each value is looked at, which is quick.

    All combinations are checked where they are run.

    Raises:
        UsageError: as `read_run`, naming the job.
    """
    jobs, varied = expanded([word for word in argv if word not in FLAGS and not is_for_hydra(word)])
    checked: set[str] = set()
    for number, job in enumerate(jobs):
        if checked.issuperset(job) and checked:
            continue
        checked.update(job)
        try:
            read_words(job)
        except UsageError as mistake:
            differs = " ".join(word for word in job if name_of(word) in varied)
            raise UsageError(f"job {number} ({differs}): {mistake}" if differs else str(mistake), mistake.status) from None
