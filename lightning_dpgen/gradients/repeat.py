"""Gradients of lots by replaying torch's operations, where the code of a loss does nothing else.

A step of a small network spends most of its time in Python: in the guard of the loss, in vmap and in autograd. Once the
operations of a loss are known (`recorded`), they are replayed without it. They are recorded on made-up records of public
sizes, after a public number of lots, and taken only if they give the very gradients of these, to the last bit; now and then
they are compared again. So no record decides whether the code of a loss is called. A loss stays with its code if that looks
at the Trainer or at the index of its batch, logs a value, or writes into what is kept; a layer or a number of it that is
changed is recorded anew.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.gradients.layers import checked_layers
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.recorded import (
    Built,
    NotRepeatable,
    Program,
    Recorder,
    Recording,
    map_fields,
    number_tensors,
    same_keys,
)
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.randomness import torch_generators
from lightning_dpgen.sampling.trees import leaves_of

# Lots before operations are recorded, which is worth nothing in a short run, and between two comparisons.
_BEFORE, _COMPARED_EVERY = 8, 256
# The numbers of made-up records that are recorded, and with which a program is compared.
_RECORDED, _COMPARED = (16, 17), (1, 40)
# Losses of a network that are recorded: one whose numbers are others with each lot is never.
_MOST = 16
_PRIMITIVE = (int, float, bool, str, type(None))


@dataclass
class _State:
    """The recordings of one loss.

    Attributes:
        watched: what the code of the loss may look at besides its records, as it was when they were made.
        owners: the objects that the loss is a method of, or holds.
        parameters: the identities of the trainable parameters then.
        renewed: how often either has changed.
        program: what is replayed.
        why: why nothing is; None while that is not known.
        count: the lots since.
    """

    watched: _Watch
    owners: list[weakref.ref]
    parameters: list[int]
    renewed: int = 0
    program: Program | None = None
    why: str | None = None
    count: int = 0

    def is_as_it_was(self, owners: Sequence[Any], parameters: list[int]) -> bool:
        """Return whether all that the loss may look at besides its records is what it was."""
        return (
            parameters == self.parameters
            and all(then() is now for then, now in zip(self.owners, owners, strict=True))
            and self.watched.is_as_it_was()
        )


_states: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, _State]] = weakref.WeakKeyDictionary()
# The reasons against a replay of what is being recorded; one list for each recording that is under way.
_under_way: list[list[str]] = []


def repeat(
    compute: Callable[[Lot, Tensor], PerSampleGradients],
    network: nn.Module,
    loss: Callable,
    lot: Lot,
    noise: Tensor,
    *,
    make_up: Callable[[int], tuple[Lot, Tensor]],
    by_code: Callable[[], PerSampleGradients],
    keyed: Callable[[], AbstractContextManager],
    skip: Callable[[], object],
) -> PerSampleGradients:
    """Return the gradients of a lot: by replaying torch's operations once they are known, else by computing them.

    Args:
        compute: computes the gradients of a lot by code.
        network: the network whose parameters they are of.
        loss: the loss that `compute` calls.
        lot: records of a single component.
        noise: (B, term.noise).
        make_up: returns as many made-up records of this form, public ones, with their noise.
        by_code: computes those of this lot, within `keyed`.
        keyed: returns a context in which torch's default generators are keyed from the private stream.
        skip: takes as much from that stream, and keys none.
    """
    given = [*leaves_of(lot.records), noise]
    owners: list[Any] = []
    key = _key(loss, given, owners)
    states = _states.setdefault(network, {})
    state = states.get(key)
    if key is None or (state is None and len(states) >= _MOST) or (state is not None and state.why is not None):
        with keyed():
            return by_code()
    layers = checked_layers(network)
    parameters = [id(p) for layer in layers for p in layer]
    if state is None or not state.is_as_it_was(owners, parameters):
        renewed = 0 if state is None else state.renewed + 1
        states[key] = state = _State(_Watch(network, owners), list(map(weakref.ref, owners)), parameters, renewed)
        if renewed > _MOST:
            state.why = "what it may look at is another each time"
    state.count += 1
    if state.count == _BEFORE or state.count % _COMPARED_EVERY == 0:
        with keyed():
            _learn(state, network, compute, make_up, owners, parameters)
            # For this lot the generators draw what they would have drawn.
            return by_code()
    if state.program is None or not state.program.fits():
        with keyed():
            return by_code()
    size = len(lot)
    if not size:
        skip()
        return compute(lot, noise)
    if state.program.draws:
        with keyed():
            output = state.program(given, size)
    else:
        skip()
        output = state.program(given, size)
    return PerSampleGradients(
        output["factors"], layers, size, lot.draw, losses=lambda: output["losses"], offsets=lot.offsets, persons=lot.persons
    )


def _learn(
    state: _State,
    network: nn.Module,
    compute: Callable[[Lot, Tensor], PerSampleGradients],
    make_up: Callable[[int], tuple[Lot, Tensor]],
    owners: list[Any],
    parameters: list[int],
) -> None:
    """Make the program of a loss, or compare it with the code; generators and buffers stay as they are."""
    before, buffers = _generators(), [(x, x.clone()) for x in network.buffers()]
    try:
        if state.program is None or not state.program.fits():
            recordings = []
            for size in _RECORDED:
                recordings.append(_record(network, compute, *make_up(size)))
                if not state.is_as_it_was(owners, parameters):
                    raise NotRepeatable("it changes what it may look at")
            state.program = Program(*recordings, len(leaves_of(make_up(1)[0].records)) + 1)
        for size in (*_COMPARED, *_RECORDED[1:]):
            _compare(state.program, compute, *make_up(size))
    except Exception as error:
        # Some code minds that a recording holds all tensors (one that it writes into must have no other owner).
        state.program, state.why = None, str(error)[:200]
    finally:
        for generator, words in before:
            generator.set_state(words)
        # A loss may write into them, and a call with made-up records leaves no trace there.
        for x, then in buffers:
            x.data.copy_(then)


def _record(network: nn.Module, compute: Callable[[Lot, Tensor], PerSampleGradients], lot: Lot, noise: Tensor) -> Recording:
    reasons: list[str] = []
    _under_way.append(reasons)
    try:
        with _watched_trainer(network), Recorder() as recorder:
            gradients = compute(lot, noise)
    finally:
        _under_way.pop()
    if reasons:
        raise NotRepeatable(reasons[0])
    return number_tensors(recorder, [*leaves_of(lot.records), noise], _output(gradients), len(lot))


def _compare(program: Program, compute: Callable[[Lot, Tensor], PerSampleGradients], lot: Lot, noise: Tensor) -> None:
    """Raise NotRepeatable unless a program gives the gradients of the code, to the last bit, and draws as much."""
    before = _generators()
    reasons: list[str] = []
    _under_way.append(reasons)
    try:
        expected = _output(compute(lot, noise))
    finally:
        _under_way.pop()
    after = _generators()
    for generator, words in before:
        generator.set_state(words)
    replayed = program([*leaves_of(lot.records), noise], len(lot))
    drawn = all(torch.equal(words, other) for (_, words), (_, other) in zip(_generators(), after, strict=True))
    if not drawn or not _is_equal(map_fields(lambda x: x, expected), map_fields(lambda x: x, replayed)):
        raise NotRepeatable("its gradients are others than those of the same operations: it changes with time")


def why_not(network: nn.Module) -> list[str]:
    """Return why losses of a network are computed by their code each time, of those for which that is known."""
    return [state.why for state in _states.get(network, {}).values() if state.why is not None]


def is_recording() -> bool:
    """Return whether operations are being recorded."""
    return bool(_under_way)


def forbid_replay(why: str) -> None:
    """Say that what is being computed does more than call torch, and must be computed by its code each time."""
    for reasons in _under_way:
        reasons.append(why)


def _output(gradients: PerSampleGradients) -> dict[str, Any]:
    return {"factors": dict(gradients._factors), "losses": gradients.losses}


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, Built):
        return a.kind is b.kind and _is_equal(dict(a.fields), dict(b.fields))
    if isinstance(a, dict):
        return same_keys(a, b) and all(map(_is_equal, a.values(), b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_is_equal, a, b))
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)
    return a == b


def _generators() -> list[tuple[torch.Generator, Tensor]]:
    return [(generator, generator.get_state()) for generator in torch_generators()]


def _key(loss: Any, given: Sequence[Tensor], owners: list[Any]) -> Hashable:
    """Return what a program is for: a loss with the numbers in it, and the form of its records; None where none may be.

    Args:
        owners: gets the objects that the loss is a method of, or holds.
    """
    code = _identity(loss, owners)
    if code is None:
        return None
    device = given[0].device.type
    mixed = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    return code, mixed, tuple((x.shape[1:], x.dtype) for x in given)


def _identity(loss: Any, owners: list[Any]) -> Hashable:
    """Return the code of a loss with the values that it is closed over; None where it holds what nothing watches."""
    if isinstance(loss, functools.partial):
        values, code = (*loss.args, *loss.keywords.values()), _identity(loss.func, owners)
    elif isinstance(loss, types.MethodType):
        values, code = (loss.__self__,), _identity(loss.__func__, owners)
    elif isinstance(loss, types.FunctionType):
        values, code = [cell.cell_contents for cell in loss.__closure__ or ()], loss.__code__
    else:
        return None
    held: list[Hashable] = [code]
    for x in values:
        if isinstance(x, _PRIMITIVE):
            held.append((type(x), x))
        elif isinstance(x, nn.Module | Tensor) or getattr(x, "is_repeatable", False):
            owners.append(x)
            held.append(id(x))
        else:
            held.append(_identity(x, owners))
    return None if None in held else tuple(held)


class _Watch:
    """Attributes and buffers of layers, which the code of a loss may look at besides its records, as they were.

    Lists and dicts are told by their identity, and what they hold is not looked at. Parameters are not watched: they are
    written into, and what is replayed reads them.

    Args:
        network: the network, whose layers are watched.
        owners: the objects that the loss is a method of, or holds; layers of modules among them are watched, too.
    """

    def __init__(self, network: nn.Module, owners: Sequence[Any]) -> None:
        self._primitive: list[tuple[dict[str, Any], str, type, Any]] = []
        self._objects: list[tuple[dict[str, Any], str, weakref.ref]] = []
        self._others: list[tuple[dict[str, Any], str]] = []
        self._numbers: list[int] = []
        modules = [network, *(x for x in owners if isinstance(x, nn.Module))]
        for layer in dict.fromkeys(layer for module in modules for layer in module.modules()):
            for owner in (vars(layer), layer._buffers, layer._modules):
                for name in owner.keys() - _UNWATCHED:
                    self._add(owner, name, owner[name])

    def _add(self, owner: dict[str, Any], name: str, value: Any) -> None:
        if isinstance(value, _PRIMITIVE):
            self._primitive.append((owner, name, type(value), value))
            return
        try:
            self._objects.append((owner, name, weakref.ref(value)))
        except TypeError:
            self._others.append((owner, name))
            self._numbers.append(id(value))

    def is_as_it_was(self) -> bool:
        """Return whether all of it is what it was."""
        for owner, name, kind, value in self._primitive:
            now = owner.get(name, _under_way)
            if type(now) is not kind or now != value:
                return False
        for owner, name, then in self._objects:
            if owner.get(name, _under_way) is not then():
                return False
        return [id(owner.get(name, _under_way)) for owner, name in self._others] == self._numbers


# Those of Lightning that are others in each step, and lists of the parameters of a recurrent layer.
_UNWATCHED = {"_current_fx_name", "_trainer", "_fabric", "_results", "_flat_weights", "_flat_weight_refs"}


class _WatchedTrainer:
    """A Trainer whose every look forbids a replay: a step that follows from its number is another one each time."""

    def __init__(self, trainer: Any) -> None:
        vars(self)["_lightning_dpgen_trainer"] = trainer

    def __getattr__(self, name: str) -> Any:
        forbid_replay(f"it looks at {name} of its Trainer")
        return getattr(vars(self)["_lightning_dpgen_trainer"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        forbid_replay(f"it sets {name} of its Trainer")
        setattr(vars(self)["_lightning_dpgen_trainer"], name, value)


@contextmanager
def _watched_trainer(network: nn.Module) -> Iterator[None]:
    """Put a watched Trainer in the place of a module's own one, within the block."""
    trainer = vars(network).get("_trainer")
    if trainer is None:
        yield
        return
    vars(network)["_trainer"] = _WatchedTrainer(trainer)
    try:
        yield
    finally:
        vars(network)["_trainer"] = trainer


class WatchedNumber(int):
    """A whole number whose every use forbids a replay, such as the index of a batch."""


def _watched_method(name: str) -> Callable:
    def call(self: WatchedNumber, *args: Any) -> Any:
        forbid_replay("it uses the index of its batch")
        return getattr(int, name)(self, *args)

    return call


# All that asks for the number, but for the making of it.
_ASKING = {name for name in dir(int) if callable(getattr(int, name))} - {"__new__", "__class__", "__getnewargs__"}
_ASKING -= set(dir(object)) - {
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__hash__",
    "__repr__",
    "__str__",
}
for _name in _ASKING - {"from_bytes"}:
    setattr(WatchedNumber, _name, _watched_method(_name))
