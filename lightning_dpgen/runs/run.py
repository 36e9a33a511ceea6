"""The way of a record, from settings to a release: plan, discover, learn, release."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lightning_dpgen.common import pace
from lightning_dpgen.common.plain_text import listed, say_count
from lightning_dpgen.data.records import Records
from lightning_dpgen.passes.kept_records import DamagedBlocks
from lightning_dpgen.passes.reduce import InBlocks
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.release.bundle import write_release
from lightning_dpgen.runs import discover, identity, run_folder
from lightning_dpgen.runs.context import Context, private_stream
from lightning_dpgen.runs.discover import Discovery, FirstPass, FirstPassRecords, InMemoryRecords
from lightning_dpgen.runs.in_blocks import check_memory, look_in_blocks
from lightning_dpgen.runs.initial import check_other_records, keep_initial, with_kept_initial
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.learn import learn, open_records, read_records
from lightning_dpgen.runs.measure import needs_records
from lightning_dpgen.runs.memory import check_fit_memory
from lightning_dpgen.runs.moved import check_moved
from lightning_dpgen.runs.paths import remove_blocks
from lightning_dpgen.runs.reporter import Reporter
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.runs.studies import check_study, mark, spent_so_far, study_delta_warning, study_of
from lightning_dpgen.runs.table import answers_table, budget_table, decay_line, errors_table, terms_table
from lightning_dpgen.runs.warnings import lost_histories_warning, plan_warnings, seed_warning
from lightning_dpgen.specs.as_yaml import write_asked_for
from lightning_dpgen.specs.first_pass import FIRST_PASS
from lightning_dpgen.specs.groups import RaySpec
from lightning_dpgen.specs.model import CustomSpec
from lightning_dpgen.specs.modules import rehearse
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import Settings, complete_settings, describe_reading
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import INTERRUPTED, UsageError, describe_os_error

# The most columns of which a line each says what was found.
_MOST_LINES = 10
# Steps, for `dpgen -v`.
_LOG = logging.getLogger("lightning_dpgen.run")


def train(
    spec: RunSpec,
    source: Source,
    folder: RunFolder,
    interrupts: Interrupts,
    reporter: Reporter,
    ranks: Ranks | None = None,
    *,
    on_ray: bool = False,
) -> dict[str, Any]:
    """Train or go on with the training of that folder, write its release, and return the certificate.

    Args:
        spec: the settings; what they say of records is checked here, before anything is spent.
        ranks: those that train together with this one, which leads; None for this process alone.
        on_ray: whether this process is a worker of Ray Train.

    Raises:
        UsageError, BadRecords, BudgetTooSmall, LedgerError, MissingData: in one line each.
        OSError: from the disk.
    """
    if not on_ray and trains_on_ray(spec, source):
        raise UsageError("compute=ray: trains a network by dpgen train alone, which starts the workers; leave it out here")
    run = _Run(spec, source, folder, interrupts, reporter, ranks or Ranks())
    with run.exits:
        return run.release()


def trains_on_ray(spec: RunSpec, source: Source) -> bool:
    """Return True where the workers of a Ray cluster are to train a network.

    Raises:
        UsageError, MissingData: naming what is wrong with the settings.
    """
    if not isinstance(spec.compute, RaySpec):
        return False
    run = check_run(spec, source)
    return (run.any_find if isinstance(run, FirstPass) else run).trains_network


def check_run(spec: RunSpec, source: Source) -> Settings | FirstPass:
    """Return the settings, checked; where something is bought first, the plan of that alone can be made.

    Raises:
        UsageError, MissingData: naming what is wrong.
    """
    if spec.privacy.selection is not None:
        raise UsageError(
            f"privacy.selection={spec.privacy.selection}: works with dpgen train on the command line, and not with -m, "
            "whose runs are all released and all paid for"
        )
    source.check()
    buys = spec.data.n is None or bool(source.open_parts)
    run = discover.plan_first_pass(spec, source) if buys else complete_settings(spec, source)
    source.files()
    if isinstance(run, Settings):
        check_fit_memory(run)
    check_memory(run if isinstance(run, Settings) else run.any_find, source)
    check_other_records(spec, source.contents())
    return run


@dataclass(eq=False)
class _Run:
    """A run; its account and settings come with its stages."""

    spec: RunSpec
    source: Source
    folder: RunFolder
    interrupts: Interrupts
    reporter: Reporter
    ranks: Ranks
    # Closes the records when the run has ended.
    exits: ExitStack = field(default_factory=ExitStack)

    def release(self) -> dict[str, Any]:
        if self.folder.unfinished:
            self.spec = with_kept_initial(self.spec, self.folder)
        _LOG.debug("filling in the settings that were left open, and checking them")
        with pace.stage("checking the settings"):
            run = check_run(self.spec, self.source)
        self.reporter.warn(seed_warning(self.spec.debug.private_seed))
        self.study = study_of(self.spec.privacy, self.spec.data.n)
        if self.folder.unfinished:
            return self._release_unfinished()
        # A first pass is paid for before the rest is planned.
        self.reporter.warn(lost_histories_warning(self.spec))
        return self._release_by_first_pass(run) if isinstance(run, FirstPass) else self._release_declared(run)

    def _release_unfinished(self) -> dict[str, Any]:
        account = run_folder.reopen_account(self.folder, private_stream(self.spec), self.study)
        with closing(account.ledger):
            settings = self._go_on(account)
            self.reporter.say(spent_so_far(self.study))
            return self._finish(settings, account)

    def _release_declared(self, settings: Settings) -> dict[str, Any]:
        plan = self._plan(settings)
        self._check_before_reading(settings, plan)
        # Read before anything is spent.
        records = self._read(settings, spent=False)
        account = self._open(plan, identity.about_settings(settings.dump_for_resume(), settings.n, None))
        with closing(account.ledger):
            self.spec = keep_initial(self.spec, self.folder)
            return self._finish(settings, account, records)

    def _release_by_first_pass(self, first: FirstPass) -> dict[str, Any]:
        for text in discover.warnings_for_any_find(self.spec, first.any_find):
            self.reporter.say(f"expected, whatever the first pass finds: {text}")
        self._check_before_reading(first.any_find, first.plan)
        records = self._open_first_pass(first)
        account = self._open(first.plan, {})
        with closing(account.ledger):
            self.spec = keep_initial(self.spec, self.folder)
            settings = self._discover(records, account)
            # They may be as large as those that are read now.
            del records
            return self._finish(settings, account, self._read(settings))

    def _plan(self, settings: Settings, promise: Plan | None = None) -> Plan:
        _LOG.debug("planning: solving for the noise of each stage")
        with pace.stage("planning the noise"):
            plan = settings.plan(promise)
            warnings = [*plan_warnings(settings, plan)]
        for text in warnings:
            self.reporter.warn(text)
        self.reporter.say(settings.choice_reason)
        self.reporter.say(None if settings.initial is None else settings.initial.line)
        self.reporter.say(budget_table(plan, of_person=self.spec.protects_persons))
        self.reporter.say(decay_line(settings.clipping, plan))
        self.reporter.say(errors_table(settings, plan))
        self.reporter.say(terms_table(settings, plan))
        self.reporter.say(answers_table(settings, plan))
        return plan

    def _check_before_reading(self, settings: Settings, plan: Plan) -> None:
        self.reporter.warn(study_delta_warning(self.study, self.spec.data.n))
        self.reporter.say(check_study(self.study, plan))
        if isinstance(self.spec.model, CustomSpec):
            rehearse(settings.module(Account(plan)), self.spec.model.target)
        _LOG.debug("reading the records")

    def _open_first_pass(self, first: FirstPass) -> FirstPassRecords:
        if not self.source.in_blocks:
            return discover.open_first_pass(self.spec, self.source)
        if self.source.open_parts:
            counts = look_in_blocks(self.spec, self.source, self.folder, trained=first.any_find.trains_network)
            self.exits.callback(counts.close)
            check_moved(self.source, counts.counted, counts.rows)
            return counts
        # The reporter says how many records there are later, beside the number that is bought.
        records, moved = open_records(first.any_find, self.source, self.folder, self.interrupts)
        n = len(self._closed_at_exit(records))
        check_moved(self.source, moved, n)
        return InMemoryRecords(n, {}, None)

    def _read(self, settings: Settings, *, spent: bool = True) -> Records | InBlocks:
        # A first look has read by fewer settings.
        self.exits.close()
        records = read_records(settings, self.source, self.reporter, self.folder, self.interrupts, spent=spent)
        return self._closed_at_exit(records)

    def _closed_at_exit(self, records: Records | InBlocks) -> Records | InBlocks:
        """Return records whose folder, where they are in blocks, is left to others when this run ends."""
        if isinstance(records, InBlocks):
            self.exits.callback(records.close)
        return records

    def _open(self, plan: Plan, about_settings: dict[str, Any]) -> Account:
        _LOG.debug("opening the ledger %s", self.folder.ledger)
        self.reporter.warn(mark(self.study, self.spec.privacy, self.source.contents()))
        run_folder.take(self.folder)
        durable.write(self.folder.settings, write_asked_for(self.spec).encode())
        about = identity.about_records(self.source.contents(), describe_reading(self.spec, self.source)) | about_settings
        return run_folder.open_account(plan, self.folder, private_stream(self.spec), about, self.study)

    def _discover(self, records: FirstPassRecords, account: Account) -> Settings:
        """Buy what is not declared, keep it before anything else can go wrong, and plan the rest."""
        discover.make_room_for(self.source, records, account, self.folder)
        try:
            with self.interrupts.patient():
                bought = discover.run_discovery(self.spec, self.source, records, account)
                discover.save_discovery(bought, account, self.folder)
            self.interrupts.stop_here()
        except (DamagedBlocks, OSError, MemoryError, pa.ArrowException) as error:
            if not account.ledger.accesses:
                raise
            # The files were whole before, and the access was made.
            raise UsageError(f"{_fault(error)}. {discover.lost_message(self.folder)}") from None
        except KeyboardInterrupt:
            try:
                discover.load_discovery(account, self.folder)
            except UsageError as lost:
                # A second signal came before it was kept.
                raise UsageError(str(lost), INTERRUPTED) from None
            raise
        return self._extend(bought, account)

    def _extend(self, bought: Discovery, account: Account) -> Settings:
        """Return the settings that follow from what was bought, with the rest of their plan in the account."""
        if bought.n is not None:
            self.reporter.say(f"counted, with noise: {say_count(bought.n, self.source.counted)}")
        for line in _discovery_lines(self.source.found_in_words(bought.parts)):
            self.reporter.say(line)
        try:
            settings = discover.with_discovery(self.spec, self.source, bought)
            check_fit_memory(settings)
            plan = self._plan(settings, account.plan)
        except (UsageError, BudgetTooSmall) as error:
            raise UsageError(
                f"{error}. The first pass over the records is paid for and kept: correct this and go on with "
                f"run_dir={self.folder.root}; what the budget and the data are can no longer be changed"
            ) from None
        account.extend(plan, identity.about_settings(settings.dump_for_resume(), settings.n, bought.parts))
        return settings

    def _go_on(self, account: Account) -> Settings:
        about = account.ledger.about
        identity.check_records(about, self.source.contents(), describe_reading(self.spec, self.source), self.folder)
        if "settings" not in about:
            self._check_stages(account, [FIRST_PASS])
            self._extend(discover.load_discovery(account, self.folder), account)
        identity.check_about(account.ledger.about, identity.SETTINGS, self.folder)
        settings = discover.settings_of(self.spec, self.source, account.ledger.about)
        identity.check_settings(account.ledger.about, settings.dump_for_resume(), self.folder)
        self.reporter.say(None if settings.initial is None else settings.initial.line)
        self._check_stages(account, [stage.stage for stage in settings.specs()])
        return settings

    def _check_stages(self, account: Account, planned: list[str]) -> None:
        """Check that the plan in a ledger has the stages of a run with these settings, whatever their noise."""
        if (kept := [stage.name for stage in account.plan.stages]) != planned:
            raise LedgerError(f"{self.folder.ledger}: holds a plan of the stages {kept}, and these settings have {planned}")

    def _finish(self, settings: Settings, account: Account, records: Records | InBlocks | None = None) -> dict[str, Any]:
        run = Context(settings, account, self.folder, self.interrupts, self.reporter, self.ranks)
        if records is None and (settings.trains_network or needs_records(run)):
            records = self._read(settings)
        _LOG.debug("learning, by the stages %s", ", ".join(stage.name for stage in account.plan.stages))
        content = learn(run, records)
        _LOG.debug("drawing synthetic records, and writing the release")
        declared = settings.dump_public()
        with pace.stage("writing the release"):
            certificate = write_release(
                self.folder.release, self.folder.staging, content, account, unit=settings.unit, declared=declared
            )
        # Encoded records, where they were read in blocks, have been learned from.
        remove_blocks(self.folder.root)
        return certificate


def _discovery_lines(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield what was found: a line for each of the first columns, and one for all others."""
    names = list(texts)
    for name in names[:_MOST_LINES]:
        yield f"found, with noise: {name}: {texts[name]}"
    if rest := names[_MOST_LINES:]:
        more = say_count(len(rest), "more column")
        yield f"found, with noise: the same of {more} ({listed(rest)}), in the schema of the release"


def _fault(error: Exception) -> str:
    """Return what went wrong within an access, in words that hold nothing of a record."""
    if isinstance(error, DamagedBlocks):
        return f"{error.path}: was damaged meanwhile"
    if isinstance(error, OSError):
        return describe_os_error(error)
    return "there was not enough memory" if isinstance(error, MemoryError) else "a file of the first look cannot be read"
