"""Declared keys: what a field of a pydantic model may hold, in words, and what is wrong with what it was given."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import is_plain

_TYPES = {
    "int_type": "a whole number", "float_type": "a number", "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text", "dict_type": "names and values, as in '{width: 3}'", "list_type": "a list, as in [a,b]",
}  # fmt: skip


def about(field: FieldInfo, what: str) -> Any:
    """Return what is declared of a field beside its type and limits."""
    extra = field.json_schema_extra
    return extra.get(what) if isinstance(extra, Mapping) else None


def words_of(field: FieldInfo | None) -> list[str]:
    """Return the values of a field that are words of a list, true and false among them.

    Example:
        >>> words_of(FieldInfo(annotation=Literal["adam", "sgd"])), words_of(None)
        (['adam', 'sgd'], [])
    """
    words = []
    for member in () if field is None else members_of(field.annotation):
        if get_origin(member) is Literal:
            words += [as_text(value) for value in get_args(member)]
        elif member is bool:
            words += ["true", "false"]
    return words


def as_text(value: Any) -> str:
    """Return a value as a person would have written it, not too long."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = getattr(value, "typed", None) or (f"{value:g}" if isinstance(value, float) else str(value))
    text = text if is_plain(text) else repr(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def members_of(annotation: Any) -> Iterator[Any]:
    """Yield the types of which an annotation is the union."""
    if get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from members_of(member)
    elif get_origin(annotation) is Annotated:
        yield from members_of(get_args(annotation)[0])
    else:
        yield annotation


def _limits_of_members(annotation: Any) -> list[Any]:
    """Return what pydantic was told of the numbers among the members of a union."""
    found = [member for member in get_args(annotation) if get_origin(member) is Annotated]
    return [m for member in found for info in get_args(member)[1:] for m in getattr(info, "metadata", ())]


def expected_of(mistake: Mapping[str, Any], field: FieldInfo | None, form: str = "{}", *, brief: bool = False) -> str:
    """Return what a field expects in place of a value that pydantic refuses, with the word that is nearest to it.

    Args:
        mistake: one of `pydantic.ValidationError.errors`.
        form: the nearest word as a person writes it, ``{}`` for itself.
        brief: whether the meaning of the field, and null, are left out.

    Example:
        >>> mistake = {"type": "literal_error", "loc": ("rule",), "msg": "", "input": "sdg"}
        >>> expected_of(mistake, FieldInfo(annotation=Literal["adam", "sgd"]))
        'one of adam, sgd; did you mean sgd?'
    """
    kind, inside = mistake["type"], any(isinstance(part, int) for part in mistake["loc"])
    if kind == "value_error":
        return str(mistake["ctx"]["error"])
    if field is None:
        return _TYPES.get(kind, mistake["msg"])
    words = about(field, "expected") or (_TYPES.get(kind, mistake["msg"]) if inside else range_of(field, null=not brief))
    words += f" ({field.description})" if field.description and not brief else ""
    known = words_of(field) if kind == "literal_error" and not inside else ()
    return words + suggest(as_text(mistake["input"]), known, form, shortened=True)


def range_of(field: FieldInfo, *, null: bool = True) -> str:
    """Return the type and the limits of a field in words.

    Args:
        null: whether null is told, too, where it may be.

    Example:
        >>> from pydantic import Field
        >>> range_of(FieldInfo.from_annotation(Annotated[float, Field(gt=0, lt=1)]))
        'a number above 0, below 1'
        >>> range_of(FieldInfo(annotation=Annotated[int, Field(ge=1)] | Literal["auto"]))
        'a whole number from 1 or auto'
    """
    stated = [*field.metadata, *_limits_of_members(field.annotation)]
    limits = {name: getattr(m, name) for m in stated for name in ("ge", "gt", "le", "lt") if hasattr(m, name)}
    kinds_in_words = []
    for member in members_of(field.annotation):
        if get_origin(member) is Literal:
            names = [as_text(value) for value in get_args(member)]
            kinds_in_words.append(names[0] if len(names) == 1 else f"one of {', '.join(names)}")
        elif member is bool:
            kinds_in_words.append("true or false")
        elif member is str:
            kinds_in_words.append("text")
        elif member in (dict, list, tuple) or get_origin(member) in (dict, list, tuple):
            kinds_in_words.append("a list" if (get_origin(member) or member) is not dict else "names and values")
        elif member is type(None):
            continue
        elif member in (int, float):
            kinds_in_words.append(("a whole number" if member is int else "a number") + _limits(limits))
    if not kinds_in_words and limits:
        kinds_in_words.append("a number" + _limits(limits))
    words = " or ".join(dict.fromkeys(kinds_in_words))
    if null and type(None) in members_of(field.annotation) and not about(field, "needed"):
        return f"{words}{',' if ', ' in words else ''} or null" if words else "null"
    return words or "a value"


def _limits(limits: Mapping[str, Any]) -> str:
    number = lambda value: f"{value:,}" if isinstance(value, int) else f"{value:g}"  # noqa: E731
    low = f" from {number(limits['ge'])}" if "ge" in limits else f" above {number(limits['gt'])}" if "gt" in limits else ""
    if "ge" in limits and "le" in limits:
        return f"{low} to {number(limits['le'])}"
    high = (
        f"at most {number(limits['le'])}" if "le" in limits else f"below {number(limits['lt'])}" if "lt" in limits else ""
    )
    return f"{low}{',' if low and high else ''}{' ' + high if high else ''}"
