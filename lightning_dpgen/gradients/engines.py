"""Which engine computes per-record gradients."""

from __future__ import annotations

from torch import Tensor, nn

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.gradients.functional import functional_gradients
from lightning_dpgen.gradients.ghost import ghost_gradients
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise import PrivateStream

ENGINES = {"ghost": ghost_gradients, "func": functional_gradients}


def per_record_gradients(
    network: nn.Module, term: PerRecord, lot: Lot, stream: PrivateStream, *, engine: str = "ghost"
) -> tuple[RecordGradients, Tensor]:
    """Gradients and private losses (B,) of a lot, each record with randomness of its own from the private stream.

    Args:
        network: what is trained; `term.loss` calls it.
        term: the per-record loss.
        lot: the records.
        stream: the account's private stream.
        engine: ``ghost`` (linear layers, nothing materialised) or ``func`` (any network, B x P numbers).

    Raises:
        ValueError: for another engine, layers that it does not know, or layers that mix records.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: expected one of {sorted(ENGINES)}")
    some = next(network.parameters())
    noise = stream.normal((len(lot), term.noise), dtype=some.dtype, device=some.device)
    return ENGINES[engine](network, term, lot, noise)
