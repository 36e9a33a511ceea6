"""The isolation of the records of a lot: `torch.vmap` hides all but one of them from the code of a loss.

A loss is called once for a lot, inside a vmap over its records, and sees a lot of one record. Each operation of torch
acts on every record alone, by its batching rule, or is refused. Control flow on a value (``if``, ``item()``), shapes that
follow from values and writes into tensors that outlive the call mean nothing for one record of many, so vmap refuses them.
A value that the loss keeps in Python is found when the call ends, and cannot be used again. So the loss of a record is a
function of that record, of public numbers and of randomness of its own, as long as its code stays within torch's own
functions (docs/guarantees/limits.md, "What is not claimed").
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.utils._pytree import tree_map_only

from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.isolation.loss_call import REPLACED_FUNCTIONS, invalidate_escaped_tensors
from lightning_dpgen.gradients.isolation.loss_guard import LossGuard
from lightning_dpgen.gradients.isolation.refusals import SAVED, explained
from lightning_dpgen.sampling.slots import Slots
from lightning_dpgen.sampling.trees import map_tree


class Isolation:
    """One call of a function in which each record of a lot is alone.

    Args:
        size: B, the number of records; 1 or more.
        offsets: where the components begin and end among them; a single component by default.
        groups: the groups of the records, for a per-group loss, with a public number of places. `HiddenGroups.gather` leads
            from records to groups, and each group is then alone.
        takes_gradients: whether the function may take gradients by itself (`own_gradients.py`).

    Example:
        >>> isolation, x = Isolation(3), torch.tensor([[1.0], [2.0], [3.0]])
        >>> isolation.run(lambda x: x.sum() + len(x), x)
        tensor([2., 3., 4.])
        >>> isolation.run(lambda x: x if x.sum() > 2 else -x, x)
        Traceback (most recent call last):
        ...
        ValueError: the loss looks at a value computed from a record (if, bool): use torch.where...
    """

    def __init__(
        self,
        size: int,
        offsets: Sequence[int] | None = None,
        groups: Groups | None = None,
        *,
        takes_gradients: bool = True,
    ) -> None:
        self.takes_gradients = takes_gradients and groups is None
        self.size, self.offsets, self._groups = size, tuple(offsets or (0, size)), groups
        # The level of the groups, if there are any, and inside it the level of the records.
        self._levels: list[int] = []
        self._outside = _Outside(self)
        self._guard: LossGuard | None = None
        self._has_own_backward = False

    def run(self, function: Callable[..., Any], *rows: Any) -> Any:
        """Call a function once, with the tensors of one record, and return its results for all records.

        Args:
            function: takes as many arguments as there are `rows`.
            rows: tensors (B, ...), or trees of them; the function sees (...).

        Returns:
            The tree of tensors that the function returns, each with the records, or the groups, in front.

        Raises:
            ValueError: where the function would need what it may not see; it names the line and says what to do instead.
        """
        validated = torch.distributions.Distribution._validate_args
        # These checks look at values.
        torch.distributions.Distribution.set_default_validate_args(False)
        try:
            with invalidate_escaped_tensors(), REPLACED_FUNCTIONS:
                return self._run(function, rows)
        except (RuntimeError, AssertionError, TypeError) as error:
            if (reason := explained(error)) is None:
                raise
            raise reason from error
        finally:
            torch.distributions.Distribution.set_default_validate_args(validated)

    def _run(self, function: Callable[..., Any], rows: tuple) -> Any:
        try:
            if self._groups is not None:
                self._levels.append(_functorch._vmap_increment_nesting(self._groups.count, "same"))
            self._levels.append(_functorch._vmap_increment_nesting(self.size, "different"))
            guard = self._guard = LossGuard(self)
            # Compiled code would know neither vmap nor the guard. Nothing is compiled where the compiler is not loaded.
            eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
            with guard, torch.autograd.graph.disable_saved_tensors_hooks(SAVED), eager:
                result = function(*map_tree(self.hide, rows))
                guard.check_end()
                self._has_own_backward = guard.has_own_backward
                return self._bare(result) if isinstance(result, Tensor) else tree_map_only(Tensor, self._bare, result)
        finally:
            self._guard = None
            while self._levels:
                _functorch._vmap_decrement_nesting()
                self._levels.pop()

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a function of torch as one that the loss calls, during `run`."""
        return self._guard.call(function, args, kwargs)

    def backward(self) -> AbstractContextManager[object]:
        """Return a context for backward passes from the results of `run`: code of the loss in them keeps nothing."""
        if not self._has_own_backward:
            return nullcontext()
        guards = ExitStack()
        guards.enter_context(invalidate_escaped_tensors())
        guards.enter_context(REPLACED_FUNCTIONS)
        return guards

    def _bare(self, x: Tensor) -> Tensor:
        """Return the results of all records, or groups, behind the one that a function has returned."""
        # The first level is that of the groups, or else that of the records.
        value, at = _functorch._unwrap_batched(x, self._levels[0])
        if _functorch.is_functorch_wrapped_tensor(value):
            raise ValueError(
                "a loss of groups must be computed from the results of groups.gather, and must draw no random numbers "
                "behind it (dropout, randn): all groups would share what belongs to a record there. Draw before "
                "groups.gather, or use engine='func'"
            )
        if at is None:
            return value.expand(self.size if self._groups is None else self._groups.count, *value.shape)
        return value.movedim(at, 0) if at else value

    def hide(self, x: Tensor, level: int | None = None) -> Tensor:
        """Return the one record (...) that a loss is to see of (B, ...); `lots` returns the level of groups."""
        return _functorch._add_batch_dim(x, 0, self._levels[-1] if level is None else level)

    def is_record(self, x: Any) -> bool:
        """Return True for what a loss sees of records alone; False behind ``groups.gather``, and in other transforms."""
        return self._behind(x, self._levels[-1]) is not None

    def _behind(self, x: Any, level: int) -> Tensor | None:
        if not isinstance(x, Tensor) or not _functorch.is_batchedtensor(x):
            return None
        value, at = _functorch._unwrap_batched(x, level)
        if at is None or _functorch.is_functorch_wrapped_tensor(value):
            return None
        return value.movedim(at, 0) if at else value

    def rows(self, x: Any) -> Tensor | None:
        """Return the records (B, ...) behind what a loss sees as one; None for a tensor that holds no record.

        Raises:
            ValueError: for groups, and inside other transforms of torch.func.
        """
        if not isinstance(x, Tensor) or not _functorch.is_functorch_wrapped_tensor(x):
            return None
        if (rows := self._behind(x, self._levels[-1])) is None:
            raise ValueError(
                "a parameter meets groups of records (behind groups.gather), or records inside another transform of "
                "torch.func: only engine='func' takes these"
            )
        return rows

    def lots(self, tensors: Sequence[Tensor]) -> tuple[int, list[Tensor]]:
        """Return what is behind hidden tensors, all records (B, ...) or all groups, and the level of vmap that hides it.

        Raises:
            ValueError: for records beside groups.
        """
        for level in self._levels:
            behind = [x for tensor in tensors if (x := self._behind(tensor, level)) is not None]
            if len(behind) == len(tensors):
                return level, behind
        raise ValueError("a function meets records beside groups of records: it would be computed for each of them alone")

    def rows_or_copies(self, x: Tensor) -> Tensor:
        """Return the records (B, ...) behind a tensor, or the tensor for each record; call it in `outside`."""
        rows = self.rows(x)
        return x.expand(self.size, *x.shape) if rows is None else rows

    @property
    def is_innermost(self) -> bool:
        """True unless the loss is inside another transform of torch.func at the moment."""
        return _functorch.maybe_current_level() == self._levels[-1]

    def outside(self) -> AbstractContextManager[None]:
        """Return a context that takes the levels of vmap off torch's stack: tensors (B, ...) are plain again in it.

        Autograd records what is done to them.

        Raises:
            ValueError: inside another transform of torch.func.
        """
        if _functorch.maybe_current_level() != self._levels[-1]:
            raise ValueError("a function meets records inside another transform of torch.func: use engine='func' for it")
        return self._outside


