"""The distance of synthetic records to their nearest real one: copies, and records that are far from all."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightning_dpgen.metrics.tensors import check_records

# Numbers that are held at a time, and the real records among which the nearest is found exactly.
_AT_ONCE, _CANDIDATES = 1 << 24, 4


class NearestNeighbourDistance(Metric):
    """The Euclidean distance of each synthetic record to the nearest real one, beside that of other real records.

    Synthetic records at distance 0 are copies. A model that learned the data, and not its records, is about as far from
    them as held-out real records are; one that is much farther makes what the data do not have.

    Args:
        width: number of numbers of a record.

    Example:
        >>> metric = NearestNeighbourDistance(2)
        >>> metric.update(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), real=True)
        >>> metric.update(torch.tensor([[0.0, 0.0], [4.0, 5.0]]), real=False)
        >>> {name: float(value) for name, value in metric.compute().items()}
        {'mean': 2.5, 'median': 2.5, 'copies': 0.5}
    """

    full_state_update = False
    higher_is_better = None

    def __init__(self, width: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.width = width
        for side in ("real", "synthetic"):
            self.add_state(side, [], dist_reduce_fx="cat")

    def update(self, records: Tensor, *, real: bool) -> None:
        """Take in records (n, width) of one side.

        Raises:
            ValueError: for no tensor of finite numbers, or another width.
        """
        check_records("records", records, self.width)
        (self.real if real else self.synthetic).append(records.to(torch.float32))

    def distances(self) -> Tensor:
        """Return the distance (n,) of each synthetic record.

        Raises:
            ValueError: where one side has no record.
        """
        sides = [
            dim_zero_cat(side) if len(side) else torch.zeros(0, self.width, device=self.device)
            for side in (self.real, self.synthetic)
        ]
        real, synthetic = sides
        if not len(real) or not len(synthetic):
            raise ValueError("nearest neighbours of no records: expected at least one on each side")
        # Squares of lengths cancel, less so about the mean and in 64 bits; the differences decide among the few that look
        # nearest.
        centre = real.mean(dim=0, dtype=torch.float64)
        about = real - centre
        lengths, found = about.square().sum(dim=1), []
        for part in synthetic.split(max(1, _AT_ONCE // max(len(real), _CANDIDATES * self.width))):
            apart = torch.addmm(lengths, part - centre, about.T, alpha=-2.0)
            near = apart.topk(min(_CANDIDATES, len(real)), largest=False).indices
            found.append((part[:, None] - real[near]).norm(dim=2).min(dim=1).values)
        return torch.cat(found)

    def compute(self) -> dict[str, Tensor]:
        """Return ``mean`` and ``median`` of the distances, and the share of ``copies``, at distance 0."""
        found = self.distances()
        median = torch.from_numpy(np.median(found.cpu().numpy(), keepdims=True))[0]
        return {"mean": found.mean(), "median": median, "copies": (found == 0).float().mean()}
