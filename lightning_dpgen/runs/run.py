"""The way of a record: from a configuration to a release, in stages."""

from __future__ import annotations

from lightning_dpgen.data.records import Records
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.release.bundle import write_release
from lightning_dpgen.runs import discover as first_pass
from lightning_dpgen.runs import folder as run_folder
from lightning_dpgen.runs import resume, run_identity
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.learn import learned, read_records
from lightning_dpgen.runs.reporter import Reporter
from lightning_dpgen.runs.studies import check_study, mark, study_of
from lightning_dpgen.runs.table import budget_table
from lightning_dpgen.runs.warnings import cells_warning, delta_warning, seed_warning
from lightning_dpgen.specs import sources as kinds
from lightning_dpgen.specs.configuration import Conf
from lightning_dpgen.specs.custom_model import rehearse
from lightning_dpgen.specs.families import make_module
from lightning_dpgen.specs.settings import FIRST_PASS, Settings, fill, read_as
from lightning_dpgen.specs.usage_error import INTERRUPTED, UsageError


def train(
    conf: Conf, folder: run_folder.RunFolder, interrupts: Interrupts, telling: Reporter, ranks: Ranks | None = None
) -> dict:
    """Train, or go on with the training of that folder, and write its release; gives the certificate.

    Args:
        conf: composed; its values are checked here, before anything is spent.
        folder: of the run.
        interrupts: what the user has asked for by signals.
        telling: hears what there is to say.
        ranks: those that train together with this one, which leads; None for this process alone.

    Raises:
        UsageError, BadRecords, BudgetTooSmall, LedgerError, MissingData: in one line each.
        OSError: from the disk.
    """
    settings, plan = settled(conf)
    telling.warn(seed_warning(conf))
    stream = PrivateStream(conf.debug.private_seed, secure=conf.privacy.noise == "secure")
    study = study_of(conf.privacy)
    if folder.unfinished:
        account = run_folder.reopen_account(folder, stream, study)
        return _go_on(conf, account, folder, interrupts, telling, ranks)
    if plan is None:
        plan = _planned(settings, telling)
    if (text := check_study(study, plan)) is not None:
        telling.say(text)
    if conf.model.name == "own":
        _rehearse(first_pass.for_any_find(conf) if settings is None else settings, plan)
    # Read before anything is spent.
    seen = first_pass.look(conf) if settings is None else read_records(settings, telling)
    telling.warn(mark(study, conf.privacy, kinds.contents(conf.data)))
    run_folder.take(folder)
    about = run_identity.about_records(kinds.contents(conf.data), read_as(conf))
    if settings is not None:
        about |= run_identity.about_settings(settings.asked(), conf.data.n, None)
    account = run_folder.open_account(plan, folder, stream, about, study)
    try:
        if settings is None:
            bought = _bought(conf, seen, account, folder, interrupts)
            settings = _extended(conf, bought, account, folder, telling)
            seen = read_records(settings, telling)
        return _train(settings, seen, account, folder, interrupts, telling, ranks)
    finally:
        account.ledger.close()


def settled(conf: Conf) -> tuple[Settings | None, Plan | None]:
    """The settings, checked; where something is to be bought first, the plan of that alone can be made."""
    if conf.privacy.selection is not None:
        raise UsageError(
            f"privacy.selection={conf.privacy.selection}: goes with dpgen train on the command line, and not with -m, "
            "whose runs all leave and are all paid for"
        )
    kinds.check(conf.data)
    settled = (None, first_pass.first_plan(conf)) if _buys(conf) else (fill(conf), None)
    kinds.KINDS[conf.data.source].find(conf.data, False)
    return settled


