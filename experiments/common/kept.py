"""Results of experiments on disk, so that an experiment that was stopped goes on cell by cell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Kept:
    """Results on disk by key; each is written as soon as it is there.

    Raises:
        SystemExit: for a file that holds no such results; it stays as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found = self._read()

    def _read(self) -> dict[str, Any]:
        if not self.path.is_file():
            return {}
        try:
            return dict(json.loads(self.path.read_text(encoding="utf-8")).items())
        except (ValueError, AttributeError) as error:
            raise SystemExit(
                f"{self.path}: holds no kept results ({error}): restore it, or move it away to compute them anew"
            ) from None

    def get(self, asked: dict, compute: Callable[[], Any], *, again: bool = False) -> Any:
        """Return the result that is there, or compute it; also one that is there, where it is asked for again."""
        key = json.dumps(asked, sort_keys=True)
        if again or key not in self.found:
            result = compute()
            # Another command may have kept its own results meanwhile.
            self.found = self._read() | {key: result}
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(self.found, indent=0) + "\n", encoding="utf-8")
            part.replace(self.path)
        return self.found[key]

    def check_some(self) -> None:
        """Refuse to draw what is kept where nothing is.

        Raises:
            SystemExit: where nothing is kept.
        """
        if not self.found:
            raise SystemExit(f"--kept: nothing is kept in {self.path}; expected a folder with results, or leave --kept out")

    def look(self, asked: dict) -> Any:
        """Return the result that is there, or None."""
        return self.found.get(json.dumps(asked, sort_keys=True))
