"""The description of a column, as a schema states it: each key once, checked, and refused in the words of a schema."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from lightning_dpgen.common.nearest_word import nearest
from lightning_dpgen.data.declarations import expected_of
from lightning_dpgen.data.reading import REFUSE
from lightning_dpgen.data.tables.column import BadSchema, Column, is_text, shortened

if TYPE_CHECKING:
    from lightning_dpgen.data.tables.written_form import WrittenForm

# The word of a schema in the place of what is to be found privately.
PRIVATE = "private"
# The finds of a private search.
BOUNDS, KEYS, VALUES = "bounds", "keys", "values"
CLAMPED = "what is found privately does not cover every record, and a refusal would tell"
# A file of a schema has lists where Python has tuples.
Listed = Strict(False)
# Keys of most types, which come last.
TRAILING = ("missing", "missing_values", "outside", "description")


class Unfilled(str):
    """A word of a file in the place of what a person is still to decide, such as ``???``.

    Attributes:
        line: where it stands.
    """

    line: int


def _text(value: str) -> str:
    if not is_text(value):
        raise ValueError("text")
    return value


# Text that UTF-8 can hold.
Text = Annotated[str, AfterValidator(_text)]


def key(default: Any, *, expected: str, **limits: Any) -> Any:
    """Declare a key whose type and limits do not say in words what is expected.

    Args:
        limits: as pydantic has them, such as ``max_length``.
    """
    return Field(default, json_schema_extra={"expected": expected}, **limits)


class Description(BaseModel):
    """Keys of a schema: checked, frozen, and in the one form in which they are written.

    The text below a key is its meaning for people, and its default where that is not simply the value of the program.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return the description that has these keys; a key with null is the same as no key.

        Where a person is still to decide on some of them (`Unfilled`), the others are checked one by one.

        Raises:
            BadSchema: for keys that are unknown, or whose values make no sense, naming the first.
        """
        for name in fields:
            if name not in cls.model_fields:
                known = sorted(cls.model_fields.keys() - {"type"})
                near = nearest(name, known, shortened=True)
                hint = f"did you mean {near!r}?" if near else f"expected one of {', '.join(known)}"
                raise BadSchema(f"unknown here: {hint}", key=str(name))
        try:
            said = {name: value for name, value in fields.items() if value is not None}
            decided = {name: value for name, value in said.items() if not isinstance(value, Unfilled)}
            return cls.model_validate(decided, context=None if len(decided) == len(said) else "unfinished")
        except ValidationError as error:
            raise _refusal(cls, error) from None

    @model_validator(mode="after")
    def _check_together(self, info: ValidationInfo) -> Self:
        if info.context is None:
            self.check()
        return self

    def check(self) -> None:
        """Check which keys fit together, and bring their values into the form in which they are written.

        Raises:
            BadSchema: naming the key.
        """

    def with_values(self, **values: Any) -> Self:
        """Return the same with other values of some keys, checked again.

        Raises:
            BadSchema: as `of`.
        """
        return self.of({name: getattr(self, name) for name in type(self).model_fields} | values)

    def dump(self) -> dict[str, Any]:
        """Return all that is declared and is not the default, as JSON and YAML hold it."""
        fields = self.model_dump(mode="json", exclude_defaults=True)
        fields |= {name: getattr(self, name) for name in self._always_dumped()}
        order = sorted(fields, key=lambda name: (name != "type", TRAILING.index(name) if name in TRAILING else -1))
        return {name: fields[name] for name in order}

    def _always_dumped(self) -> set[str]:
        """Return the keys that are written even where they have their defaults."""
        return set()


def _refusal(kind: type[Description], error: ValidationError) -> BadSchema:
    """Return the first mistake in the words of a schema."""
    mistake = error.errors(include_url=False)[0]
    cause, name = mistake.get("ctx", {}).get("error"), str(mistake["loc"][0]) if mistake["loc"] else None
    if isinstance(cause, BadSchema):
        return BadSchema(cause.problem, key=cause.key or name)
    expected = expected_of(mistake, kind.model_fields.get(name or ""), brief=True)
    return BadSchema(f"{shortened(mistake['input'])}: expected {expected}", key=name)


def refuse(name: str, value: Any, expected: str) -> NoReturn:
    """Raise BadSchema for a value that is declared under a key."""
    raise BadSchema(f"{shortened(value)}: expected {expected}", key=name) from None


def refuse_twice(name: str, values: Iterable[Any]) -> None:
    """Raise BadSchema for the first of the values under a key that is there twice."""
    for value, count in Counter(values).items():
        if count > 1:
            times = "twice" if count == 2 else f"{count} times"
            refuse(name, value, f"each value once, and it is there {times}")


class ColumnDescription(Description):
    """The description of a column.

    Attributes:
        holds: its values in words.
        decide: the one thing that a person decides about it.
    """

    holds: ClassVar[str]
    decide: ClassVar[str]

    description: Text = ""
    """words for people"""

    @property
    def unfinished(self) -> str | None:
        """The part of it that is to be found privately, `BOUNDS` or `KEYS`; None if it is finished."""
        return None

    def form(self, decimal: str = ".", thousands: str = "") -> WrittenForm | None:
        """Return the declared form of its texts, by these signs of the table; None where it is that of programs."""
        return None

    @abstractmethod
    def build(self, name: str) -> Column:
        """Return the column of this name, which encodes and decodes, of a description that is finished.

        Raises:
            BadSchema: if it cannot be told apart which of its values are missing.
        """


def _texts(values: Any) -> Any:
    # Most people write a code such as -9 without quotes.
    return [str(v) if type(v) is int else v for v in values] if isinstance(values, list | tuple) else values


class ModelledDescription(ColumnDescription):
    """The description of a column that is learned."""

    missing: bool = False
    """whether values may be missing; a missing value is a choice of its own"""
    missing_values: Annotated[tuple[Text, ...], Listed, BeforeValidator(_texts)] = key(
        ("",), expected="a list of different texts, such as ['', '?']", min_length=1
    )
    """texts that stand for a missing value, such as ["?"], or ["?", ""] if an empty field does, too; a text such as "-9"
    also stands for the number in files that hold numbers (default: an empty field)"""
    outside: Literal["refuse", "clamp"] | None = None
    """`refuse` a value that is not listed, or beyond the bounds; or `clamp` it to `other` or missing, or to the bound
    (default: `outside` of the run; `clamp` for what is found privately)"""

    def check(self) -> None:
        refuse_twice("missing_values", self.missing_values)
        if self.missing_values != ("",) and not self.missing:
            raise BadSchema("has a meaning only with missing: true", key="missing_values")
        if self.outside == REFUSE and self.unfinished:
            raise BadSchema(f"{REFUSE}: {CLAMPED}: leave it out, or write clamp", key="outside")
