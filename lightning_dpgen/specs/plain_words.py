"""Words that set what files of a person's own set, so that nothing behind the command line needs these files.

The ranks of a run, the jobs of a sweep wherever a launcher starts them, a run that goes on and the candidates of a
selection get these words: a folder that is elsewhere by then, or that has changed, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_dpgen.specs.compose import Composed, compose, compose_settings
from lightning_dpgen.specs.config_files import OwnFiles
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import name_of, write_word

# The setting that says which file of a group was picked.
_TAGS = {"data": "source", "privacy": "noise", "model": "name", "clipping": "rule", "compute": "name"}


def plain_words(words: Sequence[str], files: OwnFiles | None, name: str = "config") -> list[str]:
    """Return words that set the same as the given ones do with files of a person's own; these words where there are none.

    Args:
        name: the configuration of the package that is composed.

    Raises:
        UsageError: as `compose`; for files that name no records, no model, no clipping or no privacy.
    """
    if not files:
        return list(words)
    composed = compose(words, name, files)
    values = _without_empty(composed.values)
    picks = _write_picks(composed, values, name, names_a_model(words))
    base = _without_empty(compose_settings(picks, name))
    before, after = dict(_leaves(base)), dict(_leaves(values))
    changed = [write_word(one, value) for one, value in after.items() if one not in before or before[one] != value]
    plain = [*picks, *(f"~{one}" for one in before if one not in after), *changed]
    if _without_empty(compose_settings(plain, name)) != values:
        raise UsageError(f"{files}: a value of its files cannot be written as a word; give it on the command line")
    return plain


def names_a_model(words: Sequence[str]) -> bool:
    """Return True where words name a model, a setting of one, or an experiment, which names one."""
    return any(name_of(word) in ("model", "experiment") or name_of(word).startswith("model.") for word in words)


def _write_picks(composed: Composed, values: Mapping[str, Any], name: str, model_named: bool) -> list[str]:
    """Return the words that pick a file of the package for each group whose file is another than without them."""
    picks: list[str] = []
    for group, tag in _TAGS.items():
        base = compose_settings(picks, name)
        if group not in base:
            continue
        chosen, default = _tag(values, group, tag), base[group].get(tag)
        if chosen is None and group != "compute":
            raise UsageError(
                f"{group}: the files say nothing of it; a file that begins with 'defaults: [{name}, _self_]' has all that "
                "the package's has, and changes what it names"
            )
        # Where no model is named, the kind of the records chooses one, and its clipping.
        named = group in composed.overridden or (group == "model" and (model_named or values[group] != base[group]))
        if group == "privacy":
            picks += ["privacy=off"] if chosen == "off" else []
        elif chosen is not None and (chosen != default or (named and group in ("model", "clipping"))):
            picks.append(f"{group}={chosen}")
    return picks


def _tag(values: Mapping[str, Any], group: str, tag: str) -> Any:
    below = values.get(group)
    return below.get(tag, "standard" if group == "privacy" else None) if isinstance(below, dict) else None


def _without_empty(values: Any) -> Any:
    """Return values without groups that hold nothing."""
    if not isinstance(values, dict):
        return values
    return {name: one for name, value in values.items() if (one := _without_empty(value)) != {}}


def _leaves(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value with its full name."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value
