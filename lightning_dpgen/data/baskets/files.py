"""Files of baskets as they are written: one basket a line or one item a row, a block at a time, or a sparse matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.baskets.form import BASKET, ITEM, BasketForm
from lightning_dpgen.data.files.blocks import Block, RowSource
from lightning_dpgen.data.files.delimited import DelimitedText, RaggedRow, text_records
from lightning_dpgen.data.files.rows import is_text, rows_of
from lightning_dpgen.data.files.text import UNREADABLE, ZERO_BYTE, damaged, decoded, opened
from lightning_dpgen.data.files.values import ValueRows
from lightning_dpgen.data.names import Name, plain, quote
from lightning_dpgen.data.reading import Numbering, one_each
from lightning_dpgen.sampling.errors import BadRecords

_BYTES_AT_ONCE = 1 << 24
_BASKETS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False, repr=False)
class Entries:
    """Items of some baskets, with labels and persons.

    Args:
        baskets: (E,) int64, the number of the basket that holds each item, from 0 in the order in which they are met.
        items: (E,) as they are written.
        place: where the i-th item stands, for an error.
        heads: (H,) int64 numbers of baskets, all baskets in this block, also those without an item.
        labels, persons: (H,) as they are written; None where there are none.
        head_place: where the i-th of them stands.
        is_text: whether they are from a file of text, in which a spreadsheet's formula may be escaped.
    """

    baskets: np.ndarray
    items: pa.Array
    place: Callable[[int], str]
    heads: np.ndarray
    labels: pa.Array | None
    persons: pa.Array | None
    head_place: Callable[[int], str]
    is_text: bool = False


def entries_of(source: Any, form: BasketForm, names: Sequence[Name] = ()) -> Iterator[Entries]:
    """Yield all baskets of a file of lines or rows, a block at a time.

    Args:
        source: a path, a DataFrame or a table of Arrow.
        form: how it is written.
        names: the items of the universe, if it is known.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for one that cannot be read as baskets, or a matrix, which does not say what its columns are.
    """
    kind = form.of(source)
    if kind == "matrix":
        raise BadRecords(f"{source}: a matrix does not say which items its columns are: declare them, as in items=1..16470")
    return _rows(source, form) if kind == "rows" else _lines(Path(source), form, form.separator_of(Path(source), names))


def _lines(path: Path, form: BasketForm, separator: str | None) -> Iterator[Entries]:
    if form.person is not None:
        raise BadRecords(
            f"{path}: a file of one basket in each line has no column {quote(form.person)} of persons: write rows with a "
            "basket id, an item and a person in each"
        )
    quoted = separator is not None and len(separator.encode()) == 1
    baskets = text_records(path, separator, skip_blanks=True) if quoted else _split_lines(path, separator)
    if form.header:
        next(baskets, None)
    done = 0
    while some := list(islice(baskets, _BASKETS_AT_ONCE)):
        baskets_of_lines = [[item for item in map(str.strip, fields) if item] for _, fields in some]
        yield _block([line for line, _ in some], baskets_of_lines, done, path, bool(form.label))
        done += len(some)


def _split_lines(path: Path, separator: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield lines as they are split by blanks and commas, or by several characters, each with its number from 1."""
    done = 0
    try:
        with opened(path) as file:
            while lines := file.readlines(_BYTES_AT_ONCE):
                for text in _texts(lines, done, path):
                    done += 1
                    yield done, text.replace(",", " ").split() if separator is None else text.split(separator)
    except BadRecords:
        raise
    except UNREADABLE as error:
        raise damaged(path, error) from None


def _texts(lines: list[bytes], done: int, path: Path) -> list[str]:
    try:
        texts = b"".join(lines).decode().split("\n")
    except UnicodeDecodeError:
        texts = [decoded(line, f"{path}, line {done + i}") for i, line in enumerate(lines, 1)]
    if zero := next((i for i, line in enumerate(lines, 1) if b"\0" in line), None):
        raise BadRecords(f"{path}, line {done + zero} {ZERO_BYTE}")
    if not done:
        texts[0] = texts[0].removeprefix("\ufeff")
    # The last line break is followed by no basket.
    return texts[: len(lines)]


