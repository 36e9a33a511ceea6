"""The limits of a release that follow from its certificate, in sentences for its report and its card. Public."""

from __future__ import annotations

from typing import Any

from lightning_dpgen.privacy.accounting.epsilon_range import caution
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.release.files import SYNTHETIC


def limits_of(certificate: dict[str, Any]) -> list[str]:
    """Return the sentences: an epsilon or a delta that says little, and repeat visits that the records do not show.

    Example:
        >>> own = {"private": True, "epsilon": 30.0, "delta": 1e-5, "relation": "add_or_remove_one"}
        >>> found = limits_of(own | {"declared": {"n": 90_000, "max_rows": 4}, "released": ["synthetic.parquet"]})
        >>> [text[:27] for text in found]
        ['Epsilon 30 is above 20, whe', 'Delta is 1e-05, above a ten', 'Each synthetic record is dr']
    """
    found, declared = [], certificate["declared"]
    n, most = declared.get("n"), declared.get("max_rows")
    if certificate["private"]:
        if (text := caution(certificate["epsilon"])) is not None:
            found.append(sentence(text))
        delta = certificate["delta"]
        if delta and isinstance(n, int) and n > 0 and delta > 0.1 / n:
            found.append(
                f"Delta is {delta:g}, above a tenth of 1/n = {0.1 / n:.3g}, where it is the custom to stay below: with "
                "about that probability the bound by epsilon does not hold."
            )
    if type(most) is int and most > 1 and SYNTHETIC in certificate["released"] and certificate["relation"] != REPLACE_ONE:
        found.append(
            f"Each synthetic record is drawn by itself, though a person had up to {most:,} of the real ones: which "
            "belong to one person, and so repeat visits, their order and their number, cannot be seen in them or learned "
            "from them."
        )
    return found


def sentence(text: str) -> str:
    """Return a warning as a sentence of a report, without its advice to the curator, which stands behind a semicolon.

    Example:
        >>> sentence("a cell holds 3 records and noise of 9: little is found; raise epsilon")
        'A cell holds 3 records and noise of 9: little is found.'
    """
    told = text.partition("; ")[0]
    return f"{told[:1].upper()}{told[1:]}."
