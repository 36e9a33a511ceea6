"""Cells of CSV that a spreadsheet would run as a formula, and the sign before them by which it does not.

A cell that begins with one of the signs that OWASP lists ("CSV Injection") gets an apostrophe before it; so does one that
begins with apostrophes and then such a sign, so that taking one apostrophe away gives each cell back as it was.

Files of other programs are not escaped, so a reader takes an apostrophe away only where that gives a text that its schema
knows. Where a schema knows a text in both forms, ``=a`` and ``'=a``, a cell ``'=a`` is the escaped ``=a``: by the schema
alone, since no record may decide how another one is read. A header in which a name begins with a sign is not escaped, and
then nothing below it is taken for escaped that is known as it stands.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

# Some spreadsheets read line feeds and the full-width forms as they read the others.
_SIGNS = r"[=+\-@\t\r\n\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}]"
_BEGINS, _ESCAPED = f"^'*{_SIGNS}", f"^'+{_SIGNS}"
_MARK = "'"


def escaped(texts: pa.Array) -> pa.Array:
    """Return texts as cells that no spreadsheet runs; null stays null.

    Example:
        >>> escaped(pa.array(["=1+1", "tea", "'-x", "'tis", None])).to_pylist()
        ["'=1+1", 'tea', "''-x", "'tis", None]
    """
    marked = pc.binary_join_element_wise(_MARK, texts, "")
    return pc.if_else(pc.match_substring_regex(texts, _BEGINS), marked, texts)


def unescaped(texts: pa.Array) -> pa.Array:
    """Invert `escaped` for texts that it has made.

    Example:
        >>> unescaped(escaped(pa.array(["=1+1", "'-x", "'tis"]))).to_pylist()
        ['=1+1', "'-x", "'tis"]
    """
    return pc.if_else(pc.match_substring_regex(texts, _ESCAPED), pc.utf8_slice_codeunits(texts, 1), texts)


def escaped_name(name: str) -> str:
    """Escape the name of a column as `escaped` does."""
    return escaped(pa.array([name]))[0].as_py()


def begins_with_sign(texts: pa.Array) -> pa.Array:
    """Mark texts that a spreadsheet would run: none that `escaped` has made."""
    return pc.match_substring_regex(texts, f"^{_SIGNS}")


def known_again(texts: pa.Array, known: pa.Array, *, escaped: bool = True) -> pa.Array:
    """Return texts, where the escaped form of a `known` one is taken for that one.

    Args:
        texts: as they stand in a file.
        known: what they may be. A text that is known in neither form is never touched.
        escaped: whether a text that is known in both forms is the escaped one.

    Example:
        >>> known_again(pa.array(["'=a", "'=b", "=a"]), pa.array(["=a"])).to_pylist()
        ['=a', "'=b", '=a']
        >>> both = pa.array(["=a", "'=a"])
        >>> known_again(both, both).to_pylist(), known_again(both, both, escaped=False).to_pylist()
        (['=a', '=a'], ['=a', "'=a"])
    """
    plain = unescaped(texts)
    again = pc.is_in(plain, known)
    return pc.if_else(again if escaped else pc.and_(again, pc.invert(pc.is_in(texts, known))), plain, texts)


def doubtful(known: pa.Array) -> pa.Array:
    """Return those `known` texts that are also the escaped form of another one.

    Example:
        >>> doubtful(pa.array(["=a", "'=a", "'=b"])).to_pylist()
        ["'=a"]
    """
    plain = unescaped(known)
    return known.filter(pc.and_(pc.is_in(plain, known), pc.not_equal(plain, known)))
