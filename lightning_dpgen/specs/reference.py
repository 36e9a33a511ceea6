"""The reference of all settings, generated from their declarations: for `--help`, and docs/reference/settings.md.

python -m lightning_dpgen.specs.reference > docs/reference/settings.md
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from lightning_dpgen.data.declarations import about, as_text, range_of
from lightning_dpgen.specs.config_files import conf_dir
from lightning_dpgen.specs.groups import ProjectSpec
from lightning_dpgen.specs.privacy import OffSpec, PrivacySpec, PurePrivacySpec
from lightning_dpgen.specs.run import AuditSpec, RunSpec
from lightning_dpgen.specs.spec import Spec, names_of, variants

# Groups whose names are those of their files, and not of a setting.
_FILES = {PrivacySpec: "default", OffSpec: "off", PurePrivacySpec: "pure"}
_HEAD = """# Settings

This page lists every setting of `dpgen train`, `budget` and `audit`, and of `dpgen project`. A setting is written as
NAME=VALUE, as in `privacy.epsilon=2`. A group, as in `data=mnist`, picks a file of `conf/`. Settings that you leave out
follow from the declared number of records, epsilon and the schema. In the defaults s is that number in units of the noise
that the budget buys, and s' is the same for means. [The defaults](defaults.md) explain more, and how each was found.
`python -m lightning_dpgen.specs.reference` generates this page from the declarations in `lightning_dpgen/specs/`.
"""


def help_of_settings(kind: type[Spec]) -> str:
    """Return the groups of settings, and the files that each may pick, for `--help`."""
    lines = [f"  {' '.join(group for group in kind.model_fields if _plain(kind, group))}"]
    for group in kind.model_fields:
        if _plain(kind, group):
            continue
        specs = variants(kind, group)
        known = [path.stem for path in sorted((conf_dir() / group).glob("*.yaml"))]
        picks = [name for name in known if name in specs or (group == "privacy" and name in ("default", "off"))]
        settings = {name for spec in specs.values() for name in names_of(spec)} - {"source", "name", "rule"}
        words = ([f"{group}={'|'.join(picks)}"] if picks else []) + [f"{group}.{name}" for name in sorted(settings)]
        # A long list of names goes on in the next line after a name, and not within one.
        wrapped = textwrap.wrap(" ".join(words).replace("|", "| "), 110, initial_indent="  ", subsequent_indent="    ")
        lines += [line.replace("| ", "|") for line in wrapped]
    return "\n".join(lines)


def reference() -> str:
    """Return the page of all settings."""
    parts = [
        _HEAD,
        "## dpgen train",
        _table({name: f for name, f in names_of(RunSpec).items() if _plain(RunSpec, name)}, ""),
    ]
    for kind, groups in (
        (RunSpec, ("data", "model", "clipping", "privacy", "split", "trainer", "compute", "debug")),
        (AuditSpec, ("audit",)),
        (ProjectSpec, ("data", "project", "privacy")),
    ):
        for group in groups:
            parts += _group(kind, group)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _group(kind: type[Spec], group: str) -> Iterator[str]:
    specs = variants(kind, group)
    command = " (dpgen project)" if kind is ProjectSpec and group != "project" else ""
    yield f"## {group}{command}"
    for spec in dict.fromkeys(specs.values()):
        picked = [_FILES[spec]] if spec in _FILES else [value for value, one in specs.items() if one is spec and value]
        title = f"### {', '.join(f'`{group}={value}`' for value in picked)}\n\n" if picked else ""
        fields = {name: f for name, f in names_of(spec).items() if _is_listed(name, f)}
        text = (spec.__doc__ or "").strip()
        yield f"{title}{text}" + (f"\n\n{_table(fields, f'{group}.')}" if fields else "")


def _is_listed(name: str, field: FieldInfo) -> bool:
    """Return False for what picks the group, and for what a group does not have."""
    return name not in ("source", "name", "rule") and bool(field.description) and field.annotation is not type(None)


def _plain(kind: type[Spec], name: str) -> bool:
    spec = next(iter(variants(kind, name).values()))
    return not (isinstance(spec, type) and issubclass(spec, Spec))


def _table(fields: dict[str, FieldInfo], prefix: str) -> str:
    rows = ["| setting | meaning | values | default |", "| --- | --- | --- | --- |"]
    for name, field in fields.items():
        cells = f"`{prefix}{name}`", field.description or "", range_of(field), _default(field)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _default(field: FieldInfo) -> str:
    """Return the default of a setting in words."""
    from lightning_dpgen.specs.defaults import Defaults

    rule = about(field, "rule")
    if (words := about(field, "by_default")) is not None:
        return str(words)
    if isinstance(rule, str):
        member = getattr(Defaults, rule)
        words = member.__doc__ if isinstance(member, property) else f"{as_text(member)}; of measured models 0"
        return (words or "").strip().rstrip(".")
    if about(field, "needed"):
        return "must be given"
    return "" if field.default is None or field.is_required() else as_text(field.default)


if __name__ == "__main__":
    print(reference(), end="")
