"""Words of a command line: NAME=VALUE in Hydra's spelling, read and written."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.specs.spec import as_word
from lightning_dpgen.specs.usage_error import UsageError

# Words that ask for a sweep.
FLAGS = ("-m", "--multirun")
# All words of a command of settings that are no setting.
OPTIONS = (
    *FLAGS, "--cfg", "--config-dir", "--config-name", "--config-path", "--help", "--info", "--package", "--resolve",
    "--run", "--verbose",
)  # fmt: skip
# Paths that Hydra reads as they stand.
_BARE = re.compile(r"/[\w./-]*", re.ASCII)
# Settings whose text may hold any sign, which is taken as it stands.
_TEXTS = ("data.url", "data.query")


def name_of(word: str) -> str:
    """Return the setting that a word of a command line is about."""
    return word.partition("=")[0].lstrip("+~").strip()


def takes_back(word: str) -> bool:
    """Return True for a word that gives a setting its default back, as `~model.hidden` does."""
    return word.startswith("~")


def is_for_hydra(word: str) -> bool:
    """Return True for a word that says how a sweep is started."""
    return name_of(word).startswith(("hydra.", "hydra/"))


def asks_for_selection(words: Sequence[str]) -> bool:
    """Return True where the command line asks for the best of several trials."""
    asked = [word for word in words if name_of(word) == "privacy.selection"]
    return bool(asked) and not takes_back(asked[-1]) and asked[-1].partition("=")[2] != "null"


def write_word(name: str, value: object) -> str:
    """Return the word that sets a value, whatever signs a text holds; a shell needs `shlex.quote` besides.

    Example:
        >>> write_word("run_dir", "my runs/1"), write_word("model.options", {"width": 3, "names": ["a b"]})
        ('run_dir="my runs/1"', 'model.options={width: 3, names: ["a b"]}')
    """
    return f"{name}={_write(value)}"


def _write(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return as_word(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_write(one)}' for name, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_write, value))}]"
    text = str(value)
    return text if _BARE.fullmatch(text) else QuotedString(text, Quote.double).with_quotes()


def replace_setting(words: Sequence[str], name: str, value: object) -> list[str]:
    """Return the words of a command line with another value of one setting."""
    return [*(word for word in words if name_of(word) != name), write_word(name, value)]


def quote_text(word: str) -> str:
    """Return a word whose text Hydra would read as its own language in quotes, unless it has them."""
    name, _, value = word.partition("=")
    bare = name_of(word) in _TEXTS and value[:1] not in ("'", '"', "") and value != "null"
    return write_word(name, value) if bare else word


@functools.lru_cache(maxsize=1024)
def parse_word(word: str) -> Override:
    """Return what Hydra reads in a word."""
    return _parser().parse_overrides([word])[0]


@functools.cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def refuse_interpolations(words: Sequence[str]) -> None:
    """Refuse what would be looked up when it is read: a setting may be published, and an environment holds secrets."""
    for word in words:
        # Hydra takes a backslash away.
        if "${" in word.replace("\\", ""):
            raise UsageError(f"argument {word!r}: expected the value itself; nothing of the form ${{...}} is looked up")


def unknown_option(word: str) -> UsageError:
    """Return the error about an option that no command of settings has."""
    near = suggest(word.lstrip("-"), [option.lstrip("-") for option in OPTIONS if len(option) > 2], "--{}", shortened=True)
    return UsageError(f"unknown option {word!r}: settings are given as NAME=VALUE, as in privacy.epsilon=2{near}")


def without_commas(word: str) -> str:
    """Return the word with its number as programs write it, or either one that it may be; empty where it is no number."""
    name, _, value = word.partition("=")
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", value):
        return f"{name}={value.replace(',', '')}"
    return f"{name}={value.replace(',', '.')}" if re.fullmatch(r"[+-]?\d+,\d{1,2}", value) else ""
