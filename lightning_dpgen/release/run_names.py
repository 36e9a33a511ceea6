"""The names by which a certificate shows that a run of the program has declared its settings in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# The settings of all kinds of data that a certificate shows, and what else a run alone declares (`Settings.dump_public`).
# `release_mixture` refuses them in a program of one's own, so that no other program has them.
RUN_NAMES = frozenset(
    {
        "bins_share", "by", "channels", "classes", "clipping", "columns", "day", "decimals", "discovered",
        "discovery_share", "draw", "fidelity_share", "fit", "form", "header", "height", "high", "label", "length", "low",
        "max_items", "n_share", "options", "outside", "person", "rows_independent", "separator", "split", "steps",
        "target", "threshold", "time", "weekdays", "width", "workload",
    }
)  # fmt: skip


def names_of_a_run(declared: Iterable[str]) -> list[str]:
    """Return the declared names that only a run of the program declares.

    Example:
        >>> names_of_a_run({"data": "visits", "n": 900, "split": None, "my_classes": 10})
        ['split']
    """
    return sorted(RUN_NAMES & set(declared))


def in_words(model: Any) -> bool:
    """Return whether a declared model is words, as in a program of one's own, and no settings.

    Example:
        >>> in_words("a mixture of mine"), in_words({"name": "vae"}), in_words(None)
        (True, False, False)
    """
    return isinstance(model, str) and bool(model.strip())
