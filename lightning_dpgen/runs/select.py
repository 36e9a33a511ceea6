"""The best of a secret number of trials, charged once, before the number is drawn.

Settings to choose among are given as those of a sweep, ``model.lr=1e-3,3e-3``. Each trial draws one of the combinations,
independently of all others, and is a run of its own with its own ledger; it keeps its folder as long as it is the best.
Nothing but the winner leaves: no other trial, no number of trials, no log, no time.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from lightning_dpgen.common.folders import make_private
from lightning_dpgen.data.records import Records
from lightning_dpgen.metrics.fidelity import merit
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.passes.kept_records import DamagedBlocks
from lightning_dpgen.passes.reduce import InBlocks
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.private_selection import most_trials
from lightning_dpgen.privacy.durable import make_room
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.mechanisms import number_of_trials
from lightning_dpgen.release.bundle import write_release
from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.release.synthetic import SyntheticContent
from lightning_dpgen.runs import identity, run_folder
from lightning_dpgen.runs.candidates import NUMBER, STAGE, Candidates
from lightning_dpgen.runs.context import Context, load_state, private_stream
from lightning_dpgen.runs.in_blocks import check_memory
from lightning_dpgen.runs.initial import check_other_records, keep_initial
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.learn import keep_warnings, learn, read_records
from lightning_dpgen.runs.memory import check_fit_memory, is_out_of_memory
from lightning_dpgen.runs.paths import remove_blocks
from lightning_dpgen.runs.reporter import Reporter, SilentReporter
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.runs.studies import check_study, mark, study_delta_warning, study_of
from lightning_dpgen.runs.warnings import delta_warning, seed_warning
from lightning_dpgen.specs.custom import describe_error
from lightning_dpgen.specs.groups import SplitSpec
from lightning_dpgen.specs.network import VAESpec
from lightning_dpgen.specs.privacy import DPNormSpec
from lightning_dpgen.specs.settings import Settings, complete_settings, describe_reading
from lightning_dpgen.specs.usage_error import UsageError

# The score of a trial that failed, or whose score is no number.
_WORST = -math.inf


def select(
    candidates: Candidates, words: Sequence[str], folder: RunFolder, interrupts: Interrupts, reporter: Reporter
) -> dict[str, Any]:
    """Make the trials, write the release of the best, and return its certificate.

    Args:
        words: that asked for the selection, less the folder.

    Raises:
        UsageError, BadRecords, BudgetTooSmall, LedgerError, MissingData: in one line each.
    """
    with ExitStack() as exits:
        return _select(candidates, words, folder, interrupts, reporter, exits)


def _select(
    candidates: Candidates,
    words: Sequence[str],
    folder: RunFolder,
    interrupts: Interrupts,
    reporter: Reporter,
    exits: ExitStack,
) -> dict[str, Any]:
    first, source = candidates.settings[0], candidates.source
    spec = first.spec
    for text in (seed_warning(spec.debug.private_seed), delta_warning(spec)):
        reporter.warn(text)
    source.files()
    for settings in candidates.settings:
        check_memory(settings, source)
        check_fit_memory(settings)
    default, plain = _make_untrained(candidates)
    score = _scoring(candidates, default)
    stream, study = private_stream(spec), study_of(spec.privacy, first.n)
    # Whatever is asked for, the budget and the space among it.
    asked = {"words": list(words), "unit": first.unit, "debug": {"private_seed": spec.debug.private_seed}}
    if first.initial is not None:
        asked["init"] = first.initial.declaration
        reporter.say(first.initial.line)

    def read(reporter: Reporter, *, spent: bool) -> Records | InBlocks:
        # Networks draw lots from records, as they are encoded for these, and measurements pass over the same ones.
        reading = next((settings for settings in candidates.settings if settings.trains_network), first)
        records = read_records(reading, source, reporter, folder, interrupts, spent=spent)
        if isinstance(records, InBlocks):
            exits.callback(records.close)
        return records

    if folder.unfinished:
        account = run_folder.reopen_account(folder, stream, study)
    else:
        reporter.say(candidates.table())
        reporter.warn(study_delta_warning(study, first.n))
        reporter.say(check_study(study, candidates.plan))
        records = read(reporter, spent=False)
        check_other_records(spec, source.contents())
        reporter.warn(mark(study, spec.privacy, source.contents()))
        run_folder.take(folder)
        about = identity.about_records(source.contents(), _describe_reading(candidates))
        about |= identity.about_settings(asked, first.n, None) | {"began": time.time()}
        account = run_folder.open_account(candidates.plan, folder, stream, about, study)
        keep_initial(spec, folder)
    with closing(account.ledger):
        if account.resumed:
            identity.check_settings(account.ledger.about, asked, folder)
            identity.check_records(account.ledger.about, source.contents(), _describe_reading(candidates), folder)
            if account.ledger.promise != candidates.plan.as_json():
                raise UsageError(
                    f"run_dir={folder.root}: was begun when these settings meant another plan; go on with the version of "
                    "this software that began it"
                )
            account.go_on({STAGE: account.ledger.count(STAGE)} if account.ledger.count(STAGE) else {})
            records = read(SilentReporter(), spent=True)
        keep_warnings(folder, first, records)
        trials = _Trials(candidates, records, account, folder, interrupts, score)
        reporter.say("selecting: trials are made, and nothing is said of them")
        content, winner = trials.best(default)
        account.verify_complete()
        settings = plain if winner is None else candidates.settings[winner]
        # Left by a writing that was killed.
        shutil.rmtree(folder.staging, ignore_errors=True)
        release = write_release(
            folder.release, folder.staging, content, account,
            unit=settings.unit, declared=settings.dump_public(), selection=candidates.describe(winner),
        )  # fmt: skip
        _forget(folder, account.ledger.about["began"])
        return release


class _Trials:
    """The trials of a selection, one after the other; what is kept of them is the best one and where to go on.

    Args:
        score: of what a trial has learned; nothing but what is paid for, or follows from what is released.
    """

    def __init__(
        self,
        candidates: Candidates,
        records: Records | InBlocks,
        account: Account,
        folder: RunFolder,
        interrupts: Interrupts,
        score: Callable[[SyntheticContent], float],
    ) -> None:
        self._candidates, self._records, self._account = candidates, records, account
        self._folder, self._interrupts, self._score = folder, interrupts, score
        self._state = self._draw_trials() if account.remaining(STAGE) else self._load()
        # The run that the trials belong to.
        self._run = account.ledger.run

    def best(self, default: SyntheticContent) -> tuple[SyntheticContent, int | None]:
        """Return what is released, and which candidate it is; the default and None where no trial was drawn.

        Raises:
            UsageError: if all trials failed.
        """
        content = None
        for position in range(self._state["done"], len(self._state["drawn"])):
            trial, score, error = self._try(position)
            state = self._state | {"done": position + 1, "error": error or self._state["error"]}
            lost = position
            if trial is not None and score > state["score"]:
                lost, content = state["best"], trial
                state |= {"best": position, "score": score}
            self._save(state)
            if lost is not None:
                shutil.rmtree(self._trial(lost).root, ignore_errors=True)
            self._interrupts.stop_here()
        state = self._state
        if not state["drawn"]:
            return default, None
        if state["best"] is None:
            raise UsageError(
                "all trials of the selection failed, and nothing can be released; one of them (private, stays here): "
                f"{state['error']}"
            )
        winner = state["drawn"][state["best"]]
        return content or self._learn(state["best"]), winner

    def _draw_trials(self) -> dict[str, Any]:
        planned = self._account.plan.stage(STAGE).access
        most = most_trials(planned.kind(NUMBER), planned.multipliers[NUMBER])
        largest = self._content(self._first_state([len(self._candidates.settings) - 1] * most))
        make_room(self._folder.selection, largest, self._account, "the secret number of trials")
        with self._interrupts.patient():
            with self._account.open(STAGE) as access:
                number = number_of_trials(access, NUMBER)
                # With replacement, each from all.
                drawn = access.stream.integers(number, len(self._candidates.settings)).tolist()
            self._save(self._first_state(drawn))
        self._interrupts.stop_here()
        return self._state

    def _first_state(self, drawn: list[int]) -> dict[str, Any]:
        return {"drawn": drawn, "begun": 0, "done": 0, "best": None, "score": _WORST, "error": ""}

    def _load(self) -> dict[str, Any]:
        if not self._folder.selection.is_file():
            raise BudgetTooSmall(
                f"run_dir={self._folder.root}: the number of trials had been drawn and was lost before it was saved; start "
                "a new run, whose cost adds to what this one has spent"
            )
        return load_state(self._folder.selection, self._account, "kept")["kept"]

    def _save(self, state: dict[str, Any]) -> None:
        durable.save(self._folder.selection, self._content(state))
        self._state = state

    def _content(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"head": self._account.ledger.head, "kept": state}

    def _try(self, position: int) -> tuple[SyntheticContent | None, float, str]:
        """Return what a trial has learned, its score, and why it has none; one that fails is the worst."""
        try:
            content = self._learn(position)
        except Exception as error:
            # The machine is at fault, and not the trial: the selection stops, and can go on.
            if isinstance(error, OSError) and Path(error.filename or "").is_relative_to(self._folder.trials):
                # The message names neither place nor size of a trial, which say how many there were and of what.
                raise UsageError(
                    f"run_dir={self._folder.root}: {os.strerror(error.errno)}, so what a trial makes could not be kept; "
                    "nothing more was spent, and the same command goes on once there is room"
                ) from None
            if isinstance(error, OSError | DamagedBlocks) or is_out_of_memory(error):
                raise
            return None, _WORST, describe_error(error)
        try:
            return content, self._score(content), "its score is no number, or the worst there is"
        except Exception as error:
            return None, _WORST, describe_error(error)

    def _learn(self, position: int) -> SyntheticContent:
        settings, folder = self._candidates.settings[self._state["drawn"][position]], self._trial(position)
        stream, plan, about = self._account.stream, settings.plan(), {"selection": self._run, "trial": position}
        if position < self._state["begun"]:
            # Charged as it was planned, a trial cannot make again what it has lost, nor begin again.
            if not folder.begun:
                raise BudgetTooSmall(f"{folder.root}: is gone, and a trial is never made twice")
            account = run_folder.reopen_account(folder, stream, exact=True)
        else:
            make_private(self._folder.trials)
            make_private(folder.root)
            run_folder.take(folder)
            account = run_folder.open_account(plan, folder, stream, about)
            self._save(self._state | {"begun": position + 1})
        with closing(account.ledger):
            if account.ledger.about != about or account.ledger.promise != plan.as_json():
                raise LedgerError(f"{folder.ledger}: is of another selection or another trial")
            return learn(Context(settings, account, folder, self._interrupts), self._records)

    def _trial(self, position: int) -> RunFolder:
        return RunFolder(self._folder.trials / str(position))


def _describe_reading(candidates: Candidates) -> dict[str, Any]:
    """Return `describe_reading` with the budget of a trial left out: it follows from that of the whole."""
    reading = describe_reading(candidates.settings[0].spec, candidates.source)
    return reading | {"privacy": {name: value for name, value in reading["privacy"].items() if name != "epsilon"}}


def _make_untrained(candidates: Candidates) -> tuple[SyntheticContent, Settings]:
    """Return a network that has seen nothing: released where no trial is drawn, and what a score is tried out on."""
    plain = {"model": VAESpec(), "clipping": DPNormSpec(), "split": SplitSpec()}
    spec = candidates.settings[0].spec
    if spec.data.asked_sets is not None:
        # It counts nothing.
        plain["data"] = spec.data.changed(workload=None)
    settings = complete_settings(spec.changed(**plain), candidates.source)
    module = settings.module(Account(settings.plan()))
    mixture = Mixture(module.network.float().eval(), torch.ones(module.k) / module.k)
    return SyntheticContent(mixture, settings.rows, settings.spec.seed), settings


def _scoring(candidates: Candidates, example: SyntheticContent) -> Callable[[SyntheticContent], float]:
    """Return the score, a number or the worst there is; a function is tried out on the example."""
    scorer = candidates.scorer
    if scorer is None:
        return lambda content: _WORST if content.figure is None else merit(content.figure)
    try:
        float(scorer(Release(example.mixture)))
    except Exception as error:
        raise UsageError(
            f"privacy.selection_score={candidates.score}: fails on the release of an untrained network "
            f"({describe_error(error)}); expected a function of a Release that gives a number, larger for better ones"
        ) from None

    def score(content: SyntheticContent) -> float:
        value = float(scorer(Release(content.mixture)))
        return _WORST if math.isnan(value) else value

    return score


def forget_what_is_left(folder: RunFolder) -> None:
    """Remove what is left of a selection that was killed when its release was there."""
    if folder.finished and folder.selection.exists():
        _forget(folder, Ledger.read(folder.ledger).about["began"])


def _forget(folder: RunFolder, began: float) -> None:
    """Leave nothing by which the number of trials could be found: times of files are that of the beginning."""
    shutil.rmtree(folder.trials, ignore_errors=True)
    remove_blocks(folder.root)
    folder.selection.unlink(missing_ok=True)
    for path in (*folder.release.iterdir(), folder.release, *folder.private.iterdir(), folder.private, folder.root):
        os.utime(path, (began, began))
