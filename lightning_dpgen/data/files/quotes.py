"""Double quotes in delimited text: which of them open or close a field, found in bytes without reading the fields."""

from __future__ import annotations

import numpy as np

from lightning_dpgen.data.files.text import MARK

_QUOTE, _FEED, _RETURN = b'"\n\r'


class QuoteScan:
    """Follows the quotes of a file, piece after piece, by the rule of Python's reader and of Arrow's.

    A quote opens a field where the field begins, and closes it where it stands in it. One that follows a closing quote at
    once opens the field again, so that two stand for one in the text. Any other quote is text.

    Args:
        separator: between fields, one byte. No byte of a longer letter is like it.

    Attributes:
        is_open: whether the last piece ended within quotes.

    Example:
        >>> scan = QuoteScan(b",")
        >>> scan.feed(b'5",x,"a""b').tolist(), scan.is_open, scan.feed(b'",').tolist(), scan.is_open
        ([5, 7, 8], True, [0], False)
    """

    def __init__(self, separator: bytes) -> None:
        # A file begins as a line does.
        self.is_open, self._before = False, b"\n"
        self._begins = np.zeros(256, bool)
        self._begins[[separator[0], _FEED, _RETURN]] = True
        # Behind a quote that closed a field, too.
        self._opens = self._begins.copy()
        self._opens[_QUOTE] = True
        self._is_first = True

    def feed(self, piece: bytes) -> np.ndarray:
        """Return the positions of the quotes in a piece that open or close a field, in their order."""
        if not piece:
            return np.empty(0, np.int64)
        # The mark at the beginning of a file is no text.
        skipped = len(MARK) if self._is_first and piece.startswith(MARK) else 0
        content = np.frombuffer(self._before + piece[skipped:], np.uint8)
        quotes = np.flatnonzero(content[1:] == _QUOTE) if b'"' in piece else np.empty(0, np.int64)
        # In most files all quotes open or close a field, and then every other one is where it can open one.
        if not self._opens[content[quotes[int(self.is_open) :: 2]]].all():
            quotes = self._by_one(quotes, content)
        self.is_open = (len(quotes) + self.is_open) % 2 == 1
        # A quote that is text, or has opened a field, is not followed by one that opens it again.
        has_closed = not self.is_open and len(quotes) > 0 and quotes[-1] == len(content) - 2
        self._before = content[-1:].tobytes() if has_closed or content[-1] != _QUOTE else b"x"
        self._is_first = False
        return quotes + skipped

    def _by_one(self, quotes: np.ndarray, content: np.ndarray) -> np.ndarray:
        """Return the quotes that open or close a field, where some do neither."""
        is_open, closed, found = self.is_open, -1 if content[0] == _QUOTE else -2, []
        for at, begins in zip(quotes.tolist(), self._begins[content[quotes]].tolist(), strict=True):
            if is_open or begins or closed == at - 1:
                found.append(at)
                closed, is_open = (at, False) if is_open else (closed, True)
        return np.array(found, np.int64)
