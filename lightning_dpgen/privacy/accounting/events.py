"""Events as JSON and back: the tree from which anyone can recompute the epsilon of a certificate.

An event is ``{"type": <class name of dp_accounting>, <its own field names>}``, nested. Reading goes through an
allow-list, since dp_accounting's own loader imports whatever module it is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import dp_accounting
from dp_accounting import dp_event

from lightning_dpgen.privacy.accounting.event_parts import SMALLEST_FAILURE, CorrelatedGaussianDpEvent, EpsilonDeltaDpEvent
from lightning_dpgen.privacy.accounting.private_selection import LARGEST_MEAN, SHAPES, SMALLEST_MEAN, OneOfDpEvent
from lightning_dpgen.privacy.sampling.strategy import MOST_STRATEGIES, Strategy

if TYPE_CHECKING:
    from lightning_dpgen.privacy.access import Access

_ALLOWED = {
    cls.__name__: cls
    for cls in (
        dp_event.GaussianDpEvent,
        dp_event.LaplaceDpEvent,
        dp_event.PoissonSampledDpEvent,
        dp_event.SelfComposedDpEvent,
        dp_event.ComposedDpEvent,
        dp_event.NonPrivateDpEvent,
        dp_event.RepeatAndSelectDpEvent,
        EpsilonDeltaDpEvent,
        OneOfDpEvent,
        CorrelatedGaussianDpEvent,
    )
}
# The shape of a law in JSON where it is infinite.
_INFINITE = "inf"
_MAX_DEPTH, _MAX_COUNT, _MAX_LEAVES = 12, 10**9, 5000
# A part has up to three objects (its noise, its sampling and its repetition), besides the compositions around it.
_MAX_OBJECTS = 4 * _MAX_LEAVES
# Letters of a value that a message quotes.
_QUOTED = 60
# Wide enough for any run, and no square of a number in between overflows.
_SMALLEST, _LARGEST = 1e-12, 1e12


class UnknownEvent(ValueError):
    """The text is not an event tree that this software can account for."""


def encode(event: dp_accounting.DpEvent) -> dict[str, Any]:
    """Return an event as plain JSON.

    Raises:
        UnknownEvent: for an event class outside the allow-list.

    Example:
        >>> encode(dp_accounting.GaussianDpEvent(2.0))
        {'type': 'GaussianDpEvent', 'noise_multiplier': 2.0}
    """
    name = type(event).__name__
    if name not in _ALLOWED:
        raise UnknownEvent(f"event class {name!r} cannot be written to a certificate")
    fields = {field.name: getattr(event, field.name) for field in attrs.fields(type(event))}
    return {"type": name} | {key: _encode_field(value) for key, value in fields.items()}


def _encode_field(value: Any) -> Any:
    if isinstance(value, dp_accounting.DpEvent):
        return encode(value)
    if isinstance(value, Strategy):
        return value.as_json()
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    # JSON has no infinity, the shape of the Poisson law.
    return _INFINITE if value == math.inf else value


def decode(tree: Any) -> dp_accounting.DpEvent:
    """Return the event that a JSON tree stands for; the inverse of `encode`.

    Raises:
        UnknownEvent: for a class outside the allow-list, a missing or foreign field, or a value out of range.
    """
    check_size(tree)
    event = _decode(tree, depth=0)
    leaves = list(_leaf_counts(event, 1))
    if len(leaves) > _MAX_LEAVES or sum(leaves) > _MAX_COUNT:
        raise UnknownEvent(
            f"the tree has more than {_MAX_LEAVES} different parts, or stands for more than {_MAX_COUNT} accesses"
        )
    return event


def check_size(tree: Any) -> None:
    """Refuse trees of more objects than `_MAX_LEAVES` parts need, or of many strategies, before an event is made of one.

    Raises:
        UnknownEvent: for these.
    """
    waiting, objects, strategies = [tree], 0, 0
    while waiting:
        value = waiting.pop()
        objects += isinstance(value, dict)
        if isinstance(value, dict) and "strategy" in value:
            strategies += 1
            if strategies > MOST_STRATEGIES:
                raise UnknownEvent(f"the tree has more than {MOST_STRATEGIES} strategies of correlated noise")
        if objects > _MAX_OBJECTS:
            raise UnknownEvent(f"the tree has more than {_MAX_OBJECTS} objects")
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _leaf_counts(event: dp_accounting.DpEvent, count: int) -> Iterator[int]:
    if isinstance(event, dp_event.ComposedDpEvent):
        for part in event.events:
            yield from _leaf_counts(part, count)
    elif isinstance(event, dp_event.SelfComposedDpEvent):
        yield from _leaf_counts(event.event, count * event.count)
    elif isinstance(event, dp_event.RepeatAndSelectDpEvent):
        trials = event.event.events if isinstance(event.event, OneOfDpEvent) else [event.event]
        for trial in trials:
            yield from _leaf_counts(trial, count)
    elif isinstance(event, CorrelatedGaussianDpEvent):
        yield from _leaf_counts(event.standard, count)
    else:
        yield count


def _decode(tree: Any, depth: int, *, under_selection: bool = False) -> dp_accounting.DpEvent:
    if depth > _MAX_DEPTH:
        raise UnknownEvent(f"event tree is nested deeper than {_MAX_DEPTH} levels")
    if not isinstance(tree, dict) or not isinstance(tree.get("type"), str):
        raise UnknownEvent(f"an event must be an object with a 'type', found {_cut(tree)}")
    cls = _ALLOWED.get(tree["type"])
    if cls is None:
        raise UnknownEvent(f"event class {_cut(tree['type'])} is not one of {', '.join(sorted(_ALLOWED))}")
    names = [field.name for field in attrs.fields(cls)]
    stated_fields = sorted(set(tree) - {"type"})
    if stated_fields != sorted(names):
        raise UnknownEvent(f"{tree['type']} has the fields {names}, found {_cut(stated_fields)}")
    selection = cls is dp_event.RepeatAndSelectDpEvent
    fields = {name: _decode_field(name, tree[name], depth, under_selection=selection) for name in names}
    if cls is OneOfDpEvent and not under_selection:
        raise UnknownEvent("one of several events stands under a selection alone")
    if cls is dp_event.RepeatAndSelectDpEvent and not _selects(fields["event"]):
        raise UnknownEvent("trials are composed of Gaussian and Laplace noise, and hold neither a selection nor failures")
    if cls is dp_event.PoissonSampledDpEvent and not isinstance(fields["event"], dp_event.GaussianDpEvent):
        raise UnknownEvent(
            f"a sampled event is one Gaussian noise, found {type(fields['event']).__name__}: several noises of "
            "one sample are merged before they are sampled"
        )
    if cls is CorrelatedGaussianDpEvent:
        try:
            return cls(**fields)
        except ValueError as error:
            raise UnknownEvent(str(error)) from None
    return cls(**fields)


def _selects(event: dp_accounting.DpEvent) -> bool:
    """Return whether a selection may be over trials of this event, which needs Renyi moments of its own."""
    if isinstance(event, OneOfDpEvent | dp_event.ComposedDpEvent):
        return all(_selects(part) for part in event.events)
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return _selects(event.event)
    return isinstance(event, dp_event.GaussianDpEvent | dp_event.LaplaceDpEvent | dp_event.PoissonSampledDpEvent)


def _decode_field(name: str, value: Any, depth: int, *, under_selection: bool) -> Any:
    if name == "event":
        return _decode(value, depth + 1, under_selection=under_selection)
    if name == "events":
        if not isinstance(value, list) or not value:
            raise UnknownEvent("'events' must be a list of at least one event")
        return [_decode(item, depth + 1) for item in value]
    if name == "strategy":
        try:
            return Strategy.from_json(value)
        except ValueError as error:
            raise UnknownEvent(f"strategy of correlated noise: {str(error)[:200]}") from None
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST
    if name == "epsilon":
        if not number or value != 0.0:
            raise UnknownEvent(f"epsilon={_cut(value)} of what is only (epsilon, delta)-private: expected 0")
        return 0.0
    if name == "delta":
        if not number or not SMALLEST_FAILURE <= value < 1.0:
            raise UnknownEvent(f"delta={_cut(value)}: expected a number from {SMALLEST_FAILURE:g} to 1")
        return float(value)
    if name == "count":
        if not number or not isinstance(value, int) or not 1 <= value <= _MAX_COUNT:
            raise UnknownEvent(f"count={_cut(value)}: expected a whole number from 1 to {_MAX_COUNT}")
        return value
    if name == "mean":
        if not number or not SMALLEST_MEAN <= value <= LARGEST_MEAN:
            raise UnknownEvent(f"mean={_cut(value)} of a number of trials: expected {SMALLEST_MEAN:g} to {LARGEST_MEAN:g}")
        return float(value)
    if name == "shape":
        shape = math.inf if value == _INFINITE else value
        if type(shape) is bool or shape not in SHAPES.values():
            raise UnknownEvent(f"shape={_cut(value)} of a number of trials: expected 0, 1 or {_INFINITE!r}")
        return float(shape)
    if not number or value <= _SMALLEST or (name == "sampling_probability" and value > 1):
        raise UnknownEvent(f"{name}={_cut(value)}: expected {_SMALLEST:g} to {_LARGEST:g}, a rate at most 1")
    return float(value)


def _cut(value: Any) -> str:
    """Return a value as a message quotes it, shortened."""
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def stage_events(accesses: Iterable[tuple[Access, int]], *, pure: bool = False) -> list[tuple[str, dp_accounting.DpEvent]]:
    """Return the event of each stage, in order, from run-length encoded accesses.

    Neighbours of one stage with the same cost are counted together, so that a thousand equal lots are one
    ``SelfComposedDpEvent`` and the plan's tree equals the ledger's field by field. If any access is not private, the
    whole is one ``NonPrivateDpEvent``. For `pure` (delta = 0) see `Access.event_at`. Steps with correlated noise are one
    event together, however many of them there are.

    Raises:
        ValueError: for more steps with correlated noise than its strategy has.
    """
    runs: list[tuple[str, dp_accounting.DpEvent, int]] = []
    for access, count in accesses:
        if not access.private:
            return [("not private", dp_accounting.NonPrivateDpEvent())]
        event = access.event_at(pure=pure)
        if runs and runs[-1][:2] == (access.stage, event):
            runs[-1] = (access.stage, event, runs[-1][2] + count)
        else:
            runs.append((access.stage, event, count))
    stages: list[tuple[str, list[dp_accounting.DpEvent]]] = []
    for stage, event, count in runs:
        if isinstance(event, CorrelatedGaussianDpEvent):
            if count > event.strategy.steps:
                raise ValueError(f"stage {stage!r}: {count} steps, and its strategy is one of {event.strategy.steps}")
        elif count > 1:
            event = dp_accounting.SelfComposedDpEvent(event, count)
        if stages and stages[-1][0] == stage:
            stages[-1][1].append(event)
        else:
            stages.append((stage, [event]))
    return [(stage, events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)) for stage, events in stages]


def compose_events(events: list[dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
    """Return the ordered composition; a single event stands for itself."""
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(list(events))
