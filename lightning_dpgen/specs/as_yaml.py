"""Settings as YAML, as `--cfg` prints them and a run keeps them."""

from __future__ import annotations

from typing import Any

import yaml

from lightning_dpgen.specs.spec import Spec, as_word


def as_yaml(values: Any) -> str:
    """Return settings as YAML, in their order; groups without any are left out.

    Example:
        >>> as_yaml({"model": {"name": "vae", "lr": 0.001}, "split": {}})
        'model:\\n  name: vae\\n  lr: 0.001\\n'
    """
    return yaml.dump(_plain(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


def write_asked_for(spec: Spec) -> str:
    """Return the settings of a run that were given, or follow from those that were, without its folder, as YAML."""
    return as_yaml(spec.model_dump(by_alias=True, exclude_unset=True, exclude={"run_dir"}))


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes that Hydra would read as a number, as 1e3, which PyYAML takes for text."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    try:
        float(text)
    except ValueError:
        return dumper.represent_str(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'")


_Dumper.add_representer(str, _write_text)


def _plain(value: object) -> object:
    """Return a value of plain types; a whole number that was not typed as one, such as 2024_11, may be a name."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items() if one != {}}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and as_word(value).lstrip("+") != str(int(value)):
        return as_word(value)
    kind = next((kind for kind in (int, float, str) if isinstance(value, kind)), None)
    return str(value) if kind is None else kind(value)
