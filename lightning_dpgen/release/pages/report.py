"""The report page and the card of a release, rendered from its certificate and its contents."""

from __future__ import annotations

import functools
import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_dpgen.common.plain_text import say_epochs, say_steps
from lightning_dpgen.data.public_sets import NO_PEOPLE, is_simulated
from lightning_dpgen.privacy.access import dominating_laplace
from lightning_dpgen.privacy.accounting.epsilon_range import caution, round_up
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.drawn_noise import NOISY_MAX, read_unit
from lightning_dpgen.release.certificate import found_privately, paragraphs, selected, whole_epsilon
from lightning_dpgen.release.files import CARD, REPORT, SYNTHETIC
from lightning_dpgen.release.pages.charts import epsilon_curve
from lightning_dpgen.release.pages.text import markdown, quoted, sentence, value_text
from lightning_dpgen.release.publishing.licenses import LICENSE
from lightning_dpgen.release.unit_check import counts_persons, protects_persons

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parent / "templates"
# The purchase of each stage, by its name, in words for the curator.
_BOUGHT = {
    "first pass": "what was not declared, such as bounds, categories, how columns are distributed, or a count",
    "selection": "the choice of settings, and the best of all that was tried with them",
    "feature moments": "where the search for groups of similar records begins, and in which directions it goes",
    "clustering": "groups of similar records, each of which gets a model of its own",
    "final pass": "how large the groups are, and what is typical of each",
    "means": "how many records of each kind there are, what is typical of them, and which values pictures have",
    "squares": "how records of a kind differ from what is typical, and what differs together",
    "poses": "whether pictures of a kind differ by how they slant and where they lie",
    "cell means": "which shapes pictures of a kind have, and how many have each",
    "cell squares": "how pictures of one shape differ",
    "values": "how the readings of series are distributed at each time",
    "scales": "how large fast and slow waves of series are",
    "moments": "what is typical of series, how far they differ from that, and what differs together",
    "shapes": "which kinds of series there are",
    "tables": "how often values, and each two of them, occur",
    "steps": "how a row of a person follows from the rows before",
    "margins": "how often the values of each column occur",
    "scores": "which columns are large or small together",
    "crossings": "which columns tell of the label together",
    "evidence": "how much those columns tell of the label together",
    "spreads": "how far records spread in the directions that the classifier looks in",
    "labels": "which label records with these values have",
    "items": "how large baskets are, and how often each item is in one",
    "pairs": "which items are taken together",
    "training": "what the network, or that of each group, knows of the records",
    "fidelity": "figures of how close the synthetic records are to the real ones",
    "rows": "the projected rows",
    "clipped": "how many rows were pulled back to the radius",
}
# Rates at which an attack may name people wrongly.
_WRONGLY = (0.001, 0.01, 0.1)
_LONGEST = 400
# Different sums, and names of equal ones, that a page shows.
_MOST_SUMS, _MOST_NAMES = 30, 6


def write_pages(folder: Path, certificate: dict[str, Any], page: str, limits: Sequence[str] = (), **shown: Any) -> None:
    """Write ``report.html`` (one self-contained page, no script, nothing loaded from elsewhere) and the card ``README.md``.

    Args:
        certificate: the certificate; its hashes are not shown, since it hashes both pages.
        page: kind of release: ``synthetic``, ``projected`` or ``weights``.
        limits: sentences about what to expect, from public numbers alone, besides those that the certificate gives.
        shown: other values that the pages show.
    """
    mechanisms = [
        {"name": own["name"], "bought": describe_purchase(own["name"]), "what": describe_stage(certificate, own)}
        | {"epsilon": own["epsilon"]}
        for own in certificate["stages"]
    ]
    known = {
        "mechanisms": mechanisms,
        "curve": epsilon_curve((certificate["also"] or {}).get("curve", [])),
        "attacks": attacks(certificate),
        "found": found_privately(certificate["declared"]),
        "of_person": protects_persons(certificate),
        "counted": "persons" if counts_persons(certificate) else "records",
        "paragraphs": paragraphs(certificate),
        "limits": [*limits_of(certificate), *limits],
        "simulated": describe_simulated(certificate["declared"]),
        "sums": [_sum_in_words(entry) for entry in certificate["noise"]["sums"][:_MOST_SUMS]],
        "license": certificate["declared"].get(LICENSE),
        "more_sums": max(0, len(certificate["noise"]["sums"]) - _MOST_SUMS),
    }
    for name, suffix in ((REPORT, "html"), (CARD, "md")):
        template = _templates(autoescape=suffix == "html").get_template(f"{page}.{suffix}.jinja")
        (folder / name).write_text(template.render(c=certificate, **known, **shown), encoding="utf-8")


