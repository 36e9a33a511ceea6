"""The certificate ``privacy.json``: the claims, and the event tree from which anyone can recompute them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dp_accounting

from lightning_dpgen.common.plain_text import LONGEST_NAME, say_count
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.accountant import INTERVALS, MOST_POINTS, affordable, compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import CAUTIOUS_EPSILON, PLD, gaussian_mu, round_up
from lightning_dpgen.privacy.accounting.events import compose_events, encode, stage_events
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE, Unaccountable
from lightning_dpgen.privacy.accounting.renyi import compute_epsilon_by_rdp
from lightning_dpgen.privacy.noise.stream import SECURE
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.calibration import PLANNER
from lightning_dpgen.privacy.software import versions
from lightning_dpgen.release.drawing.opened import file_hash
from lightning_dpgen.release.files import (
    CARD,
    CERTIFICATE,
    CROISSANT,
    REPORT,
    SYNTHETIC,
)
from lightning_dpgen.release.pages.text import printable
from lightning_dpgen.release.stated_noises import state_noises
from lightning_dpgen.release.unit_check import counts_persons, protects_persons

FORMAT_VERSION = 2
# The name, among what is declared, of the network that a training started from.
INIT = "init"
# The name, among what is declared, of the cut of lots, by stage.
TRUNCATED_LOTS = "truncated_lots"

# Deltas of the curve, as powers of ten.
_EXPONENTS = range(3, 10)
# Names of found parts that the statement lists.
_MOST_FOUND = 20
SELECTION = "none by this software: one run, and nothing was chosen among several with the records"
STUDY_UNKNOWN = "unknown"
# Files that only show the certificate and the released ones.
ABOUT = (REPORT, CARD, CROISSANT)
ACCOUNTANTS = {"pld": "dp_accounting.pld", "closed form": "closed form", "rdp": "dp_accounting.rdp.RdpAccountant"}


def digest(certificate: dict[str, Any]) -> str:
    """Return the sha256 of a certificate without its own digest, as JSON: sorted keys, no spaces, UTF-8, no NaN."""
    rest = {key: value for key, value in certificate.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def make_certificate(
    account: Account,
    *,
    unit: str,
    declared: dict[str, Any],
    released: list[str],
    folder: Path,
    selection: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the certificate of a run whose other files are complete in `folder`.

    Epsilon is the larger of plan and ledger, rounded up. Numbers that are not finite (a run that is not private) are
    written as null.

    Args:
        account: the settled account of the run.
        unit: the unit whose presence is protected, in words.
        declared: everything that is assumed public.
        released: names of the files that are functions of the records.
        folder: the folder of every file but the certificate.
        selection: the law and mean of the number of trials, score, space and choice; None for one run.
    """
    account.read_on()
    plan = account.plan
    event, spending = account.certify()
    private = account.private
    accesses = account.accesses
    if event == plan.event:
        accesses = plan.accesses
    elif account.named_stop is not None:
        accesses = plan.stopped_after(account.named_stop).accesses
    interval, reference = spending.interval or None, plan.reference if plan.private else None
    replaceable = reference is None or reference.replaceable
    named = stage_events(accesses, pure=plan.delta == 0.0)
    stages = [stage for _, stage in named]
    epsilons: list[float | None] = [None] * len(stages)
    if plan.private:
        epsilons = [*stage_epsilons(stages, plan.part_of_delta, interval, plan.relation, plan.accountant)]
    cuts = {stage.name: cut for stage in plan.stages if (cut := stage.access.sampler.truncation) is not None}
    declared = declared | {TRUNCATED_LOTS: cuts} if cuts else declared
    certificate: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "private": private,
        "epsilon": round_up(spending.epsilon) if plan.private else None,
        "delta": plan.delta if plan.private else None,
        "relation": plan.relation,
        "unit": unit,
        "target_epsilon": plan.target_epsilon if plan.private else None,
        "accountant": {
            "name": ACCOUNTANTS[spending.method],
            "version": version("dp-accounting"),
            "value_discretization_interval": spending.interval,
        }
        | ({} if plan.accountant == PLD else {"chosen": plan.accountant}),
        "event": encode(event),
        "stages": [
            {"name": name, "event": encode(stage), "epsilon": None if epsilon is None else round_up(epsilon)}
            | ({"interleaved": True} if plan.private and plan.stops and plan.stage(name).interleaved else {})
            for (name, stage), epsilon in zip(named, epsilons, strict=True)
        ],
        "also": (
            also(
                event if account.named_stop is None else plan.event,
                round_up(
                    spending.epsilon if account.named_stop is None else plan.cost_of(plan.event, interval=interval).epsilon
                ),
                plan.delta,
                interval,
                plan.relation,
                replaceable,
                plan.accountant,
                len(plan.stops) + 1,
            )
            if plan.private
            else None
        ),
        "noise": {"source": account.stream.source, "seeded": account.stream.seeded}
        | state_noises(accesses, account.ledger.noises, plan.relation),
        "declared": declared,
        "selection": SELECTION if selection is None else selection,
        "study": _study(account),
        "released": sorted(released),
        "files": {path.name: file_hash(path) for path in sorted(folder.iterdir()) if path.name != CERTIFICATE},
        "versions": versions() | {"planner": str(PLANNER)},
    }
    if reference is not None:
        certificate["reference"] = {"after": reference.after, "replaceable": reference.replaceable}
    if plan.private and account.ledger.stopped:
        certificate["stopped"] = {name: count for stage in plan.stages if (count := account.count(name := stage.name))}
    if plan.private and plan.stops:
        certificate["stops"] = state_stops(plan, account.named_stop, interval)
    certificate["statement"] = statement(certificate)
    return certificate | {"digest": digest(certificate)}


