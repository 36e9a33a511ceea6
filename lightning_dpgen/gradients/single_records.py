"""Code that is called with each record of a lot alone, without gradients: for numbers of records beside a loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.common.precision import HAS_AMX
from lightning_dpgen.gradients.engine_check import unchanged
from lightning_dpgen.gradients.engines import torch_draws_from
from lightning_dpgen.gradients.isolation.isolation import Isolation
from lightning_dpgen.gradients.isolation.padded_products import PaddedProducts
from lightning_dpgen.gradients.probes import UNSUITED, WHOLE, probe_lot
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.trees import leaves_of, map_tree


def call_with_records(code: Callable[[Any], object], lot: Lot, example: Any, stream: PrivateStream, some: Tensor) -> None:
    """Call code once, with what looks like a lot of one record, for all records of a lot (`Isolation`).

    A lot in slots is laid out in them, and the code runs for each slot. For a lot of no record it runs for a made-up one,
    so that the number of calls is public. All that the code draws from torch's generators is a record's own.

    Args:
        code: takes a batch of one record; what it returns is dropped.
        example: a public record (1, ...).
        stream: the private stream.
        some: a tensor of the network's, for the device.

    Raises:
        ValueError: for code that would need to see more than its own record.
    """
    lot = lot.fetch()
    if lot.slots is not None:
        empty, slots = iter(leaves_of(example)), lot.slots
        records, size = map_tree(lambda x: slots.spread(x, next(empty)), lot.records), slots.size
    else:
        records, size = (lot.records, len(lot)) if len(lot) else (example, 1)

    def of_one(record: Any) -> None:
        code(record)

    # Its products are not known before, so rows of bfloat16 are filled up wherever that may be needed.
    apart = PaddedProducts() if some.device.type == "cpu" and HAS_AMX else nullcontext()
    with torch.no_grad(), torch_draws_from(stream, some.device), apart:
        Isolation(size).run(of_one, map_tree(lambda x: x.unsqueeze(1), records))


def try_with_records(code: Callable[[Any], object], network: nn.Module, empty: Any, stream: PrivateStream) -> Any:
    """Call code with made-up records, as `call_with_records` does; counters and buffers of the network stay as they are.

    Args:
        empty: the records of an empty lot.

    Returns:
        A public record (1, ...) that the code takes.

    Raises:
        ValueError: as `call_with_records`; or if it takes no made-up record, with the first error of it.
    """
    some, first = next(network.parameters()), None
    for whole in WHOLE:
        made = probe_lot(Lot(empty, (0, 0)), some.detach().new_zeros(0, 0), 3, whole=whole)[0]
        example = map_tree(lambda x: x[:1], made.records)
        try:
            with unchanged(network):
                call_with_records(code, made, example, stream, some)
            return example
        except UNSUITED as error:
            first = first or error
    raise ValueError(
        f"takes no made-up record of numbers from {WHOLE[0]} to {WHOLE[-1]} ({type(first).__name__}: {first}), with which "
        "it is tried before anything is spent"
    ) from first
