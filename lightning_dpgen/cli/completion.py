"""`dpgen completion`: a script that completes commands, options, settings and their values in bash, zsh or fish.

It is made once of what the program declares, and holds all words: nothing is started when a key is pressed, which would
take a third of a second for settings, and seconds for what imports torch. Libraries that write such scripts know options
and subcommands, and no words of the form NAME=VALUE.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence

from lightning_dpgen.cli.arguments import Parser
from lightning_dpgen.cli.hydra_flags import CFG_KINDS
from lightning_dpgen.data.declarations import words_of
from lightning_dpgen.specs.config_files import conf_dir
from lightning_dpgen.specs.groups import ProjectSpec
from lightning_dpgen.specs.run import AuditSpec, RunSpec
from lightning_dpgen.specs.spec import Spec, declared_settings, variants
from lightning_dpgen.specs.words import FLAGS, OPTIONS

# Commands whose words are settings, with these.
SETTINGS: dict[str, type[Spec]] = {"train": RunSpec, "budget": RunSpec, "audit": AuditSpec, "project": ProjectSpec}
# Commands beside whose options the settings of data stand.
_WITH_DATA = ("evaluate", "encode", "predict")
_SHOWN = {"--cfg": CFG_KINDS, "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")}
# Options of settings that not every command has.
_OF_TRAIN, _OF_SHOWN = (*FLAGS, "--info", "--run"), ("--cfg", "--package", "--resolve")

_BASH = """\
# Completion of dpgen in bash:  dpgen completion bash > ~/.local/share/bash-completion/completions/dpgen
_dpgen() {
    local line="${COMP_LINE:0:COMP_POINT}" cur words found
    cur="${line##* }"
    case "${COMP_WORDS[1]}" in
%(cases)s
        *) words="%(commands)s" ;;
    esac
    [ "$COMP_CWORD" -le 1 ] && words="%(commands)s"
    case "${COMP_WORDS[COMP_CWORD-1]}" in
