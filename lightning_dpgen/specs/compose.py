"""Configurations composed by Hydra from files and the words of a command line: a dictionary, or one line."""

from __future__ import annotations

import copy
import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.data.files.kinds import is_known
from lightning_dpgen.specs.config_files import GROUPS, NO_FILES, OwnFiles, open_hydra
from lightning_dpgen.specs.groups import NEVER
from lightning_dpgen.specs.spec import as_typed
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import (
    FLAGS,
    is_for_hydra,
    name_of,
    parse_word,
    quote_text,
    refuse_interpolations,
    takes_back,
    unknown_option,
    without_commas,
    write_word,
)

# Hydra composes and runs nothing, and half of its time goes into files about how it runs.
_NOTHING_RUNS = [
    f"~hydra/{group}"
    for group in ("output", "launcher", "sweeper", "help", "hydra_help", "hydra_logging", "job_logging", "env")
]
# Settings that say which group was picked.
_CHOSEN = ("data.source", "model.name", "clipping.rule")
# Groups whose settings all have defaults, so that a run may have no file of them.
_OPTIONAL = ("experiment", "split", "trainer")
# Hydra's name for what is called with the other settings of its group.
TARGET = "_target_"
# Where an experiment has settings of each of several models, of which the chosen one gets its own.
BY_MODEL = "by_model"
# Hydra writes these of its own settings itself.
_NOT_SET = ("hydra.runtime.", "hydra.overrides.", "hydra.job.config_name", "hydra.job.override_dirname", "hydra.searchpath")
# Hydra's words about a group that only a plus adds.
_UNLISTED = re.compile(r"Could not override '([^']+)'\. No match in the defaults list\. .* use \+(\S+)$")
# A reference to another setting by its name alone: OmegaConf's grammar has braces within braces, in which resolvers hide.
_REFERENCE = re.compile(r"\$\{\.*[A-Za-z_][\w.]*\}", re.ASCII)


@dataclass(frozen=True)
class Composed:
    """A configuration as Hydra composes it.

    Args:
        values: settings by name.
        hydra: Hydra's own settings, those that `@hydra.main` runs by; empty where no files are a person's own.
        overridden: the groups that words or files pick another file for than the first one does.
    """

    values: dict[str, Any]
    hydra: dict[str, Any]
    overridden: frozenset[str]


def compose_settings(words: Sequence[str], name: str) -> dict[str, Any]:
    """Return the configuration of that name, with the words of a command line, as a dictionary.

    Files hold only what differs from the defaults of settings, so a word may name any setting; `parse` refuses others.

    Raises:
        UsageError: for whatever Hydra does not like, in one line.
    """
    return compose(words, name, NO_FILES).values


def compose(words: Sequence[str], name: str, files: OwnFiles) -> Composed:
    """Return the configuration of that name, with the words of a command line; see `compose_settings`.

    Args:
        files: of a person's own, whose values may refer to other settings, as in ``${model.hidden}``.
    """
    refuse_interpolations(words)
    files = files.absolute()
    groups = _groups(files)
    words = [check_word(word, groups) for word in words]
    try:
        # A double plus also sets what a file may not hold.
        parsed = [parse_word(word if takes_back(word) or _picks(word, groups) else f"++{word}") for word in words]
        for override, word in zip(parsed, words, strict=True):
            if override.is_sweep_override():
                raise _several_values(word)
        composed = _compose_groups(name, tuple(word for word in words if _picks(word, groups)), files)
        values = _with_own_of_model(copy.deepcopy(composed.values), groups)
        # Hydra's own order: all groups are picked first, and then each setting is set.
        for override in parsed:
            if override.is_force_add():
                _put(values, override.key_or_group.split("."), override.value())
            elif override.is_delete() and override.key_or_group not in groups:
                _take_back(values, override.key_or_group.split("."))
        values = _with_targets(_resolved(values) if files else values)
        for override in parsed:
            _keep_text(values, override)
        return replace(composed, values=values)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(_explain(error, files)) from None
    except yaml.YAMLError as error:
        raise UsageError(f"a file of {files} cannot be read: {' '.join(str(error).split())}") from None


def as_overrides(words: Sequence[str], files: OwnFiles) -> list[str]:
    """Return the words of settings as Hydra takes them, for which a setting that no file has is new."""
    groups = _groups(files.absolute())
    checked = [check_word(word, groups) for word in words]
    picks = [word for word in checked if _picks(word, groups)]
    return [*picks, *(f"++{word}" for word in checked if word not in picks and not takes_back(word))]


