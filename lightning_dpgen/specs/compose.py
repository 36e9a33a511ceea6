"""Configurations composed by Hydra from the files of conf/ and the words of a command line: a dictionary, or one line."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import lightning_dpgen
from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.data.files.kinds import is_known
from lightning_dpgen.specs.groups import NEVER
from lightning_dpgen.specs.spec import as_typed
from lightning_dpgen.specs.usage_error import UsageError

# Words that ask for a sweep.
FLAGS = ("-m", "--multirun")
# All words of a command of settings that are no setting.
OPTIONS = (*FLAGS, "--cfg", "--help", "--verbose")
GROUPS = ("data", "model", "clipping", "privacy", "split", "trainer", "compute", "experiment")
# Hydra composes and runs nothing, and half of its time goes into files about how it runs.
_NOTHING_RUNS = [
    f"~hydra/{group}"
    for group in ("output", "launcher", "sweeper", "help", "hydra_help", "hydra_logging", "job_logging", "env")
]
# Settings that say which group was picked.
_CHOSEN = ("data.source", "model.name", "clipping.rule")
# Paths that Hydra reads as they stand.
_BARE = re.compile(r"/[\w./-]*", re.ASCII)
# Settings whose text may hold any sign, which is taken as it stands.
_TEXTS = ("data.url", "data.query")
# Combinations of a grid.
_MOST = 10_000


def conf_dir() -> Path:
    """Return the folder of the YAML files: inside an installed package, beside it in a checkout."""
    package = Path(lightning_dpgen.__file__).parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError("the configuration files of lightning_dpgen are missing: install it again")


def refuse_interpolations(words: Sequence[str]) -> None:
    """Refuse what would be looked up when it is read: a setting may be published, and an environment holds secrets."""
    for word in words:
        # Hydra takes a backslash away.
        if "${" in word.replace("\\", ""):
            raise UsageError(f"argument {word!r}: expected the value itself; nothing of the form ${{...}} is looked up")


def compose_settings(words: Sequence[str], name: str) -> dict[str, Any]:
    """Return the configuration of that name, with the words of a command line, as a dictionary.

    Files hold only what differs from the defaults of settings, so a word may name any setting; `parse` refuses others.

    Raises:
        UsageError: for whatever Hydra does not like, in one line.
    """
    refuse_interpolations(words)
    words = [_check_word(word) for word in words]
    try:
        # A double plus also sets what a file may not hold.
        parsed = [_parse_word(word if _picks(word) else f"++{word}") for word in words]
        for override, word in zip(parsed, words, strict=True):
            if override.is_sweep_override():
                if number := _without_commas(word):
                    raise UsageError(
                        f"{word}: expected one value: write the number as {number}; dpgen train -m makes a run for each "
                        "of several values"
                    )
                raise UsageError(
                    f"{word}: expected one value; dpgen train -m makes a run for each of several, and text with commas "
                    "or brackets needs quotes, inside those of the shell"
                )
        values = copy.deepcopy(_compose_groups(name, tuple(word for word in words if _picks(word))))
        # Hydra's own order: all groups are picked first, and then each setting is set.
        for override in parsed:
            if override.is_force_add():
                _put(values, override.key_or_group.split("."), override.value())
        for override in parsed:
            _keep_text(values, override)
        return values
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(_explain(error)) from None


@functools.lru_cache(maxsize=1024)
def _parse_word(word: str) -> Override:
    """Return what Hydra reads in a word."""
    return _parser().parse_overrides([word])[0]


@functools.cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def _put(values: dict[str, Any], names: Sequence[str], value: Any) -> None:
    """Set a value below nested names; names and values that are set together join those that are there."""
    *groups, last = names
    for group in groups:
        if not isinstance(values.get(group), dict):
            values[group] = {}
        values = values[group]
    if isinstance(value, dict) and isinstance(values.get(last), dict):
        for name, inner in value.items():
            _put(values[last], [name], inner)
    else:
        values[last] = value


@functools.lru_cache(maxsize=256)
def _compose_groups(name: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Return what Hydra makes of the files for words that pick groups: a command asks several times for the same."""
    # Within a sweep, Hydra has another configuration at hand.
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return OmegaConf.to_container(compose(name, overrides=[*_NOTHING_RUNS, *words]), resolve=False)
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)


def name_of(word: str) -> str:
    """Return the setting that a word of a command line is about."""
    return word.partition("=")[0].lstrip("+~").strip()


def write_word(name: str, value: object) -> str:
    """Return the word that sets a text, whatever signs it holds; a shell needs `shlex.quote` besides.

    Example:
        >>> write_word("run_dir", "my runs/1")
        'run_dir="my runs/1"'
    """
    text = str(value)
    return f"{name}={text}" if _BARE.fullmatch(text) else f"{name}={QuotedString(text, Quote.double).with_quotes()}"


def replace_setting(words: Sequence[str], name: str, value: object) -> list[str]:
    """Return the words of a command line with another value of one setting."""
    return [*(word for word in words if name_of(word) != name), write_word(name, value)]


def _quote_text(word: str) -> str:
    """Return a word whose text Hydra would read as its own language in quotes, unless it has them."""
    name, _, value = word.partition("=")
    bare = name_of(word) in _TEXTS and value[:1] not in ("'", '"', "") and value != "null"
    return write_word(name, value) if bare else word


def _picks(word: str) -> bool:
    """Return True for a word that picks a file for a group."""
    return word.partition("=")[0] in GROUPS