def state_stops(plan: Plan, named_stop: int | None, interval: float | None) -> dict[str, Any]:
    """State the named times of a plan, each with its epsilon, and the one up to which a run is charged."""
    stage = plan.stage(plan.flexible or plan.stages[-1].name)
    named = [*plan.stops, stage.count]
    costs = [plan.cost_of(plan.stopped_after(count).event, interval=interval).epsilon for count in named]
    return {
        "stage": stage.name,
        "named": named,
        "epsilons": [round_up(cost) for cost in costs],
        "charged": stage.count if named_stop is None else named_stop,
        "delta_of_each": plan.part_of_delta,
    }


def stage_epsilons(
    stages: Sequence[dp_accounting.DpEvent], delta: float, interval: float | None, relation: str, accountant: str = PLD
) -> list[float]:
    """Compute epsilon of each stage by itself, at the interval of the whole.

    Stages that a reference stands for are no part of the whole, and may be too dear at its interval: then the finest one
    is used at which accounts of all stages together are affordable.
    """
    together = compose_events(list(stages))
    if interval is not None:
        dearest = max(compute_epsilon_by_rdp(stage, delta) for stage in stages)
        finer = [at for at in INTERVALS if at >= interval and affordable(together, at) and dearest <= MOST_POINTS * at]
        interval = finer[-1] if finer else INTERVALS[0]
    return [
        compute_epsilon(stage, delta, relation=relation, interval=interval, beside=together, accountant=accountant).epsilon
        for stage in stages
    ]


