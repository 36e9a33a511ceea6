"""Hydra's own flags on a command line of settings: its parser reads them, and its object shows what it would compose."""

from __future__ import annotations

import argparse
import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import hydra
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from lightning_dpgen.cli.arguments import HelpPrinted
from lightning_dpgen.cli.sweepers import refuse_sweepers
from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.privacy.software import installed_version
from lightning_dpgen.specs.compose import as_overrides, settings_of_hydra
from lightning_dpgen.specs.config_files import NO_FILES, OwnFiles, open_hydra
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import is_for_hydra, name_of, parse_word, unknown_option, write_word

RESOLVED = "resolved"
CFG_KINDS = ("job", RESOLVED, "hydra", "all")
HELP = """  --cfg job       print the settings as files and words compose them, and do nothing
  --cfg resolved  print them with every default that is known before records are read, and do nothing
  --config-dir DIR, --config-name NAME    files of settings of your own (docs/how_to/hydra_habits.md)"""
HELP_OF_TRAIN = """  --cfg hydra     print Hydra's own settings of a sweep; --package NAME prints a part alone
  --info [config, defaults, defaults-tree, plugins, searchpath]   print how Hydra composes the settings"""
_REFUSED = {
    "shell_completion": "--shell-completion: dpgen completion bash (zsh, fish) prints the script that completes settings",
    "experimental_rerun": "--experimental-rerun: a pickle may run any code when it is read; a run goes on by the command "
    "that it prints, and begins again by --config-dir RUN/private --config-name settings",
}
# Words about Hydra itself that a sweep of ours answers for, with what to type instead.
_NOT_FOR_HYDRA = {
    "hydra.mode": "leave it out: -m asks for a sweep",
    "hydra.job.chdir": "leave it out: jobs read relative paths where the command was given, and write to their own folder",
    "hydra.output_subdir": "leave it out: a run keeps its settings in RUN/private/settings.yaml",
    "hydra.sweep.subdir": "leave it out: job 3 has the folder run_dir/3, and summary.csv says its settings",
}
# Those that are tried, installed or not.
_LAUNCHERS = ("basic", "joblib", "submitit_local", "submitit_slurm", "ray")
# The folder of a run, and that of a sweep.
_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
_OF_SWEEPS = (
    "hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper", "hydra/job_logging", "hydra.job_logging",
    "hydra/hydra_logging", "hydra.hydra_logging", "hydra.verbose", "hydra.callbacks",
)  # fmt: skip


@dataclass(frozen=True)
class CommandLine:
    """A command line of settings.

    Args:
        words: all that is no flag, without those for Hydra.
        hydra: words that say how a sweep is started.
        files: of a person's own.
        cfg: of `CFG_KINDS`, where settings are to be shown.
        package: the part of them that is to be shown.
        info: of Hydra's kinds of information, where they are to be shown.
        sweep: whether a run is made for each combination.
    """

    words: tuple[str, ...]
    hydra: tuple[str, ...] = ()
    files: OwnFiles = NO_FILES
    cfg: str | None = None
    package: str | None = None
    info: str | None = None
    sweep: bool = False


def read_command_line(argv: Sequence[str], command: str) -> CommandLine:
    """Read the flags of a command of settings with Hydra's parser.

    Args:
        command: of dpgen, which alone has what starts several runs if it is `train`.

    Raises:
        UsageError: for a flag that there is not, or that has another value.
        HelpPrinted: where nothing but a version was asked for.

    Example:
        >>> line = read_command_line(["seed=1", "--cfg", "job", "-cn", "team", "model=mine"], "train")
        >>> line.words, line.cfg, line.files.name
        (('seed=1', 'model=mine'), 'job', 'team')
    """
    if "--version" in argv:
        print(f"dpgen {installed_version()}, Hydra {hydra.__version__}")
        raise HelpPrinted
    given, unknown = _parser().parse_known_intermixed_args(list(argv))
    if unknown:
        raise unknown_option(unknown[0])
    for flag, why in _REFUSED.items():
        if getattr(given, flag):
            raise UsageError(why)
    if command != "train" and (given.multirun or given.info or given.hydra_help):
        flag = "-m" if given.multirun else "--info" if given.info else "--hydra-help"
        raise UsageError(f"{flag}: works only with dpgen train")
    _check_together(given)
    if given.hydra_help:
        _print_hydra_help()
        raise HelpPrinted
    ours = [_as_run_dir(word) for word in given.overrides]
    searched = [word for word in ours if name_of(word) == "hydra.searchpath"]
    files = OwnFiles(
        (*([given.config_dir] if given.config_dir else []), *(one for word in searched for one in _folders(word))),
        given.config_path,
        given.config_name,
    ).absolute()
    return CommandLine(
        words=tuple(word for word in ours if not is_for_hydra(word)),
        hydra=tuple(word for word in ours if is_for_hydra(word) and word not in searched),
        files=files,
        cfg=given.cfg,
        package=given.package,
        info=given.info,
        sweep=given.multirun,
    )


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        name, _, value = message.partition("invalid choice: ")
        tail = suggest(value.split("'")[1], CFG_KINDS, "--cfg {}", shortened=True) if value and "--cfg" in name else ""
        raise UsageError(f"{message}{tail}")


