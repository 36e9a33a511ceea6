"""A setting is declared once: its name, type, range, default and meaning; a mistake in it is reported in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.nearest_word import nearest, suggest
from lightning_dpgen.common.plain_text import is_plain, listed
from lightning_dpgen.data.declarations import about, as_text, expected_of, members_of
from lightning_dpgen.specs.usage_error import UsageError


class _Whole(int):
    typed: str


class _Real(float):
    typed: str


def as_typed(value: Any, text: str) -> Any:
    """Return a number that knows its text; any other value as it is.

    Example:
        >>> as_word(as_typed(1000.0, "1e3")), as_typed(1000.0, "1e3") == 1000, as_typed(None, "null")
        ('1e3', True, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    number = _Whole(value) if isinstance(value, int) else _Real(value)
    number.typed = text
    return number


def as_word(value: Any) -> str:
    """Return the text of a number as it was typed, or as Python has it.

    Example:
        >>> as_word(1000.0)
        '1000.0'
    """
    return getattr(value, "typed", str(value))


T = TypeVar("T", bound="Spec")
# Hydra reads 2024_11 as a number, also where text is expected.
AnyText = Annotated[str, BeforeValidator(lambda v: as_word(v) if isinstance(v, int | float) and type(v) is not bool else v)]
# Text that may be published.
Text = Annotated[AnyText, AfterValidator(lambda text: _plain(text))]
# One of a list of names.
Name = str | int
# A file or a folder. None is the working directory.
Place = Annotated[Text, AfterValidator(lambda text: str(place_of(text)) if text else text)]


def _plain(text: str) -> str:
    if not is_plain(text):
        raise ValueError("text on one line, without control characters")
    return text


class Spec(BaseModel):
    """A group of settings: frozen, and without a record in it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)

    def given(self, *names: str) -> dict[str, Any]:
        """Return the settings that are not null, by name: these, or all."""
        return {name: value for name in names or type(self).model_fields if (value := getattr(self, name)) is not None}

    def changed(self: T, **values: Any) -> T:
        """Return the group with other values in place of some."""
        return self.model_copy(update=values)


def setting(
    meaning: str,
    default: Any = None,
    *,
    rule: str | Callable[[Any], Any] | None = None,
    by_default: str | None = None,
    needed: bool = False,
    **limits: Any,
) -> Any:
    """Declare a setting of a `Spec`.

    Args:
        meaning: what it is, in a phrase.
        default: its value where it is left out.
        rule: the default where null is left open: the name of a property of `Defaults`, or a function of it.
        by_default: the same in words; without it, what the property says of itself.
        needed: null is refused.
        limits: ``ge``, ``gt``, ``le`` and ``lt``.
    """
    about = {"rule": rule, "by_default": by_default, "needed": needed}
    return Field(default, description=meaning, json_schema_extra=about, **limits)


def with_defaults(spec: T, defaults: Any, *, leave: Sequence[str] = ()) -> T:
    """Return the group with each open setting at its default.

    Args:
        defaults: the `Defaults` of the run.
        leave: names of settings that stay open.
    """
    values = {}
    for name, field in type(spec).model_fields.items():
        rule = about(field, "rule")
        if rule is not None and getattr(spec, name) is None and name not in leave:
            values[name] = getattr(defaults, rule) if isinstance(rule, str) else rule(defaults)
    return spec.changed(**values)


def check_needed(spec: Spec, group: str) -> None:
    """Refuse null where a value must be given."""
    for name, field in type(spec).model_fields.items():
        if about(field, "needed") and getattr(spec, name) is None:
            raise UsageError(f"{group}.{name}: must be given, as in {group}.{name}=...")


def parse(kind: type[T], values: Mapping[str, Any], *, within: str = "") -> T:
    """Return the settings that a dictionary of Hydra's holds.

    Args:
        within: the name of the group, for messages; none for the root of a configuration.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise UsageError(explain(kind, error, within)) from None


def explain(kind: type[Spec], error: ValidationError, within: str = "") -> str:
    """Return the first mistake as one line."""
    # A name that does not exist explains best what else is wrong.
    mistake = min(error.errors(include_url=False), key=lambda mistake: mistake["type"] != "extra_forbidden")
    names, spec, field, chosen = [within] if within else [], kind, None, ""
    for part in mistake["loc"]:
        options = {} if field is None else _variants(field)
        if part in options:
            spec, field, chosen = options[part], None, part
        elif isinstance(part, str) and part in names_of(spec):
            field = names_of(spec)[part]
            names.append(part)
            if isinstance(field.annotation, type) and issubclass(field.annotation, Spec):
                spec = field.annotation
        elif mistake["type"] == "extra_forbidden":
            names.append(str(part))
    places = "".join(f"[{part}]" for part in mistake["loc"] if isinstance(part, int))
    name, value = ".".join(names) + places, mistake["input"]
    fault, context = mistake["type"], mistake.get("ctx", {})
    if fault == "extra_forbidden":
        return _no_setting(name, spec, chosen, kind)
    if fault == "union_tag_invalid":
        tag = context["discriminator"].strip("'")
        known = _variants(field)
        near = suggest(context["tag"], known, f"{name}.{tag}={{}}", shortened=True)
        return f"{name}.{tag}={context['tag']}: there is none; expected one of {', '.join(known)}{near}"
    if fault == "union_tag_not_found":
        return f"{name}: must be given, as in {name}={next(iter(_variants(field)))}"
    if fault == "missing":
        return f"{name}: must be given, as in {name}=..."
    if fault == "model_type" and isinstance(field and field.annotation, type) and issubclass(field.annotation, Spec):
        below = listed(f"{name}.{one}" for one in names_of(field.annotation))
        return f"{name}={as_text(value)}: expected settings below this name: {below}"
    return f"{name}={as_text(value)}: expected {expected_of(mistake, field, f'{name}={{}}')}"


def names_of(spec: type[Spec]) -> dict[str, FieldInfo]:
    """Return the settings of a group by the names that a configuration has for them."""
    return {field.alias or name: field for name, field in spec.model_fields.items()}


def _no_setting(name: str, spec: type[Spec], chosen: str, root: type[Spec]) -> str:
    """Return the line about a name that no setting has, with the nearest that one has.

    A setting of another choice of its group is named with that choice; one of the same name in another group comes before
    those that are only alike.
    """
    group, _, last = name.rpartition(".")
    problem = f"there is no setting {name!r}" + (f" of {group}={chosen}" if chosen else "")
    others = variants(root, group) if chosen and group in root.model_fields else {}
    if having := _choices_with(last, group, others):
        return f"{problem}; it is one of {having}"
    near = [f"{group}.{name}".lstrip(".") for name in [nearest(last, names_of(spec), shortened=True)] if name]
    by_last: dict[str, list[str]] = {}
    for known in declared_settings(root):
        by_last.setdefault(known.rpartition(".")[2], []).append(known)
    far = [] if near or group else by_last.get(nearest(last, by_last, shortened=True) or "", [])
    if likely := next(iter([*by_last.get(last, []), *near, *far]), None):
        return f"{problem}; did you mean {likely}?"
    if other := nearest(last, [name for spec in others.values() for name in names_of(spec)], shortened=True):
        return f"{problem}; did you mean {group}.{other}, which is one of {_choices_with(other, group, others)}?"
    return f"{problem}; all are listed by dpgen train --help"


def _choices_with(name: str, group: str, others: Mapping[str, type[Spec]]) -> str:
    """Return the choices of a group that have a setting, as they are written."""
    return ", ".join(f"{group}={value}" for value, spec in others.items() if name in names_of(spec))


def declared_settings(kind: type[Spec], within: str = "") -> dict[str, list[FieldInfo]]:
    """Return all settings by their full names, each as often as it is declared: a model's may be one of several models.

    Args:
        within: the name of the group, none for the root of a configuration.

    Example:
        >>> from lightning_dpgen.specs.run import RunSpec
        >>> "privacy.epsilon" in declared_settings(RunSpec), "seed" in declared_settings(RunSpec)
        (True, True)
    """
    settings: dict[str, list[FieldInfo]] = {}
    for name, field in names_of(kind).items():
        below = [one for one in members_of(field.annotation) if isinstance(one, type) and issubclass(one, Spec)]
        for one in below:
            for full, fields in declared_settings(one, f"{within}{name}.").items():
                settings.setdefault(full, []).extend(fields)
        if not below:
            settings.setdefault(f"{within}{name}", []).append(field)
    return settings


def _variants(field: FieldInfo) -> dict[str, type[Spec]]:
    """Return the groups among which one setting chooses, by the value that chooses each."""
    kinds: dict[str, type[Spec]] = {}
    for kind in members_of(field.annotation):
        if isinstance(kind, type) and issubclass(kind, Spec) and field.discriminator:
            kinds |= dict.fromkeys(get_args(kind.model_fields[str(field.discriminator)].annotation), kind)
    return kinds


def variants(spec: type[Spec], group: str) -> dict[str, type[Spec]]:
    """Return the groups that may stand under a name of a configuration, by the value that chooses each."""
    field = spec.model_fields[group]
    return _variants(field) or {"": field.annotation}


_AS_TYPED = {"None": "null", "True": "true", "False": "false"}


def as_settings(message: object, group: str, spec: Spec | type[Spec]) -> str:
    """Return a message whose arguments, such as `length=3`, are named as settings of a group, with null, true and false.

    An argument begins the message, or stands behind a blank or a bracket, so names within values are left alone.

    Args:
        message: text, or an error.
        group: the group of settings.
        spec: the settings, or their class.

    Example:
        >>> from lightning_dpgen.specs.groups import SplitSpec
        >>> as_settings("k=0: expected 1 or more, or 'x.k=1' (dimensions=None)", "split", SplitSpec)
        "split.k=0: expected 1 or more, or 'x.k=1' (split.dimensions=null)"
    """
    kind = spec if isinstance(spec, type) else type(spec)
    argument = re.compile(rf"(?:^|(?<=[\s(]))({'|'.join(map(re.escape, names_of(kind)))})=(None\b|True\b|False\b)?")
    return argument.sub(lambda match: f"{group}.{match[1]}={_AS_TYPED.get(match[2], '')}", str(message))