def also(
    event: dp_accounting.DpEvent,
    epsilon: float,
    delta: float,
    interval: float | None,
    relation: str,
    replaceable: bool = True,
    accountant: str = PLD,
    times: int = 1,
) -> dict[str, Any]:
    """State the same event in other ways: a record replaced, Gaussian-DP, and other deltas. Rounded up.

    Of a plan with so many named `times`, each delta is divided by their number, and the event is the whole plan's: at an
    earlier time the outcomes alone have a smaller cost, and the procedure has not.

    `replace_one_epsilon` is null if no sound account is known, or if the event holds a reference that does not cover it
    (`replaceable`). `gaussian_mu` belongs to the one Gaussian that is exactly (epsilon, delta)-private; the event itself
    may lie above that Gaussian at another delta. At delta = 0 there is neither such a Gaussian nor a curve, and a replaced
    record is one removed and one added.
    """
    if delta == 0.0:
        replaced = epsilon if relation == REPLACE_ONE else round_up(2.0 * epsilon)
        return {"replace_one_epsilon": replaced, "gaussian_mu": None, "curve": []}

    def cost(delta: float, relation: str) -> float:
        spent = compute_epsilon(event, delta / times, relation=relation, interval=interval, accountant=accountant)
        return round_up(spent.epsilon)

    replaced = None
    if replaceable:
        with suppress(Unaccountable):
            replaced = cost(delta, REPLACE_ONE)
    curve = [[10.0**-e, cost(10.0**-e, relation)] for e in _EXPONENTS]
    return {
        "replace_one_epsilon": replaced if replaced is not None and math.isfinite(replaced) else None,
        "gaussian_mu": round_up(gaussian_mu(epsilon, delta)),
        "curve": [[at, value] for at, value in curve if 0.0 < value < math.inf],
    }


def statement(certificate: dict[str, Any]) -> str:
    """Write what a lawyer can read, from the other fields and from nothing else: its paragraphs, as one."""
    return " ".join(paragraphs(certificate))


def paragraphs(certificate: dict[str, Any]) -> list[str]:
    """Write the statement in paragraphs: promise, persons, other releases, what is public, noise, what verify shows."""
    if certificate["noise"]["seeded"] and certificate["epsilon"] is not None:
        return [
            "THIS IS NOT A PRIVATE RELEASE. The noise was drawn from a known seed for debugging, so anybody who has the "
            "seed can remove it. Do not publish anything in this folder."
        ]
    if not certificate["private"]:
        learned = "The model was trained without noise and without bounding what one record contributes"
        if certificate["relation"] == REPLACE_ONE:
            learned = "The rows were projected without noise"
        return [
            f"THIS IS NOT A PRIVATE RELEASE. {learned}. Nothing limits what it reveals about a person. Do not publish "
            "anything in this folder."
        ]
    epsilon, delta, declared = whole_epsilon(certificate), certificate["delta"], certificate["declared"]
    factor = f"the probability of any outcome {_by_factor(epsilon, delta)}"
    if certificate["relation"] == REPLACE_ONE:
        what, reach = "The projected rows", "for whatever is computed from the projected rows"
        change = f"{certificate['unit']} changes {factor}"
    else:
        what, reach = "The model, the synthetic records", "for any number of synthetic records drawn from the model"
        if SYNTHETIC not in certificate["released"]:
            what, reach = "The model", "for whatever is computed from the model"
        whose = "that person's records were" if protects_persons(certificate) else "that one record was"
        change = f"for {certificate['unit']}, whether {whose} added to the data or removed from it changes {factor}"
    return [
        f"{what} and everything else in this folder were made by a procedure that is "
        f"({epsilon:g}, {delta:g})-differentially private. This means: {change}. {_at_named_stop(certificate)}It holds "
        f"against anybody, whatever else they know, and {reach}. It does not "
        f"promise that nothing can be learned about the population, or about a person from others.",
        _several_records(declared),
        f"{_chosen(certificate['selection'])}{_other_releases(certificate)}",
        f"{_assumed(certificate)} {_bounded(declared)}{_independent(declared)}{_started(declared)}".rstrip(),
        _randomness(certificate),
        "'dpgen verify' shows that this certificate is consistent with itself and with the files beside it; it cannot show "
        "that the run took place as described.",
    ]


def whole_epsilon(certificate: dict[str, Any]) -> float:
    """Return the epsilon that the procedure has whenever it ends: at a named time the outcomes alone have a smaller one.

    Example:
        >>> whole_epsilon({"epsilon": 2.0}), whole_epsilon({"epsilon": 2.0, "stops": {"epsilons": [2.0, 3.0]}})
        (2.0, 3.0)
    """
    return certificate["stops"]["epsilons"][-1] if "stops" in certificate else certificate["epsilon"]


