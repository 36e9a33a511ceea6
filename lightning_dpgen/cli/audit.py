"""`dpgen audit`: does what the software does look like what it claims?"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_dpgen.cli.arguments import VERBOSE_HELP, loading
from lightning_dpgen.cli.hydra_flags import read_command_line
from lightning_dpgen.common.folders import make_private
from lightning_dpgen.common.plain_text import align_columns
from lightning_dpgen.privacy.accounting.epsilon_range import round_down, round_up
from lightning_dpgen.specs.plain_words import plain_words
from lightning_dpgen.specs.run import AuditOptions, AuditSpec, load_audit_settings
from lightning_dpgen.specs.usage_error import FAULT, OK, UsageError

if TYPE_CHECKING:
    from lightning_dpgen.audit.bound import Finding
    from lightning_dpgen.audit.whole_run import AttackedRun
    from lightning_dpgen.data.records import Records
    from lightning_dpgen.gradients.clipping import ClippingRule
    from lightning_dpgen.plugins.mixture import PrivateMixture
    from lightning_dpgen.privacy.access import Access
    from lightning_dpgen.privacy.plan import Plan
    from lightning_dpgen.runs.attacked import MeasuredRun
    from lightning_dpgen.specs.settings import Settings
    from lightning_dpgen.specs.source import Source

HELP = """usage: dpgen audit [NAME=VALUE ...]

Attacks the mechanisms; then whole runs of measurements as dpgen train makes them, or the private step and one whole
training. Prints how much the attacks show, at least, beside what is claimed. Records are made up, and none are read.

  dpgen audit data=adult model=measured privacy.epsilon=1 audit.draws=500
  dpgen audit data=digits model=vae privacy.epsilon=2
  dpgen audit data=digits model=vae audit.spend=true    canaries among the records, which must be such that no one minds

