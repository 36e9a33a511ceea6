"""Passwords in the URL of a database: refused, and never repeated in a message."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

# From the first colon behind the slashes to the last @, since a password may hold any sign. A URL that was taken for a path
# has lost one of the slashes.
_BEFORE_HOST = re.compile(r"(\w:/{1,2}[^\s:/]*):[^\s]*@")
# The same, as SQLAlchemy finds it: other parsers end a host at a slash, which a password may hold.
_PASSWORD = re.compile(r"://[^:/]*:[^@]*@")
# Words in the query of a URL that say how to connect; any other may hold a secret, under whatever name.
_HARMLESS = (
    "host", "hostaddr", "port", "dbname", "database", "user", "schema", "sslmode", "sslrootcert", "sslcert", "sslkey",
    "ssl_ca", "connect_timeout", "timeout", "application_name", "service", "charset", "driver", "read_default_file",
    "read_default_group", "mode", "uri", "encrypt", "trustservercertificate", "warehouse", "role", "target_session_attrs",
    "unix_socket", "access_mode", "passfile",
)  # fmt: skip
_IN_QUERY = re.compile(r"([?&;])([^\s=&;]+)(=)([^\s&;]*)")
_SECRET = re.compile(r"(?i)((?:password|passwd|pwd|passphrase|secret|token|credential)[\w.-]*(?:=|%3D))('[^']*'|[^\s&;%]*)")
_URL = re.compile(r"\S+:/\S*")
_OWN_WAYS = (
    "PGPASSWORD or ~/.pgpass for PostgreSQL, ?read_default_file=~/.my.cnf for MySQL, a data source or a wallet for others"
)


def without_passwords(text: str) -> str:
    """Return a text in which each password of a URL is replaced by ``***``.

    Example:
        >>> without_passwords("cannot read postgresql://ann:s3/cr@t@host/db?sslpassword=x&port=5")
        'cannot read postgresql://ann:***@host/db?sslpassword=***&port=5'
    """

    def masked(url: re.Match) -> str:
        return _IN_QUERY.sub(lambda m: m[0] if m[2].lower() in _HARMLESS else f"{m[1]}{m[2]}{m[3]}***", url[0])

    return _SECRET.sub(r"\1***", _URL.sub(masked, _BEFORE_HOST.sub(r"\1:***@", text)))


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
    if parts.password is not None or _PASSWORD.search(url) or "%3a" in parts.netloc.lower():
        raise ValueError(
            f"expected a URL without its password, which settings and histories would keep; the driver finds it "
            f"by {_OWN_WAYS}"
        )
    words = parse_qsl(parts.query, keep_blank_values=True)
    other = [key for key, value in words if key.lower() not in _HARMLESS or _SECRET.search(value)]
    if other:
        raise ValueError(
            f"expected a URL without its password, and without {_shown(other[0])}, which may hold a secret that settings "
            f"and histories would keep; the driver finds it by {_OWN_WAYS}"
        )


def _shown(word: str) -> str:
    """Return a word of a URL as a message may show it."""
    return repr(word) if word.isidentifier() and len(word) <= 40 else "a word"
