"""The terms of a loss, of three kinds: handed one record, a group of records, or no record."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from lightning_dpgen.gradients.factors import GradientFactors
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.sampling.lots import Lot


def _check_arguments(loss: Callable, names: tuple[str, ...], other: str) -> None:
    """Refuse a loss that cannot be called with so many arguments, before anything is spent.

    Raises:
        ValueError: saying which ones are expected.
    """
    if not callable(loss):
        raise ValueError(f"loss={loss!r}: expected a function loss({', '.join(names)})")
    code = loss.__code__ if isinstance(loss, types.FunctionType) and not hasattr(loss, "__wrapped__") else None
    if code is not None and code.co_argcount == len(names) and not code.co_kwonlyargcount:
        return
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # one of compiled code
        return
    try:
        signature.bind(*names)
    except TypeError:
        raise ValueError(f"loss{signature}: expected loss({', '.join(names)}); {other}") from None


@dataclass(frozen=True)
class PerRecord:
    """A loss of each record by itself; its gradient is clipped to C a record (sensitivity C).

    Args:
        loss: ``loss(lot, noise) -> (1,)``, called once for a lot with what looks like a lot of one record, and its row of
            the noise: `torch.vmap` hides the others, so nothing of these can be seen (`gradients/isolation`). Code
            for lots of any size works too: values ``(B,)``, each of which depends on its own record alone, or their mean
            or sum, a scalar, which is the record's own loss there.
        noise: the number of standard normals of each record's own, drawn from the private stream. Randomness that a
            record takes by its position from a public stream would let it change the others' (docs/PRIVACY.md).
        forms: the gradients of this very loss in closed form, for a model that knows them:
            ``forms(lot, noise) -> (gradient factors for each parameter, a function that returns the losses)``. It is never
            called without a record; None leaves gradients to the engine.
        example: a public record, a tree of tensors (1, ...) like ``lot.records``, with which the loss is called where a lot
            has no record, so that the number of its calls is public. None makes one up: numbers from 0 to 1, and zeros, or
            all of these larger by 1, 2 or 3, the first that the loss takes.

    Raises:
        ValueError: for a loss that takes other arguments.
    """

    loss: Callable[[Lot, Tensor], Tensor]
    noise: int = 0
    forms: Callable[[Lot, Tensor], tuple[Mapping[nn.Parameter, GradientFactors], Callable[[], Tensor]]] | None = None
    example: Any = None

    def __post_init__(self) -> None:
        if self.forms is None:
            _check_arguments(self.loss, ("lot", "noise"), "a loss of groups is a PerGroup term")

    def losses(self, lot: Lot, noise: Tensor) -> Tensor:
        """Return the losses (B,) of a lot; that of a single record may be a scalar.

        Raises:
            ValueError: if the loss returns anything else.
        """
        losses = self.loss(lot, noise)
        # The mean over one record, or the sum, is its own loss.
        if isinstance(losses, Tensor) and losses.dim() == 0 and len(lot) == 1:
            return losses[None]
        return check_losses(losses, len(lot))


def check_losses(losses: Any, size: int) -> Tensor:
    """Return the losses (B,) of a lot of B records.

    Raises:
        ValueError: for anything else.
    """
    if not isinstance(losses, Tensor) or losses.shape != (size,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            "a per-record loss must be one value for each record, of shape (B,), or a scalar: it is called with a lot of "
            f"{size}, and returned {shape}. Take the mean or the sum over everything but the record"
        )
    return losses


@dataclass(frozen=True)
class PerGroup:
    """A loss of each group of records; its gradient is clipped to C a group (sensitivity 2 C).

    Each record is assigned to a group at random by itself, from the private stream; where persons have several records,
    each person with all of them. A record (or person) added or removed changes the gradient of one group, from one vector
    within C to another. An empty group adds nothing.

    Args:
        loss: ``loss(lot, noise, groups) -> (1,)``, called once for a lot: code sees one record, as in `PerRecord`.
            `groups.gather` leads from there to a group: it returns (1, places, ...), its records side by side and zeros
            behind them, and `groups.mask` (1, places) says where there are records.
        groups: m, the number of groups; the gradient is a mean over them.
        noise: as for `PerRecord`.
        forms: for a model that knows them, the gradients that flow through each record:
            ``forms(lot, noise, groups) -> (gradient factors for each parameter, a function that returns the losses)``; the
            gradient of a group is their sum over its records.
        places: the number of records that a group has room for, public (`slots`); any more are left out. A term with
            gradients in closed form needs none.
        example: as for `PerRecord`.

    Raises:
        ValueError: for fewer than one group or place, or a loss that takes other arguments.
    """

    loss: Callable[[Lot, Tensor, Groups], Tensor]
    groups: int
    noise: int = 0
    forms: Callable[[Lot, Tensor, Groups], tuple[Mapping[nn.Parameter, GradientFactors], Callable[[], Tensor]]] | None = (
        None
    )
    places: int | None = None
    example: Any = None

    def __post_init__(self) -> None:
        if type(self.groups) is not int or self.groups < 1:
            raise ValueError(f"groups={self.groups}: expected a whole number, 1 or more")
        if self.places is not None and (type(self.places) is not int or self.places < 1):
            raise ValueError(f"places={self.places!r}: expected a whole number, 1 or more")
        if self.forms is None:
            _check_arguments(self.loss, ("lot", "noise", "groups"), "a loss of each record is a PerRecord term")

    @staticmethod
    def slots(expected_batch_size: float, groups: int) -> int:
        """Return a number of places that a group of a Poisson lot outgrows with a probability below 1e-6.

        Groups of persons vary more: with up to m records each, take m times the places for a lot of 1/m of the records.

        Example:
            >>> PerGroup.slots(256, 16)
            46
        """
        if not (expected_batch_size > 0 and groups >= 1):
            raise ValueError(f"expected_batch_size={expected_batch_size!r}, groups={groups!r}: expected both above 0")
        mean = expected_batch_size / groups
        return math.ceil(mean + 6.0 * math.sqrt(mean) + 6.0)

    def losses(self, lot: Lot, noise: Tensor, groups: Groups) -> Tensor:
        """Return the losses (m,) of a lot.

        Raises:
            ValueError: if the loss returns anything else.
        """
        losses = self.loss(lot, noise, groups)
        if not isinstance(losses, Tensor) or losses.shape != (groups.count,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(
                f"a per-group loss must have shape (m,), one value for each group: it is called with {groups.count}, and "
                f"returned {shape}"
            )
        return losses


@dataclass(frozen=True)
class DataFree:
    """A loss of parameters and public randomness alone: handed no record, so neither clipped nor noised.

    Args:
        loss: ``loss() -> scalar``.
    """

    loss: Callable[[], Tensor]


def code_of(loss: Any) -> Hashable:
    """Identify a loss, though it may be made anew for each lot, by its code and what that is closed over.

    Only the types of tensors and numbers count: they may be others with each lot.
    """
    return _code_of(loss, ())


def _code_of(loss: Any, around: tuple[int, ...]) -> Hashable:
    # A function may be closed over itself.
    if id(loss) in around:
        return type(loss)
    around = *around, id(loss)
    if isinstance(loss, functools.partial):
        values = _kept((*loss.args, *loss.keywords.values()), around)
        return _code_of(loss.func, around), tuple(loss.keywords), values
    if isinstance(loss, types.MethodType):
        return _code_of(loss.__func__, around), id(loss.__self__)
    if isinstance(loss, types.FunctionType):
        return loss.__code__, _kept(_closed_over(loss), around)
    own = sorted(getattr(loss, "__dict__", {}).items())
    return type(loss), tuple(name for name, _ in own), _kept([x for _, x in own], around)


def _kept(values: Iterable[Any], around: tuple[int, ...]) -> tuple[Hashable, ...]:
    kept: list[Hashable] = []
    for x in values:
        if isinstance(x, bool | str | type(None)):
            kept.append(x)
        elif isinstance(x, nn.Module | type):
            kept.append(id(x))
        elif isinstance(x, functools.partial | types.MethodType | types.FunctionType):
            kept.append(_code_of(x, around))
        else:
            kept.append(type(x))
    return tuple(kept)


def _closed_over(function: types.FunctionType) -> list[Any]:
    """Return the values that a function is closed over, and those of its arguments' defaults."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def is_same_loss(one: Any, other: Any) -> bool:
    """Return whether a loss is another one, perhaps made anew from the same code: all that it is closed over is the same.

    Objects are the same if they are one; numbers and text, if they are equal.

    Example:
        >>> scaled = lambda scale: lambda lot, noise: scale * lot.records
        >>> is_same_loss(scaled(2.0), scaled(2.0)), is_same_loss(scaled(2.0), scaled(3.0))
        (True, False)
    """
    return _is_same(one, other, ())


