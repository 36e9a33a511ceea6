"""The gradients of a term, captured once for lots in slots: later lots are replayed without the Python of the loss.

A lot is copied into fixed memory, and its losses, gradients and norms, and the weighted sum after that, are the operations
that were recorded (`replay`). What a rule chooses from the norms, the ledger and the noise stay as they are. A loss is
captured where its Python does the same in each step (`steady_code`), and where a replay gives what the loss gives for
made-up records.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.common.precision import full_precision
from lightning_dpgen.gradients.engines import ENGINES, known_record, term_gradients, torch_draws_from
from lightning_dpgen.gradients.lot_number import NumberUsed, hidden_number
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.replay import record
from lightning_dpgen.gradients.steady_code import SteadyCode
from lightning_dpgen.gradients.terms import PerGroup, PerRecord, code_of, is_same_loss
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.slots import Slots
from lightning_dpgen.sampling.trees import leaves_of, map_tree

# The part of their size by which replayed norms and sums may differ from those of the loss: sums of embeddings are added up
# on a GPU in any order.
_ROUNDING = 1e-4
# A GPU has masked so many numbers of factors before its answer, if any is to be masked, would be there.
_MASKED = 1 << 24
# Kinds of lots and losses whose captures an optimizer holds, and how often it captures one again.
_MOST, _AGAIN = 8, 3


class NotCaptured(Exception):
    """A term is not captured; the message says why."""


class CapturedGradients(PerSampleGradients):
    """The gradients of a lot in slots, in the memory of a `CapturedTerm` until its next lot. Private.

    Args:
        term: the term whose replay made them.
        layers: as for `PerSampleGradients`.
        norms: (S,) of all slots.
        losses: (S,).
    """

    def __init__(
        self, term: CapturedTerm, layers: Sequence[Sequence[nn.Parameter]], lot: Lot, norms: Tensor, losses: Tensor
    ) -> None:
        assert lot.slots is not None
        places = lot.slots.places_on(norms.device)
        # The next lot overwrites them.
        of_records = losses[places]
        super().__init__(
            {}, layers, len(lot), lot.draw, offsets=lot.offsets, persons=lot.persons, losses=lambda: of_records,
            places=places,
        )  # fmt: skip
        # Those of the property, which would compute them from factors.
        vars(self)["_all_norms"] = norms
        self._term, self._computed = term, term.computed

    def add_to(self, weights: Tensor) -> None:
        """Add ``sum_i weights[i] gradient_i`` to the buffer that the term was captured for."""
        if self._term.computed != self._computed:
            raise RuntimeError(
                "captured gradients are those of the lot that was computed last, and another one was computed since: take "
                "the step, or add the part, before the next compute_gradients; or pass capture=False"
            )
        # As in `weighted_sums`, the guarantee must not rest on each caller.
        with full_precision(weights.device):
            self._term.add_weighted(self._by_row(weights), self._all_norms)

    def add_pieces(self, weights: Any, pieces: Any) -> None:
        raise RuntimeError("captured gradients are added to their own optimizer's buffer alone, by one weight a record")

    @property
    def _all_squares(self) -> Tensor:
        raise RuntimeError("captured gradients have norms over all parameters alone: make the optimizer without slots")


class CapturedTerm:
    """A per-record term whose lots in slots are replayed.

    Args:
        network: its trainable parameters are differentiated.
        term: the loss; it was computed for a lot before, so that it was checked.
        lot: a lot in slots, of which shapes and types alone are looked at.
        flat: the buffer of the sums, of all parameters one behind the other.
        views: the view of each parameter in it.
        stream: the private stream.
        engine: as for `term_gradients`.
        logged: the dict into which the loss writes values by name, for `PrivateOptimizer.compute_gradients`.

    Raises:
        NotCaptured: saying why the Python of the loss has to run in each step.
    """

    def __init__(
        self,
        network: nn.Module,
        term: PerRecord,
        lot: Lot,
        flat: Tensor,
        views: dict[nn.Parameter, Tensor],
        stream: PrivateStream,
        engine: str,
        logged: dict[str, Any] | None = None,
    ) -> None:
        assert lot.slots is not None
        # A loss that is made anew for each lot is the same while what it is closed over lives.
        self._term = term
        self._flat, self._views, self._stream, self._size = flat, views, stream, lot.slots.size
        self._parameters = list(network.parameters())
        self._records = map_tree(lambda x: x.new_zeros(self._size, *x.shape[1:]), lot.records)
        self._noise = flat.new_full((self._size, term.noise), 0.5)
        self._weights = flat.new_zeros(self._size)
        self._silenced = torch.zeros(self._size, dtype=torch.bool, device=flat.device)
        self._example = leaves_of(known_record(network, engine, term)) or [None] * len(leaves_of(self._records))
        self._logged = {} if logged is None else logged
        # References to the network are those of the optimizer's key alone.
        self._compute = functools.partial(ENGINES[engine], network, term, Lot(self._records, (0, self._size)), self._noise)
        self._made: list[PerSampleGradients] = []
        self.replays = 0
        # The number of times that its memory was written.
        self.computed = 0
        buffers = [(x, x.clone()) for x in network.buffers()]
        try:
            with self._on_made_up():
                self._capture(network)
        except NotCaptured:
            raise
        except NumberUsed as used:
            raise NotCaptured(f"the training step {used}") from None
        except Exception as error:
            text = str(error)[:200]
            raise NotCaptured(f"the loss cannot be recorded ({type(error).__name__}: {text})") from None
        finally:
            with torch.no_grad():
                for x, before in buffers:
                    # A loss that is refused may have written into them.
                    x.copy_(before)
        self._memory = self._places_in_memory()

    def _capture(self, network: nn.Module) -> None:
        """Watch the loss, record it, and compare a replay."""
        # torch loads a part of itself when operations are first watched, whose Python is not that of the loss.
        record([lambda: [torch.empty(0)]], torch.device("cpu"))
        self._steady = SteadyCode(network)
        # A loss that may write into a list is accepted where a second call changes nothing.
        for _ in range(2):
            with self._same_draws(), hidden_number(), self._steady.watching(self._term.loss):
                self._losses()
        if (reason := self._steady.reason()) is not None:
            raise NotCaptured(reason)
        computations = [self._losses, self._own_norms, self._add, functools.partial(self._add, self._silenced)]
        with self._same_draws(), hidden_number():
            self._gradients, self._norms, self._sum, self._silenced_sum = record(computations, self._flat.device)
        self._values = dict(self._logged)
        self._always_masked = self._flat.is_cuda and self._numbers_of_factors() <= _MASKED
        # Other records than those that were recorded: what was not seen to follow from these would stay what it was.
        if (reason := self._difference()) is not None:
            raise NotCaptured(reason)

    def _losses(self) -> list[Tensor]:
        """Call the loss, and return the losses, and the values that it logs; one that is no tensor is always the same."""
        self._logged.clear()
        self._made[:] = [self._compute()]
        losses = self._made[0].losses
        assert losses is not None, "an engine gives them"
        return [losses.detach(), *(x for x in self._logged.values() if isinstance(x, Tensor))]

    def _own_norms(self) -> list[Tensor]:
        return [self._made[0]._all_norms]

    def _numbers_of_factors(self) -> int:
        numbers: list[int] = []

        def count(x: Tensor) -> Tensor:
            numbers.append(x.numel())
            return x

        for factors in self._made[0]._factors.values():
            # Those of a large network may have to be multiplied out to be counted.
            if sum(numbers) + self._flat.numel() <= _MASKED:
                factors.mapped(count)
        return sum(numbers) + self._flat.numel()

    def _add(self, silenced: Tensor | None = None) -> list[Tensor]:
        with full_precision(self._flat.device):
            for p, factors in self._made[0]._factors.items():
                factors.weighted_sum(self._weights, silenced, self._views[p], add=True)
        return []

    @contextmanager
    def _on_made_up(self) -> Iterator[None]:
        """Return a context in which slots hold made-up records; sums and logged values are as they were afterwards."""
        self.computed += 1
        sums, logged = self._flat.clone(), dict(self._logged)
        for x, empty in zip(leaves_of(self._records), self._example, strict=True):
            x.zero_() if empty is None else x.copy_(empty.expand_as(x))
        self._noise.fill_(0.5)
        try:
            yield
        finally:
            self._flat.copy_(sums)
            self._logged.clear()
            self._logged.update(logged)
            if self._made:
                self._layers = self._made.pop()._layers

    def _difference(self) -> str | None:
        """Return in words how a replay differs from the loss, for made-up records; None if it does not."""
        self._vary()
        with self._same_draws():
            expected = [*self._losses(), *self._own_norms()]
        # A lot before may have had records that are not finite.
        self._silenced.zero_()
        self._flat.zero_()
        self._add()
        expected.append(self._flat.clone())
        for add in (self._sum, self._silenced_sum):
            self._flat.zero_()
            with self._same_draws():
                found = self._computed()
            with full_precision(self._flat.device):
                add()
            if (reason := self._compared([*found, self._flat], expected)) is not None:
                return reason
        return None

    def _vary(self) -> None:
        """Change the made-up records, their noise and their weights."""
        by = torch.linspace(0.5, 1.0, self._size, device=self._flat.device)
        for x in (*leaves_of(self._records), self._noise):
            if x.is_floating_point():
                x.mul_(by.to(x.dtype).view(-1, *(1,) * (x.dim() - 1)))
        self._weights.copy_(by)

    @staticmethod
    def _compared(found: Sequence[Tensor], expected: Sequence[Tensor]) -> str | None:
        if len(found) != len(expected):
            return "the loss logs other values in one step than in the next"
        for own, its in zip(found, expected, strict=True):
            size = float(its.abs().nan_to_num(0.0, 0.0, 0.0).max())
            if not torch.allclose(own, its, rtol=_ROUNDING, atol=_ROUNDING * size, equal_nan=True):
                return (
                    "replayed gradients of made-up records are not those of the loss: it computes something that torch "
                    "does not show, or draws outside of records"
                )
        return None

    def _same_draws(self) -> torch_draws_from:
        """Return a context in which torch draws the same numbers each time: for made-up records alone."""
        return torch_draws_from(PrivateStream(seed=0), self._flat.device)

    def _places_in_memory(self) -> list[int]:
        return [p.data_ptr() for p in self._parameters]

    def changed(self, term: PerRecord) -> str | None:
        """Return what has changed since, so that the loss has to be called again; None if nothing has.

        Args:
            term: that of this step.
        """
        own = self._term
        if term is not own and not (
            term.noise == own.noise
            and term.example is own.example
            and is_same_loss(term.loss, own.loss)
            and is_same_loss(term.forms, own.forms)
        ):
            return "the loss of this step is closed over other values than that of the step before: hand over the same one"
        if self._places_in_memory() != self._memory:
            return "a parameter was moved to other memory"
        return self._steady.changed()

    def check(self) -> str | None:
        """Compare a replay with the loss once more where that is due: after 8 replays, and twice as many each time.

        Returns:
            In words how they differ; None if they do not.
        """
        self.replays += 1
        if self.replays < 8 or self.replays & (self.replays - 1):
            return None
        try:
            with self._on_made_up():
                reason = self._difference()
        except Exception as error:
            reason = f"the loss cannot be called again ({type(error).__name__}: {str(error)[:200]})"
        return reason

    def _lay_out(self, slots: Slots, lot: Lot) -> None:
        """Copy the records of a lot to their slots, and made-up ones to the others."""
        places = slots.places_on(self._flat.device)
        for x, records, empty in zip(leaves_of(self._records), leaves_of(lot.records), self._example, strict=True):
            x.zero_() if empty is None else x.copy_(empty.expand_as(x))
            x.index_copy_(0, places, records.to(x))

    def gradients(self, lot: Lot) -> CapturedGradients:
        """Compute the gradients of a lot in slots; those of the lot before are gone then."""
        lot = lot.fetch()
        assert lot.slots is not None
        self.computed += 1
        self._lay_out(lot.slots, lot)
        if self._noise.shape[1]:
            shape, kind = tuple(self._noise.shape), {"dtype": self._noise.dtype, "device": self._noise.device}
            self._noise.copy_(self._stream.normal(shape, **kind))
        if self._gradients.draws:
            with torch_draws_from(self._stream, self._flat.device):
                losses, *values, norms = self._computed()
        else:
            losses, *values, norms = self._computed()
        of_lot = iter(values)
        self._logged.update({name: next(of_lot) if isinstance(x, Tensor) else x for name, x in self._values.items()})
        return CapturedGradients(self, self._layers, lot, norms, losses)

    def _computed(self) -> list[Tensor]:
        """Replay losses, logged values, gradients and norms, the last as `PerSampleGradients` does, in full precision."""
        losses = self._gradients()
        with full_precision(self._flat.device):
            return [*losses, *self._norms()]

    def add_weighted(self, weights: Tensor, norms: Tensor) -> None:
        """Add the weighted sum over all slots to the buffer; a slot whose norm is not finite adds exact zeros."""
        self._weights.copy_(weights)
        # A sum is finite only if all norms are.
        if not self._always_masked and math.isfinite(float(norms.sum())):
            self._sum()
        else:
            self._silenced.copy_(~norms.isfinite())
            self._silenced_sum()


class Captures:
    """The captured terms of an optimizer, by what they were captured for.

    Args:
        flat, views: as for `CapturedTerm`.
    """

    def __init__(self, flat: Tensor, views: dict[nn.Parameter, Tensor]) -> None:
        self._flat, self._views = flat, views
        # By network, engine, loss and shapes of lots in slots: None before a capture, the reason why there is none.
        self._terms: dict[tuple, CapturedTerm | str | None] = {}
        # The number of times that each was captured again, as a value had changed.
        self._again: dict[tuple, int] = {}
        self._unfit: str | None = None
        # The number of rows of the last lot, or of its last part; None without slots.
        self.slots: int | None = None

    def gradients(
        self,
        network: nn.Module,
        term: PerRecord | PerGroup,
        lot: Lot,
        stream: PrivateStream,
        engine: str,
        logged: dict[str, Any],
        unfit: str | None = None,
    ) -> PerSampleGradients:
        """Return the gradients of a lot, by a replay from the second lot of a kind on, if it is in slots.

        Args:
            unfit: why the optimizer takes no captured gradients, in words; None if it does.
        """
        lot = lot.fetch()
        self.slots = None if lot.slots is None else lot.slots.size
        if lot.slots is not None:
            self._unfit = unfit or (None if isinstance(term, PerRecord) else "its term is one of groups")
            if self._unfit is None and (captured := self._captured(network, term, lot, stream, engine, logged)) is not None:
                return captured.gradients(lot)
        return term_gradients(network, term, lot, stream, engine=engine)

    def _captured(
        self, network: nn.Module, term: PerRecord, lot: Lot, stream: PrivateStream, engine: str, logged: dict[str, Any]
    ) -> CapturedTerm | None:
        assert lot.slots is not None
        shapes = tuple((x.shape[1:], x.dtype) for x in lot.tensors)
        # The network itself, as the next one may have the id of one that is gone.
        key = network, engine, code_of(term.loss), lot.slots.size, shapes
        if key not in self._terms:
            # Its first lot, before which the loss is checked. A program may make a network for each lot.
            if len(self._terms) == _MOST:
                del self._terms[next(iter(self._terms))]
            self._terms[key] = None
            return None
        state = self._terms[key]
        if isinstance(state, str):
            return None
        try:
            if state is None:
                given = self._flat, self._views, stream, engine, logged
                state = self._terms[key] = CapturedTerm(network, term, lot, *given)
            elif (reason := state.changed(term)) is not None:
                self._terms[key] = None
                self._again[key] = self._again.get(key, 0) + 1
                if self._again[key] > _AGAIN:
                    raise NotCaptured(f"{reason}, for the {self._again[key]}th time")
                return None
            elif (reason := state.check()) is not None:
                self._terms[key] = reason
                warnings.warn(
                    f"captured steps: {reason}. A value that the loss follows from has changed where no capture sees it, "
                    f"so up to {state.replays // 2:,} steps may have trained the loss as it was; steps are not captured "
                    "from here on. Keep such a value as a buffer of the network, and write into that; or train with "
                    "capture=False",
                    stacklevel=2,
                )
                return None
        except NotCaptured as error:
            self._terms[key] = str(error)
            return None
        return state

    @property
    def in_words(self) -> str | None:
        """In words, if steps are captured or why not; None before the second lot in slots."""
        if self._unfit is not None:
            return f"not captured: {self._unfit}"
        if len(self._terms) == _MOST and not any(self._terms.values()):
            return "not captured: each lot has a network or a loss of its own: make them once"
        states = [state for state in self._terms.values() if state is not None]
        reasons = [state for state in states if isinstance(state, str)]
        return f"not captured: {reasons[0]}" if reasons else "captured" if states else None
