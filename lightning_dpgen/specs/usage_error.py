"""The error that ends the program with one line and an exit status, instead of a traceback."""

from __future__ import annotations

OK, FAULT, MISTAKE, OVERSPENT, INTERRUPTED = 0, 1, 2, 3, 130
# One of several devices is gone: "try again" of sysexits.h.
RANK_LOST = 75


class UsageError(Exception):
    """Ends the program: the text is the one line that is shown, and names argument, value and what was expected.

    Functions of settings and runs raise it for every mistake; their docstrings say so only where they say more.

    Args:
        status: exit status; 2 for a mistake of the user's.
    """

    def __init__(self, text: str, status: int = MISTAKE) -> None:
        super().__init__(text)
        self.status = status


def describe_os_error(error: OSError) -> str:
    """Return the file and what is wrong with it, without Python's error number."""
    if error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return error.strerror or str(error)