def describe_simulated(declared: dict[str, Any]) -> str | None:
    """Say that a run has learned from a set that is simulated; None for all others, and for a program of one's own.

    Such a program may call its data like a simulated set, but does not declare which draw of it they are.

    Example:
        >>> (describe_simulated({"data": "meters", "draw": 0}) or "")[:39]
        'Made from simulated records (no people)'
        >>> [describe_simulated(own) for own in ({"data": "adult"}, {"data": "meters"})]
        [None, None]
    """
    by_name = is_simulated(declared["data"]) and "draw" in declared
    if not by_name and not (declared["data"] == "blobs" and "projection" in declared):
        return None
    return f"Made from {NO_PEOPLE}, drawn from a public seed: the promise below shows the method, and protects no person."


@functools.cache
def environment(*, autoescape: bool) -> jinja2.Environment:
    """Make the environment that renders the templates of pages and cards; a name that is not given is an error."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _templates(autoescape: bool) -> jinja2.Environment:
    templates = environment(autoescape=autoescape)
    templates.filters["eps"] = lambda value: "none" if value is None else f"{round_up(value, 4):g}"
    templates.filters["selected"] = selected
    templates.filters["percent"] = lambda value: f"{round_up(100.0 * value, 3):g}%"
    templates.filters["number"] = _number
    templates.filters["setting"] = write_setting
    templates.filters["markdown"] = markdown
    templates.filters["quoted"] = quoted
    # Without the marks of Markdown, so that `verify` finds it letter by letter.
    templates.filters["held"] = lambda text: html.escape(text, quote=False)
    return templates


def attacks(certificate: dict[str, Any]) -> list[tuple[float, float]]:
    """Return the share of people in the data whom an attack can name at most, by the share of others whom it names wrongly.

    Both are probabilities; no attack has a larger second one (Kairouz, Oh and Viswanath 2015, for
    (epsilon, delta)-privacy). The list is empty if no promise covers who is in the data.

    Example:
        >>> found = attacks({"private": True, "relation": "add_or_remove_one", "epsilon": 1.0, "delta": 1e-6})
        >>> [(wrongly, round(rightly, 4)) for wrongly, rightly in found]
        [(0.001, 0.0027), (0.01, 0.0272), (0.1, 0.2718)]
    """
    if not certificate["private"] or certificate["relation"] == REPLACE_ONE:
        return []
    # A test is of all outcomes, and not of those that end by a named time.
    epsilon, delta = whole_epsilon(certificate), certificate["delta"]

    def most(wrongly: float) -> float:
        many = math.exp(min(epsilon, 700.0)) * wrongly + delta
        return min(1.0, many, 1.0 - math.exp(-epsilon) * (1.0 - delta - wrongly))

    return [(wrongly, most(wrongly)) for wrongly in _WRONGLY]


def _correlated(tree: dict[str, Any]) -> str:
    """Say the event of steps with a strategy in words."""
    strategy = tree["strategy"]
    bands, groups = len(strategy["coefficients"]), f"one of {strategy['period']:,} groups in its turn"
    noise = "independent Gaussian noise" if bands == 1 else f"Gaussian noise, correlated over {bands} steps"
    rate = tree["sampling_probability"] / strategy["period"]
    turns = f"each record of {groups}, with probability {tree['sampling_probability']:.4g}"
    return (
        f"{say_steps(strategy['steps'], rate)} with {noise}, multiplier {tree['noise_multiplier']:.4g} at sensitivity "
        f"{tree['sensitivity']:.4g}; {turns}"
    )


def _sum_in_words(entry: dict[str, Any]) -> dict[str, str]:
    """Write a sum of a certificate as a page shows it."""
    names = [value_text(name, 80) for name in entry["names"][:_MOST_NAMES]]
    rest = len(entry["names"]) - len(names)
    unit = entry["unit"] if len(entry["unit"]) <= 12 else f"{float(read_unit(entry['unit'])):.6g}"
    times = f" (times {entry['records']:,} for a person)" if entry["records"] > 1 else ""
    return {
        "stage": entry["stage"],
        "names": ", ".join(names) + (f" and {rest:,} more" if rest else ""),
        "unit": unit,
        "bound": f"{_number(_rounded_up(entry['bound_in_units']))} in {entry['norm']}{times}",
        "noise": _number(entry["scale_in_units"]),
    }


def _number(value: float) -> str:
    """Write three digits of a number, or all of its whole ones.

    Example:
        >>> _number(2980.4), _number(0.03521), _number(-16300.0)
        ('2,980', '0.0352', '-16,300')
    """
    return f"{value:,.0f}" if 1000.0 <= abs(value) < 1e9 else f"{value:.3g}"


def _rounded_up(bound: float) -> float:
    """Round a bound up to the digits that `_number` writes.

    Example:
        >>> _number(_rounded_up(1234.2)), _number(_rounded_up(1.2301))
        ('1,235', '1.24')
    """
    return float(math.ceil(bound)) if 1000.0 <= bound < 1e9 else round_up(bound, 3)


def write_setting(value: Any) -> str:
    """Write a declared value in a line that is not too long.

    Example:
        >>> write_setting({"k": 3, "name": None, "bins": [1, 2]})
        'k: 3, bins: 1, 2'
    """
    if isinstance(value, dict):
        text = ", ".join(f"{name}: {write_setting(inner)}" for name, inner in value.items() if inner is not None)
    else:
        text = value_text(value, 200)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def describe_purchase(stage: str) -> str:
    """Say in words for the curator what a stage of this name has bought; empty for a name of an engineer's own.

    Example:
        >>> describe_purchase("rows"), describe_purchase("mine")
        ('the projected rows', '')
    """
    return _BOUGHT.get(stage, "")


def describe_stage(certificate: dict[str, Any], stage: dict[str, Any]) -> str:
    """Say in words how a stage of a certificate is protected: its event, and whether it stands for a choice."""
    drawn = [own for own in certificate["noise"]["others"] if own["stage"] == stage["name"]]
    return describe(stage["event"], [own["multiplier"] for own in drawn if own["mechanism"] == NOISY_MAX.name])


def _rate_of(tree: dict[str, Any]) -> float | None:
    """Return the probability with which a record takes part in an event, where each does by itself; else None."""
    if tree["type"] == "ComposedDpEvent" and tree["events"]:
        tree = tree["events"][0]
    return tree["sampling_probability"] if tree["type"] == "PoissonSampledDpEvent" else None


def describe(tree: dict[str, Any], choices: Sequence[float] = ()) -> str:
    """Say an event tree in words.

    Args:
        choices: the multipliers of choices by the exponential mechanism, whose events are written as those of noise.

    Example:
        >>> describe({"type": "SelfComposedDpEvent", "count": 3,
        ...           "event": {"type": "GaussianDpEvent", "noise_multiplier": 2.0}})
        '3 times: Gaussian noise, multiplier 2'
        >>> describe({"type": "LaplaceDpEvent", "noise_multiplier": 10.0}, choices=[10.0])
        'a choice by the exponential mechanism, epsilon 0.1, accounted for as Laplace noise of multiplier 10'
    """
    kind = tree["type"]
    if kind == "GaussianDpEvent":
        return f"Gaussian noise, multiplier {tree['noise_multiplier']:.4g}"
    if kind == "PoissonSampledDpEvent":
        return f"each record with probability {tree['sampling_probability']:.4g}, {describe(tree['event'], choices)}"
    if kind == "SelfComposedDpEvent":
        epochs = f" ({say_epochs(tree['count'], rate)})" if (rate := _rate_of(tree["event"])) is not None else ""
        return f"{tree['count']:,} times{epochs}: {describe(tree['event'], choices)}"
    if kind == "CorrelatedGaussianDpEvent":
        return _correlated(tree)
    if kind == "ComposedDpEvent":
        if [event["type"] for event in tree["events"]] == ["PoissonSampledDpEvent", "EpsilonDeltaDpEvent"]:
            lot, failure = tree["events"]
            at_most = f"{round_up(failure['delta'], 4):g}"
            return f"{describe(lot, choices)}; a cut of the lot tells of a record with probability at most {at_most}"
        return "; ".join(describe(event, choices) for event in tree["events"])
    if kind == "LaplaceDpEvent":
        # Spherical noise is written so, too, and the choices of trials, whose noises no certificate lists.
        multiplier = tree["noise_multiplier"]
        epsilons = [1.0 / own for own in choices if _stands_for(own, multiplier)]
        drawn = (
            f"a choice by the exponential mechanism, epsilon {round_up(epsilons[0], 4):g}"
            if epsilons
            else "a pure mechanism"
        )
        return f"{drawn}, accounted for as Laplace noise of multiplier {multiplier:.4g}"
    if kind == "EpsilonDeltaDpEvent":
        return f"what one record alone holds is seen with probability at most {round_up(tree['delta'], 4):g}"
    if kind == "RepeatAndSelectDpEvent":
        return (
            f"the best of a secret number of trials, {tree['mean']:g} on average, each: {describe(tree['event'], choices)}"
        )
    if kind == "OneOfDpEvent":
        return " or ".join(describe(event, choices) for event in tree["events"])
    if kind == "NonPrivateDpEvent":
        return "no noise"
    return kind


def _stands_for(choice: float, multiplier: float) -> bool:
    """Return whether Laplace noise of a multiplier is what a choice of another is accounted for as, at any delta."""
    return any(math.isclose(multiplier, own, rel_tol=1e-9) for own in (choice, dominating_laplace(1.0 / choice)))


def limits_of(certificate: dict[str, Any]) -> list[str]:
    """Return the sentences: an epsilon or a delta that says little, and repeat visits that the records do not show.

    Example:
        >>> own = {"private": True, "epsilon": 30.0, "delta": 1e-5, "relation": "add_or_remove_one"}
        >>> found = limits_of(own | {"declared": {"n": 90_000, "max_rows": 4}, "released": ["synthetic.parquet"]})
        >>> [text[:27] for text in found]
        ['Epsilon 30 is above 20, whe', 'Delta is 1e-05, above a ten', 'Each synthetic record is dr']
    """
    limits, declared = [], certificate["declared"]
    n, most = declared.get("n"), declared.get("max_rows")
    if certificate["private"]:
        if (text := caution(certificate["epsilon"])) is not None:
            limits.append(sentence(text))
        delta = certificate["delta"]
        if delta and isinstance(n, int) and n > 0 and delta > 0.1 / n:
            limits.append(
                f"Delta is {delta:g}, above a tenth of 1/n = {0.1 / n:.3g}, where it is the custom to stay below: with "
                "about that probability the bound by epsilon does not hold."
            )
    if type(most) is int and most > 1 and SYNTHETIC in certificate["released"] and certificate["relation"] != REPLACE_ONE:
        limits.append(
            f"Each synthetic record is drawn by itself, though a person had up to {most:,} of the real ones: which "
            "belong to one person, and so repeat visits, their order and their number, cannot be seen in them or learned "
            "from them."
        )
    return limits
