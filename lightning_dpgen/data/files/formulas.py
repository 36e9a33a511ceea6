"""Cells of CSV that a spreadsheet would run as a formula, and the sign before them by which it does not.

A cell that begins with one of the signs that OWASP lists ("CSV Injection") gets an apostrophe before it; so does one that
begins with apostrophes and then such a sign, so that taking one apostrophe away gives each cell back as it was.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

# Also line feeds, and the full-width forms that some spreadsheets read as the others.
_SIGNS = r"[=+\-@\t\r\n\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}]"
_BEGINS, _ESCAPED = f"^'*{_SIGNS}", f"^'+{_SIGNS}"
_MARK = "'"


def escaped(texts: pa.Array) -> pa.Array:
    """Texts as cells that no spreadsheet runs; null stays null.

    Example:
        >>> escaped(pa.array(["=1+1", "tea", "'-x", "'tis", None])).to_pylist()
        ["'=1+1", 'tea', "''-x", "'tis", None]
    """
    marked = pc.binary_join_element_wise(_MARK, texts, "")
    return pc.if_else(pc.match_substring_regex(texts, _BEGINS), marked, texts)


def unescaped(texts: pa.Array) -> pa.Array:
    """The inverse of `escaped`, of texts that it has made.

    Example:
        >>> unescaped(escaped(pa.array(["=1+1", "'-x", "'tis"]))).to_pylist()
        ['=1+1', "'-x", "'tis"]
    """
    return pc.if_else(pc.match_substring_regex(texts, _ESCAPED), pc.utf8_slice_codeunits(texts, 1), texts)


def escaped_name(name: str) -> str:
    """As `escaped`, of the name of a column."""
    return escaped(pa.array([name]))[0].as_py()


def known_again(texts: pa.Array, known: pa.Array) -> pa.Array:
    """Texts, where one that is not `known` is taken for the known one that it is the escaped form of.

    What is known itself is never touched, nor is what is known in neither form.

    Example:
        >>> known_again(pa.array(["'=a", "'=b", "=a"]), pa.array(["=a"])).to_pylist()
        ['=a', "'=b", '=a']
    """
    plain = unescaped(texts)
    again = pc.and_(pc.invert(pc.is_in(texts, known)), pc.is_in(plain, known))
    return pc.if_else(again, plain, texts)
