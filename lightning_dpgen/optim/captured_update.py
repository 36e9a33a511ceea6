"""The update of a torch optimizer, captured once and replayed without its Python."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, optim
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from lightning_dpgen.gradients.replay import Replay, record_once
from lightning_dpgen.optim.flat import FlatGroups

# Updates that the optimizer makes before one is captured: it makes its state in the first.
_BEFORE = 2
# The most times that an update is captured again, as a setting had changed.
_AGAIN = 3


class CapturedUpdate:
    """The update of an optimizer, whose operations are replayed from the third one on.

    Nothing in Python may follow from the number of updates or from a parameter, so it is for SGD, and for Adam and AdamW
    where they are fused. A fused one takes another learning rate as it comes (on a GPU in float32); else an update is
    captured anew for other settings, up to three times.

    Args:
        optimizer: the torch optimizer.
        flats: its parameters and gradients, whose memory stays where it is.
    """

    def __init__(self, optimizer: optim.Optimizer, flats: FlatGroups) -> None:
        self._optimizer, self._flats = optimizer, flats
        self._replay: Replay | None = None
        # Settings and state for which it was captured; the state is told by its tensors.
        self._of: tuple[list[dict[str, Any]], list[Tensor]] | None = None
        self._rates: list[Tensor] = []
        self._before, self._again = _BEFORE, _AGAIN

    def __call__(self) -> None:
        """Make the update."""
        with self._flats.in_their_place():
            if self._before or not (self._again and self._possible()):
                self._before, self._replay, self._of = max(0, self._before - 1), None, None
                self._optimizer.step()
                return
            now = self._settings(), self._state()
            if self._replay is None or self._of is None or not _alike(self._of, now):
                self._again -= self._replay is not None
                self._capture(now)
                return
        if self._rates:
            for rate, group in zip(self._rates, self._optimizer.param_groups, strict=True):
                rate.fill_(group["lr"])
        self._replay()

    def _possible(self) -> bool:
        own, groups = self._optimizer, self._optimizer.param_groups
        settings = [x for group in groups for name, x in group.items() if name != "params"]
        if any(isinstance(x, Tensor) for of in settings for x in (of if isinstance(of, tuple) else (of,))):
            return False
        # A hook is a function of Python that each step calls.
        if own._optimizer_step_pre_hooks or own._optimizer_step_post_hooks or _hooks_of_all():
            return False
        fused = {bool(group.get("fused")) for group in groups}
        return fused == {True} if type(own) in (optim.Adam, optim.AdamW) else type(own) is optim.SGD and len(fused) == 1

    def _capture(self, now: tuple[list[dict[str, Any]], list[Tensor]]) -> None:
        """Make the update while it is captured."""
        groups = self._optimizer.param_groups
        device, before = groups[0]["params"][0].device, [dict(group) for group in groups]
        # A kernel of CUDA reads a learning rate in float32.
        kind = torch.float32 if device.type == "cuda" else torch.float64
        rates = [torch.tensor(group["lr"], dtype=kind, device=device) for group in groups if group["fused"]]
        try:
            for i, group in enumerate(groups):
                group.update({"lr": rates[i]} if rates else {})
                group.update({"capturable": True} if "capturable" in group else {})
            self._replay, self._of, self._rates = record_once(self._update, device), now, rates
        except Exception:
            if not _computes_nothing(device):
                raise
            self._replay, self._again = None, 0
        finally:
            for group, settings in zip(groups, before, strict=True):
                group.update(settings)
        if self._replay is None:
            self._optimizer.step()

    def _update(self) -> list[Tensor]:
        self._optimizer.step()
        return []

    def _settings(self) -> list[dict[str, Any]]:
        """Return the settings of all groups, but for those that a replay reads anew."""
        of_each = {"params", "lr"} if self._optimizer.param_groups[0]["fused"] else {"params"}
        return [{name: x for name, x in group.items() if name not in of_each} for group in self._optimizer.param_groups]

    def _state(self) -> list[Tensor]:
        return [x for of_one in self._optimizer.state.values() for x in of_one.values() if isinstance(x, Tensor)]


def _computes_nothing(device: torch.device) -> bool:
    """Return whether nothing is computed while a capture fails."""
    return device.type == "cuda"


def _hooks_of_all() -> bool:
    """Return whether there are hooks that torch calls in each step of any optimizer."""
    return bool(_global_optimizer_pre_hooks or _global_optimizer_post_hooks)


def _alike(first: tuple[list[dict], list[Tensor]], second: tuple[list[dict], list[Tensor]]) -> bool:
    """Return whether settings are the same, and the state is in the same tensors."""
    return first[0] == second[0] and [id(x) for x in first[1]] == [id(x) for x in second[1]]