def settings_of_hydra(words: Sequence[str], files: OwnFiles) -> list[tuple[str, Any]]:
    """Return what files of a person's own set of Hydra's own settings, by name: its groups first."""
    given = compose(words, "config", files).hydra
    choices = given["runtime"]["choices"]
    picked = [(name, choices.get(name)) for name in ("hydra/launcher", "hydra/sweeper")]
    picked = [(name, choice) for name, choice in picked if choice not in (None, "basic")]
    with open_hydra(files) as hydra:
        default = hydra.compose_config("config", [f"{name}={choice}" for name, choice in picked], RunMode.RUN)
        before = dict(_below(OmegaConf.to_container(default.hydra, resolve=False), "hydra"))
    changed = [(name, value) for name, value in _below(given, "hydra") if before.get(name) != value]
    return [*picked, *((name, value) for name, value in changed if not name.startswith(_NOT_SET))]


def _below(value: Any, within: str) -> list[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        return [(within, value)]
    return [one for name, below in value.items() for one in _below(below, f"{within}.{name}")]


@functools.lru_cache(maxsize=8)
def _groups(files: OwnFiles) -> Mapping[str, tuple[str, ...]]:
    files.check()
    return files.groups()


@functools.lru_cache(maxsize=256)
def _compose_groups(name: str, picks: tuple[str, ...], files: OwnFiles) -> Composed:
    """Return what Hydra makes of the files for words that pick groups: a command asks several times for the same."""
    words = list(picks) if files else [*_NOTHING_RUNS, *picks]
    with open_hydra(files) as hydra:
        configuration = hydra.compose_config(files.name or name, words, RunMode.RUN, from_shell=False)
        values = OmegaConf.to_container(configuration, resolve=False)
        if not files:
            return Composed({key: value for key, value in values.items() if key != "hydra"}, {}, frozenset())
        defaults = hydra.config_loader.compute_defaults_list(files.name or name, words, RunMode.RUN)
    return Composed(values, values.pop("hydra"), frozenset(defaults.overrides.override_choices))


def _with_own_of_model(values: dict[str, Any], groups: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return values where the chosen model has what an experiment sets for it, and no other model has anything.

    Raises:
        UsageError: for a model that is not there, settings that are none, and another model in place of the chosen one.
    """
    own, model = values.pop(BY_MODEL, None), values.get("model")
    if own is None:
        return values
    if not isinstance(own, dict):
        raise UsageError(
            f"{BY_MODEL}={own}: expected settings below names of models, as in {BY_MODEL}: {{vae: {{steps: 100}}}}"
        )
    for name, settings in own.items():
        if name not in groups.get("model", ()):
            raise UsageError(f"{BY_MODEL}.{name}: expected one of {', '.join(sorted(groups.get('model', ())))}")
        if not isinstance(settings, dict):
            raise UsageError(f"{BY_MODEL}.{name}={settings}: expected settings of that model, as in {{steps: 100}}")
        if fixed := {"name", "_target_"} & set(settings):
            raise UsageError(f"{BY_MODEL}.{name}.{min(fixed)}: the model is chosen by model=...; leave it out")
    if isinstance(model, dict) and isinstance(chosen := model.get("name"), str):
        _put(values, ["model"], own.get(chosen, {}))
    return values


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


def _take_back(values: Any, names: Sequence[str]) -> None:
    """Remove what files and words before have set below nested names, so that its default counts."""
    *groups, last = names
    for group in groups:
        values = values.get(group) if isinstance(values, dict) else None
    if isinstance(values, dict):
        values.pop(last, None)


def _resolved(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of files with each reference to another setting in its place; nothing else is looked up."""
    for name, text in _texts(values):
        if "${" in _REFERENCE.sub("", text):
            raise UsageError(
                f"{name}={text}: a file may refer to another setting, as in ${{model.hidden}}, and to nothing else: what "
                "the environment or the clock says is given by the command line, where the shell looks it up"
            )
        if text == "???":
            raise UsageError(f"{name}: must be given, as in {name}=...: its file leaves it open (???)")
    if not any(_REFERENCE.search(text) for _, text in _texts(values)):
        return values
    return OmegaConf.to_container(OmegaConf.create(values), resolve=True)


def _texts(values: Any, within: str = "") -> list[tuple[str, str]]:
    """Return all texts with their names, also those in lists."""
    if isinstance(values, str):
        return [(within, values)]
    below = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [text for name, value in below for text in _texts(value, f"{within}.{name}".lstrip("."))]


def _with_targets(values: dict[str, Any]) -> dict[str, Any]:
    """Return values where `_target_`, as Hydra has it, is the setting `target`; a file may say no more than that."""
    for group, kind in (("data", "source"), ("model", "name")):
        own = values.get(group)
        if isinstance(own, dict) and TARGET in own:
            target = own.pop(TARGET)
            if own.setdefault("target", target) != target:
                raise UsageError(
                    f"{group}.{TARGET}={target}: {group}.target={own['target']} names another one; leave out one of the two"
                )
            own.setdefault(kind, "own")
    return values


def _several_values(word: str) -> UsageError:
    """Return the error about a word with several values, where one is expected."""
    if number := without_commas(word):
        return UsageError(
            f"{word}: expected one value: write the number as {number}; dpgen train -m makes a run for each of several "
            "values"
        )
    return UsageError(
        f"{word}: expected one value; dpgen train -m makes a run for each of several, and text with commas or brackets "
        "needs quotes, inside those of the shell"
    )


def _picks(word: str, groups: Mapping[str, tuple[str, ...]]) -> bool:
    """Return True for a word that picks a file for a group, or none."""
    return name_of(word).partition("@")[0] in groups


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


def check_word(word: str, groups: Mapping[str, tuple[str, ...]]) -> str:
    """Return a word as NAME=VALUE or ~NAME, without signs of Hydra's before it, which say what is known anyway.

    Args:
        groups: all groups, with the names of their files.

    Raises:
        UsageError: for a word of another form, and a name that a group does not have.
    """
    if word in FLAGS:
        raise UsageError(f"{word}: works only with dpgen train")
    if word.startswith("-"):
        raise unknown_option(word)
    if takes_back(word):
        return _check_taken_back(word, groups)
    setting, equals, value = word.lstrip("+").partition("=")
    if setting.startswith("~"):
        raise UsageError(f"argument {word!r}: expected ~NAME alone, which gives a setting its default back")
    if not setting or not equals:
        raise UsageError(f"argument {word!r}: expected NAME=VALUE, as in privacy.epsilon=2")
    if is_for_hydra(word):
        raise UsageError(f"{word}: says how a sweep is started, and works only with dpgen train -m")
    if setting == "data" and (is_known(Path(value)) or "/" in value):
        raise UsageError(
            f"{word}: expected a kind of data, and the file beside it: data=table data.path={value} "
            "data.schema=FILE.schema.yaml"
        )
    group, at, _ = setting.partition("@")
    if group in groups and group not in GROUPS:
        # A person's own, which Hydra adds only where a plus says so.
        return word
    if setting in GROUPS and (value == "null" or not value.replace("_", "").isalnum()):
        raise UsageError(f"{word}: expected one name, as in data=digits")
    if setting in _CHOSEN or (setting == "privacy.noise" and value == "off"):
        group = setting.partition(".")[0]
        raise UsageError(f"{word}: {group} is chosen as a whole, as in {group}={value if value.isidentifier() else 'NAME'}")
    if at:
        raise UsageError(f"argument {word!r}: expected a name without @, as in {group or 'data'}={value}")
    # Hydra reads inf, nan and 12 as numbers, of which it makes no name.
    if group in GROUPS and value not in (known := groups[group]):
        near = suggest(value, known, f"{group}={{}}", shortened=True)
        raise UsageError(f"{word}: there is none; expected one of {', '.join(known)}{near}")
    if (why := NEVER.get(setting)) is not None:
        raise UsageError(f"{setting}: {why}")
    return quote_text(f"{setting}={value}")


def _check_taken_back(word: str, groups: Mapping[str, tuple[str, ...]]) -> str:
    """Return ~NAME, or for a group that a run must have one of, say how another one is taken."""
    name, equals, _ = word.partition("=")
    group = name.lstrip("~")
    if equals or not group or name.count("~") > 1:
        raise UsageError(f"argument {word!r}: expected ~NAME alone, which gives a setting its default back")
    if group in GROUPS and group not in _OPTIONAL:
        raise UsageError(f"{word}: a run has one, and {group}=NAME takes another: {', '.join(groups[group])}")
    if group in _CHOSEN or is_for_hydra(word):
        raise UsageError(f"{word}: expected the name of a setting, whose default is given back")
    return word


def _explain(error: Exception, files: OwnFiles) -> str:
    """Return a message of Hydra or OmegaConf, without its trace, as one line."""
    lines = [line.strip() for line in str(error or error.__cause__).splitlines() if line.strip()]
    skipped = ("full_key:", "object_type", "reference_type", "Set the environment", "To append to your config")
    text = " ".join(line for line in lines if not line.startswith(skipped))
    if (unlisted := _UNLISTED.match(text)) is not None:
        group, word = unlisted.groups()
        return f"{word}: no list of defaults has the group {group}: type +{word}, as for any group of your own"
    if isinstance(error, OverrideParseException):
        name, _, value = str(error.override).removeprefix("++").partition("=")
        return (
            f"argument {f'{name}={value}'!r}: cannot be read; text with signs other than - _ . / needs quotes, inside "
            f"those of the shell, as in {shlex.quote(write_word(name, value))}"
        )
    if isinstance(error, MissingConfigException):
        asked = error.missing_cfg_file or ""
        if asked == files.name:
            return f"--config-name {asked}: {files} has no such file"
        asked = asked.replace("/", "=", 1)
        if not error.options:
            return f"{asked}: {files} has no such file"
        near = suggest(asked.partition("=")[2], error.options, f"{asked.partition('=')[0]}={{}}", shortened=True)
        return f"{asked}: there is none; expected one of {', '.join(error.options)}{near}"
    if isinstance(error, ConfigCompositionException) and text.startswith("Could not override"):
        name = text.removeprefix("Could not override").strip(" .'")
        return f"there is no setting {name!r}; all are listed by dpgen train --help"
    return text