def _by_factor(epsilon: float, delta: float) -> str:
    about = "a number too large to mean protection"
    if epsilon <= CAUTIOUS_EPSILON:
        about = f"{round_up(2.718281828459045**epsilon, 3):g}"
    factor = f"by a factor of at most e^{epsilon:g} (about {about})"
    return f"{factor}, except for a part of probability at most {delta:g}" if delta else factor


def _at_named_stop(certificate: dict[str, Any]) -> str:
    """Say what more is known of a run that ended at one of the times which its plan has named."""
    stops = certificate.get("stops")
    if stops is None:
        return ""
    *earlier, last = (f"{count:,}" for count in stops["named"])
    charged, stage = stops["charged"], printable(stops["stage"], 80)
    text = (
        f"The plan named {' and '.join(earlier)} accesses of the stage '{stage}', before all {last}, as times to stop at. "
    )
    if charged == stops["named"][-1]:
        return f"{text}This run is charged as a whole. "
    more = _by_factor(certificate["epsilon"], stops["delta_of_each"])
    drawn = certificate.get("stopped", {}).get(stops["stage"], 0)
    return (
        f"{text}This run stopped for good after {drawn:,}, and is charged up to {charged:,}. Of the outcomes that end by "
        f"then more is known: the probability of any of them changes {more}; these parts of all named times add up to "
        f"{certificate['delta']:g}. "
    )


def selected(selection: dict[str, Any] | str) -> str:
    """Say how a release was chosen among several, in a few words.

    Example:
        >>> selected({"law": "geometric", "mean": 5.0, "score": "fidelity", "space": {"seed": ["0", "1"]}, "chosen": None})
        'an untrained network, since of a secret number of trials (geometric law, mean 5) there was none'
    """
    if not isinstance(selection, dict):
        return selection
    how = f"of a secret number of trials ({selection['law']} law, mean {selection['mean']:g})"
    if selection["chosen"] is None:
        return f"an untrained network, since {how} there was none"
    named = ", ".join(f"{printable(name, 80)}={printable(value, 80)}" for name, value in selection["chosen"].items())
    return f"the best {how} by {printable(selection['score'], 80)}{': ' if named else ''}{named}"


def _chosen(selection: dict[str, Any] | str) -> str:
    if not isinstance(selection, dict):
        return ""
    return (
        f"What is released is {selected(selection)}. The guarantee covers this choice as long as the number of trials, "
        "the time that they took, and everything about the others stay secret. "
    )


def found_privately(declared: dict[str, Any]) -> list[str]:
    """Name the parts of a record's description that were found with a share of the budget; empty if all was declared.

    Example:
        >>> found_privately({"discovery_share": 0.05, "discovered": ["bounds of age", "keys of city"]})
        ['bounds of age', 'keys of city']
    """
    names = declared.get("discovered")
    return [printable(name, 80) for name in names] if isinstance(names, list) else []


def _rows_of_a_person(declared: dict[str, Any]) -> int | None:
    """Return the most records of a person that took part; None if the unit is a record."""
    most = declared.get("max_rows")
    return most if type(most) is int else None


def _study(account: Account) -> dict[str, Any] | str:
    study = account.study
    if study is None:
        return STUDY_UNKNOWN
    # A run that has drawn nothing since it went on has no total of its own yet: the study's present one holds.
    total = account.study_total or study.total
    return {
        "name": study.name,
        "runs": total.runs,
        "epsilon": round_up(total.epsilon),
        "delta": total.delta,
        "relation": total.relation,
        "total_epsilon": study.epsilon,
    }


def _other_releases(certificate: dict[str, Any]) -> str:
    """Say what is known about other releases from the same records."""
    study = certificate["study"]
    if not isinstance(study, dict):
        return "Study unknown: other releases from the same data, if there are any, add to this one."
    how = "replaced" if study["relation"] == REPLACE_ONE else "added or removed"
    stopped = (
        "It was stopped for good, and its study may count only what it had drawn. " if "stopped" in certificate else ""
    )
    # A study does not know the units of its runs, and a record is a part of each.
    if (_rows_of_a_person(certificate["declared"]) or 1) > 1:
        how += " (and for the unit of this one, where each of them protects that unit)"
    return (
        f"{stopped}In the study '{printable(study['name'], 80)}' this was run {study['runs']}; together its runs so far "
        f"are ({study['epsilon']:g}, {study['delta']:g})-differentially private for one record {how}, of a total of "
        f"{study['total_epsilon']:g} that was declared first. Releases outside of that study add to it."
    )


