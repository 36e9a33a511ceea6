"""The progress of a run: how far its state has come, and where it goes on when it is resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


class Progress:
    """The accesses of each stage that have left their mark on the state of a run.

    Args:
        resumed: whether the run goes on with an earlier one, from a start that `go_on` says.

    Attributes:
        done: the accesses, counted by stage; a checkpoint remembers them.
        start: the accesses from which a resumed run went on; None before that is known, and for a new run.
    """

    def __init__(self, resumed: bool = False) -> None:
        self.resumed = resumed
        self.start: Mapping[str, int] | None = None
        self.done: Counter[str] = Counter()

    @property
    def waits(self) -> bool:
        """True if nothing may be drawn before `go_on` is called."""
        return self.resumed and self.start is None

    def go_on(self, done: Mapping[str, int]) -> None:
        """Go on from a state with these accesses."""
        self.start = dict(done)
        self.done.update(done)

    @property
    def state(self) -> dict[str, Any]:
        """The numbers that another rank must know to have come as far; see `follow`."""
        return {"from": self.start, "resumed": self.resumed, "done": dict(self.done)}

    def follow(self, state: Mapping[str, Any]) -> None:
        """Take over the progress of rank 0."""
        self.start, self.resumed, self.done = state["from"], state["resumed"], Counter(state["done"])
