"""Exact sums over the records of several ranks, each of which computes those of its own part."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_dpgen.passes.executor import PassExecutor
from lightning_dpgen.passes.reduce import BlockSums, Keyed, reduce
from lightning_dpgen.privacy.noise.units import check_multiples
from lightning_dpgen.privacy.ranks import Ranks


def reduce_over_ranks(
    ranks: Ranks, blocks: Keyed, function: BlockSums, executor: PassExecutor | None = None, *, records: int
) -> dict[str, Tensor]:
    """Return exact sums over the records of all ranks, in each of them; all of them call it.

    Whole numbers are added up, so the sums are those of one process to the last bit. They travel in one tensor, with the
    number of records that each rank has gone through.

    Args:
        ranks: who takes part; one alone sends nothing.
        blocks: the records of this rank; there may be none.
        function, executor: as for `reduce`.
        records: the number of records of all ranks. Private.

    Raises:
        ValueError: as `reduce`, or for sums that leave no room for those of the other ranks.
        RuntimeError: if the ranks together have gone through another number of records.
        RankLost: if a rank is gone; nothing was spent.

    Example:
        >>> from lightning_dpgen.data.layout import Encoded
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> from lightning_dpgen.data.records import Records
        >>> from lightning_dpgen.passes.blocks import Slices
        >>> class Ink:
        ...     shapes = {"ink": (2,)}
        ...     def __call__(self, records):
        ...         return {"ink": torch.from_numpy(records.encoded.units.astype("int64")).sum(0)}
        >>> units, codes = torch.eye(2, dtype=torch.uint8).numpy(), torch.zeros(2, 0, dtype=torch.uint8).numpy()
        >>> records = Records(ImageSchema(1, 2, levels=1), Encoded(units, codes))
        >>> reduce_over_ranks(Ranks(), Slices(records, rows=1), Ink(), records=2)
        {'ink': tensor([1, 1])}
    """
    own = reduce(blocks, function, executor)
    flat = torch.cat([torch.tensor([len(blocks)]), *(sums.reshape(-1) for sums in own.values())])
    for name, sums in own.items():
        check_multiples(name, sums, ranks.size)
    ranks.sum_(flat)
    if int(flat[0]) != records:
        raise RuntimeError("a pass over the records of all ranks left some out, or took some twice: expected each once")
    parts = flat[1:].split([sums.numel() for sums in own.values()])
    return {name: part.view(sums.shape).clone() for (name, sums), part in zip(own.items(), parts, strict=True)}
