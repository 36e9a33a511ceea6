"""A grid of settings: each combination of the values that a command line lists, in Hydra's order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import OverrideParseException

from lightning_dpgen.specs.config_files import OwnFiles
from lightning_dpgen.specs.plain_words import plain_words
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import name_of, parse_word, quote_text, refuse_interpolations, unknown_option

# Combinations of a grid.
_MOST = 10_000


@dataclass(frozen=True)
class Job:
    """One of the combinations.

    Args:
        words: that its settings follow from, without a file of a person's own.
        varied: the values in which jobs differ, by name, as they were typed.
    """

    words: tuple[str, ...]
    varied: Mapping[str, str]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.varied.items())


def expand_grid(words: Sequence[str], files: OwnFiles | None = None) -> tuple[list[Job], list[str]]:
    """Return all combinations, in Hydra's order, and the names of what differs between them.

    Raises:
        UsageError: for an option, and a word that Hydra cannot read, or would look up.
    """
    refuse_interpolations(words)
    for word in words:
        if word.startswith("-"):
            raise unknown_option(word)
    try:
        parsed = [parse_word(quote_text(word)) for word in words]
        choices = [_sweep_words(item) if item.is_sweep_override() else [str(item.input_line)] for item in parsed]
    except OverrideParseException as error:
        raise UsageError(f"argument {error.override!r}: cannot be read as a setting or a sweep over one") from None
    varied = [name_of(override.get_key_element()) for override in parsed if override.is_sweep_override()]
    if (count := math.prod(map(len, choices))) > _MOST:
        raise UsageError(f"{' '.join(varied)}: {count:,} combinations; expected {_MOST:,} at most")
    return [_make_job(combination, varied, files) for combination in itertools.product(*choices)], varied


def _make_job(words: Sequence[str], varied: Sequence[str], files: OwnFiles | None) -> Job:
    given = {name_of(word): word.partition("=")[2] for word in words}
    return Job(tuple(plain_words(words, files)), {name: given[name] for name in varied})


def _sweep_words(override: Override) -> list[str]:
    """Return the words that a word with several values stands for."""
    expected = "expected values in a list, as in seed=1,2,3, or whole numbers in a range, as in 'seed=range(0,3)'"
    if override.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
        raise UsageError(f"{override.input_line}: names no values; {expected}")
    # A range may be longer than memory.
    values = list(itertools.islice(override.sweep_string_iterator(), _MOST + 1))
    if not values:
        raise UsageError(f"{override.input_line}: has no value; {expected}")
    if len(values) > _MOST:
        raise UsageError(f"{override.input_line}: more than {_MOST:,} values; expected that many at most")
    return [f"{override.get_key_element()}={value}" for value in values]