class _Outside:
    """The context of `Isolation.outside`."""

    def __init__(self, isolation: Isolation) -> None:
        self._levels, self._taken = isolation._levels, []

    def __enter__(self) -> None:
        for _ in self._levels:
            self._taken.append(_functorch.pop_dynamic_layer_stack())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._taken:
            _functorch.push_dynamic_layer_stack(self._taken.pop())


class HiddenOffsets:
    """Offsets of a lot of one record, whose component only functions of stacked components know."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation

    def __len__(self) -> int:
        return len(self._isolation.offsets)

    def __getitem__(self, i: int) -> int:
        # The number of records.
        if i == -1:
            return 1
        if i % len(self) not in (0, len(self) - 1):
            raise ValueError("the component of a record is private: use the functions and layers of stacked components")
        return int(i % len(self) > 0)

    def __iter__(self):
        return iter([self[i] for i in range(len(self))])

    def components(self, device: torch.device) -> Tensor:
        """Return the component (1,) of the record."""
        sizes = torch.tensor(self._isolation.offsets).diff()
        index = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(device)
        return self._isolation.hide(index[:, None])

    def call(self, function: Callable[..., Tensor], x: Tensor, *rest: Any, **options: Any) -> Tensor:
        """Call ``function(x, *rest, offsets, **options)`` of a stack of components, for the record behind x (1, ...)."""
        isolation = self._isolation
        with isolation.outside():
            rows = isolation.rows_or_copies(x).squeeze(1)
            result = function(rows, *rest, isolation.offsets, **options)[:, None]
        return isolation.hide(result)


class HiddenGroups:
    """Groups of a lot as a loss sees them: one group, whose records `gather` returns; see `Groups`."""

    count = 1

    def __init__(self, isolation: Isolation, groups: Groups) -> None:
        self._isolation, self._groups = isolation, groups

    def _hide(self, x: Tensor) -> Tensor:
        return _functorch._add_batch_dim(x, 0, self._isolation._levels[0])

    def gather(self, x: Tensor) -> Tensor:
        """Turn a record's (1, ...) into the (1, places, ...) of a group, zeros where it has none."""
        with self._isolation.outside():
            gathered = self._groups.gather(self._isolation.rows_or_copies(x).squeeze(1))[:, None]
        return self._hide(gathered)

    @property
    def mask(self) -> Tensor:
        """(1, places) mask of the places where `gather` has put a record."""
        return self._hide(self._groups.mask[:, None])


