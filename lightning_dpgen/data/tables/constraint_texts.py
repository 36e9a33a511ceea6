"""Constraints as a schema declares them: texts such as ``start <= end``, mappings and lists of combinations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.conditions import EQUAL, cut_outside, is_in_quotes, parse_condition, quoted_name, unquoted
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import BadParts, BadSchema, Modelled, is_text, shortened
from lightning_dpgen.data.tables.constraints import (
    Allowed,
    Comparison,
    Constraint,
    Function,
    Implication,
    Membership,
    Sum,
    Term,
)
from lightning_dpgen.data.tables.description import BOUNDS
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.search import Search
from lightning_dpgen.data.tables.value_set import all_values, value_set, values_of

_MOST, _LONGEST, _MOST_VALUES = 1000, 10_000, 10_000
# Constraints times names and categories, each of which may be looked for in each constraint.
_MOST_NAMES = 5_000_000
# All constraints together, and more blanks in a row than a person writes.
MOST_LETTERS, _BLANKS = 200_000, re.compile(r"\s{100}")
_SIGN, _TERM = re.compile(r"\s*(<=|>=|==|=|<|>)\s*"), re.compile(r"\s*[+*/]\s*|\s+-\s+|^\s*-\s*")
_WORD, _WITH_UNIT = re.compile(r"-?\s*(?:[^\W\d]\w*|`.+`)"), re.compile(r"(-?\d+(?:\.\d+)?)\s*(?:%|[^\W\d]+|[$€£¥])")
# Signs that other languages, or other fonts, have for those of comparisons.
_MISTAKEN = {"=<": "<=", "=>": ">=", "≤": "<=", "≥": ">="}
_PLUS = re.compile(r"\s*([+-])?\s*")
_NUMBER, _BARE_DATE = re.compile(r"\d+(?:\.\d+)?"), re.compile(r"\d+/\d+/\d+")
# The signs of comparisons whose sides are exchanged.
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", EQUAL: EQUAL}
_KEYS = ("column", "of", "mapping", "columns", "allowed")
_IF, _IFF, _AND = " if ", " if and only if ", " and "
_FORMS = (
    "expected text such as 'start <= end', 'total = 1.19 * net + tax' or 'pdays = -1 if and only if previous = 0', or one "
    "of {column: c, of: d, mapping: {...}} and {columns: [c, d], allowed: [[...], ...]}"
)


def most_constraints(columns: Mapping[str, Modelled | Search]) -> int:
    """Return how many constraints a schema with these columns may have."""
    names = sum(len(column.values) if isinstance(column, Category) else 1 for column in columns.values())
    return min(_MOST, _MOST_NAMES // max(1, names))


def parse_constraints(declared: Sequence[Any], columns: Mapping[str, Modelled | Search], key: str) -> list[Constraint]:
    """Return the constraints that a schema declares, in an order in which derived columns can be computed.

    Args:
        columns: those that are read, by name.
        key: the key of the schema, for messages.

    Raises:
        BadParts: for all that are none.
        BadSchema: for anything else than a list, or constraints of which two determine one column, or in a circle.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> columns = {name: column_of(name, {"type": "integer", "low": 0, "high": 9}) for name in ("a", "b", "c")}
        >>> [constraint.derives for constraint in parse_constraints(["a <= b", "c = a + b"], columns, "constraints")]
        ['c', None]
    """
    most = most_constraints(columns)
    if not isinstance(declared, list | tuple) or len(declared) > most:
        raise BadSchema(f"{shortened(declared)}: expected a list of at most {most} constraints", key=key)
    if sum(len(str(one)) for one in declared) > MOST_LETTERS:
        raise BadSchema(f"expected constraints of at most {MOST_LETTERS:,} characters in all", key=key)
    constraints, wrong, pattern = list[Constraint](), dict[int, str](), _pattern(columns) if declared else None
    for place, one in enumerate(declared):
        try:
            constraints.append(_parsed(one, columns, pattern))
        except BadSchema:
            raise
        except ValueError as error:
            wrong[place] = f"{shortened(one)}: {error}"
    if wrong:
        raise BadParts(wrong, key)
    derived: dict[str, Constraint] = {}
    for constraint in constraints:
        if constraint.derives is not None and derived.setdefault(constraint.derives, constraint) is not constraint:
            raise BadSchema(f"two constraints determine {constraint.derives!r}: expected one of them", key=key)
    needs = {name: {other for other in one.columns if other in derived and other != name} for name, one in derived.items()}
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        name = error.args[1][0]
        raise BadSchema(f"{name!r} is determined by itself, in a circle: {derived[name].text}", key=key) from None
    return [derived[name] for name in order] + [constraint for constraint in constraints if constraint.derives is None]


def _parsed(one: Any, columns: Mapping[str, Modelled | Search], pattern: re.Pattern) -> Constraint:
    if isinstance(one, dict):
        if set(one) == {"column", "of", "mapping"}:
            return _function(one, columns)
        if set(one) == {"columns", "allowed"}:
            return _allowed(one, columns)
        for key in one:
            if key not in _KEYS and (near := suggest(key, _KEYS, shortened=True)):
                raise ValueError(f"{shortened(key)}: unknown here{near}")
    if not is_text(one) or not one.strip() or len(one) > _LONGEST or _BLANKS.search(one):
        raise ValueError(_FORMS)
    for word in (_IFF, _IF):
        parts = cut_outside(one, word)
        if len(parts) == 2:
            conditions = tuple(_statement(part, columns, pattern) for part in cut_outside(parts[1], _AND))
            constraint = Implication(one, _statement(parts[0], columns, pattern), conditions, word == _IFF)
            if len(constraint.columns) < 2:
                raise ValueError(
                    "concerns only one column: expected several columns, or other bounds or values of that column"
                )
            return constraint
        if len(parts) > 2:
            raise ValueError(f"expected one{word}only")
    statement = _statement(one, columns, pattern)
    if isinstance(statement, Membership):
        raise ValueError("concerns only one column: expected several columns, or other bounds or values of that column")
    return statement


def _statement(text: str, columns: Mapping[str, Modelled | Search], pattern: re.Pattern) -> Constraint:
    """Return a comparison of columns, or a condition on one."""
    comparison = _comparison(text, columns, pattern)
    if comparison is not None:
        return comparison
    try:
        said = parse_condition(text, list(columns))
        column = _known(said.column, columns)
        return Membership(text, column, value_set(column, said))
    except ValueError as error:
        raise ValueError(_fault_of_sum(text, columns) or str(error)) from None


def _fault_of_sum(text: str, columns: Mapping[str, Modelled | Search]) -> str | None:
    """Return what is wrong with a text that was meant as a comparison of sums; None where nothing tells."""
    for sign, right in _MISTAKEN.items():
        if cut_outside(text, sign)[0].strip() in columns and len(cut_outside(text, sign)) > 1:
            return f"{sign} is no sign here: expected {right}"
    numbers = [name for name, column in columns.items() if isinstance(column, Numeric | Search)]
    sides = _SIGN.split(text.strip().replace("!=", "="))
    if len(sides) == 3 and {sides[0], sides[2]} <= columns.keys() and not {sides[0], sides[2]} <= {*numbers}:
        left, right = (listed([side]) for side in (sides[0], sides[2]))
        other = next(side for side in (sides[0], sides[2]) if side not in numbers)
        return (
            f"column {shortened(other)} holds no numbers, dates or times, and these alone are compared: list the pairs of "
            f"values that there may be, as in {{columns: [{left}, {right}], allowed: [[a, a], [b, b]]}}, or what follows "
            f"from {right}, as in {{column: {left}, of: {right}, mapping: {{a: a, b: b}}}}"
        )
    sides = _SIGN.split(text.strip())
    if sides[0] in numbers and any(len(cut_outside(text, word)) > 1 for word in (_AND, " or ")):
        return "expected one comparison: write each as a constraint of its own, and conditions after 'if', with 'and'"
    if len(sides) != 3:
        return None
    for side, other in ((sides[0], sides[2]), (sides[2], sides[0])):
        if side in columns or _BARE_DATE.search(side):
            continue
        if other in numbers and (unit := _WITH_UNIT.fullmatch(side)):
            return f"{side}: expected a number without its unit: {unit[1]}"
        terms = [term for term in _TERM.split(side) if term and not _NUMBER.fullmatch(term)]
        for term in terms:
            if term in columns:
                if len(terms) > 1 and not isinstance(columns[term], Numeric | Search):
                    return f"column {shortened(term)} holds no numbers, and sums are of numbers"
                continue
            if is_in_quotes(term) and term[1:-1] in columns:
                return f"{term}: expected the name of the column without quotes, or in backquotes: `{term[1:-1]}`"
            if near := suggest(term, columns):
                return f"there is no column {shortened(term)}{near}"
            if len(terms) > 1 or (other in numbers and _WORD.fullmatch(side)):
                kind = getattr(columns.get(other), "type", "number")
                what = kind if kind in ("date", "datetime", "time") else "number"
                return f"there is no column {shortened(term)}: expected a {what}, or one of {listed(numbers)}"
    return None


def _comparison(text: str, columns: Mapping[str, Modelled | Search], pattern: re.Pattern) -> Comparison | None:
    """Return a comparison of sums; None for any other text."""
    sides = _SIGN.split(text.strip())
    if len(sides) != 3:
        return None
    left, right = (_sum(side, columns, pattern) for side in (sides[0], sides[2]))
    if left is None or right is None:
        return None
    operator = EQUAL if sides[1] == "==" else sides[1]
    names = {column.name for column in (*left.columns, *right.columns)}
    if len(names) < 2:
        if len(left.columns) + len(right.columns) > 1:
            raise ValueError(f"{text}: expected several columns")
        return None
    if not left.parts:
        left, right, operator = right, left, _MIRRORED[operator]
    if not right.parts:
        # One column stays, and the others are taken to the number.
        first = next((part for part in left.parts if part.alone and part.factor > 0), left.parts[0])
        others = tuple(replace(part, factor=-part.factor) for part in left.parts if part is not first)
        left, right = Sum((first,), 0.0), Sum(others, right.constant - left.constant)
    if operator == EQUAL:
        left, right = _computed(text, left, right)
    counts = Counter(column.name for column in (*left.columns, *right.columns))
    again = [name for name, count in counts.items() if count > 1]
    if again and (operator != EQUAL or left.columns[0].name in again):
        raise ValueError(f"{text}: expected each column once")
    numbers = all(column.type in ("integer", "number") for column in (*left.columns, *right.columns))
    kinds = {(column.type, column.resolution) for column in (*left.columns, *right.columns)}
    plain = all(part.alone for part in (*left.parts, *right.parts))
    if not numbers and (len(kinds) > 1 or len(counts) > 2 or left.constant or right.constant or not plain):
        raise ValueError(f"{text}: expected numbers, or two dates or times of one type and resolution")
    comparison = Comparison(text.strip(), left, operator, right)
    lacks = [f"{column.name!r} is" for column in comparison.numbers[1:] if column.missing]
    lacks += [f"{c.name!r} is 0" for part in right.parts for c in part.over if all_values(c).meets(0, 0)]
    if comparison.derives is not None and not comparison.numbers[0].missing and lacks:
        raise ValueError(
            f"{comparison.derives!r} is computed, and would be missing where {lacks[0]}: declare missing: true for it, too"
        )
    return comparison


def _computed(text: str, left: Sum, right: Sum) -> tuple[Sum, Sum]:
    """Return both sides of an equality so that the first column is one that the others determine."""
    if not (len(left.parts) == 1 and left.parts[0].alone) and len(right.parts) == 1 and right.parts[0].alone:
        left, right = right, left
    if not any(part.alone for part in left.parts):
        left, right = right, left
    first = next((part for part in left.parts if part.alone), None)
    if first is None:
        raise ValueError(f"{text}: expected a column by itself on one side, which the other one determines")
    rest = tuple(part for part in left.parts if part is not first)
    return Sum((first, *rest), left.constant), right


def _pattern(columns: Mapping[str, Modelled | Search]) -> re.Pattern:
    """Return the pattern of a factor: the name of a column of numbers, or a number."""
    numbers = [name for name, column in columns.items() if isinstance(column, Numeric | Search)]
    names = sorted(numbers, key=len, reverse=True)
    quoted = [re.escape("`" + name.replace("`", "``") + "`") for name in names]
    forms = "|".join(quoted + [re.escape(name) for name in names] or [r"(?!)"])
    return re.compile(rf"\s*(?:({forms})(?![\w`])|(\d{{1,15}}(?:\.\d{{1,15}})?)(?!\w))\s*")


def _sum(text: str, columns: Mapping[str, Modelled | Search], pattern: re.Pattern) -> Sum | None:
    """Return a sum of numbers and of products and quotients of columns and numbers; None for any other text."""
    parts, constant, place = [], 0.0, 0
    while place < len(text):
        # Every part but the first has a sign.
        sign = _PLUS.match(text, place)
        if place and sign[1] is None:
            return None
        parsed = _term(text, sign.end(), columns, pattern)
        if parsed is None:
            return None
        term, place = parsed
        term = replace(term, factor=-term.factor) if sign[1] == "-" else term
        if term.columns:
            parts.append(term)
        else:
            constant += term.factor
    return Sum(tuple(parts), constant) if place else None


def _term(text: str, place: int, columns: Mapping[str, Modelled | Search], pattern: re.Pattern) -> tuple[Term, int] | None:
    """Return the product or quotient that begins at a place, and where it ends; None where none does."""
    factor, operator = 1.0, "*"
    sides: dict[str, list[Any]] = {"*": [], "/": []}
    while operator:
        match = pattern.match(text, place)
        if match is None:
            return None
        if match[1] is not None:
            name = match[1] if match[1] in columns else match[1][1:-1].replace("``", "`")
            sides[operator].append(_known(name, columns))
        elif operator == "*":
            factor *= float(match[2])
        elif float(match[2]):
            factor /= float(match[2])
        else:
            raise ValueError(f"{text}: divides by 0")
        place = match.end()
        operator = text[place] if text[place : place + 1] in ("*", "/") else ""
        place += len(operator)
    if sides["*"] + sides["/"] and not factor:
        raise ValueError(f"{text}: a column times 0 says nothing: leave it out")
    return Term(factor, tuple(sides["*"]), tuple(sides["/"])), place


def _function(fields: Mapping[str, Any], columns: Mapping[str, Modelled | Search]) -> Function:
    column, of = _known(fields["column"], columns), _known(fields["of"], columns)
    mapping = fields["mapping"]
    if column is of or not isinstance(mapping, dict) or not mapping:
        raise ValueError("expected a mapping of the values of one column to those of another, as in {Bachelors: 13}")
    pairs = dict(zip(_places(of, mapping), _places(column, mapping.values()), strict=True))
    said, missing = None in pairs, pairs.pop(None, None)
    if not said and of.missing and not column.missing:
        raise ValueError(f"says nothing about missing values of {of.name!r}: expected the key '' for them")
    names = [] if isinstance(of, Numeric) else of.present_names
    unsaid = [name for code, name in enumerate(names) if code not in pairs]
    if unsaid:
        raise ValueError(f"the mapping lacks {unsaid[0]!r}: expected each value of {of.name!r}")
    if isinstance(of, Numeric) and not pairs:
        raise ValueError("expected a mapping of values that are not missing, too")
    keys = tuple(sorted(key for key in pairs if key is not None))
    text = f"{quoted_name(column.name)} follows from {quoted_name(of.name)}"
    return Function(text, column, of, keys, tuple(pairs[key] for key in keys), missing)


def _allowed(fields: Mapping[str, Any], columns: Mapping[str, Modelled | Search]) -> Allowed:
    names, combinations = fields["columns"], fields["allowed"]
    if not isinstance(names, list) or len(names) < 2 or not isinstance(combinations, list) or not combinations:
        raise ValueError("expected at least two columns, and the list of their allowed combinations")
    of = tuple(_known(name, columns) for name in names)
    if len({column.name for column in of}) < len(of) or len(combinations) * len(of) > _MOST_VALUES:
        raise ValueError(f"expected each column once, and at most {_MOST_VALUES:,} values")
    for combination in combinations:
        if not isinstance(combination, list) or len(combination) != len(of):
            raise ValueError(f"{shortened(combination)}: expected {len(of)} values, one for each column")
    found = [_places(column, values) for column, values in zip(of, zip(*combinations, strict=True), strict=True)]
    text = f"({', '.join(map(quoted_name, names))}) is one of {len(combinations):,} combinations"
    return Allowed(text, of, tuple(zip(*found, strict=True)))


def _known(name: Any, columns: Mapping[str, Modelled | Search]) -> Any:
    if not isinstance(name, str) or name not in columns:
        near = suggest(name, columns) if isinstance(name, str) else ""
        raise ValueError(f"column {shortened(name)}: expected one that is read: {listed(columns)}{near}")
    if isinstance(columns[name], Search):
        known = "bounds" if columns[name].find == BOUNDS else "values"
        raise ValueError(f"{name!r} is to be found privately: declare its {known}, which a constraint takes for public")
    return columns[name]


def _places(column: Modelled, values: Iterable[Any]) -> list[int | float | None]:
    """Return the places of values of YAML as a column reads them."""
    return values_of(column, [unquoted(value) if isinstance(value, str) else value for value in values])
