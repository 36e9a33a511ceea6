"""`--cfg job|resolved|hydra|all`: the settings of a command, as YAML, in place of running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning_dpgen.cli.arguments import loading
from lightning_dpgen.cli.hydra_flags import RESOLVED, CommandLine, show_hydra
from lightning_dpgen.specs.as_yaml import as_yaml
from lightning_dpgen.specs.grid import Job, expand_grid
from lightning_dpgen.specs.groups import ProjectSpec
from lightning_dpgen.specs.plain_words import plain_words
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.spec import Spec
from lightning_dpgen.specs.usage_error import OK, UsageError
from lightning_dpgen.specs.words import asks_for_selection


def show(
    line: CommandLine,
    name: str,
    compose: Callable[[Sequence[str]], dict[str, Any]],
    read: Callable[[Sequence[str]], Spec],
) -> int:
    """Print the settings of a command; those of a grid, or of a selection's candidates, one after the other.

    Args:
        name: the configuration of the package.
        compose: makes a configuration from words.
        read: makes the settings from words, so that a mistake in them is reported.
    """
    several = line.sweep or asks_for_selection(line.words)
    jobs = (
        expand_grid(line.words, line.files)[0] if several else [Job(tuple(plain_words(line.words, line.files, name)), {})]
    )
    texts = []
    for number, job in enumerate(jobs):
        spec = read(job.words)
        values = _resolve(spec) if line.cfg == RESOLVED else compose(job.words)
        texts.append((f"# job {number}: {job}\n" if several else "") + as_yaml(_part(values, line.package)))
    if line.cfg != "hydra":
        print("---\n".join(texts), end="")
    if line.cfg in ("hydra", "all"):
        show_hydra(line)
    return OK


def _part(values: Any, package: str | None) -> Any:
    """Return the settings below a name, or all of them."""
    below = values
    for name in package.split(".") if package not in (None, "_global_") else ():
        if not isinstance(below, dict) or name not in below:
            raise UsageError(f"--package {package}: there is none; expected a group, as in --package model")
        below = below[name]
    return below


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
