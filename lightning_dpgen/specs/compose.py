"""Configurations composed by Hydra from the files of conf/ and the words of a command line: a dictionary, or one line."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import lightning_dpgen
from lightning_dpgen.specs.trainer import NEVER
from lightning_dpgen.specs.usage_error import UsageError

# Words that ask for a sweep.
FLAGS = ("-m", "--multirun")
GROUPS = ("data", "model", "clipping", "privacy", "split", "trainer", "experiment")


def conf_dir() -> Path:
    """Return the folder of the YAML files: inside an installed package, beside it in a checkout."""
    package = Path(lightning_dpgen.__file__).parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError("the configuration files of lightning_dpgen are missing: install it again")


def refuse_interpolations(words: Sequence[str]) -> None:
    """Refuse what would be looked up when it is read: a setting may be published, and an environment holds secrets.

    Raises:
        UsageError: naming the word.
    """
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
    for word in words:
        _check_word(word)
    # Within a sweep, Hydra has another configuration at hand.
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            composed = compose(name, overrides=[_set(word) for word in words])
        return OmegaConf.to_container(composed, resolve=False)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(_explain(error)) from None
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)


def _set(word: str) -> str:
    """Return a word by which Hydra sets what a file may not hold."""
    name = word.partition("=")[0]
    return word if name in GROUPS or word[:1] in "+~" else f"++{word}"


def _check_word(word: str) -> None:
    if word in FLAGS:
        raise UsageError(f"{word}: goes with dpgen train alone")
    if word.startswith("-"):
        raise UsageError(f"unknown option {word!r}: settings are given as NAME=VALUE, as in privacy.epsilon=2")
    setting, equals, value = word.partition("=")
    if not setting.lstrip("+~") or not (equals or word.startswith("~")):
        raise UsageError(f"argument {word!r}: expected NAME=VALUE, as in privacy.epsilon=2")
    if setting in GROUPS and (value == "null" or not value.replace("_", "").isalnum()):
        raise UsageError(f"{word}: expected one name, as in data=digits")
    group, at, _ = setting.lstrip("+~").partition("@")
    if at:
        raise UsageError(f"argument {word!r}: expected a name without @, as in {group or 'data'}={value}")
    # Hydra reads inf, nan and 12 as numbers, of which it makes no name.
    if group in GROUPS and equals:
        known = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
        if value not in known:
            raise UsageError(f"{word}: there is none; expected one of {', '.join(known)}")
    if (why := NEVER.get(setting.lstrip("+~"))) is not None:
        raise UsageError(f"{setting.lstrip('+~')}: {why}")


def _explain(error: Exception) -> str:
    """Return a message of Hydra or OmegaConf, without its trace, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    skipped = ("full_key:", "object_type", "reference_type", "Set the environment", "To append to your config")
    text = " ".join(line for line in lines if not line.startswith(skipped))
    if isinstance(error, OverrideParseException):
        name, _, value = str(error.override).removeprefix("++").partition("=")
        quoted = value.replace('"', '\\"')
        return (
            f"argument {f'{name}={value}'!r}: cannot be read; text with signs other than - _ . / needs quotes, inside "
            f"those of the shell, as in '{name}=\"{quoted}\"'"
        )
    if isinstance(error, MissingConfigException):
        asked = (error.missing_cfg_file or "").replace("/", "=", 1)
        return f"{asked}: there is none; expected one of {', '.join(error.options or [])}"
    if isinstance(error, ConfigCompositionException) and text.startswith("Could not override"):
        name = text.removeprefix("Could not override").strip(" .'")
        return f"there is no setting {name!r}; all are listed by dpgen train --help"
    return text


def expanded(words: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return all combinations, in Hydra's order, and the names of what differs between them.

    Raises:
        UsageError: for a word that Hydra cannot read, or would look up.
    """
    refuse_interpolations(words)
    try:
        parsed: list[Override] = OverridesParser.create().parse_overrides(list(words))
        choices = [
            [f"{own.get_key_element()}={value}" for value in own.sweep_string_iterator()]
            if own.is_sweep_override()
            else [own.input_line]
            for own in parsed
        ]
    except OverrideParseException as error:
        raise UsageError(f"argument {error.override!r}: cannot be read as a setting or a sweep over one") from None
    varied = [own.key_or_group for own in parsed if own.is_sweep_override()]
    return [list(combination) for combination in itertools.product(*choices)], varied


def asks_for_selection(argv: Sequence[str]) -> bool:
    """Return True where the command line asks for the best of several trials."""
    values = [word.partition("=")[2] for word in argv if word.lstrip("+").startswith("privacy.selection=")]
    return bool(values) and values[-1] != "null"
