"""Files of baskets as they are written: one basket a line or one item a row, a block at a time, or a sparse matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.files.rows import rows_of
from lightning_dpgen.data.files.text import UNREADABLE, check_there, damaged, decoded, opened
from lightning_dpgen.data.names import plain, shown
from lightning_dpgen.data.reading import Numbering, one_each
from lightning_dpgen.privacy.plain_text import listed
from lightning_dpgen.sampling.errors import BadRecords

LINES = (".dat", ".txt", ".baskets")
ROWS = (".csv", ".tsv", ".parquet")
MATRIX = ".npz"
_BYTES_AT_ONCE = 1 << 24


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
    """

    baskets: np.ndarray
    items: pa.Array
    place: Callable[[int], str]
    heads: np.ndarray
    labels: pa.Array | None
    persons: pa.Array | None
    head_place: Callable[[int], str]


@dataclass(frozen=True)
class BasketForm:
    """The form in which baskets are written.

    Args:
        form: ``lines`` (one basket a line), ``rows`` (a basket id and an item in each) or ``matrix`` (CSR, as
            scipy.sparse.save_npz writes it, a column for each item); None for what goes with the ending: lines for .dat,
            .txt and .baskets, rows for .csv, .tsv and .parquet, each of these but the last also with .gz, matrix for .npz.
        separator: between items of a line, or fields of a row. None: blanks and commas between items, commas alone
            where names of items have blanks in them; for rows what goes with the ending.
        columns: names of the columns of basket ids and of items; None where these two are all there are, in this order.
        label: whether a line begins with the label, or the name of its column.
        person: name of the column of persons.
    """

    form: str | None = None
    separator: str | None = None
    columns: tuple[str, str] | None = None
    label: str | bool = False
    person: str | None = None

    def __post_init__(self) -> None:
        if self.form not in (None, "lines", "rows", "matrix"):
            raise ValueError(f"form={shown(self.form)}: expected lines, rows or matrix")
        for name in ("label", "person"):
            if not isinstance(getattr(self, name), str | bool | None):
                raise ValueError(f"{name}={shown(getattr(self, name))}: of a file or table, expected the name of a column")
        separator = self.separator
        if separator is not None and (not isinstance(separator, str) or not separator or set(separator) & set("\r\n")):
            raise ValueError(f"separator={shown(separator)}: expected characters between items, without a line break")
        if self.columns is not None and (not isinstance(self.columns, list | tuple) or len(self.columns) != 2):
            raise ValueError(f"columns={shown(self.columns)}: expected two names, of the basket ids and of the items")

    def of(self, source: Any) -> str:
        """Return ``lines``, ``rows`` or ``matrix``; raise BadRecords for an ending that says nothing, or MissingData."""
        if not isinstance(source, str | Path):
            return "rows"
        path = Path(source)
        check_there(path)
        endings = path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]
        if self.form:
            return self.form
        if endings and endings[0] in LINES + ROWS:
            return "lines" if endings[0] in LINES else "rows"
        if path.suffix == MATRIX:
            return "matrix"
        raise BadRecords(
            f"{path}: expected a name that ends in {', '.join((*LINES, *ROWS, MATRIX))}, or form=lines (one basket in "
            "each line), form=rows (a basket id and an item in each) or form=matrix (as scipy.sparse.save_npz writes it)"
        )


def entries_of(source: Any, form: BasketForm) -> Iterator[Entries]:
    """Yield all baskets of a file of lines or rows, a block at a time.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for one that cannot be read as baskets, or a matrix, which does not say what its columns are.
    """
    found = form.of(source)
    if found == "matrix":
        raise BadRecords(f"{source}: a matrix does not say which items its columns are: declare them, as in items=1..16470")
    return _rows(source, form) if found == "rows" else _lines(Path(source), form)