%(choices)s
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    # Nothing known behind NAME= may be a file.
    if [ ${#COMPREPLY[@]} -eq 0 ] && [[ "$cur" == *=* ]]; then
        compopt -o filenames
        COMPREPLY=($(compgen -f -- "${cur#*=}"))
        return
    fi
    for found in "${COMPREPLY[@]}"; do [[ "$found" == *= ]] && compopt -o nospace; done
    # Readline replaces what stands behind the last = alone.
    if [[ "$cur" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${cur%%"${cur##*=}"}"}")
    fi
}
complete -o default -F _dpgen dpgen
"""
_ZSH = """\
#compdef dpgen
# Completion of dpgen in zsh:  dpgen completion zsh > "${fpath[1]}/_dpgen"
_dpgen() {
    local -a all names
    case "$words[2]" in
%(cases)s
        *) all=(%(commands)s) ;;
    esac
    (( CURRENT == 2 )) && all=(%(commands)s)
    case "$words[CURRENT-1]" in
%(choices)s
    esac
    names=(${(M)all:#*=})
    all=(${all:#*=})
    local known=1
    compadd -a all && known=0
    compadd -S '' -a names && known=0
    (( known )) || return 0
    # Nothing known behind NAME= may be a file.
    if compset -P '*='; then
        _files
    elif [[ "$words[2]" != (%(settings)s) ]] && (( CURRENT > 2 )); then
        _files
    fi
}
if [ "$funcstack[1]" = _dpgen ]; then _dpgen "$@"; else compdef _dpgen dpgen; fi
"""
_FISH = """\
# Completion of dpgen in fish:  dpgen completion fish > ~/.config/fish/completions/dpgen.fish
complete -c dpgen -f -n __fish_use_subcommand -a '%(commands)s'
%(cases)s
%(choices)s
"""


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen completion",
        description="Print a script that completes commands, options, settings and their values. Its first line says where "
        "the shell looks for it.",
    )
    parser.add_argument("shell", choices=_SHELLS)
    return parser


def run(argv: Sequence[str]) -> int:
    print(script(make_parser().parse_args(argv).shell), end="")
    return 0


def script(shell: str) -> str:
    """Return the script for a shell: bash, zsh or fish."""
    from lightning_dpgen.cli.main import COMMANDS

    words = {command: list(dict.fromkeys(words_after(command))) for command in COMMANDS}
    choices = dict(_SHOWN)
    for command in COMMANDS:
        if command not in SETTINGS:
            for action in actions_of(command):
                if action.choices and action.option_strings:
                    choices[action.option_strings[-1]] = tuple(action.choices)
    return _SHELLS[shell](" ".join(COMMANDS), words, choices)


def words_after(command: str) -> Iterator[str]:
    """Yield the words that may stand behind a command: options, choices of groups, settings, and their values."""
    if command in SETTINGS:
        other = () if command == "train" else _OF_TRAIN if command == "project" else (*_OF_TRAIN, *_OF_SHOWN)
        yield from (option for option in OPTIONS if option not in other)
        yield from setting_words(SETTINGS[command])
        if command == "budget":
            yield "project"
        return
    for action in actions_of(command):
        yield from (option for option in action.option_strings if option.startswith("--"))
        if action.choices and not action.option_strings:
            yield from action.choices
    if command in _WITH_DATA:
        yield from (word for word in setting_words(RunSpec) if word.startswith("data"))


def setting_words(kind: type[Spec]) -> Iterator[str]:
    """Yield the words that settings are given by: a group with each of its files, names with =, and words of a list.

    Example:
        >>> words = list(setting_words(RunSpec))
        >>> "data=mnist" in words, "model.lr=" in words, "model.optimizer=sgd" in words
        (True, True, True)
    """
    for group in sorted(path.name for path in conf_dir().iterdir() if path.is_dir()):
        known = variants(kind, group) if group in kind.model_fields else {}
        if issubclass(kind, RunSpec) or known:
            files = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
            yield from (f"{group}={name}" for name in files if _is_of(kind, group, name))
    for name, fields in declared_settings(kind).items():
        if name in ("data.source", "model.name", "clipping.rule"):
            continue
        yield from dict.fromkeys(f"{name}={word}" for field in fields for word in words_of(field) or [""])


def _is_of(kind: type[Spec], group: str, name: str) -> bool:
    """Tell whether a file of a group is for this command: sources and privacy of trainings are not those of projections."""
    if group == "privacy":
        return name == "off" or (name == "pure") == (kind is ProjectSpec)
    return group != "data" or name in variants(kind, group)


def actions_of(command: str) -> list[argparse.Action]:
    """Return the arguments of a command that has a parser of its own."""
    return importlib.import_module(f"lightning_dpgen.cli.{command}").make_parser()._actions


def _bash(commands: str, words: dict[str, list[str]], choices: dict[str, Sequence[str]]) -> str:
    cases = "\n".join(f'        {command}) words="{" ".join(known)}" ;;' for command, known in words.items())
    chosen = "\n".join(f'        {option}) words="{" ".join(known)}" ;;' for option, known in choices.items())
    return _BASH % {"commands": commands, "cases": cases, "choices": chosen}


def _zsh(commands: str, words: dict[str, list[str]], choices: dict[str, Sequence[str]]) -> str:
    cases = "\n".join(f"        {command}) all=({' '.join(known)}) ;;" for command, known in words.items())
    chosen = "\n".join(f"        {option}) all=({' '.join(known)}) ;;" for option, known in choices.items())
    return _ZSH % {"commands": commands, "cases": cases, "choices": chosen, "settings": "|".join(SETTINGS)}


def _fish(commands: str, words: dict[str, list[str]], choices: dict[str, Sequence[str]]) -> str:
    lines = []
    for command, known in words.items():
        seen = f"-n '__fish_seen_subcommand_from {command}'"
        options = [word for word in known if word.startswith("--") and word not in choices]
        lines += [f"complete -c dpgen {seen} -l {option[2:]}" for option in options]
        others = [word for word in known if not word.startswith("-")]
        # Settings first; files, too, where they are no settings.
        keep = "-f " if command in SETTINGS else ""
        if others:
            lines.append(f"complete -c dpgen {keep}{seen} -a '{' '.join(others)}'")
    chosen = [f"complete -c dpgen -x -l {option[2:]} -a '{' '.join(known)}'" for option, known in choices.items()]
    return _FISH % {"commands": commands, "cases": "\n".join(lines), "choices": "\n".join(chosen)}


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
