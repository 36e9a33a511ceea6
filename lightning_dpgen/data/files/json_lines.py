"""JSON lines: a file of text with one object a line, whose keys are the columns."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.text import MARK, UNREADABLE, damaged, decoded
from lightning_dpgen.data.files.text_ranges import WHOLE, TextRange, find_ranges, open_range
from lightning_dpgen.data.files.values import ValueRows, pieces
from lightning_dpgen.data.names import shown
from lightning_dpgen.sampling.errors import BadRecords

_LONGEST = 1 << 24
# Lines that are looked at for their keys.
_LOOKED_AT = 1000
_MOST_KEYS = 20_000


class JsonLines(ValueRows):
    """A file of JSON lines, in UTF-8. A key that a line does not have is null there.

    Args:
        path: the file; ``.gz``, ``.bz2`` and ``.zst`` are unpacked.
        names: keys that lines may have, beside those of the first thousand lines.

    Raises:
        BadRecords: if a line is no object, has a key twice, or one that no line before had and that is not among `names`.
    """

    def __init__(self, path: Path, names: Sequence[str] = ()) -> None:
        self._path, self._part = path, WHOLE
        found: dict[str, None] = {}
        with_rows = False
        for _, row in itertools.islice(self._rows(), _LOOKED_AT):
            with_rows = True
            found |= dict.fromkeys(row)
            if len(found) > _MOST_KEYS:
                raise BadRecords(f"{path}: more than {_MOST_KEYS:,} different keys: expected the columns of a table")
        if not with_rows:
            raise BadRecords(f'{path} is empty: expected an object such as {{"age": 42}} on each line')
        self._first = list(found)
        super().__init__(str(path), [*found, *(name for name in names if name not in found)])

    def ranges(self, columns: Sequence[str]) -> list[TextRange]:
        # A key that the first lines lack must be in some line below.
        return [WHOLE] if {*columns} - {*self._first} else find_ranges(self._path, None)

    def within(self, part: TextRange) -> JsonLines:
        rows = copy.copy(self)
        rows._part = part
        return rows

    def value_blocks(self, columns: list[str]) -> Generator[list[list[Any]]]:
        known, seen = set(self.columns), set(self._first)
        for piece in pieces(self._rows()):
            for line, row in piece:
                if not row.keys() <= known:
                    foreign = next(key for key in row if key not in known)
                    raise BadRecords(
                        f"{self._path}, line {line}: has the key {shown(foreign)}, which no line before has and the schema "
                        "does not: declare it there, with type: drop to leave it out"
                    )
                seen |= row.keys()
            yield [[row.get(name) for name in columns] for _, row in piece]
        for name in columns:
            if name not in seen:
                raise BadRecords(f"{self._path}: no line has the key {shown(name)}: it has {listed(self._first)}")

    def place(self, row: int) -> str:
        """Return the line of a row, found by reading once more."""
        return f"line {next(itertools.islice(self._rows(), row, None))[0]}"

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the objects, each with its line, from 1; empty lines are none."""
        try:
            with open_range(self._path, self._part) as raw:
                for number, line in enumerate(iter(lambda: raw.readline(_LONGEST), b""), self._part.line):
                    text = decoded(line.removeprefix(MARK) if number == 1 else line, f"{self._path}, line {number}")
                    if text.strip():
                        yield number, self._object(text, number)
        except BadRecords:
            raise
        except UNREADABLE as error:
            raise damaged(self._path, error) from None

    def _object(self, text: str, line: int) -> dict[str, Any]:
        place = f"{self._path}, line {line}"
        if len(text) >= _LONGEST:
            raise BadRecords(f"{place}: expected lines of fewer than {_LONGEST:,} characters, with one object in each")
        try:
            found = json.loads(text, object_pairs_hook=_pairs)
        except _Twice as twice:
            raise BadRecords(f"{place}: the key {shown(str(twice))} appears twice: expected it once") from None
        except RecursionError:
            raise BadRecords(f"{place}: is nested too deeply: expected an object of single values") from None
        except ValueError as error:
            said = "; write one object a line (jq -c '.[]')" if text.lstrip().startswith("[") else ""
            fault = f"{error.msg}, at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise BadRecords(f"{place}: is not JSON ({fault[:80]}): expected one object in each line{said}") from None
        if not isinstance(found, dict):
            said = " (jq -c '.[]' writes the objects of a list so)" if isinstance(found, list) else ""
            raise BadRecords(f'{place}: expected an object such as {{"age": 42}}, one in each line{said}')
        return found


class _Twice(Exception):
    """A key that stands twice."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        raise _Twice(next(key for key in names if names.count(key) > 1))
    return found