Settings: those of dpgen train, and audit.canaries, audit.draws, audit.confidence, audit.spend.
Exit status: 0 if no claim is refuted, 1 if one is."""

LIMITS = """What it can see: noise that is missing or half as large, a record that counts for more than its bound, noise
that anybody can draw again, lots that hold a record too often. Whole runs of measurements are attacked at the worst
neighbours of a search. There the lower bound comes within a tenth of the claim, and noise,
a bound or an account that makes mu so much larger is seen. At mechanisms and steps of fixed bounds it comes within a half;
of an adaptive bound, and of one whole training, next to nothing is seen. What it cannot see: a fault that few runs have, or
records unlike the made-up ones; lots whose records depend on each other; one in what is not run here (the split of a
training, several devices, another machine); a number of records, a bound or a category that was read off the data; and that
a claim is true."""

# A bound so far below the norm of a gradient that a missing clip is seen at once.
_FAR_BELOW = 10.0
# Canaries among which the longest gradient is looked for, and records among which the worst ones of a run are.
_LOOKED_AT, _TRIED = 200, 40


def run(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(f"{HELP}\n\nOptions:\n{VERBOSE_HELP}\n")
        print(LIMITS)
        return OK
    line = read_command_line(argv, "audit")
    if line.cfg is not None:
        raise UsageError("--cfg: dpgen train shows settings; leave it out")
    status = _audit(load_audit_settings(plain_words((*line.words, *line.hydra), line.files)))
    print(LIMITS)
    return status


def _audit(spec: AuditSpec) -> int:
    """Audit, and print what was found; gives the exit status."""
    with loading():
        from lightning_dpgen.audit.whole_run import attack_run
        from lightning_dpgen.runs.attacked import MeasuredRun
        from lightning_dpgen.specs.settings import complete_settings
        from lightning_dpgen.specs.source import source_of
    source = source_of(spec.data)
    _check(spec)
    settings = None if spec.attacks_runs else complete_settings(spec.changed(split=spec.split.changed(k=1)), source)
    attacked = None
    if settings is None or settings.clipping is None:
        attacked = MeasuredRun(spec if settings is None else settings.spec, source, min(spec.audit.canaries, _TRIED))
    audits = list(_mechanisms(spec.audit))
    if attacked is None:
        audits += _steps(spec.audit, settings, source)
    # All bounds hold together with the confidence that is asked for; the whole run needs half of what may go wrong.
    error = 0.5 * (1.0 - spec.audit.confidence)
    print(f"auditing {spec.model.name} on made-up records, like those of data={spec.data.source}", flush=True)
    begin, first = time.monotonic(), audits if attacked is not None else audits[:-1]
    findings = [one for audit in first for one in audit(1.0 - error / len(first))]
    if attacked is None:
        findings += audits[-1](1.0 - error)
    rows = [("audited", "claimed epsilon", "at delta", "at least", "verdict", "by"), *map(_row, findings)]
    print(f"\n{align_columns(rows)}\n")
    refuted = [one.what for one in findings if one.refuted]
    if attacked is not None:
        attack = attack_run(attacked, attacked.plan, attacked.neighbours(), spec.audit.draws, 1.0 - error)
        print(f"{_run_table(attack, attacked)}\n")
        refuted += [one.what for one in attack.refuted]
    together = f"all bounds together at confidence {spec.audit.confidence:g}; {time.monotonic() - begin:.0f} s"
    if refuted:
        print(f"REFUTED: {', '.join(refuted)} ({together}). Do not publish what this software has made.\n")
    else:
        print(f"no claim is refuted ({together}). That is no proof of one.\n")
    return FAULT if refuted else OK


def _run_table(attack: AttackedRun, attacked: MeasuredRun) -> str:
    """Return what the attack on whole runs has found, in words and a table."""
    rows = [("access", "stated mu", "attained", "shown", "at least", "verdict", "stated epsilon", "at least")]
    # The noises of an access have rows of their own where one of them is refuted.
    parts = [*attack.accesses, *(one for one in attack.noises if one.refuted), attack.whole]
    for one in parts:
        mus, (claimed, shown) = (one.claim, one.attained, one.shown.mu, one.shown.low), one.epsilons
        verdict = "REFUTED" if one.refuted else "-"
        rows.append((one.what, *(f"{mu:.4g}" for mu in mus), verdict, *_bounds(claimed, shown)))
    plan = attacked.plan
    lines = [
        f"whole runs, epsilon {round_up(plan.epsilon, 4):g}, delta {plan.delta:.3g}: {attack.trials:,} without a "
        f"{_unit(plan)} and",
        "as many with it, beside records at which it is told best; attained is the mu that endless runs would show",
        "",
        align_columns(rows),
    ]
    if attacked.after_fit:
        lines.append(f"stage {', '.join(sorted(attacked.after_fit))}: after the fit of one run, which is post-processing")
    if choices := [one.what for one in attack.accesses if one.of_choices is not None]:
        lines.append(f"stage {', '.join(choices)}: choices, attacked by themselves; the whole run by all other noise")
    if attack.whole.shown.mu < 0.5 * attack.whole.attained:
        lines.append("this shows less than half of what is attained: more runs (audit.draws) show more")
    lines += [f"{one.what}: {one.leak}" for one in parts if one.leak is not None]
    lines += [f"{one.what}: a record is {one.reach:.3f} times as long as its bound" for one in parts if one.too_long]
    return "\n".join(lines)


def _unit(plan: Plan) -> str:
    return "record" if plan.max_rows == 1 else f"person of {plan.max_rows} records"


def _row(finding: Finding) -> tuple[str, ...]:
    verdict = "REFUTED" if finding.refuted else "-"
    claimed, shown = _bounds(finding.claim, finding.bound)
    return finding.what, claimed, f"{finding.delta:g}", shown, verdict, finding.how


def _bounds(claimed: float, shown: float) -> tuple[str, str]:
    """Write an upper bound rounded up, and a lower one rounded down."""
    return f"{round_up(claimed, 4):g}", f"{round_down(shown, 4):g}"


def _check(spec: AuditSpec) -> None:
    from lightning_dpgen.cli.launch import is_launched

    ranks = spec.trainer.devices * spec.trainer.num_nodes
    if not spec.privacy.private:
        raise UsageError("privacy=off: claims nothing that could be audited")
    if spec.debug.private_seed is not None:
        raise UsageError(f"debug.private_seed={spec.debug.private_seed}: makes a run that is not private; leave it out")
    if is_launched() or ranks != 1:
        raise UsageError(
            f"trainer.devices={spec.trainer.devices}: an audit runs in one process on one device; leave it out"
        )
    if spec.privacy.study is not None or spec.privacy.selection is not None:
        raise UsageError("privacy.study, privacy.selection: an audit reads no private record, so leave them out")
    if spec.data.most_rows > 1 and not spec.attacks_runs:
        raise UsageError(
            f"data.max_rows={spec.data.most_rows}: canaries of a network are single records in an audit; leave it and "
            "data.person out"
        )
    if spec.split.k not in (None, 1) and not spec.attacks_runs:
        raise UsageError(f"split.k={spec.split.k}: canaries belong to one component in an audit; leave it out")


def _mechanisms(options: AuditOptions) -> Iterator[Callable[[float], list[Finding]]]:
    from lightning_dpgen.audit.mechanisms import CASES, audit_keys, audit_mechanism, audit_randomness

    for name in CASES:
        yield lambda confidence, name=name: [audit_mechanism(name, options.draws, confidence)]
    yield lambda confidence: [audit_keys(options.draws, confidence)]
    yield lambda _: [audit_randomness()]


def _steps(options: AuditOptions, settings: Settings, source: Source) -> Iterator[Callable[[float], list[Finding]]]:
    """Yield the audits of a training; the whole run comes last."""
    from lightning_dpgen.audit.canaries import canaries_of
    from lightning_dpgen.audit.training import audit_lots
    from lightning_dpgen.privacy.plan import TRAINING

    plan = settings.plan()
    canaries = canaries_of(settings.schema, options.canaries, settings.spec.seed)
    yield lambda confidence: [audit_lots(plan.stage(TRAINING).access.sample_rate, options.draws, confidence)]
    yield lambda confidence: [_step(settings, plan, canaries, options.draws, confidence)]
    yield lambda confidence: [_step(settings, plan, canaries, options.draws, confidence, far_below=True)]
    yield lambda confidence: [_whole(settings, plan, canaries, confidence, source if options.spend else None)]


def _step(
    settings: Settings, plan: Plan, canaries: Records, draws: int, confidence: float, *, far_below: bool = False
) -> Finding:
    """Audit the private step as it is configured, or with a fixed bound far below the norm of the record."""
    from lightning_dpgen.audit.training import audit_step, longest_gradient, plan_of_many
    from lightning_dpgen.data.records import Records
    from lightning_dpgen.gradients.clipping import Fixed
    from lightning_dpgen.privacy.access import Access
    from lightning_dpgen.privacy.account import Account
    from lightning_dpgen.privacy.plan import TRAINING

    access = plan.stage(TRAINING).access

    def module(clipping: ClippingRule, access: Access) -> PrivateMixture:
        account = Account(plan_of_many(access, 2 * draws, plan))
        return settings.module(account, clipping)

    few = Records(canaries.schema, canaries.encoded[:_LOOKED_AT])
    built = module(settings.clipping, access)
    place, norm = longest_gradient(built, few)
    what = "the private step, at noise multiplier 1"
    if far_below:
        others = {name: value for name, value in access.multipliers.items() if name not in settings.clipping.noise_shares}
        built = module(Fixed(norm / _FAR_BELOW), Access(TRAINING, others, access.sampler))
        what = "the same, of a record far beyond the bound"
    return audit_step(built, few, place, draws, confidence, what=what)


def _whole(settings: Settings, plan: Plan, canaries: Records, confidence: float, source: Source | None) -> Finding:
    """Audit one whole run."""
    from lightning_dpgen.audit.bound import Finding
    from lightning_dpgen.audit.canaries import coins
    from lightning_dpgen.audit.training import StepScores, audit_run
    from lightning_dpgen.data.layout import Encoded
    from lightning_dpgen.data.records import Records
    from lightning_dpgen.privacy.account import Account
    from lightning_dpgen.privacy.errors import NoiseMissing
    from lightning_dpgen.runs.context import Context
    from lightning_dpgen.runs.interrupts import Interrupts
    from lightning_dpgen.runs.run_folder import RunFolder
    from lightning_dpgen.runs.train import fit, quiet_lightning

    what = "the whole run"
    others = None if source is None else source.records(settings.schema)[0]

    def scored(part: np.ndarray) -> np.ndarray:
        taken = canaries.encoded[np.flatnonzero(part)]
        records = Records(settings.schema, taken if others is None else Encoded.joined([others.encoded, taken]))
        account = Account(plan)
        module = settings.module(account)
        watching = StepScores(module, canaries)
        with tempfile.TemporaryDirectory() as folder, quiet_lightning():
            run = Context(settings, account, RunFolder(Path(folder)), Interrupts(), keeps=False)
            make_private(run.folder.private)
            fit(run, module, run.split_module(records))
        return watching.scores

    def claims(delta: float) -> float:
        return plan.cost_of(plan.event, delta=delta).epsilon

    try:
        part = coins(len(canaries))
        return audit_run(scored, part, epsilon_at=claims, delta=plan.delta, confidence=confidence, what=what)
    except NoiseMissing as error:
        return Finding(what, plan.epsilon, math.inf, plan.delta, f"the run refuses itself: {' '.join(str(error).split())}")
