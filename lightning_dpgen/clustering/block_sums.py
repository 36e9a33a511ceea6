"""The sums of the split over one block of records: functions for `passes.reduce`, which other processes can compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dpgen.clustering.directions import feature_moments
from lightning_dpgen.clustering.features import BLOCK, FEATURE_NORM, FeatureBlock, KeptFeatures
from lightning_dpgen.clustering.means import clipped_sums
from lightning_dpgen.common.precision import full_precision
from lightning_dpgen.passes.block_files import BlockFiles
from lightning_dpgen.passes.kept_records import DamagedBlocks
from lightning_dpgen.passes.stretches import Stretch
from lightning_dpgen.sampling.fixed_point import Nearest
from lightning_dpgen.sampling.stores import Store


@dataclass(frozen=True)
class FeatureSums:
    """The sum of d features, and their second moments where these are asked for."""

    d: int
    moments: bool

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the sums."""
        return {"sum": (self.d,)} | ({"moments": (self.d, self.d)} if self.moments else {})

    def __call__(self, block: FeatureBlock) -> dict[str, Tensor]:
        """Return the sums over a block."""
        with full_precision(torch.device("cpu")):
            return feature_moments(block) if self.moments else {"sum": feature_sums(block)}


@dataclass(frozen=True)
class ClusterSums:
    """The number of records nearest to each of (k, d) centres, and the sums of their features."""

    centres: Tensor

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the sums."""
        return {"counts": (len(self.centres),), "sums": tuple(self.centres.shape)}

    def __call__(self, block: FeatureBlock) -> dict[str, Tensor]:
        """Return the sums over a block."""
        with full_precision(torch.device("cpu")):
            clusters, sums = lloyd(block, self.centres)
        return {"counts": torch.bincount(clusters, minlength=len(self.centres)), "sums": sums}


@dataclass(frozen=True)
class RecordSums:
    """The number of records of each of k clusters, and the sums (k, width) of these where a radius clips them."""

    k: int
    width: int
    radius: float | None

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the sums."""
        return {"counts": (self.k,)} | ({} if self.radius is None else {"means": (self.k, self.width)})

    def __call__(self, block: tuple[Store, Tensor]) -> dict[str, Tensor]:
        """Return the sums over a block of records, whose clusters are known."""
        store, clusters = block
        counts = {"counts": torch.bincount(clusters, minlength=self.k)}
        if self.radius is None:
            return counts
        with full_precision(torch.device("cpu")):
            return counts | {"means": clipped_sums(store, self.radius, clusters, self.k)[0]}


@dataclass(frozen=True, eq=False, repr=False)
class ClusteredRecords:
    """Records in blocks, each with its cluster. Private.

    Args:
        blocks: the positions of each block, by its key.
        clusters: (N,), or the files that `NearestCentres` has written; None where all are of the cluster 0.
    """

    store: Store
    blocks: Mapping[str, slice]
    clusters: Tensor | BlockFiles | None

    @property
    def keys(self) -> list[str]:
        """The names of the blocks."""
        return list(self.blocks)

    def __len__(self) -> int:
        return len(self.store)

    def read(self, key: str) -> tuple[Store, Tensor]:
        """Return the records of a block, and their clusters.

        Raises:
            DamagedBlocks: if the file of the clusters was damaged or removed.
        """
        rows = self.blocks[key]
        if self.clusters is None:
            clusters = torch.zeros(rows.stop - rows.start, dtype=torch.int64)
        else:
            clusters = self.clusters[rows] if isinstance(self.clusters, Tensor) else read_clusters(self.clusters, rows)
        return Stretch(self.store, rows), clusters


@dataclass(frozen=True, eq=False, repr=False)
class NearestCentres:
    """A function from the key of a block to the nearest of (k, d) centres of each of its records.

    Args:
        files: the place of what it finds; None to return it.
    """

    kept: KeptFeatures
    centres: Tensor
    files: BlockFiles | None = None

    def __call__(self, key: str) -> dict[str, Tensor]:
        """Return the clusters, or nothing where they go into files."""
        block = self.kept.read(key)
        with full_precision(torch.device("cpu")):
            clusters = lloyd(block, self.centres, sums=False)[0]
        if self.files is None:
            return {"clusters": clusters}
        self.files.write(block.rows.start, clusters.to(torch.int16).numpy())
        return {}


def read_clusters(files: BlockFiles, rows: slice) -> Tensor:
    """Return the clusters of a block that `NearestCentres` has written.

    Raises:
        DamagedBlocks: if the file was damaged or removed.
    """
    found = files.read(rows.start)
    if found is None:
        raise DamagedBlocks.at(files.path(rows.start))
    return torch.from_numpy(found).to(torch.int64)


def feature_sums(kept: KeptFeatures | FeatureBlock) -> Tensor:
    """Return the sum (d,) of the features of records, in multiples of their unit, int64."""
    total = torch.zeros(kept.d, dtype=torch.float64)
    for _, block in kept:
        total += block.sum(dim=0)
    return total.to(torch.int64)


def lloyd(kept: KeptFeatures | FeatureBlock, centres: Tensor, *, sums: bool = True) -> tuple[Tensor, Tensor]:
    """Compute one iteration without its noise.

    Args:
        kept: the features of records.
        centres: (k, d) the centres.
        sums: whether to compute the sums.

    Returns:
        clusters (N,), the nearest centre of each record (`Nearest`); and the sums (k, d) of the features of each cluster,
        in multiples of their unit, int64.
    """
    k = len(centres)
    clusters, total = torch.zeros(len(kept), dtype=torch.int64), torch.zeros(k, kept.d, dtype=torch.float64)
    nearest = Nearest(centres.double() / kept.unit, FEATURE_NORM / kept.unit)
    waiting: list[tuple[Tensor, Tensor]] = []

    def settle() -> None:
        if not waiting:
            return
        rows, features = (torch.cat(parts) for parts in zip(*waiting, strict=True))
        own, whole = nearest.exact(features), features.double()
        total.index_add_(0, clusters[rows], whole, alpha=-1.0).index_add_(0, own, whole)
        clusters[rows] = own
        waiting.clear()

    for rows, block in kept if k > 1 or sums else ():
        own = clusters[rows]
        if k > 1:
            own, doubtful = nearest.likely(block)
            clusters[rows] = own
            if len(doubtful):
                waiting.append((doubtful + rows.start, block[doubtful]))
        if sums:
            total += torch.zeros(k, kept.d, dtype=torch.float32).index_add_(0, own, block)
        # A second look at many rows at once is quick, and is taken before there are too many to keep.
        if sum(len(rows) for rows, _ in waiting) >= BLOCK:
            settle()
    settle()
    return clusters, total.to(torch.int64)
