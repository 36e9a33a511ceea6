"""The sums of the split over one block of records, for `passes.reduce`; clipped sums, and mean records from noisy ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.clustering.features import BLOCK, FEATURE_NORM, FeatureBlock, KeptFeatures, feature_moments
from lightning_dpgen.common.precision import full_precision
from lightning_dpgen.passes.checksummed_file import BlockFiles
from lightning_dpgen.passes.kept_records import DamagedBlocks
from lightning_dpgen.passes.store_slices import StoreSlice
from lightning_dpgen.sampling.fixed_point import Grid, Nearest, lengths
from lightning_dpgen.sampling.stores import Store

# Numbers of records that are taken together.
_AT_ONCE = 1 << 18
# Bits of a number within the radius.
_BITS = 23
# Totals vary over clusters by about this share of themselves; a column varies by at most so many times its own spread.
_OF_TOTAL, _MOST_BETWEEN = 0.5, 1.0


def clipped_sums(store: Store, radius: float, clusters: Tensor, k: int) -> tuple[Tensor, float]:
    """Sum the records of each cluster, each shortened to the radius: (k, m) multiples of a unit, int64, and the unit.

    A record becomes a row of whole numbers first (those of its store, or of `Grid.of_squares`). Where it is shortened, its
    numbers are cut towards 0 to multiples of a finer unit: its summand is no longer than the radius, and depends on nothing
    but the record. The unit is public; it is 1/255 over a power of two for bytes.
    """
    width = store.stretch(slice(0, 0)).shape[1]
    sums = torch.zeros(k, width, dtype=torch.float64)
    grid = Grid.of(store, Grid.of_squares(width, max(radius, 1.0)))
    # It is a little below the radius: where the unit is no power of two, the quotient with it is rounded by a last bit, and
    # a record must still add no more than the radius.
    longest = radius * (1.0 - 2.0**-20) / grid.unit
    # With this power of two, sums of 2^29 numbers up to the radius are exact.
    finer = 2.0 ** (_BITS - math.ceil(math.log2(longest)))
    step = max(1, _AT_ONCE // width)
    for start in range(0, len(store), step):
        rows = slice(start, min(start + step, len(store)))
        whole, cluster = grid(store.stretch(rows)), clusters[rows]
        norms = lengths(whole)
        long = (norms > longest).nonzero()[:, 0]
        factors = longest / norms[long]
        if isinstance(whole, Tensor):
            whole[long] = (whole[long] * (finer * factors)[:, None]).trunc_() / finer
            sums.index_add_(0, cluster, whole)
        else:
            of_rows = np.ones(len(cluster))
            of_rows[long.numpy()] = factors.numpy()
            data = np.trunc(whole.data * (finer * np.repeat(of_rows, np.diff(whole.indptr)))) / finer
            short = scipy.sparse.csr_array((data, whole.indices, whole.indptr), shape=whole.shape)
            ones = np.ones(len(cluster))
            belongs = scipy.sparse.csr_array((ones, cluster.numpy(), np.arange(len(cluster) + 1)), shape=(len(cluster), k))
            sums += torch.from_numpy((belongs.T @ short).toarray())
    # Records that are short enough are multiples of the grid's own unit.
    parts = max(finer, 1.0)
    return (sums * parts).to(torch.int64), grid.unit / parts


def shrunk_means(sums: Tensor, counts: Tensor, deviation: float) -> Tensor:
    """Draw noisy means to the mean of all where the noise is large: post-processing of released numbers.

    A cluster is expected to have the mean p of all records, scaled to the total of its own records. Columns vary about that
    over clusters in proportion to ``sqrt(p (1 - p))``. The factor is found from the variance of the noisy means beyond that
    of their noise, whose standard deviation is ``deviation / count``. The weight of a cluster's own mean is the share of
    the first variance in both (the linear Bayes estimate).
    """
    means, noise = sums / counts[:, None], deviation / counts[:, None]
    overall = sums.sum(dim=0) / counts.sum()
    total = overall.sum().clamp(min=1e-6)
    overall = _non_negative(overall[None], total[None])[0].clamp(max=1.0)
    # A total has more noise than a column, by the root of the width, and varies by about a half.
    believed = 1.0 / (1.0 + (noise[:, 0] / (_OF_TOTAL * total)).square() * sums.shape[1])
    totals = (believed * means.sum(dim=1) + (1.0 - believed) * total).clamp(min=0.0)
    expected = overall * (totals / total)[:, None]
    spread = overall * (1.0 - overall)
    beyond = ((means - expected).square() - noise.square()) * believed[:, None]
    factor = beyond.sum() / (believed.sum() * spread.sum()).clamp(min=1e-9)
    between = factor.clamp(0.0, _MOST_BETWEEN**2) * spread
    weight = between / (between + noise.square()).clamp(min=1e-12)
    return _non_negative(weight * means + (1.0 - weight) * expected, totals).clamp(max=1.0)


def _non_negative(rows: Tensor, totals: Tensor) -> Tensor:
    """Return the nearest rows without negative numbers that add up to these totals: each number less the same, or 0."""
    descending = rows.sort(dim=1, descending=True).values
    excess = (descending.cumsum(dim=1) - totals[:, None]) / torch.arange(1, rows.shape[1] + 1, device=rows.device)
    kept = (descending > excess).sum(dim=1, keepdim=True).clamp(min=1)
    return (rows - excess.gather(1, kept - 1)).clamp(min=0.0)


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
        return StoreSlice(self.store, rows), clusters


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
    clusters = files.read(rows.start)
    if clusters is None:
        raise DamagedBlocks.at(files.path(rows.start))
    return torch.from_numpy(clusters).to(torch.int64)


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
        cluster, whole = nearest.exact(features), features.double()
        total.index_add_(0, clusters[rows], whole, alpha=-1.0).index_add_(0, cluster, whole)
        clusters[rows] = cluster
        waiting.clear()

    for rows, block in kept if k > 1 or sums else ():
        cluster = clusters[rows]
        if k > 1:
            cluster, doubtful = nearest.likely(block)
            clusters[rows] = cluster
            if len(doubtful):
                waiting.append((doubtful + rows.start, block[doubtful]))
        if sums:
            total += torch.zeros(k, kept.d, dtype=torch.float32).index_add_(0, cluster, block)
        # A second look at many rows at once is quick, and is taken before there are too many to keep.
        if sum(len(rows) for rows, _ in waiting) >= BLOCK:
            settle()
    settle()
    return clusters, total.to(torch.int64)
