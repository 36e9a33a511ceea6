"""Drafts of schemas: what a program may say of a table, with ??? where only a person may decide."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.delimited import Skipped, default_separator, header_of
from lightning_dpgen.data.files.kinds import TEXT, WORKBOOK
from lightning_dpgen.data.files.parquet import FolderRows, ParquetRows
from lightning_dpgen.data.files.rows import rows_of
from lightning_dpgen.data.files.text import UTF8, bare_name
from lightning_dpgen.data.files.values import Nested
from lightning_dpgen.data.files.workbook import WorkbookRows
from lightning_dpgen.data.names import plain, texts_of
from lightning_dpgen.data.tables.likely_form import (
    TRUTH,
    example_of,
    has_same_decimals,
    holds_thousands,
    likely_charset,
    likely_code,
    likely_decimals,
    likely_digits,
    likely_iso_format,
    likely_moments,
    likely_numbers,
    likely_quotes,
    likely_signs,
    likely_two,
    likely_words,
    reads,
)
from lightning_dpgen.data.tables.likely_rows import (
    Amounts,
    is_missing_word,
    likely_amounts,
    likely_rows,
    several_units,
    title_rows,
)
from lightning_dpgen.data.tables.moment_form import MomentForm
from lightning_dpgen.data.tables.numeric_description import MAY_BE_FOUND
from lightning_dpgen.data.tables.scales import MOMENTS, Datetimes, Decimals, Integers, Scale, is_zone
from lightning_dpgen.data.tables.schema_file import UNFILLED, value_text
from lightning_dpgen.data.tables.schema_keys import KINDS
from lightning_dpgen.data.tables.sources import check_kind
from lightning_dpgen.data.tables.written_form import NEEDED, NumberForm
from lightning_dpgen.sampling.errors import BadRecords

OPEN = UNFILLED[0]
BOUND = "from public knowledge; the {} of the file would reveal a record"
LISTED = "all values there can be, as [a, b, c]; those of the file would reveal rare ones. Free text: type: drop, or fake"
# Words in the names of columns of names and keys, and the fakes that may take their place.
_FAKES = {
    "id": "row_number", "key": "row_number", "nr": "row_number", "uuid": "uuid", "guid": "uuid", "name": "name",
    "surname": "name", "mail": "email", "email": "email",
}  # fmt: skip
_WORDS = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+")
_ZONE = "whose clocks count, such as Europe/Berlin; bounds are local times"
_TOLD = {
    "skip_rows": "lines above the names of the columns that are no rows: check it",
    "comment": "how lines begin that are no rows, told from the first and last ones: check it",
    "charset": "told from the first bytes: check a name with accents",
    "decimal": "told from the first rows: check that 1,234 is not a thousand",
    "thousands": "told from the first rows: check it",
    "quotes": "which fields stand in double quotes, told from the first rows",
}
_DECIMALS_TOLD = "told from the first rows: check it; numbers with more are rounded"
_WHOLE_TOLD = "all of the first rows are whole, and written with these zeros; where others may stand there:  type: number"
_UNIT_TOLD = "the number 1 (and -1) as the first rows write it: check it"
_DIGITS_OF_DAYS = "all of the first rows are such days: check it; where other numbers may stand there:  type: integer"
_EMPTY_TOLD, _MISSING_TOLD = "a field of the first rows was empty: check it", "words of the first rows: check them"
_PHONE = "digits with a plus in front, as telephone numbers have: texts"
# Arrow and pandas take the scale of decimals off the numbers, unless one is declared.
_SCALE_TOLD = "of the type in the file: check it; numbers with more are rounded"
_OWN = {
    "decimal": "told from the first rows, in which other columns have another sign",
    "thousands": "none stood there in the first rows, as in codes: check it",
}
# A key that numbers rows tells nothing of what is learned; fewer rows may be in order by chance.
_NUMBERED = "the first rows are numbered so: is it the row number? Then  type: drop  (or fake: row_number)"
_FEWEST_NUMBERED = 8
# The name that pandas gives a column without one.
_UNNAMED = re.compile(r"Unnamed: \d+")
# Words for false and true that may also be the first numbers of many.
_DIGITS = ("0", "1")
_DIGITS_TOLD = "for false and true, told from the first rows; where other numbers may stand there:  type: integer"
_PLAIN = NumberForm()
_ROWS = 1000
# Names of columns in one line of comment.
_MOST_NAMED = 6
# A person fills in a draft column by column.
_MOST_COLUMNS = 20_000
_TESTS: dict[str, Scale] = {"integer": Integers(), "number": Decimals(), **MOMENTS}


@dataclass(frozen=True)
class ColumnDraft:
    """A column of which not all is decided: fields by key, `OPEN` where a person has to decide, and comments by key."""

    name: str
    fields: dict[str, Any]
    why: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_type(cls, name: str, kind: str, **known: Any) -> ColumnDraft:
        """Draft a column of a type, of which nothing is known but this."""
        fields: dict[str, Any] = {"type": kind}
        why = {}
        if kind == "category":
            fields["values"], why["values"] = OPEN, LISTED
        elif kind in _TESTS and kind != "time":
            for key, word in (("low", "smallest"), ("high", "largest")):
                fields[key], why[key] = OPEN, BOUND.format(word)
        # Its name decides, which is public, and not its values.
        fakes = [_FAKES[word] for word in map(str.lower, _WORDS.findall(name)) if word in _FAKES]
        if fakes and kind in ("category", "integer") and "values" not in known:
            why["type"] = f"a name or key? Then in place of all this:  type: fake, fake: {fakes[-1]}  (or type: drop)"
        for key, value in known.items():
            why.pop(key, None)
            fields[key] = value
            if key in ("low", "high") and likely_code(value):
                why[key] = f"a code, such as for a value that is not known? Then  special: [{value}]  and another bound"
        return cls(name, fields, why)

    def because(self, key: str, comment: str) -> ColumnDraft:
        """Return the same with a comment on what is declared under a key."""
        return replace(self, why=self.why | {key: comment})

    @property
    def lines(self) -> list[str]:
        """Each key with its value, and its comment."""
        whys = {key: f"   # {comment}" for key, comment in self.why.items()}
        return [f"{key}: {_text(value)}{whys.get(key, '')}" for key, value in self.fields.items()]


def draft_text(
    columns: list[ColumnDraft], origin: str, about: dict[str, Any] | None = None, notes: Sequence[str] = ()
) -> str:
    """Return the text of a schema file of drafts of columns.

    Args:
        origin: the file that they were made from, for the first line.
        about: what is known of the whole table, by key.
        notes: further lines of comment.

    Example:
        >>> print(draft_text([ColumnDraft.of_type("a", "boolean")], "t.csv"), end="")
        # Drafted from t.csv. All of it is public: fill in every ??? from public knowledge, not from the records.
        # Where values may be missing, add  missing: true  (and missing_values: ["?"], if a text says so).
        # private  instead has it found from a share of the budget (discovery_share): low and high, or values.
        # Names and keys are no categories:  type: drop  leaves them out,  type: fake  makes them up.
        # constraints: [start <= end, total = net + tax]  names what every row keeps; rows may break what is not named.
        # relative_to: start  of a later date or number has it learned by its distance from another column.
        # label: ???   # the column that says of which class a record is, if there is one
        columns:
          a:
            # decide: may it be missing?
            type: boolean
    """
    lines = [
        f"# Drafted from {origin}. All of it is public: fill in every {OPEN} from public knowledge, not from the records.",
        '# Where values may be missing, add  missing: true  (and missing_values: ["?"], if a text says so).',
        "# private  instead has it found from a share of the budget (discovery_share): low and high, or values.",
        "# Names and keys are no categories:  type: drop  leaves them out,  type: fake  makes them up.",
        "# constraints: [start <= end, total = net + tax]  names what every row keeps; rows may break what is not named.",
        "# relative_to: start  of a later date or number has it learned by its distance from another column.",
        *_asked_of_dates(columns),
        *(f"# {note}" for note in notes),
        f"# label: {OPEN}   # the column that says of which class a record is, if there is one",
    ]
    return "\n".join([*lines, *table_lines(columns, about or {})]) + "\n"


def table_lines(
    columns: Sequence[ColumnDraft], about: Mapping[str, Any], key: str = "columns", *, finds: bool = True
) -> list[str]:
    """Return the lines of a table's keys and, under a key of their own, of its columns.

    Args:
        finds: whether bounds may be found privately.
    """
    lines = [f"{name}: {_text(value)}{f'   # {_TOLD[name]}' if name in _TOLD else ''}" for name, value in about.items()]
    lines.append(f"{key}:")
    for column in columns:
        if not column.name:
            lines.append(f"  # {column.why['type']}")
            continue
        lines.append(f"  {_text(column.name)}:")
        if (kind := column.fields.get("type")) in KINDS:
            decide = KINDS[kind].decide if finds else KINDS[kind].decide.replace(MAY_BE_FOUND, "")
            lines.append(f"    # decide: {decide}")
        lines += [f"    {line}" for line in column.lines]
    return lines


def draft_of_file(
    path: str | Path, *, header: bool = True, table: str | None = None
) -> tuple[list[ColumnDraft], dict[str, Any]]:
    """Draft the columns of a file by their types, and the whole table; the draft holds no value of the file.

    A Parquet file declares its types. Those of a file of text are the ones that its first records can be read as, and those
    of other files the ones of their first values.

    Args:
        header: whether a file of text or a workbook begins with the names of its columns.
        table: the sheet of a workbook, or the table of a database; None for the only one.

    Raises:
        MissingData, BadRecords: if it cannot be read, or its header looks like a record.
    """
    path = Path(path)
    check_kind(path)
    about: dict[str, Any]
    if path.is_dir() or not bare_name(path).endswith(TEXT):
        # A file without a header would have to be read for the number of its columns.
        if not header:
            raise BadRecords(f"{path}: a file without a header is one of text: leave --no-header out, or save it as .csv")
        skip_rows = 0
        if path.suffix.lower() == WORKBOOK:
            first = WorkbookRows.first_rows(path, table)
            skip_rows = title_rows(first, max(map(len, first), default=0))
        about = ({} if table is None else {"table": table}) | ({"skip_rows": skip_rows} if skip_rows else {})
        rows = rows_of(path, table=table, skip_rows=skip_rows)
        if rows.unnamed:
            raise _header_with("an empty cell", path)
        return draft_of_rows(rows), about
    if table is not None:
        raise BadRecords(f"{path} is a file of text, with one table: leave --table out")
    about = {}
    charset = likely_charset(path)
    if charset != UTF8:
        about["charset"] = charset
    likely = likely_rows(path, charset)
    separator, skipped = likely.separator, Skipped(likely.skip_rows, likely.comment)
    about |= likely.fields | ({} if separator == default_separator(path) else {"separator": separator})
    names = header_of(path, separator, charset, skipped)[1]
    _refuse_many(names, path)
    if header:
        _refuse_record([name.strip() for name in names], path)
    else:
        about["header"] = False
    numbered = None if header else [f"column_{number}" for number in range(1, len(names) + 1)]
    rows = rows_of(
        path, numbered, separator, skip_empty=True, charset=charset, skip_rows=skipped.rows, comment=skipped.comment
    )
    with closing(rows.batches([*rows.columns, *rows.unnamed])) as batches:
        batch = next(batches, None)
    quotes = likely_quotes(path, separator, charset)
    about |= {"quotes": quotes} if quotes != NEEDED else {}
    first = [batch.column(name).slice(0, _ROWS) if batch else pa.array([], pa.string()) for name in rows.columns]
    texts = list(map(_Texts.of, first))
    signs = likely_signs([one.amounts.bare for one in texts])
    about |= {"decimal": signs.decimal} if signs.decimal != "." else {}
    about |= {"thousands": signs.thousands} if signs.thousands else {}
    drafts = [_of_texts(name, values, signs) for name, values in zip(rows.columns, texts, strict=True)]
    empty = pa.nulls(0, pa.string())
    unnamed = [
        _of_unnamed(place, batch.column(name).slice(0, _ROWS) if batch else empty, path)
        for name, place in rows.unnamed.items()
    ]
    return unnamed + drafts, about


def _of_unnamed(place: int, values: pa.Array, path: Path) -> ColumnDraft:
    """Return the draft without a name of a column that has none: the index that pandas writes, or one without values.

    Raises:
        BadRecords: for any other, which may be one of a record in place of the header.
    """
    problem = f"column {place} has no name in the header and is left out"
    if values.null_count == len(values):
        return ColumnDraft("", {"type": "drop"}, {"type": f"{problem}: the first rows have nothing there"})
    if place == 1 and not values.null_count and _is_row_number(values, 2):
        return ColumnDraft(
            "", {"type": "drop"}, {"type": f"{problem}: it numbers the rows, as the index that pandas writes does"}
        )
    raise _header_with("an empty field", path)


def draft_of_rows(rows: RowSource) -> list[ColumnDraft]:
    """Draft the columns of a source that is no file of text, by the types that it declares, or of its first values."""
    _refuse_many(rows.columns, rows.where)
    if isinstance(rows, ParquetRows | FolderRows):
        return [_of_arrow(name, kind) for name, kind in zip(rows.columns, rows.types, strict=True)]
    columns, nested = list(rows.columns), {}
    while columns:
        try:
            with closing(rows.batches(columns)) as batches:
                batch = next(batches, None)
            break
        except Nested as found:
            columns.remove(found.column)
            nested[found.column] = ColumnDraft(
                found.column, {"type": "drop"}, {"type": f"holds {found.what}: {found.advice}"}
            )
    else:
        batch = None
    drafts = dict(nested)
    for place, name in enumerate(columns):
        values = plain(batch.column(place).slice(0, _ROWS)) if batch else pa.array([], pa.string())
        if pa.types.is_string(values.type):
            drafts[name] = _of_texts(name, _Texts.of(values))
            continue
        draft = _of_values(name, values)
        has_missing = values.null_count > 0 and draft.fields["type"] != "drop"
        if has_missing:
            draft = replace(draft, fields=draft.fields | {"missing": True}).because("missing", _EMPTY_TOLD)
        drafts[name] = draft
    return [drafts[name] for name in rows.columns]


def _asked_of_dates(columns: Sequence[ColumnDraft]) -> list[str]:
    """Return the question of the order of dates and times, where there are several, as a line of comment."""
    names = [_text(column.name) for column in columns if column.fields.get("type") in ("date", "datetime")]
    return (
        [f"# {listed(names, _MOST_NAMED)}: is one never after another? Say so by one of these two."]
        if len(names) > 1
        else []
    )


def _text(value: Any) -> str:
    return OPEN if value == OPEN else value_text(value)


@dataclass(frozen=True)
class _Texts:
    """The first texts of a column, without what says that a value is missing.

    Args:
        values: the others (n,).
        words: those that say so, the most frequent first.
        has_empty: whether a field is empty.
        amounts: the values without their unit.
    """

    values: pa.Array
    words: list[str]
    has_empty: bool
    amounts: Amounts

    @classmethod
    def of(cls, texts: pa.Array) -> _Texts:
        counts = {one["values"]: one["counts"] for one in pc.value_counts(texts.drop_null()).to_pylist()}
        has_empty = texts.null_count > 0 or "" in counts
        words = sorted((text for text in counts if text and is_missing_word(text)), key=lambda text: (-counts[text], text))
        values = texts.filter(pc.invert(pc.is_in(texts, pa.array([*words, "", None], pa.string()))))
        return cls(values, words, has_empty, likely_amounts(values))


def _of_texts(name: str, texts: _Texts, signs: NumberForm = _PLAIN) -> ColumnDraft:
    """Draft a column of the first type that fits all texts but words for a missing value, with numbers by these signs."""
    draft = _of_present(name, texts, signs)
    kind = draft.fields["type"]
    if texts.words and kind == "category":
        # A word may as well be one of the texts.
        named = value_text(texts.words)
        advice = f"are {named} values? Then list them. Else  missing: true  and  missing_values: {named}"
        return draft.because("values", f"{draft.why['values']}. {advice}")
    if kind == OPEN or not (texts.words or texts.has_empty):
        return draft
    known: dict[str, Any] = {"missing": True}
    if texts.words:
        known["missing_values"] = [*texts.words, *[""] * texts.has_empty]
    draft = replace(draft, fields=draft.fields | known)
    third = "; a third answer beside true and false is one of  type: category" if kind == "boolean" else ""
    advice = _MISSING_TOLD + third
    return draft.because("missing_values", advice) if texts.words else draft.because("missing", _EMPTY_TOLD)


def _of_present(name: str, texts: _Texts, signs: NumberForm) -> ColumnDraft:
    values, amounts = texts.values, texts.amounts
    if not len(values):
        return ColumnDraft(name, {"type": OPEN}, {"type": f"one of {', '.join(KINDS)}"})
    if len(values) >= _FEWEST_NUMBERED and set(pc.unique(values).to_pylist()) == set(_DIGITS):
        return ColumnDraft.of_type(name, "boolean", words=list(_DIGITS)).because("words", _DIGITS_TOLD)
    if words := likely_words(values):
        return ColumnDraft.of_type(name, "boolean", **({"words": words} if tuple(words) != TRUTH else {}))
    if pc.all(pc.match_substring_regex(values, r"^\s*\+\d{7,}\s*$")).as_py():
        return ColumnDraft.of_type(name, "category").because("type", _PHONE)
    if forms := likely_digits(values):
        draft = _of_forms(name, forms)
        return draft if "format" in draft.why else draft.because("format", _DIGITS_OF_DAYS)
    if pc.any(pc.match_substring_regex(values, r"^\s*0\d")).as_py() and reads(Integers(), values):
        # A number would lose the zeros.
        draft = ColumnDraft.of_type(name, "category")
        told = draft.why.get("type", "digits with a zero in front, as codes have: texts")
        return draft.because("type", told + _also(likely_numbers(values)))
    for form in dict.fromkeys((signs, _PLAIN)):
        if form.fits(amounts.bare).all() and (draft := _of_numbers(name, texts, form, signs)):
            return draft
    for kind, scale in _TESTS.items():
        if kind not in ("integer", "number") and reads(scale, values):
            form = likely_iso_format(values, kind)
            return ColumnDraft.of_type(name, kind) if form is None else _of_form(name, form)
    return _of_moments(name, values) or _of_several(name, values) or ColumnDraft.of_type(name, "category")


def _of_numbers(name: str, texts: _Texts, form: NumberForm, signs: NumberForm) -> ColumnDraft | None:
    """Draft a column of numbers by the signs of `form`, where those of the table are others; None if they are none."""
    values = texts.amounts.bare
    read = form.read(values)
    if not reads(Decimals(), read):
        return None
    decimals, is_whole = likely_decimals(values, form), reads(Integers(), read)
    is_fixed = bool(decimals) and has_same_decimals(values, form, decimals)
    has_missing = bool(texts.words) or texts.has_empty
    # Programs write whole numbers as 3.0 in a column in which some are missing.
    if is_whole and is_fixed and ((decimals == 1 and has_missing) or len(values) >= _FEWEST_NUMBERED):
        draft = ColumnDraft.of_type(name, "integer", decimals=decimals).because("decimals", _WHOLE_TOLD)
    elif is_whole and not is_fixed:
        draft = ColumnDraft.of_type(name, "integer")
        if _is_row_number(read) and _UNNAMED.fullmatch(name):
            return ColumnDraft(name, {"type": "drop"}, {"type": "the index that pandas wrote without a name"})
        if _is_row_number(read):
            draft = draft.because("type", _NUMBERED)
        elif not texts.amounts.fields and (also := _also(likely_numbers(values))):
            draft = draft.because("type", draft.why.get("type", "a number?") + also)
    elif decimals:
        draft = ColumnDraft.of_type(name, "number", decimals=decimals).because("decimals", _DECIMALS_TOLD)
    else:
        draft = ColumnDraft.of_type(name, "number")
    new = {"decimal": form.decimal} if form.decimal != signs.decimal else {}
    if signs.thousands and (new or (not holds_thousands(values, signs) and (np.abs(Decimals().ticks(read)) >= 1000).any())):
        new["thousands"] = ""
    for key, value in new.items():
        draft = replace(draft, fields=draft.fields | {key: value}).because(key, _OWN[key])
    for key, value in texts.amounts.fields.items():
        draft = replace(draft, fields=draft.fields | {key: value}).because(key, _UNIT_TOLD)
    return draft


def _also(moment: tuple[str, str] | None) -> str:
    """Return the question whether digits are dates or times."""
    return "" if moment is None else f' Or a {moment[0]}? Then  type: {moment[0]}, format: "{moment[1]}"'


def _of_several(name: str, values: pa.Array) -> ColumnDraft | None:
    """Leave open the type of a column of numbers of several units, or of dates in two forms; None for any other."""
    if units := several_units(values):
        named = ", ".join(f'"{unit}"' for unit in units[:_MOST_NAMED])
        problem = f"numbers of several units, {named}: one column has one unit; convert them, or give each a column"
    elif two := likely_two(values):
        named = " and ".join(f'{example_of(form)} ("{form.format}")' for form in two)
        problem = f"dates or times in two forms, as {named}: write all in one form; format: names it"
    else:
        return None
    return ColumnDraft(name, {"type": OPEN}, {"type": problem})


def _is_row_number(texts: pa.Array, fewest: int = _FEWEST_NUMBERED) -> bool:
    """Tell whether the first rows are numbered one after the other, from 0 or 1."""
    try:
        numbers = [int(text) for text in texts.to_pylist()]
    except ValueError:
        return False
    return len(numbers) >= fewest and numbers[0] in (0, 1) and numbers == [*range(numbers[0], numbers[-1] + 1)]


def _of_moments(name: str, values: pa.Array) -> ColumnDraft | None:
    """Draft a column of dates or times in another form than that of ISO 8601, or with offsets; None where it has none."""
    if reads(Datetimes("second", "UTC"), values):
        return ColumnDraft.of_type(name, "datetime", zone=OPEN).because("zone", _ZONE)
    forms = likely_moments(values)
    return _of_forms(name, forms) if forms else None


def _of_forms(name: str, forms: Sequence[MomentForm]) -> ColumnDraft:
    if len(forms) == 1:
        return _of_form(name, forms[0])
    either = " or ".join(f'"{form.format}"' for form in forms)
    return ColumnDraft.of_type(name, forms[0].kind, format=OPEN).because("format", f"{either}: both read the first rows")


def _of_form(name: str, form: MomentForm) -> ColumnDraft:
    finest = {}
    if form.kind != "date" and not re.search("%[Ss]", form.format):
        finest = {"resolution": "minute" if "%M" in form.format else "hour"}
    return ColumnDraft.of_type(name, form.kind, format=form.format, **finest)


def _of_values(name: str, values: pa.Array) -> ColumnDraft:
    # A workbook has dates as times at midnight.
    if (
        pa.types.is_timestamp(values.type)
        and values.type.tz is None
        and pc.all(pc.equal(pc.floor_temporal(values), values)).as_py()
    ):
        return ColumnDraft.of_type(name, "date")
    if pa.types.is_floating(values.type) and (decimals := likely_decimals(texts_of(values).drop_null(), _PLAIN)):
        return ColumnDraft.of_type(name, "number", decimals=decimals).because("decimals", _DECIMALS_TOLD)
    return _of_arrow(name, values.type)


def _of_arrow(name: str, kind: pa.DataType) -> ColumnDraft:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = {
        "boolean": pa.types.is_boolean,
        "integer": pa.types.is_integer,
        "number": lambda kind: pa.types.is_floating(kind) or pa.types.is_decimal(kind),
        "date": pa.types.is_date,
        "datetime": pa.types.is_timestamp,
        "time": pa.types.is_time,
        "category": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    }
    for type_name, test in tests.items():
        if test(kind) and getattr(kind, "tz", None) is not None:
            zone = kind.tz if is_zone(kind.tz) and kind.tz[0].isalpha() else OPEN
            return ColumnDraft.of_type(name, type_name, zone=zone).because("zone", _ZONE)
        if test(kind):
            if pa.types.is_decimal(kind) and 0 < kind.scale <= 15:
                return ColumnDraft.of_type(name, type_name, decimals=kind.scale).because("decimals", _SCALE_TOLD)
            return ColumnDraft.of_type(name, type_name)
    return ColumnDraft(name, {"type": "drop"}, {"type": f"{kind} cannot be modelled: convert it, or leave it out"})


def _refuse_many(names: list[str], path: Path | str) -> None:
    if len(names) > _MOST_COLUMNS:
        raise BadRecords(
            f"{path}: {len(names):,} columns: expected at most {_MOST_COLUMNS:,}; keep those that are to be modelled"
        )


def _refuse_record(names: list[str], path: Path) -> None:
    """Refuse a record in place of the header, whose values would stand in the draft."""
    for name in names:
        looks = [kind for kind, scale in _TESTS.items() if kind != "time" and reads(scale, pa.array([name]))]
        if looks:
            what = f"a field like {'an' if looks[0] == 'integer' else 'a'} {looks[0]}"
            raise _header_with(what, path)


def _header_with(what: str, path: Path) -> BadRecords:
    return BadRecords(
        f"{path}: the first line has {what}: expected the names of the columns; use --no-header if it is a record"
    )