def _several_records(declared: dict[str, Any]) -> str:
    most = _rows_of_a_person(declared)
    if declared.get("data") == "histories":
        return "All rows of a person are one record."
    if most is None:
        return "A person with several records is protected less."
    return f"Of a person with more than {say_count(most, 'record')}, those beyond that number took no part."


def _assumed(certificate: dict[str, Any]) -> str:
    declared = certificate["declared"]
    # The number of records is public knowledge, unless it was bought as a noisy count.
    bought = certificate["relation"] != REPLACE_ONE and declared.get("n_share")
    counted = "persons" if counts_persons(certificate) else "records"
    number = "" if bought else f"the number of {counted} ({declared.get('n')}), "
    parts, apart = found_privately(declared), ""
    if parts:
        rest = len(parts) - _MOST_FOUND
        named = ", ".join(parts[:_MOST_FOUND]) + (f" and {rest:,} more" if rest > 0 else "")
        apart = f" but for what was found in the records with a share of the budget, which epsilon covers ({named})"
    elif declared.get("discovery_share"):
        apart = " but for what was found in the records with a share of the budget, which epsilon covers"
    settings = "the settings listed under 'declared'"
    if isinstance(certificate["selection"], dict) and certificate["selection"]["chosen"]:
        settings += f" but for {', '.join(printable(name, 80) for name in certificate['selection']['chosen'])}"
    return (
        f"The following was assumed to be public knowledge and is not protected: {number}the description of a record"
        f"{apart}, and {settings}."
    )


def _bounded(declared: dict[str, Any]) -> str:
    """Say on which bound of the number of records the cut of lots rests."""
    cut = declared.get(TRUNCATED_LOTS)
    bounds = [own.get("at_most") for own in cut.values() if isinstance(own, dict)] if isinstance(cut, dict) else []
    if not bounds or any(type(bound) is not int for bound in bounds):
        return ""
    units = "records" if _rows_of_a_person(declared) is None else "persons"
    return (
        f"It is declared that no data of this kind can hold more than {min(bounds):,} {units}; the guarantee rests on "
        "that, since lots were cut to a largest size. "
    )


def _independent(declared: dict[str, Any]) -> str:
    """Say what is declared of the query by which records were read, where its form does not show it."""
    if declared.get("rows_independent") is not True:
        return ""
    return (
        "The records are rows of a query of a database, and it is declared that one record more or less changes no row but "
        "its own; the guarantee rests on that. "
    )


def _started(declared: dict[str, Any]) -> str:
    """Say on which declaration the initial weights of the training rest."""
    init = declared.get(INIT)
    if not isinstance(init, dict):
        return ""
    name, weights = (printable(init.get(key), length) for key, length in (("public", LONGEST_NAME), ("weights", 64)))
    return (
        f"The training started from a network that was learned from data declared to be public: '{name}' (sha256 of its "
        f"weights: {weights}). The guarantee does not cover the people in those data. "
    )


def _randomness(certificate: dict[str, Any]) -> str:
    # Any source that is not known to be cryptographic is said not to be.
    if certificate["noise"]["source"] == SECURE:
        return (
            "The random words come from a cryptographic generator (AES-256). Noise on counts and other sums of whole "
            "numbers is exact; other noise is computed in floating point, and noisy sums are rounded to a public grid, "
            "which hides their last digits."
        )
    return (
        "Noise comes from a cipher (on a GPU, from torch's generator). On counts and other sums of whole numbers it is "
        "exact; other noise is computed in floating point, and noisy sums are rounded to a public grid, which hides their "
        "last digits. The generator that samples records is statistically sound but not cryptographic."
    )