def _lines(path: Path, form: BasketForm) -> Iterator[Entries]:
    if form.person is not None:
        raise BadRecords(
            f"{path}: a file of one basket in each line has no column {shown(form.person)} of persons: write rows with a "
            "basket id, an item and a person in each"
        )
    split = _splitter(form.separator)
    done = 0
    try:
        with opened(path) as file:
            while lines := file.readlines(_BYTES_AT_ONCE):
                yield _block(_texts(lines, done, path), done, path, split, bool(form.label))
                done += len(lines)
    except BadRecords:
        raise
    except UNREADABLE as error:
        raise damaged(path, error) from None


def _texts(lines: list[bytes], done: int, path: Path) -> list[str]:
    try:
        texts = b"".join(lines).decode().split("\n")
    except UnicodeDecodeError:
        texts = [decoded(line, f"{path}, line {done + i}") for i, line in enumerate(lines, 1)]
    if not done:
        texts[0] = texts[0].removeprefix("\ufeff")
    # The last line break is followed by no basket.
    return texts[: len(lines)]


def _splitter(separator: str | None) -> Callable[[str], list[str]]:
    if separator is None:
        return lambda line: line.replace(",", " ").split()
    if not separator.strip(" "):
        return str.split
    return lambda line: [item for item in map(str.strip, line.split(separator)) if item]


def _block(texts: list[str], done: int, path: Path, split: Callable, labelled: bool) -> Entries:
    held = [split(line) for line in texts]
    heads = done + np.arange(len(held))
    labels = None
    if labelled:
        for i, items in enumerate(held):
            if not items:
                raise BadRecords(f"{path}, line {done + i + 1}: expected its label first, found an empty line")
        labels = pa.array([items[0] for items in held], pa.string())
        held = [items[1:] for items in held]
    baskets = np.repeat(heads, [len(items) for items in held])
    items = pa.array(list(chain.from_iterable(held)), pa.string())
    return Entries(
        baskets,
        items,
        lambda i: f"{path}, line {baskets[i] + 1}",
        heads,
        labels,
        None,
        lambda i: f"{path}, line {heads[i] + 1}",
    )


def _rows(source: Any, form: BasketForm) -> Iterator[Entries]:
    file = rows_of(source, separator=form.separator)
    label = form.label if isinstance(form.label, str) else "label" if form.label else None
    besides = [name for name in (label, form.person) if name is not None]
    columns = form.columns or file.others(besides)
    file.check_has([*besides, *columns])
    if len(columns) != 2:
        raise BadRecords(
            f"{file.where} has the columns {listed(file.columns)}: expected two, of basket ids and items; name "
            "these two, as in columns=[basket,item]"
        )
    basket, item = columns
    numbers = Numbering()
    for block in file.blocks([*dict.fromkeys([*columns, *besides])]):
        simple = {name: _simple(block.full_column(name), name, file.where) for name in (basket, *besides)}
        heads = numbers.of(simple[basket])
        items = _simple(block.column(item), item, file.where)
        # An empty basket is a row without an item.
        there = np.flatnonzero(items.is_valid().to_numpy(zero_copy_only=False))
        yield Entries(
            heads[there],
            items.take(pa.array(there)),
            lambda i, there=there, block=block: block.place(int(there[i])),
            heads,
            None if label is None else simple[label],
            None if form.person is None else simple[form.person],
            block.place,
        )


def _simple(values: pa.Array, name: str, where: str) -> pa.Array:
    values = plain(values)
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind)):
        raise BadRecords(f"{where}: the column {shown(name)} is of {kind}: expected text or whole numbers")
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
            raise BadRecords(f"{what}={shown(values)}: expected one value for each of the baskets")
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
            raise BadRecords(f"{place(i)}: {shown(value)}: expected all text, or all whole numbers")
    try:
        return pa.array(values, kind)
    except (OverflowError, pa.ArrowException, UnicodeError) as error:
        raise BadRecords(f"the values cannot be read: {' '.join(str(error).split())[:200]}") from None