def _block(lines: list[int], baskets_of_lines: list[list[str]], done: int, path: Path, labelled: bool) -> Entries:
    heads = done + np.arange(len(baskets_of_lines))
    labels = None
    if labelled:
        for line, items in zip(lines, baskets_of_lines, strict=True):
            if not items:
                raise BadRecords(f"{path}, line {line}: expected its label first, found an empty line")
        labels = pa.array([items[0] for items in baskets_of_lines], pa.string())
        baskets_of_lines = [items[1:] for items in baskets_of_lines]
    baskets = np.repeat(heads, [len(items) for items in baskets_of_lines])
    items = pa.array(list(chain.from_iterable(baskets_of_lines)), pa.string())
    place = lambda i: f"{path}, line {lines[i]}"  # noqa: E731
    return Entries(baskets, items, lambda i: place(baskets[i] - done), heads, labels, None, place, True)


def _rows(source: Any, form: BasketForm) -> Iterator[Entries]:
    file, columns, label = _columns_of(source, form)
    if len(columns) == 1:
        yield from _lists(file, columns[0], label, form.person)
        return
    basket, item = columns
    besides = [name for name in (label, form.person) if name is not None]
    numbers = Numbering()
    try:
        for block in file.blocks([*dict.fromkeys([*columns, *besides])]):
            yield _of_rows(block, file, numbers, basket, item, label, form.person)
    except RaggedRow as error:
        # A file of one basket a line looks so.
        raise BadRecords(f"{error}{_LINES_TOO}") from None


def check_basket_columns(source: Any, form: BasketForm) -> None:
    """Refuse rows whose names of columns show that they are no baskets of this form; no record is read; errors as
    `entries_of`."""
    if form.of(source) == "rows":
        _columns_of(source, form)


def _columns_of(source: Any, form: BasketForm) -> tuple[RowSource, Sequence[str], str | None]:
    """Return rows, their columns of basket ids and items (or of lists of items), and that of labels."""
    label = form.label_name if form.label else None
    besides = [name for name in (label, form.person) if name is not None]
    file = _row_source(source, form, besides)
    columns = form.columns or file.others(besides)
    file.check_has([*besides, *columns])
    of_text = isinstance(file, DelimitedText)
    if len(columns) != 2 and (len(columns) != 1 or of_text):
        raise BadRecords(
            f"{file.where} has the columns {listed(file.columns)}: expected two, of basket ids and items; name "
            f"these two, as in columns=[basket,item]{_LINES_TOO if of_text else ''}"
        )
    return file, columns, label


_LINES_TOO = "; or say form=lines if each line is one basket"


def _row_source(source: Any, form: BasketForm, besides: list[str]) -> RowSource:
    if isinstance(source, pd.DataFrame) and len(set(map(str, source.columns)) - set(besides)) == 1:
        # Cells that are lists have a type in Arrow alone.
        try:
            return rows_of(pa.Table.from_pandas(source, preserve_index=False))
        except UNREADABLE as error:
            raise BadRecords(f"the table cannot be read: {' '.join(str(error).split())[:200]}") from None
    is_bare = form.header is False and is_text(source)
    names = [BASKET, ITEM, *["label"] * bool(form.label)] if is_bare else None
    return rows_of(source, names, form.separator, headless="header=False")


def _of_rows(
    block: Block, file: RowSource, numbers: Numbering, basket: str, item: str, label: str | None, person: str | None
) -> Entries:
    besides = [name for name in (label, person) if name is not None]
    simple = {name: _simple(block.full_column(name), name, file.where) for name in (basket, *besides)}
    heads = numbers.of(simple[basket])
    items = _simple(block.column(item), item, file.where)
    # An empty basket is a row without an item.
    there = np.flatnonzero(items.is_valid().to_numpy(zero_copy_only=False))
    place, is_text = (lambda i: block.place(int(there[i]))), isinstance(file, DelimitedText)
    labels, persons = simple.get(label), simple.get(person)
    return Entries(heads[there], items.take(pa.array(there)), place, heads, labels, persons, block.place, is_text)


