"""`--cfg job|resolved`: the settings of a command, as YAML, in place of running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import yaml

from lightning_dpgen.cli.arguments import loading
from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.specs.compose import FLAGS, asks_for_selection, expand_grid, name_of
from lightning_dpgen.specs.groups import ProjectSpec
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.spec import Spec, as_word
from lightning_dpgen.specs.usage_error import OK, UsageError

FLAG = "--cfg"
KINDS = ("job", "resolved")
HELP = """  --cfg job       print the settings as files and words compose them, and do nothing
  --cfg resolved  print them with every default that is known before records are read, and do nothing"""


def split_cfg_flag(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the words of a command line but `--cfg KIND`, and that kind; None where it is not asked for.

    Raises:
        UsageError: for another kind.

    Example:
        >>> split_cfg_flag(["seed=1", "--cfg", "job"]), split_cfg_flag(["--cfg=resolved"]), split_cfg_flag(["seed=1"])
        ((['seed=1'], 'job'), ([], 'resolved'), (['seed=1'], None))
    """
    words, kind, rest = [], None, iter(argv)
    for word in rest:
        name, equals, value = word.partition("=")
        if name != FLAG:
            words.append(word)
            continue
        kind = value if equals else next(rest, "")
        if kind not in KINDS:
            raise UsageError(
                f"{FLAG} {kind}: expected one of {', '.join(KINDS)}{suggest(kind, KINDS, '--cfg {}', shortened=True)}"
            )
    return words, kind


def show(
    argv: Sequence[str],
    kind: str,
    compose: Callable[[Sequence[str]], dict[str, Any]],
    read: Callable[[Sequence[str]], Spec],
) -> int:
    """Print the settings of a command; those of a grid, or of a selection's candidates, one after the other.

    Args:
        argv: the words of the command, without `--cfg`.
        kind: one of `KINDS`.
        compose: makes a configuration from words.
        read: makes the settings from words, so that a mistake in them is reported.
    """
    words = [word for word in argv if word not in FLAGS]
    several = len(words) < len(argv) or asks_for_selection(argv)
    jobs, varied = expand_grid(words) if several else ([words], [])
    texts = []
    for number, job in enumerate(jobs):
        spec = read(job)
        values = compose(job) if kind == KINDS[0] else _resolve(spec)
        differs = " ".join(word for word in job if name_of(word) in varied)
        texts.append((f"# job {number}: {differs}\n" if several else "") + _text(values))
    print("---\n".join(texts), end="")
    return OK


def _text(values: dict) -> str:
    return yaml.safe_dump(_plain(values), sort_keys=False, allow_unicode=True, width=10**6)


def _plain(value: object) -> object:
    """Return a value of plain types; a whole number that was not typed as one, such as 2024_11, may be a name."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items() if one != {}}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and as_word(value).lstrip("+") != str(int(value)):
        return as_word(value)
    kind = next((kind for kind in (int, float, str) if isinstance(value, kind)), None)
    return str(value) if kind is None else kind(value)


def _resolve(spec: RunSpec | ProjectSpec) -> dict[str, Any]:
    """Return the settings by name, with defaults filled in.

    Where something is bought before the rest is planned (the number of records, open columns), and where the width of a
    projection's rows is not declared, the rest is still open, and stays null.
    """
    with loading():
        from lightning_dpgen.specs.projection_settings import complete_projection
        from lightning_dpgen.specs.settings import complete_settings
        from lightning_dpgen.specs.source import source_of
    if isinstance(spec, ProjectSpec):
        if (d := spec.data.d) is not None:
            spec = complete_projection(spec, d).spec
    else:
        source = source_of(spec.data)
        source.check()
        if spec.data.n is not None and not source.open_parts and spec.privacy.selection is None:
            spec = complete_settings(spec, source).spec
    return spec.model_dump(by_alias=True)