def _bought(
    conf: Conf, seen: first_pass.Look, account: Account, folder: run_folder.RunFolder, interrupts: Interrupts
) -> first_pass.Bought:
    """What the first pass finds, kept before anything else can go wrong."""
    try:
        with interrupts.patient():
            bought = first_pass.buy(conf, seen, account)
            durable.save(folder.bought, {"head": account.ledger.head, "n": bought.n, "parts": bought.parts})
        interrupts.stop_here()
    except KeyboardInterrupt:
        try:
            resume.bought(account, folder)
        except UsageError as lost:
            # Somebody did not wait.
            raise UsageError(str(lost), INTERRUPTED) from None
        raise
    return bought


def _rehearse(settings: Settings, plan: Plan) -> None:
    """Make a module of somebody's own once before anything is spent, and see that it can be released."""
    module = make_module(settings.conf, settings.schema, settings.clipping, Account(plan))
    rehearse(module, settings.conf.model.target)


def _go_on(
    conf: Conf,
    account: Account,
    folder: run_folder.RunFolder,
    interrupts: Interrupts,
    telling: Reporter,
    ranks: Ranks | None,
) -> dict:
    try:
        run_identity.check_records(account.ledger.about, kinds.contents(conf.data), read_as(conf), folder)
        if "settings" not in account.ledger.about:
            _check_stages(account, [FIRST_PASS], folder)
            _extended(conf, resume.bought(account, folder), account, folder, telling)
        run_identity.check_about(account.ledger.about, run_identity.SETTINGS, folder)
        settings = resume.settings_of(conf, account.ledger.about)
        run_identity.check_settings(account.ledger.about, settings.asked(), folder)
        _check_stages(account, [spec.stage for spec in settings.specs()], folder)
        return _train(settings, read_records(settings, telling), account, folder, interrupts, telling, ranks)
    finally:
        account.ledger.close()


def _check_stages(account: Account, planned: list[str], folder: run_folder.RunFolder) -> None:
    """That the plan in a ledger has the stages of a run with these settings, whatever their noise.

    Raises:
        LedgerError: if it has others.
    """
    if (kept := [stage.name for stage in account.plan.stages]) != planned:
        raise LedgerError(f"{folder.ledger}: holds a plan of the stages {kept}, and these settings have {planned}")


def _buys(conf: Conf) -> bool:
    return conf.data.n is None or bool(kinds.open_parts(conf.data))


def _extended(
    conf: Conf, bought: first_pass.Bought, account: Account, folder: run_folder.RunFolder, telling: Reporter
) -> Settings:
    """The settings that follow from what was bought, and the account with the rest of their plan."""
    if bought.n is not None:
        telling.say(f"counted, with noise: {bought.n:,} records")
    for name, value in kinds.found_in_words(conf.data, bought.parts).items():
        telling.say(f"found, with noise: {name}: {value}")
    try:
        settings = first_pass.with_bought(conf, bought)
        plan = _planned(settings, telling, account.plan)
    except (UsageError, BudgetTooSmall) as error:
        raise UsageError(
            f"{error}. The first pass over the records is paid for and kept: correct this and go on with "
            f"run_dir={folder.root}; what the budget and the data are can no longer be changed"
        ) from None
    account.extend(plan, run_identity.about_settings(settings.asked(), settings.conf.data.n, bought.parts))
    return settings


def _planned(settings: Settings, telling: Reporter, promise: Plan | None = None) -> Plan:
    plan = settings.plan(promise)
    doubt, cells = settings.split.doubt(plan, settings.conf.data.n), cells_warning(settings.conf, settings.schema, plan)
    for text in (delta_warning(settings.conf), doubt, cells):
        telling.warn(text)
    if settings.conf.model.chosen is not None:
        telling.say(settings.conf.model.chosen)
    telling.say(budget_table(plan, of_person=settings.conf.data.person is not None))
    return plan


def _train(
    settings: Settings,
    records: Records,
    account: Account,
    folder: run_folder.RunFolder,
    interrupts: Interrupts,
    telling: Reporter,
    ranks: Ranks | None,
) -> dict:
    content = learned(settings, records, account, folder, interrupts, telling, ranks)
    return write_release(folder.release, folder.staging, content, account, unit=settings.unit, declared=settings.declared())
