"""Passwords in the URL of a database: refused, and never repeated in a message."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

# From the first colon behind the slashes to the last @, since a password may hold any sign. A URL that was taken for a path
# has lost one of the slashes.
_BEFORE_HOST = re.compile(r"(\w:/{1,2}[^\s:/]*):[^\s]*@")
# The same, as SQLAlchemy finds it: other parsers end a host at a slash, which a password may hold.
_PASSWORD = re.compile(r"://[^:/]*:[^@]*@")
_SECRET = r"[\w.-]*(?:password|passwd|pwd|passphrase|secret|token|credential)[\w.-]*"
# Also within a value, where signs are escaped.
_IN_QUERY = re.compile(rf"((?:[?&;\s]|%3B)(?:{_SECRET})(?:=|%3D))[^\s&;%]*", re.IGNORECASE)
_OWN_WAYS = (
    "PGPASSWORD or ~/.pgpass for PostgreSQL, ?read_default_file=~/.my.cnf for MySQL, a data source or a wallet for others"
)


def without_passwords(text: str) -> str:
    """Return a text in which each password of a URL is replaced by ``***``.

    Example:
        >>> without_passwords("cannot read postgresql://ann:s3/cr@t@host/db?sslpassword=x&a=b")
        'cannot read postgresql://ann:***@host/db?sslpassword=***&a=b'
    """
    return _IN_QUERY.sub(r"\1***", _BEFORE_HOST.sub(r"\1:***@", text))


def check_url(url: str) -> None:
    """Refuse the URL of a database that holds a password: it would be kept where settings are.

    Raises:
        ValueError: also for what is no URL. The text begins with ``expected``, and does not repeat the password.

    Example:
        >>> check_url("postgresql://ann@host/db?sslmode=require")
        >>> check_url("postgresql://ann:secret@host/db")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: expected a URL without its password, which settings and histories would keep; the driver finds it by ...
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if not parts.scheme or "://" not in url:
        raise ValueError(
            "expected the URL of a database, such as postgresql://ann@host/db or sqlite:////home/ann/visits.db"
        )
    keys = [key for key, _ in parse_qsl(parts.query, keep_blank_values=True)]
    inside = any(re.search(r"(?i)\b(pwd|password)\s*=", value) for _, value in parse_qsl(parts.query))
    if (
        parts.password is not None
        or _PASSWORD.search(url)
        or inside
        or any(re.fullmatch(f"(?i){_SECRET}", key) for key in keys)
    ):
        raise ValueError(
            f"expected a URL without its password, which settings and histories would keep; the driver finds it "
            f"by {_OWN_WAYS}"
        )