def _keep_text(values: dict[str, Any], override: Override) -> None:
    """Let a number know how it was typed."""
    *groups, last = override.key_or_group.split(".")
    for group in groups:
        values = values.get(group)
        if not isinstance(values, dict):
            return
    text = str(override.input_line).partition("=")[2].strip()
    if override.value_type is ValueType.ELEMENT and last in values and "(" not in text:
        values[last] = as_typed(values[last], text)


def _unknown_option(word: str) -> UsageError:
    near = suggest(word.lstrip("-"), [option.lstrip("-") for option in OPTIONS if len(option) > 2], "--{}", shortened=True)
    return UsageError(f"unknown option {word!r}: settings are given as NAME=VALUE, as in privacy.epsilon=2{near}")


def _check_word(word: str) -> str:
    """Return a word as NAME=VALUE, without signs of Hydra's before it, which say what is known anyway."""
    if word in FLAGS:
        raise UsageError(f"{word}: works only with dpgen train")
    if word.startswith("-"):
        raise _unknown_option(word)
    setting, equals, value = word.lstrip("+").partition("=")
    if setting.startswith("~"):
        raise UsageError(f"argument {word!r}: expected NAME=VALUE; NAME=null leaves a setting open")
    if not setting or not equals:
        raise UsageError(f"argument {word!r}: expected NAME=VALUE, as in privacy.epsilon=2")
    if is_for_hydra(word):
        raise UsageError(f"{word}: says how a sweep is started, and works only with dpgen train -m")
    if setting == "data" and (is_known(Path(value)) or "/" in value):
        raise UsageError(
            f"{word}: expected a kind of data, and the file beside it: data=table data.path={value} "
            "data.schema=FILE.schema.yaml"
        )
    if setting in GROUPS and (value == "null" or not value.replace("_", "").isalnum()):
        raise UsageError(f"{word}: expected one name, as in data=digits")
    group, at, _ = setting.partition("@")
    if setting in _CHOSEN or (setting == "privacy.noise" and value == "off"):
        group = setting.partition(".")[0]
        raise UsageError(f"{word}: {group} is chosen as a whole, as in {group}={value if value.isidentifier() else 'NAME'}")
    if at:
        raise UsageError(f"argument {word!r}: expected a name without @, as in {group or 'data'}={value}")
    # Hydra reads inf, nan and 12 as numbers, of which it makes no name.
    if group in GROUPS:
        known = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
        if value not in known:
            near = suggest(value, known, f"{group}={{}}", shortened=True)
            raise UsageError(f"{word}: there is none; expected one of {', '.join(known)}{near}")
    if (why := NEVER.get(setting)) is not None:
        raise UsageError(f"{setting}: {why}")
    return _quote_text(f"{setting}={value}")


def _without_commas(word: str) -> str:
    """Return the word with its number as programs write it, or either one that it may be; empty where it is no number."""
    name, _, value = word.partition("=")
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", value):
        return f"{name}={value.replace(',', '')}"
    return f"{name}={value.replace(',', '.')}" if re.fullmatch(r"[+-]?\d+,\d{1,2}", value) else ""


def _explain(error: Exception) -> str:
    """Return a message of Hydra or OmegaConf, without its trace, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    skipped = ("full_key:", "object_type", "reference_type", "Set the environment", "To append to your config")
    text = " ".join(line for line in lines if not line.startswith(skipped))
    if isinstance(error, OverrideParseException):
        name, _, value = str(error.override).removeprefix("++").partition("=")
        return (
            f"argument {f'{name}={value}'!r}: cannot be read; text with signs other than - _ . / needs quotes, inside "
            f"those of the shell, as in {shlex.quote(write_word(name, value))}"
        )
    if isinstance(error, MissingConfigException):
        asked = (error.missing_cfg_file or "").replace("/", "=", 1)
        near = suggest(asked.partition("=")[2], error.options or [], f"{asked.partition('=')[0]}={{}}", shortened=True)
        return f"{asked}: there is none; expected one of {', '.join(error.options or [])}{near}"
    if isinstance(error, ConfigCompositionException) and text.startswith("Could not override"):
        name = text.removeprefix("Could not override").strip(" .'")
        return f"there is no setting {name!r}; all are listed by dpgen train --help"
    return text


def expand_grid(words: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return all combinations, in Hydra's order, and the names of what differs between them.

    Raises:
        UsageError: for an option, and a word that Hydra cannot read, or would look up.
    """
    refuse_interpolations(words)
    for word in words:
        if word.startswith("-"):
            raise _unknown_option(word)
    try:
        parsed = [_parse_word(_quote_text(word)) for word in words]
        choices = [_sweep_words(item) if item.is_sweep_override() else [str(item.input_line)] for item in parsed]
    except OverrideParseException as error:
        raise UsageError(f"argument {error.override!r}: cannot be read as a setting or a sweep over one") from None
    varied = [override.key_or_group for override in parsed if override.is_sweep_override()]
    if (count := math.prod(map(len, choices))) > _MOST:
        raise UsageError(f"{' '.join(varied)}: {count:,} combinations; expected {_MOST:,} at most")
    return [list(combination) for combination in itertools.product(*choices)], varied


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


def is_for_hydra(word: str) -> bool:
    """Return True for a word that says how a sweep is started."""
    return name_of(word).startswith(("hydra.", "hydra/"))


def asks_for_selection(argv: Sequence[str]) -> bool:
    """Return True where the command line asks for the best of several trials."""
    values = [word.partition("=")[2] for word in argv if name_of(word) == "privacy.selection"]
    return bool(values) and values[-1] != "null"
