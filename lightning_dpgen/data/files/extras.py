"""Libraries that come with an extra of the package: a file that needs one says how to get it."""

from __future__ import annotations

from importlib.util import find_spec

from lightning_dpgen.sampling.errors import BadRecords


def needs(library: str, extra: str, what: str) -> None:
    """Raise BadRecords if a library is not installed.

    Args:
        library: by the name under which Python imports it.
        extra: of this package, which installs it.
        what: needs it, such as a file.

    Example:
        >>> needs("no_such_library", "excel", "a.xlsx")
        Traceback (most recent call last):
        lightning_dpgen.sampling.errors.BadRecords: a.xlsx needs no_such_library: pip install 'lightning_dpgen[excel]'
    """
    if find_spec(library) is None:
        raise BadRecords(f"{what} needs {library}: pip install 'lightning_dpgen[{extra}]'")
