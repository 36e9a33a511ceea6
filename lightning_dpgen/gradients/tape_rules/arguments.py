"""Values and records behind the arguments of a function, and the gradient of one number for each channel."""

from __future__ import annotations

from torch import Tensor

from lightning_dpgen.gradients.factors import Dense
from lightning_dpgen.gradients.hidden import is_hidden
from lightning_dpgen.gradients.tape import Tape, TracedParameter


def value_of(x):
    """Return the plain tensor behind a traced parameter, without a gradient; anything else as it is."""
    return x.source.detach() if isinstance(x, TracedParameter) else x


def records_behind(tape: Tape, x, least: int, *parameters) -> Tensor | None:
    """Return the records (B, ...) behind an input, or None where no rule is right.

    Args:
        tape, x: as of a rule.
        least: the fewest dimensions of a record; with fewer, that of the lot would be taken for one of them.
        parameters: the other arguments; a rule knows only traced parameters and public tensors among them.
    """
    rows = tape.rows(x)
    return None if rows is None or rows.dim() <= least or any(map(is_hidden, parameters)) else rows


def sum_by_channel(gradient: Tensor, size: int, like: Tensor) -> Dense:
    """Return the gradient (B, channels) of one number for each channel, from that of the result (B q, channels, ...)."""
    return Dense(gradient.reshape(size, -1, *gradient.shape[1:2], gradient[0, 0].numel()).sum(dim=(1, 3)).to(like.dtype))
