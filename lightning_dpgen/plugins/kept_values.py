"""Values of records that a module keeps, in lists that grow or in metrics: found while a training step is tried."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from torch import nn
from torchmetrics import Metric

from lightning_dpgen.gradients.isolation.hidden import EscapedTensor

_GROW = (list, deque, set, dict)


class GrowingLists:
    """The lists, sets and dictionaries that a module has, with their sizes now, to be compared with those after more calls.

    A value that was computed from a record loses its content when the call ends, so a mean over such a list fails, often
    after the last step. An attribute that each call writes anew (an attention map, the balance loss of experts) is no such
    list, since the call that computes it may use it.

    Args:
        module: the module whose loss is called between this and `check`.

    Example:
        >>> module = nn.Module()
        >>> module.losses = []
        >>> GrowingLists(module).check()
    """

    def __init__(self, module: nn.Module) -> None:
        self._before = [(name, values, len(values)) for name, values in _lists_of(module)]

    def check(self) -> None:
        """Refuse a list that has grown by such values.

        Raises:
            ValueError: naming the attribute.
        """
        for name, values, size in self._before:
            if len(values) > size and any(isinstance(x, EscapedTensor) for x in _values(values)):
                raise ValueError(
                    f"training_step adds a value computed from records to {name}, and nothing can be made of it once the "
                    "call has ended: log it with self.log, whose numbers stay private, or leave it out"
                )


def _lists_of(module: nn.Module) -> Iterator[tuple[str, Collection]]:
    of_torch = vars(nn.Module()).keys()
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in of_torch:
                yield from _nested(".".join(filter(None, ("self", path, name))), value)


def _nested(name: str, value: Any) -> Iterator[tuple[str, Collection]]:
    """Yield a list, and those that are the values of a dictionary."""
    if type(value) in _GROW:
        yield name, value
    if type(value) is dict:
        for key, inner in value.items():
            if type(inner) in _GROW:
                yield f"{name}[{key!r}]", inner


def _values(values: Any) -> Collection:
    return values.values() if isinstance(values, dict) else values


@contextmanager
def refuse_updated_metrics(module: nn.Module, step: str = "training_step") -> Iterator[None]:
    """Refuse a metric of a module that is updated within the block, where a step of it is tried.

    A metric keeps its sums in attributes, where the values of a record are lost when the loss returns. What torch says of
    that names neither the attribute nor a cure.

    Raises:
        ValueError: naming the attribute.

    Example:
        >>> from torchmetrics import MeanMetric
        >>> module = nn.Module()
        >>> module.error = MeanMetric()
        >>> with refuse_updated_metrics(module):
        ...     module.error.update(1.0)
        Traceback (most recent call last):
        ...
        ValueError: training_step updates self.error (MeanMetric), which keeps sums over records...
    """
    # A metric is hashed by its state.
    before = {id(part): (part.update_count, _state_of(part)) for part in _metrics_of(module).values()}
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    reached = [frame.f_locals.get("self") for error in _causes(failure) for frame, _ in walk_tb(error.__traceback__)]
    # A metric that the training step has made is updated, too.
    updated = {
        name: part
        for name, part in _metrics_of(module).items()
        if id(part) not in before or _is_updated(part, *before[id(part)]) or any(x is part for x in reached)
    }
    for part in updated.values():
        # Values of a record that are lost cannot be reset.
        vars(part).update(before[id(part)][1] if id(part) in before else part._defaults)
        part.reset()
    if updated:
        name, part = next(iter(updated.items()))
        raise ValueError(
            f"{step} updates self.{name} ({type(part).__name__}), which keeps sums over records: log the value of a "
            "record by self.log, whose mean over a lot stays private, and update metrics in validation_step, on public "
            "records"
        ) from failure
    if failure is not None:
        raise failure


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    # Code of others can make an error a cause of itself.
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__


def _metrics_of(module: nn.Module) -> dict[str, Metric]:
    return {name: part for name, part in module.named_modules() if isinstance(part, Metric)}


def _state_of(metric: Metric) -> dict[str, Any]:
    return {name: list(x) if isinstance(x, list) else x for name, x in metric.metric_state.items()}


def _is_updated(metric: Metric, count: int, state: dict[str, Any]) -> bool:
    # A trial puts the counts of a module back.
    return metric.update_count != count or any(
        len(x) != len(state[name]) if isinstance(x, list) else x is not state[name]
        for name, x in metric.metric_state.items()
    )
