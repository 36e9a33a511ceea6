"""The form in which files hold baskets: one basket a line, one item a row, or a sparse matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lightning_dpgen.data.files.delimited import default_separator
from lightning_dpgen.data.files.kinds import TEXT, is_known
from lightning_dpgen.data.files.text import bare_name, check_there
from lightning_dpgen.data.names import FileForm, Name, quote
from lightning_dpgen.sampling.errors import BadRecords

FORMS = ("lines", "rows", "matrix")
LINES = (".dat", ".txt", ".baskets")
MATRIX = ".npz"
# Columns of rows that have no names of their own.
BASKET, ITEM = "basket", "item"


@dataclass(frozen=True)
class BasketForm(FileForm):
    """The form in which baskets are written.

    Args:
        form: ``lines`` (one basket a line), ``rows`` (a basket id and an item in each, or a list of items where rows have
            types) or ``matrix`` (CSR, as scipy.sparse.save_npz writes it, a column for each item); None for what goes with
            the ending: lines for .dat, .txt and .baskets, matrix for .npz, rows for every file of a table.
        separator: between items of a line, or fields of a row. One character parts fields as RFC 4180 says: an item that
            holds it stands in double quotes. None: what goes with the ending of a table; for lines see `separator_of`.
        columns: names of the columns of basket ids and of items; None where these two are all there are, in this order.
        label: whether a line begins with the label, or the name of its column.
        person: name of the column of persons.
        header: whether the first line of a text file is no basket; None: rows have such a line, lines have none.

    Raises:
        ValueError: for anything else.
    """

    # The column of persons is in none of a release's files.
    kept: ClassVar[tuple[str, ...]] = ("form", "separator", "header", "columns", "label")

    form: str | None = None
    separator: str | None = None
    columns: tuple[str, str] | None = None
    label: str | bool = False
    person: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        if self.form not in (None, *FORMS):
            raise ValueError(f"form={quote(self.form)}: expected one of {', '.join(FORMS)}")
        for name in ("label", "person"):
            if not isinstance(getattr(self, name), str | bool | None):
                raise ValueError(f"{name}={quote(getattr(self, name))}: of a file or table, expected the name of a column")
        separator = self.separator
        if separator is not None and (not isinstance(separator, str) or not separator or set(separator) & set('"\r\n')):
            raise ValueError(
                f"separator={quote(separator)}: expected characters between items, without a double quote or a line break"
            )
        if self.form == "rows" and separator is not None and len(separator.encode()) != 1:
            raise ValueError(f"separator={quote(separator)}: expected one character between the fields of a row")
        if not isinstance(self.header, bool | None):
            raise ValueError(f"header={quote(self.header)}: expected true or false")
        if self.columns is not None:
            two = isinstance(self.columns, list | tuple) and len(self.columns) == 2
            if not two or not all(isinstance(name, str) for name in self.columns) or len(set(self.columns)) != 2:
                raise ValueError(f"columns={quote(self.columns)}: expected two names, of the basket ids and of the items")
            object.__setattr__(self, "columns", tuple(self.columns))
            if self.form in ("lines", "matrix"):
                raise ValueError(f"columns={quote(self.columns)}: only rows have columns; expected form=rows, or none")
        if self.header is False and (self.columns is not None or self.person is not None or isinstance(self.label, str)):
            raise ValueError("header=False: expected no columns, label or person, which are found by their names")

    def of(self, source: Any) -> str:
        """Return ``lines``, ``rows`` or ``matrix``; raise BadRecords for an ending that says nothing, or MissingData."""
        if not isinstance(source, str | Path):
            return "rows"
        path = Path(source)
        check_there(path)
        if found := self.by_name(path):
            return found
        raise BadRecords(
            f"{path}: expected a name that ends in {', '.join((*LINES, *TEXT, MATRIX))} or as that of another table, or "
            "form=lines (one basket in each line), form=rows (a basket id and an item in each) or form=matrix (as "
            "scipy.sparse.save_npz writes it)"
        )

    def by_name(self, path: Path) -> str | None:
        """Return the form of a file that may not be there; None where neither settings nor its name say one."""
        is_table = is_known(path)
        # Rows that have types hold a basket as a list.
        if self.form == "lines" and is_table and not bare_name(path).endswith(TEXT):
            return "rows"
        if self.form:
            return self.form
        if bare_name(path).endswith(LINES):
            return "lines"
        return "rows" if is_table else "matrix" if path.suffix == MATRIX else None

    def separator_of(self, path: Path, names: Sequence[Name] = ()) -> str | None:
        """Return what parts the items of a line; None for blanks and commas.

        It follows from settings, the ending and the universe: the declared separator, that of a table's ending, or commas
        where blanks and commas do not part the names.
        """
        if self.separator is not None:
            return self.separator
        if bare_name(path).endswith(TEXT):
            return default_separator(path)
        unquoted = all(len(str(name).replace(",", " ").split()) == 1 and '"' not in str(name) for name in names)
        return None if unquoted else ","

    @property
    def label_name(self) -> str:
        """The column of the label in rows."""
        return self.label if isinstance(self.label, str) else "label"
