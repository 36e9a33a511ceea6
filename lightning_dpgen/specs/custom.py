"""Code of the user's own, by the name that a person has written on the command line: never by one found in a release."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from lightning_dpgen.specs.usage_error import UsageError

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def named(setting: str, target: str | None) -> Any:
    """Return the object of a dotted name, such as ``package.module.function``; also of a module in the working directory.

    Args:
        setting: that holds the name, for messages.

    Raises:
        UsageError: if there is no such thing, or its module cannot be imported.

    Example:
        >>> named("data.target", "json.loads").__name__
        'loads'
    """
    if not target:
        raise UsageError(f"{setting}: must be given, as in {setting}=package.name")
    if not _NAME.fullmatch(target):
        raise UsageError(f"{setting}={target}: expected a module and a name in it, as in package.name")
    module, _, name = target.rpartition(".")
    # As `python -m` would find it; last, so that it hides nothing.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = importlib.import_module(module)
    # A script ends the program.
    except (Exception, SystemExit) as error:
        raise UsageError(f"{setting}={target}: {module} cannot be imported ({said(error)})") from None
    if not hasattr(found, name):
        raise UsageError(f"{setting}={target}: the module {module} has no {name}")
    return getattr(found, name)


def options_of(setting: str, options: Any) -> dict[str, Any]:
    """Return options as keyword arguments: plain values. They are public: the certificate of a release shows them as given.

    Raises:
        UsageError: for anything else.

    Example:
        >>> options_of("data.options", {"rows": 5})
        {'rows': 5}
    """
    options = {} if options is None else options
    if not isinstance(options, Mapping) or not all(isinstance(name, str) and name.isidentifier() for name in options):
        raise UsageError(f"{setting}={options}: expected names and values, as in {setting}='{{width: 3}}'")
    for name, value in options.items():
        if not isinstance(value, str | bool | int | float | None):
            raise UsageError(f"{setting}.{name}={value}: expected text, a number, true or false")
    return dict(options)


def said(error: BaseException) -> str:
    """Return an error of the user's code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