@functools.cache
def _parser() -> _Parser:
    """Return Hydra's parser, which knows one more kind of settings to show."""
    parser = _Parser(prog="dpgen", parents=[get_args_parser()], add_help=False)
    next(action for action in parser._actions if action.dest == "cfg").choices = CFG_KINDS
    return parser


def _check_together(given: argparse.Namespace) -> None:
    asked = [f"--{name}" for name in ("run", "multirun", "info") if getattr(given, name)]
    # Settings of each job of a sweep are shown, which Hydra itself does not do.
    if len(asked) > 1 or (given.cfg and given.info):
        raise UsageError(f"{' '.join(asked)}{' --cfg' if given.cfg else ''}: expected one of them")
    for name, value in (("--resolve", given.resolve), ("--package", given.package)):
        if value and not given.cfg:
            raise UsageError(f"{name}: works only with --cfg")


def _as_run_dir(word: str) -> str:
    """Return the word of `run_dir` for Hydra's names of the folder of a run and of a sweep."""
    name, _, value = word.partition("=")
    return f"run_dir={value}" if name.lstrip("+") in _FOLDERS else word


def _folders(word: str) -> list[str]:
    value = parse_word(word).value()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{word}: expected a list of folders, as in 'hydra.searchpath=[team/conf]'")
    return [one.removeprefix("file://") for one in value]


def refuse_for_hydra(line: CommandLine) -> None:
    """Refuse words for Hydra where its place is taken.

    Raises:
        UsageError: naming what to type instead.
    """
    refuse_sweepers(line.words, line.hydra)
    for word in line.hydra:
        for name, instead in _NOT_FOR_HYDRA.items():
            if name_of(word) == name:
                raise UsageError(f"{word}: {instead}")


def with_hydra_of_files(line: CommandLine) -> CommandLine:
    """Return a command line with the words for Hydra that files of a person's own stand for; those typed come last.

    A single run has no job of Hydra's, and passes over what files say of launchers, sweepers and Hydra's own logs.

    Raises:
        UsageError: for a folder that is looked up.
    """
    if not line.files:
        return line
    first = [word for word in line.words if not parse_word(word).is_sweep_override()]
    words, folder = [], []
    for name, value in settings_of_hydra(first, line.files):
        if name not in _FOLDERS:
            words.append(write_word(name, value) if "." in name else f"{name}={value}")
        elif "${" in str(value):
            raise UsageError(
                f"{name}={value}: a file may name one folder; the default of run_dir is runs/<date>_<time>: take it out of "
                "the file"
            )
        elif name == _FOLDERS[line.sweep]:
            folder = [write_word("run_dir", value)]
    if not line.sweep:
        words = [word for word in words if not name_of(word).startswith(_OF_SWEEPS)]
    return replace(line, words=(*folder, *line.words), hydra=(*words, *line.hydra))


def show_info(line: CommandLine, words: Sequence[str]) -> None:
    """Print how Hydra composes the settings, as its flag `--info` does.

    Args:
        words: of settings, checked.
    """
    overrides = as_overrides(words, line.files)

    def show(hydra: Hydra) -> None:
        hydra.show_info(line.info, line.files.name or "config", [*overrides, *line.hydra])

    _with_hydra(line.files, line.hydra, show)


def show_hydra(line: CommandLine) -> None:
    """Print Hydra's own settings of a sweep."""
    overrides = ["root=.", "job=0", "place=.", "hydra.sweep.dir=.", *line.hydra]

    def show(hydra: Hydra) -> None:
        hydra.show_cfg("sweep", overrides, "hydra", line.package if line.cfg == "hydra" else None)

    _with_hydra(NO_FILES, line.hydra, show)


def _print_hydra_help() -> None:
    # Hydra's own logging would close the handlers of this process.
    given = argparse.Namespace(overrides=["hydra/hydra_logging=none"])
    _with_hydra(NO_FILES, (), lambda hydra: hydra.hydra_help("config", get_args_parser(), given))


def _with_hydra(files: OwnFiles, words: Sequence[str], work: Callable[[Hydra], Any]) -> None:
    with explaining(words), _logging_left_alone(), open_hydra(files) as hydra:
        work(hydra)


@contextmanager
def explaining(words: Sequence[str]) -> Iterator[None]:
    """Turn what Hydra does not like of the words for it into a UsageError."""
    # With it, errors are raised and not printed on the way to an exit.
    full, os.environ["HYDRA_FULL_ERROR"] = os.environ.get("HYDRA_FULL_ERROR"), "1"
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        group, _, name = str(getattr(error, "missing_cfg_file", None)).rpartition("/")
        if group == "hydra/launcher" and (near := suggest(name, _LAUNCHERS, f"{group}={{}}", shortened=True)):
            raise UsageError(f"{group}={name}: there is none{near}") from None
        # Behind the first sentences Hydra lists where it has looked.
        text = " ".join(str(error).partition("Config search path")[0].split())
        raise UsageError(
            f"{' '.join(words)}: {text}; other launchers than Hydra's own are extras: pip install "
            "lightning_dpgen[joblib], lightning_dpgen[slurm]"
        ) from None
    finally:
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full


@contextmanager
def _logging_left_alone() -> Iterator[None]:
    """Hydra shows information by the root logger, whose handlers and level it replaces."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # A sweep in this process has turned it off.
    logging.getLogger(Hydra.__module__).disabled = False
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