class OneGroup:
    """The one group of a lot that holds no other records; see `Groups`.

    Args:
        there: (places,) mask of the records that are there.
    """

    count = 1

    def __init__(self, there: Tensor) -> None:
        self._there = there

    def gather(self, x: Tensor) -> Tensor:
        """Turn (places, ...) into the (1, places, ...) of a group, zeros where it has none."""
        return torch.where(self._there.view(-1, *(1,) * (x.dim() - 1)), x, 0)[None]

    @property
    def mask(self) -> Tensor:
        """(1, places) mask of the places with a record."""
        return self._there[None]


def rows_of(x: Tensor) -> Tensor:
    """Return one number a row, float32 (S,), of a tensor that may be hidden, the mean of the row's own numbers.

    It is for logs that stay private. A tensor that does not depend on a record gives a single number, ().
    """
    dimension = None
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_batchedtensor(x):
            dimension = _functorch.maybe_get_bdim(x)
        x = _functorch.get_unwrapped(x)
    x = x.detach().float()
    if dimension is None:
        return x.mean()
    rows = x.movedim(dimension, 0)
    return rows.flatten(1).mean(dim=1) if rows.dim() > 1 else rows


def mean_of_records(rows: Tensor, slots: Slots | None = None) -> Tensor:
    """Return the mean over records of what `rows_of` gave.

    Args:
        slots: the rows that are records, in a lot in slots; None for all rows.
    """
    # Made-up records alone are in no slots.
    if slots is not None and rows.dim() and len(rows) == slots.size and len(slots.places):
        rows = rows.index_select(0, slots.places_on(rows.device))
    return rows.mean()
