"""Gradients of lots by replaying torch's operations, where the code of a loss does nothing else.

A step of a small network spends most of its time in Python: in the guard of the loss, in vmap and in autograd. Once the
operations of a loss are known (`recorded`), they are replayed without it. They are taken only if they give the very
gradients of a lot, to the last bit, and are compared again now and then. A loss stays with its code if that looks at the
Trainer or at the index of its batch, logs a value, or writes into what is kept; a layer or a number of it that is changed
is recorded anew.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

# Lots between two comparisons of what is replayed with what is computed anew.
_COMPARED_EVERY = 64
# Losses of a network that are recorded: one whose numbers are others with each lot is never.
_MOST = 16
_PRIMITIVE = (int, float, bool, str, type(None))


@dataclass
class _State:
    """The recordings of one loss.

    Attributes:
        watched: what the code of the loss may look at besides its records, as it was when they were made.
        first: the last recording, until there is a program for all sizes, or none is to be.
        program: what is replayed.
        why: why nothing is; None while that is not known.
        count: the lots since the program was made.
    """

    watched: list[_Watched]
    first: Recording | None = None
    program: Program | None = None
    why: str | None = None
    count: int = 0


_states: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, _State]] = weakref.WeakKeyDictionary()
# The reasons against a replay of what is being recorded; one list for each recording that is under way.
_under_way: list[list[str]] = []


def repeat(
    compute: Callable[[], PerSampleGradients], network: nn.Module, loss: Callable, lot: Lot, noise: Tensor
) -> PerSampleGradients:
    """Return the gradients of a lot: by replaying torch's operations once they are known, else by computing them.

    Args:
        compute: computes them by code; what it draws comes from torch's default generators, which are keyed.
        network: the network whose parameters they are of.
        loss: the loss that `compute` calls.
        lot: two records or more, of a single component.
        noise: (B, term.noise).
    """
    given = [*leaves_of(lot.records), noise]
    key = _key(loss, given)
    states = _states.setdefault(network, {})
    state = states.get(key)
    if key is None or (state is None and len(states) >= _MOST):
        return compute()
    if state is None or not all(watched.is_as_it_was() for watched in state.watched):
        states[key] = state = _State(_watch(network))
    if state.why is not None:
        return compute()
    size = len(lot)
    if state.program is not None and state.program.fits(size):
        state.count += 1
        if state.count % _COMPARED_EVERY:
            return _gradients(state.program(given, size), network, lot)
    before = _generators()
    reasons: list[str] = []
    _under_way.append(reasons)
    try:
        with _watched_trainer(network), Recorder() as recorder:
            gradients = compute()
    finally:
        _under_way.pop()
    try:
        if reasons:
            raise NotRepeatable(reasons[0])
        _learn(state, number_tensors(recorder, given, _output(gradients), size), given, gradients, before)
    except NotRepeatable as error:
        state.first, state.program, state.why = None, None, str(error)
    return gradients


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


def _learn(state: _State, tape: Recording, given: list[Tensor], gradients: PerSampleGradients, before: list) -> None:
    """Make a program of this recording and the one before, or compare the one that there is."""
    program = state.program
    if program is None or not program.fits(tape.size):
        if state.first is None:
            state.first = tape
            return
        program = Program(state.first, tape, len(given))
        state.first = None if program.is_general else tape
    after = _generators()
    for generator, words in before:
        generator.set_state(words)
    replayed = program(given, tape.size)
    drawn = all(torch.equal(words, other) for (_, words), (_, other) in zip(_generators(), after, strict=True))
    for generator, words in after:
        generator.set_state(words)
    if not drawn or not _is_equal(map_fields(lambda x: x, _output(gradients)), map_fields(lambda x: x, replayed)):
        raise NotRepeatable("its gradients are others than those of the same operations: it changes with time")
    state.program = program


def _output(gradients: PerSampleGradients) -> dict[str, Any]:
    return {"factors": dict(gradients._factors), "losses": gradients.losses}


def _gradients(output: Mapping[str, Any], network: nn.Module, lot: Lot) -> PerSampleGradients:
    return PerSampleGradients(
        output["factors"], checked_layers(network), len(lot), lot.draw, losses=lambda: output["losses"],
        offsets=lot.offsets, persons=lot.persons,
    )  # fmt: skip


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


def _key(loss: Any, given: Sequence[Tensor]) -> Hashable:
    """Return what a program is for: a loss with the numbers in it, and the form of its records; None where none may be."""
    code = _identity(loss)
    if code is None:
        return None
    device = given[0].device.type
    mixed = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    return code, mixed, tuple((x.shape[1:], x.dtype) for x in given)


def _identity(loss: Any) -> Hashable:
    """Return the code of a loss with the values that it is closed over; None for others than primitives and modules."""
    if isinstance(loss, functools.partial):
        values, code = (*loss.args, *loss.keywords.values()), loss.func
    elif isinstance(loss, types.MethodType):
        return loss.__func__, id(loss.__self__)
    elif isinstance(loss, types.FunctionType):
        values, code = [cell.cell_contents for cell in loss.__closure__ or ()], loss.__code__
    else:
        return id(loss) if isinstance(loss, nn.Module) else None
    if not isinstance(code, types.CodeType):
        code = _identity(code)
    held = []
    for x in values:
        if isinstance(x, _PRIMITIVE):
            held.append((type(x), x))
        elif isinstance(x, nn.Module):
            held.append(id(x))
        else:
            held.append(_identity(x) if callable(x) else None)
    return None if code is None or None in held else (code, *held)


@dataclass(frozen=True)
class _Watched:
    """An attribute that the code of a loss may look at, as it was.

    Args:
        owner: the attributes among which it stands.
        value: a number, text or None; of another object a function that returns it while it lives; None where it can only
            be told by its number.
        number: the identity of an object that no weak reference can be made to.
    """

    owner: dict[str, Any]
    name: str
    value: Any
    number: int | None = None

    @classmethod
    def of(cls, owner: dict[str, Any], name: str) -> _Watched:
        value = owner[name]
        if isinstance(value, _PRIMITIVE):
            return cls(owner, name, value)
        try:
            return cls(owner, name, weakref.ref(value))
        except TypeError:
            return cls(owner, name, None, id(value))

    def is_as_it_was(self) -> bool:
        """Return whether the attribute has the value that it had; what a list or a dict holds is not looked at."""
        value = self.owner.get(self.name, _under_way)
        if self.number is not None:
            return id(value) == self.number
        if isinstance(self.value, weakref.ref):
            return self.value() is value
        return type(value) is type(self.value) and value == self.value


def _watch(network: nn.Module) -> list[_Watched]:
    """Return the attributes and buffers of all layers; parameters are those that gradients are of, and are written into."""
    return [
        _Watched.of(owner, name)
        for module in network.modules()
        for owner in (vars(module), module._buffers)
        for name in owner
        if name not in _UNWATCHED
    ]


# Those of Lightning that are others in each step, and lists of the parameters of a recurrent layer.
_UNWATCHED = {"_current_fx_name", "_trainer", "_fabric", "_results", "_flat_weights", "_flat_weight_refs"}


class _WatchedTrainer:
    """A Trainer whose every look forbids a replay: a step that follows from its number is another one each time."""

    def __init__(self, trainer: Any) -> None:
        vars(self)["_lightning_dpgen_trainer"] = trainer

    def __getattr__(self, name: str) -> Any:
        forbid_replay(f"it looks at trainer.{name}")
        return getattr(vars(self)["_lightning_dpgen_trainer"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        forbid_replay(f"it sets trainer.{name}")
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