def _lists(file: RowSource, items: str, label: str | None, person: str | None) -> Iterator[Entries]:
    """Yield baskets that are lists, one in each row."""
    besides = [name for name in (label, person) if name is not None]
    done = 0
    for block in _list_blocks(file, [items, *besides]):
        lists, *more = block
        for i, value in enumerate(lists):
            if not isinstance(value, list):
                raise BadRecords(
                    f"{file.where}, {basket_place(done + i)}: {quote(items)} holds {quote(value)}: expected a list, "
                    "of items, or two columns, of basket ids and items"
                )
        extra = dict(zip(besides, more, strict=True))
        entries = entries_in_memory(lists, extra.get(label), extra.get(person))
        first = done
        head_place = lambda i, first=first: f"{file.where}, {basket_place(i + first)}"  # noqa: E731
        place = lambda i, head=head_place, baskets=entries.baskets: head(int(baskets[i]))  # noqa: E731
        heads = entries.heads + first
        yield Entries(entries.baskets + first, entries.items, place, heads, entries.labels, entries.persons, head_place)
        done += len(lists)


def _list_blocks(file: RowSource, columns: list[str]) -> Iterator[list[list[Any]]]:
    """Yield columns as lists of Python's values, some rows at a time."""
    if isinstance(file, ValueRows):
        for rows in file.value_blocks(columns):
            if rows:
                yield list(map(list, zip(*rows, strict=True)))
        return
    for block in file.blocks(columns):
        yield [block.column(name).to_pylist() for name in columns]


def _simple(values: pa.Array, name: str, where: str) -> pa.Array:
    values = plain(values)
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind)):
        raise BadRecords(f"{where}: the column {quote(name)} is of {kind}: expected text or whole numbers")
    return values


def entries_in_memory(baskets: Iterable[Sequence], labels: Sequence | None, persons: Sequence | None) -> Entries:
    """Return baskets that are lists of items, as one block; raise BadRecords for anything else."""
    baskets = list(baskets)
    for i, items in enumerate(baskets):
        if isinstance(items, str | bytes) or not isinstance(items, list | tuple | set | frozenset | np.ndarray):
            raise BadRecords(f"basket {i + 1} is a {type(items).__name__}: expected a list of items")
    flat = list(chain.from_iterable(baskets))
    heads, labels, persons = heads_in_memory(len(baskets), labels, persons)
    within = np.repeat(heads, [len(items) for items in baskets])
    items = _typed(flat, lambda i: basket_place(within[i]))
    return Entries(within, items, lambda i: basket_place(within[i]), heads, labels, persons, basket_place)


Heads = tuple[np.ndarray, pa.Array | None, pa.Array | None]


def heads_in_memory(n: int, labels: Sequence | None, persons: Sequence | None) -> Heads:
    """Return the numbers of n baskets, with a label and a person for each; raise BadRecords for another number of these."""
    extra = []
    for what, values in (("label", labels), ("person", persons)):
        if not one_each(values, n):
            raise BadRecords(f"{what}={quote(values)}: expected one value for each of the baskets")
        extra.append(None if values is None else _typed(list(values), basket_place))
    return np.arange(n), *extra


def basket_place(i: int) -> str:
    """Return the place of a basket in memory, for an error."""
    return f"basket {i + 1}"


def _typed(values: list, place: Callable[[int], str]) -> pa.Array:
    whole = all(issubclass(kind, int | np.integer) and kind is not bool for kind in set(map(type, values)))
    kind = pa.int64() if whole and values else pa.string()
    for i, value in enumerate(values):
        if not whole and not isinstance(value, str):
            raise BadRecords(f"{place(i)}: {quote(value)}: expected all text, or all whole numbers")
    try:
        return pa.array(values, kind)
    except (OverflowError, pa.ArrowException, UnicodeError) as error:
        raise BadRecords(f"the values cannot be read: {' '.join(str(error).split())[:200]}") from None
