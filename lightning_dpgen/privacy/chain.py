"""Lines that vouch for all lines before them: each ends with a checksum of itself and of the one before.

There is no key, so it guards against accidents and not against whoever owns the machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# Ends a line that a crash cut short. It was never fsynced, so no noise was drawn on it.
TORN = b"#torn\n"
LENGTH = 16


def check(before: str, line: Mapping[str, Any]) -> str:
    """The checksum of a line that follows on the checksum `before`."""
    text = before + json.dumps(line, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def follows(raw: bytes, before: str) -> bool:
    """Whether this is a line that follows on `before`, and not what a crash has left of one."""
    try:
        line = json.loads(raw)
        return line.pop("check") == check(before, line)
    except (ValueError, KeyError, AttributeError, TypeError):
        return False


def last_check(content: bytes) -> str:
    """The checksum of the last line that ends in a line break and was not cut short; empty if there is none."""
    for raw in reversed(content[: content.rfind(b"\n") + 1].splitlines()):
        if not raw.endswith(TORN.strip()):
            try:
                return json.loads(raw)["check"]
            except (ValueError, KeyError, TypeError):
                return ""
    return ""
