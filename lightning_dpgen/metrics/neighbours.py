"""The distance of synthetic records to their nearest real one: copies, and records that are far from all."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor

from lightning_dpgen.metrics.columns import written_out
from lightning_dpgen.metrics.measure import TABLE, Interval, Need, Result, register
from lightning_dpgen.metrics.sides import TableSides
from lightning_dpgen.metrics.two_sided import Collected

# Numbers that are held at a time, and the real records among which the nearest is found exactly.
_AT_ONCE, _CANDIDATES = 1 << 24, 4
# Records of a side whose closest real one is searched for, real ones among which it is, and those that an interval needs.
CLOSEST, AMONG, _FEW = 2_000, 10_000, 30


class NearestNeighbourDistance(Collected):
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

    higher_is_better = None

    def __init__(self, width: int, **kwargs) -> None:
        super().__init__(width, torch.float32, **kwargs)

    def distances(self) -> Tensor:
        """Return the distance (n,) of each synthetic record.

        Raises:
            ValueError: where one side has no record.
        """
        real, synthetic = self._sides()
        return nearest_distances(synthetic, real)

    def compute(self) -> dict[str, Tensor]:
        """Return ``mean`` and ``median`` of the distances, and the share of ``copies``, at distance 0."""
        found = self.distances()
        median = torch.from_numpy(np.median(found.cpu().numpy(), keepdims=True))[0]
        return {"mean": found.mean(), "median": median, "copies": (found == 0).float().mean()}


def nearest_distances(records: Tensor, among: Tensor) -> Tensor:
    """Return the distance (n,) of each record (n, width) to the nearest of others (m, width), float32, m above 0."""
    records, among = records.to(torch.float32), among.to(torch.float32)
    # Squares of lengths cancel, less so about the mean and in 64 bits; the differences decide among the few that look
    # nearest.
    centre = among.mean(dim=0, dtype=torch.float64)
    about = among - centre
    lengths, found = about.square().sum(dim=1), []
    for part in records.split(max(1, _AT_ONCE // max(len(among), _CANDIDATES * among.shape[1]))):
        apart = torch.addmm(lengths, part - centre, about.T, alpha=-2.0)
        near = apart.topk(min(_CANDIDATES, len(among)), largest=False).indices
        found.append((part[:, None] - among[near]).norm(dim=2).min(dim=1).values)
    return torch.cat(found)


@register(
    TABLE, section="distance to the closest record", place=90, better="target",
    says="A diagnostic of copying, and no evidence of privacy: the distance of a record to the closest one that was "
    "learned from. A number counts as its place in the declared range, and another category as the root of 2. Where "
    "synthetic records are much closer than the real ones beside them, they may be copies, or no two real rows are alike. "
    "Held-out records decide: where nothing is copied, half of the synthetic ones are closer to a record that was learned "
    "from than to a held-out one (ties are left out).",
    needs=(Need(lambda sides: sides.test is not None and sides.layout.width > 0, "there are too few real records"),),
)  # fmt: skip
def _closest(sides: TableSides) -> Result:
    """Find the closest record that was learned from, of synthetic records and of others in their place."""
    unseen, parts = sides.held_out is not None, sides.encoded
    pools = (parts.learned, parts.held_out, parts.made) if unseen else (parts.real, parts.other, parts.made)
    random = np.random.default_rng(sides.seed)
    pools = [pool[random.permutation(len(pool))] for pool in pools]
    most = max(_FEW, _AT_ONCE // parts.layout.width)
    among = written_out(pools[0][: min(AMONG, most)], parts.layout)
    others, made = (written_out(pool[: min(CLOSEST, most)], parts.layout) for pool in pools[1:])
    found = []
    for asked in (made, others):
        far = nearest_distances(asked, among).numpy()
        found.append(
            {"median": float(np.median(far)), "closest twentieth": float(np.quantile(far, 0.05)),
             "share at distance 0": float((far == 0).mean())}
        )  # fmt: skip
    intervals = {}
    size = min(AMONG, most, len(pools[0]), len(pools[1]))
    if unseen and size >= _FEW:
        to = [nearest_distances(made, written_out(pool[:size], parts.layout)).numpy() for pool in pools[:2]]
        near, ties = int((to[0] < to[1]).sum()), int((to[0] == to[1]).sum())
        if told := len(to[0]) - ties:
            name = "closer to a record learned from than to a held-out one"
            found[0][name] = near / told
            interval = binomtest(near, told).proportion_ci(0.95, method="exact")
            intervals[name] = Interval(float(interval.low), float(interval.high), told)
    return Result(*found, intervals=intervals, note=None if unseen else _NO_HELD_OUT)


_NO_HELD_OUT = (
    "the real records in the place of synthetic ones were learned from, too; held-out records (--held-out FILE) also show "
    "whether synthetic ones are closer to those that were learned from"
)