def _is_same(one: Any, other: Any, around: tuple[tuple[int, int], ...]) -> bool:
    if one is other or (id(one), id(other)) in around:
        return True
    if type(one) is not type(other):
        return False
    around = *around, (id(one), id(other))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(_is_same(a, b, around) for a, b in zip(one, other, strict=True))
    if isinstance(one, functools.partial):
        parts, others = ((x.func, x.args, *itertools.chain(*x.keywords.items()), vars(x) or None) for x in (one, other))
        return _is_same(parts, others, around)
    if isinstance(one, types.MethodType):
        return _is_same(one.__func__, other.__func__, around) and one.__self__ is other.__self__
    if isinstance(one, types.FunctionType):
        same = one.__code__ is other.__code__ and one.__globals__ is other.__globals__ and not (vars(one) or vars(other))
        return same and _is_same(tuple(_closed_over(one)), tuple(_closed_over(other)), around)
    # The sign of a zero counts, too.
    return type(one) in (int, float, complex, str, bytes) and repr(one) == repr(other)


Term = PerRecord | PerGroup | DataFree


@dataclass(frozen=True)
class Views:
    """Augmentation multiplicity (De et al. 2022, "Unlocking high-accuracy differentially private image classification").

    A record's gradient is the mean over its views, and is clipped after that: views cost no privacy, and their number is
    public. They are made where the record is alone (`gradients/isolation`), with randomness of its own.

    Args:
        augment: takes a batch of copies of one record, and returns as many views of it: a tensor (count, ...), or a tree of
            such. torch's random functions give each view its own numbers where they are asked for one a row
            (``torch.rand(len(x))``). An augmentation that mixes rows (mixup) is refused.
        count: the number of views of a record.

    Raises:
        ValueError: for something that is no function, or a number below 1.

    Example:
        >>> import torch
        >>> views = Views(lambda x: x * torch.tensor([[1.0], [3.0]]), 2)
        >>> views.losses(lambda x: x.sum(dim=1), torch.ones(1, 4))
        tensor([8.])
    """

    augment: Callable[[Any], Any]
    count: int

    def __post_init__(self) -> None:
        if not callable(self.augment):
            raise ValueError(f"augment={self.augment!r}: expected a function of a batch that returns as many views")
        if type(self.count) is not int or self.count < 1:
            raise ValueError(f"multiplicity={self.count!r}: expected a whole number of views (int), 1 or more")

    def losses(self, loss: Callable[[Any], Any], records: Any) -> Tensor:
        """Return the mean (B,) over the views of each record.

        Args:
            loss: takes a batch of V views and returns their losses (V,); one that returns a scalar is called with each
                view alone, which takes longer.
            records: B records, a tree of tensors (B, ...).

        Raises:
            ValueError: for views or losses of another number.
        """
        views = self.augment(self.repeated(records))
        rows = self.count * len(tree_leaves(records)[0])
        sizes = {len(x) if isinstance(x, Tensor) and x.dim() else None for x in tree_leaves(views)}
        if sizes != {rows}:
            returned = " and ".join("no tensor" if x is None else str(x) for x in sorted(sizes, key=str)) or "nothing"
            raise ValueError(f"augment returned batches of {returned}: expected {rows} views, one for each row it got")
        losses = loss(views)
        if isinstance(losses, Tensor) and losses.dim() == 0:
            # A mean over the views, or their sum: each alone has the same loss under both.
            alone = [loss(tree_map(lambda x, i=i: x[i : i + 1], views)) for i in range(rows)]
            losses = torch.stack([x.reshape(()) for x in alone])
        if not isinstance(losses, Tensor) or losses.shape != (rows,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(
                f"the loss of {rows} views is {shape}: expected their mean, or one value for each view, a tensor of as many"
            )
        return losses.unflatten(0, (-1, self.count)).mean(dim=1)

    def repeated(self, records: Any) -> Any:
        """Return each row of a tree of tensors (B, ...) so many times, one after the other."""
        return tree_map(lambda x: x.unsqueeze(1).expand(-1, self.count, *x.shape[1:]).flatten(0, 1), records)


def of_views(term: PerRecord, views: Views) -> PerRecord:
    """Return a term whose loss of a record is the mean loss of its views; each view has noise of its own.

    Args:
        term: a loss of records of a single component, in code (without `forms`).

    Raises:
        ValueError: for a term in closed form; from the loss, for records of several components.

    Example:
        >>> import torch
        >>> term = PerRecord(lambda lot, noise: (lot.records + noise).sum(dim=1), noise=4)
        >>> more = of_views(term, Views(lambda x: x, 8))
        >>> more.noise, more.losses(Lot(torch.ones(1, 4), (0, 1)), torch.ones(1, 32))
        (32, tensor([8.]))
    """
    if term.forms is not None:
        raise ValueError("term.forms: gradients in closed form are those of records as they are: give a term without")

    def loss(lot: Lot, noise: Tensor) -> Tensor:
        if len(lot.offsets) > 2:
            raise ValueError("views of a mixture: expected records of a single component")
        own = noise.unflatten(1, (views.count, term.noise)).flatten(0, 1)
        return views.losses(lambda records: term.loss(Lot(records, (0, len(own))), own), lot.records)

    return replace(term, loss=loss, noise=term.noise * views.count)
