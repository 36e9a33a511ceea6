"""Each shell completes commands, options, choices of groups, settings and their values, by the script that is printed."""

import shlex
import shutil
import subprocess

import pytest

from lightning_dpgen.cli.completion import actions_of, script, words_after
from lightning_dpgen.cli.main import COMMANDS

# A line that is typed so far, and some of the words with which its last one goes on.
TYPED = {
    "dpgen tr": {"train"},
    "dpgen train data=mn": {"data=mnist"},
    "dpgen train seed=1 model.optimizer=": {"model.optimizer=adam", "model.optimizer=sgd"},
    "dpgen train privacy.eps": {"privacy.epsilon="},
    "dpgen budget clipping=d": {"clipping=dpnorm", "clipping=decay"},
    "dpgen project project.rad": {"project.radius="},
    "dpgen audit audit.can": {"audit.canaries="},
    "dpgen train --cf": {"--cfg"},
    "dpgen train --cfg ": {"job", "resolved"},
    "dpgen schema --from ": {"sdv", "dpsynth"},
    "dpgen verify --sig": {"--signer"},
    "dpgen completion z": {"zsh"},
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(script(shell))
    return folder


def _run(shell, code):
    words = {"bash": ["bash", "--norc"], "zsh": ["zsh", "-f"], "fish": ["fish", "--no-config"]}[shell]
    done = subprocess.run([*words, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr, done.stderr
    return done.stdout


def _bash(path, lines):
    """Fill in what readline hands over: words are cut at =, too, and an answer replaces what stands behind the last one."""
    code = [f"source {path}", "compopt() { :; }"]
    for line in lines:
        words = [part for word in line.split(" ")[1:] for part in _cut(word)]
        listed = " ".join(shlex.quote(word) for word in ["dpgen", *words])
        code.append(f"COMP_LINE={shlex.quote(line)}; COMP_POINT={len(line)}; COMP_WORDS=({listed})")
        code.append(f'COMP_CWORD={len(words)}; _dpgen; echo "${{COMPREPLY[*]}}"')
    for line, answer in zip(lines, _run("bash", "\n".join(code)).splitlines(), strict=True):
        last = line.split(" ")[-1]
        before = last.rpartition("=")[0] + "=" if "=" in last else ""
        yield {before + word for word in answer.split()}


def _cut(word):
    head, equals, tail = word.partition("=")
    return [head, equals, *([tail] if tail else [])] if equals else [word]


def _zsh(path, lines):
    stubs = 'compdef() { :; }; _files() { :; }; compset() { return 1; }; compadd() { echo -n "${(P)@[-1]} "; }'
    code = [stubs, f"source {path}"]
    for line in lines:
        words = " ".join(shlex.quote(word) for word in line.split(" "))
        code.append(f"words=({words}); CURRENT={len(line.split(' '))}; _dpgen; echo")
    for line, answer in zip(lines, _run("zsh", "\n".join(code)).splitlines(), strict=True):
        yield {word for word in answer.split() if word.startswith(line.split(" ")[-1])}


def _fish(path, lines):
    code = [f"source {path}", *(f"complete -C {shlex.quote(line)}; echo ---" for line in lines)]
    for answer in _run("fish", "\n".join(code)).split("---\n")[:-1]:
        yield {line.partition("\t")[0] for line in answer.splitlines()}


@pytest.mark.parametrize(("shell", "ask"), [("bash", _bash), ("zsh", _zsh), ("fish", _fish)])
def test_a_shell_completes_what_is_typed(scripts, shell, ask):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    for (line, expected), found in zip(TYPED.items(), ask(scripts / shell, list(TYPED)), strict=True):
        assert expected <= found, line
        assert all(word.startswith(line.split(" ")[-1]) for word in found), line
        assert "data=" not in line or found == expected


def test_every_command_and_every_option_is_in_the_script(scripts):
    text = (scripts / "bash").read_text()
    assert all(f"        {command}) words=" in text for command in COMMANDS)
    for command in ("sample", "verify", "sign", "schema", "evaluate", "encode"):
        options = {option for action in actions_of(command) for option in action.option_strings if option.startswith("--")}
        assert options <= set(words_after(command)) and "--help" in options


def test_an_unknown_shell_is_answered(dpgen):
    status, _, err = dpgen("completion", "fsh")
    assert status == 2 and "did you mean fish?" in err
    status, out, err = dpgen("completion", "bash")
    assert status == 0 and out.startswith("# Completion of dpgen in bash:") and not err
