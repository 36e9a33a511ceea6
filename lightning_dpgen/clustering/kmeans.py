"""Private kernel k-means, and the releases of a split about its clusters."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.clustering.block_sums import (
    ClusteredRecords,
    ClusterSums,
    FeatureSums,
    NearestCentres,
    RecordSums,
    clipped_sums,
    read_clusters,
    shrunk_means,
)
from lightning_dpgen.clustering.features import (
    FEATURE_NORM,
    Directions,
    Features,
    FourierFeatures,
    IdentityFeatures,
    KeptFeatures,
    leading,
)
from lightning_dpgen.clustering.settings import FINAL, LLOYD, MOMENTS, SplitSettings
from lightning_dpgen.common.precision import full_precision
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.passes.checksummed_file import BlockFiles
from lightning_dpgen.passes.reduce import InProcess, PassExecutor, reduce_over_ranks
from lightning_dpgen.passes.store_slices import StoreSlice, part_of_rank
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import rounded_gaussian
from lightning_dpgen.privacy.noise.units import check_steps
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.contents import check_finite, check_same_records
from lightning_dpgen.sampling.dataset_store import DatasetStore
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.lots import persons_of
from lightning_dpgen.sampling.stores import Store

_SPREAD = 0.1
# A cluster of less than this part of the largest one starts again, in the first part of the iterations.
_SMALL, _EARLY = 0.3, 0.6
# GiB that features may use by default.
MEMORY_GIB = 4.0


@dataclass(frozen=True)
class SplitState:
    """The progress of a split: all of it was released, so all of it is public.

    Args:
        iterations: the number of Lloyd iterations done; -1 before the first centres are known.
        directions: for a search in fewer dimensions, the noisy mean of the features, and below it their leading directions,
            (1 + dimensions, features); empty otherwise, and at first.
        centres: (k, dimensions) the centres then; empty at first.
        counts: (k,) noisy sizes under the final centres; empty before the last pass.
        means: (k, m) noisy mean records; empty before the last pass.
        done: `Account.done` at that time.
    """

    iterations: int = -1
    directions: Tensor = field(default_factory=lambda: torch.zeros(0))
    centres: Tensor = field(default_factory=lambda: torch.zeros(0))
    counts: Tensor = field(default_factory=lambda: torch.zeros(0))
    means: Tensor = field(default_factory=lambda: torch.zeros(0))
    done: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Split:
    """The releases of a split, and the private assignment of records.

    Args:
        clusters: (N,) cluster of each record. Private.
        counts: (k,) noisy sizes under the final centres, floored at 1. Public.
        means: (k, m) noisy mean record of each cluster. Public. Empty where the plan has none.
        noise: (k,) standard deviation of the noise of each number of a mean, before `shrunk_means`. Public.
    """

    clusters: Tensor
    counts: Tensor
    means: Tensor
    noise: Tensor

    @property
    def weights(self) -> Tensor:
        """The (k,) mixture weights, noisy counts normalised. Public."""
        return self.counts / self.counts.sum()


@full_precision(torch.device("cpu"))
def private_split(
    records: Any,
    scale: Tensor,
    settings: SplitSettings,
    n: int,
    account: Account,
    generator: torch.Generator,
    *,
    centres: Tensor | None = None,
    memory_gib: float = MEMORY_GIB,
    state: SplitState | None = None,
    save: Callable[[SplitState], None] = lambda _: None,
    reserve: Callable[[SplitState], None] = lambda _: None,
    executor: PassExecutor | None = None,
    folder: Path | None = None,
) -> Split:
    """Run kernel k-means on Fourier features with noisy counts and sums (DPGM, TKDE, Algorithm 2, corrected).

    With `settings.dimensions` the mean and the second moments of the features are released first, and the search goes on in
    the directions of their largest variance. There a record is its direction from the mean: a vector of norm 1 again, with
    so few coordinates that noise hardly moves a centre. Otherwise the search is in all features, as in DPGM.

    Centres start at the noisy mean of all features plus small random directions, never at records of the data. Each
    iteration releases the counts and the sums of the clusters from one access. A last pass under the final centres
    releases the counts that become mixture weights, and the mean record of each cluster.

    Args:
        records: anything that `store_of` takes and gives as rows (B, m) of real numbers. Private. A number is taken as a
            multiple of 2^-12, up to 1024 (finer or longer where the records themselves are added up), which suits records
            encoded between 0 and 1.
        scale: (m,) weight of each column in the kernel, finite.
        n: the declared number of records, a public denominator.
        account: its plan holds the specs of `settings`.
        generator: public generator of features and starting directions.
        centres: (k, m) public records at whose features the centres start, where `settings.start` is ``public``.
        memory_gib: GiB of memory that features may be kept in from one iteration to the next; features that do not fit are
            computed again, with the same result.
        state: the state from which an interrupted split goes on; None to begin.
        save: called after each access, with the state from which the split could go on; by rank 0 alone.
        reserve: called before each access with a state as large as the one that `save` is called with, so that room can be
            made for it; by rank 0 alone. It may raise to end the split, and nothing is spent on the access then.
        executor: where the sums are computed; None for this process. Others are sent a store with each pass: `KeptRecords`
            is the places of files, and records in memory are sent whole.
        folder: a private one that the processes of an executor all see, where they keep features in files, up to
            `memory_gib`, and the cluster of each record. None to keep no features between passes, and to return the
            clusters to this process.

    Where several ranks share the account (`Account.join`), all of them call this with the same records. Each computes the
    sums of its own part, which are added up exactly. Rank 0 alone draws noise.

    Guarantee:
        Add or remove one record: it changes one count by 1, one feature sum by a vector of norm 1, the second moments by
        its outer product of Frobenius norm 1, and one sum of records by at most the radius. All of these are whole numbers,
        whose sums are exact, and so is their noise (`mechanisms.rounded_gaussian`). Assignments use directions and
        centres that are public already. A person changes them by as many times that as they have records.

    Raises:
        ValueError: for centres of another shape, or centres that `start` does not use; n below 1; a scale that is not
            finite.
        BadRecords: for records that are no such rows, or not finite.
        LedgerError: if the plan holds other accesses than these settings make.
        Nothing has been spent then.
    """
    state = account.ranks.broadcast_object(state or SplitState())
    store, settings, ranks = store_of(records), settings.for_layout(Layout(units=len(scale))), account.ranks
    persons_of(store, None, account.plan.max_rows)
    check_split(settings, n, account, state)
    _check_rows(store, len(scale))
    # Ranks divide the records by their positions: in another order, one could be in two parts, and count twice.
    if ranks.size > 1 and isinstance(store, DatasetStore):
        raise BadRecords("records: items of a Dataset cannot be compared over ranks: pass a tensor or an array")
    check_same_records(ranks, store)
    asked = (settings, n, scale.tolist(), generator.get_state().tolist(), None if centres is None else str(centres))
    ranks.assert_equal("setting of the split", asked)
    if settings.k == 1 and state.iterations < 0:
        state = SplitState(iterations=settings.iterations, centres=torch.zeros(1, settings.space, dtype=torch.float32))
    features = _features(settings, scale, generator)
    centres = _starts(settings, centres, len(scale))
    stretch = part_of_rank(store.in_tasks(), ranks.rank, ranks.size)
    files = functools.partial(_files, folder, ranks, asked)
    # Features of which directions are taken are needed once more, and are longer than what a file of records holds.
    kept = _kept_features(features, stretch, memory_gib, None if settings.projects else files("features"), folder)
    spread = torch.randn(settings.k, settings.space, generator=generator, dtype=torch.float32)
    spread /= spread.norm(dim=1, keepdim=True)
    # Each rank computes the sums of its own records, and gets those of all.
    add_up = functools.partial(reduce_over_ranks, ranks, executor=executor, records=len(store))

    def reached(**fields) -> SplitState:
        reached = replace(state, **fields, done=account.done)
        save(reached)
        return reached

    def release_moments() -> SplitState:
        found = torch.zeros(1 + settings.dimensions, kept.d) if settings.projects else state.directions
        reserve(replace(state, directions=found, centres=torch.zeros(settings.k, settings.space)))
        with account.open(MOMENTS) as access:
            mean = rounded_gaussian(access, "sum", exact["sum"], unit=kept.unit, sensitivity=FEATURE_NORM) / n
            directions = state.directions
            if settings.projects:
                moments = rounded_gaussian(
                    access, "moments", exact["moments"], unit=kept.unit_of_moments, sensitivity=FEATURE_NORM**2
                )
                moments /= n
                directions = leading(mean, moments, settings.dimensions)
        if settings.start != "mean":
            return replace(state, directions=directions)
        # Directions are measured from the mean, so there it is the origin.
        centres = spread * _SPREAD + (0.0 if settings.projects else mean.float())
        return reached(iterations=0, directions=directions, centres=centres)

    def release_clusters() -> SplitState:
        reserve(state)
        with account.open(LLOYD) as access:
            counts = rounded_gaussian(access, "counts", exact["counts"], sensitivity=1.0)
            sums = rounded_gaussian(access, "sums", exact["sums"], unit=kept.unit, sensitivity=FEATURE_NORM)
        # A count that two standard deviations of noise explain is an empty cluster: it starts again beside the largest one.
        # So does the smallest while there is time: often it shares a group with another, and the largest holds two. This
        # decision and the division use noisy numbers only.
        again = counts < max(1.0, 2.0 * access.access.multipliers["counts"] * access.max_rows)
        if state.iterations < _EARLY * settings.iterations:
            again[counts.argmin()] |= counts.min() < _SMALL * counts.max()
        centres = (sums / counts.clamp(min=1.0)[:, None]).float()
        centres[again] = centres[counts.argmax()] + _SPREAD * spread[again]
        return reached(iterations=state.iterations + 1, centres=centres)

    def release_means() -> SplitState:
        means = torch.zeros(settings.k, len(scale)) if with_means else torch.zeros(0)
        reserve(replace(state, counts=torch.zeros(settings.k), means=means))
        with account.open(FINAL) as access:
            counts = rounded_gaussian(access, "counts", exact["counts"], sensitivity=1.0).float().clamp(min=1.0)
            if with_means:
                sums = rounded_gaussian(access, "means", exact["means"], unit=unit, sensitivity=radius)
                means = shrunk_means(sums.float(), counts, deviation)
        return reached(counts=counts, means=means)

    # Long computations are done before an access is opened, since an interrupt would lose it. All ranks compute, and rank 0
    # alone opens the access and draws its noise; the others go on from what it has released.
    if state.iterations < 0 and (settings.projects or settings.start == "mean"):
        steps = {"sum": FEATURE_NORM / kept.unit, "moments": FEATURE_NORM**2 / kept.unit_of_moments}
        exact = add_up(kept, FeatureSums(kept.d, settings.projects))
        _check_noise(account, MOMENTS, steps)
        state = account.on_rank_zero(release_moments)
    if settings.projects and settings.k > 1:
        seen = Directions(kept, state.directions)
        kept = _kept_features(seen, stretch, memory_gib, files("features", state.directions), folder)
    if state.iterations < 0:
        starts = spread if settings.start == "random" else kept.features(centres)
        state = account.on_rank_zero(lambda: reached(iterations=0, centres=starts))
    longest = FEATURE_NORM / kept.unit
    while state.iterations < settings.iterations:
        exact = add_up(kept, ClusterSums(state.centres))
        _check_noise(account, LLOYD, {"sums": longest})
        state = account.on_rank_zero(release_clusters)
    clusters, of_blocks = _nearest(kept, state.centres, executor, files("clusters", state.directions, state.centres))
    # The standard deviation of the noise in the sums of records.
    radius, multipliers = settings.radius, account.plan.stage(FINAL).access.multipliers
    deviation, with_means = multipliers.get("means", 0.0) * radius * account.plan.max_rows, "means" in multipliers
    if not len(state.counts):
        unit = clipped_sums(StoreSlice(store, slice(0, 0)), radius, clusters[:0], settings.k)[1]
        sums_of = RecordSums(settings.k, len(scale), radius if with_means else None)
        exact = add_up(ClusteredRecords(stretch, kept.blocks, of_blocks), sums_of)
        _check_noise(account, FINAL, {"means": radius / unit})
        state = account.on_rank_zero(release_means)
    return Split(_of_all(ranks, clusters, stretch), state.counts, state.means, deviation / state.counts)


def check_split(settings: SplitSettings, n: int, account: Account, state: SplitState | None = None) -> None:
    """Check that the plan still holds just the accesses that a split with these settings makes from a state on.

    Without a state, the split must not have begun; one that has begun is not checked.

    Raises:
        ValueError: if n is below 1.
        LedgerError: naming the access, or a plan that is not under add-or-remove-one; nothing has been spent on it.
    """
    if not (isinstance(n, Real) and n >= 1):
        raise ValueError(f"n={n!r}: expected the declared number of records, 1 or more")
    if account.plan.relation != ADD_OR_REMOVE_ONE:
        raise LedgerError(
            f"the plan is under {account.plan.relation}: expected {ADD_OR_REMOVE_ONE}, for which the bounds of the split "
            "hold"
        )
    planned = {stage.name: stage for stage in account.plan.stages if stage.name in (MOMENTS, LLOYD, FINAL)}
    if state is None and any(account.remaining(name) != stage.count for name, stage in planned.items()):
        return
    state = state or SplitState()
    specs = {spec.stage: spec for spec in settings.specs(n)}
    same = "expected a plan made of the specs(n) of the same settings"
    begun = settings.k == 1 or state.iterations >= 0
    left = {MOMENTS: not begun, LLOYD: settings.iterations - max(state.iterations, 0), FINAL: not len(state.counts)}
    for name in planned | specs:
        expected = left[name] if name in specs else 0
        planned_count = account.remaining(name) if name in planned else 0
        if planned_count != expected:
            raise LedgerError(
                f"the plan holds {planned_count} accesses {name!r}, and these settings of the split need "
                f"{int(expected)}: {same}"
            )
        if name in specs and name in planned:
            noises, optional = set(planned[name].access.multipliers), {"means"} if name == FINAL else set()
            if noises | optional != set(specs[name].noise_shares) | optional:
                raise LedgerError(
                    f"access {name!r} of the plan has noise for {', '.join(sorted(noises))}, and these settings of the "
                    f"split need {', '.join(sorted(specs[name].noise_shares))}: {same}"
                )


def _check_noise(account: Account, stage: str, steps: Mapping[str, float]) -> None:
    """Refuse noise of more steps than whole numbers are drawn for, before its access is opened; see `check_steps`."""
    for name, multiplier in account.plan.stage(stage).access.multipliers.items():
        check_steps(name, multiplier * steps.get(name, 1.0) * account.plan.max_rows)


def _kept_features(
    features: Features, store: Store, memory_gib: float, files: BlockFiles | None, folder: Path | None
) -> KeptFeatures:
    """Return features that are kept in files, or in memory where there is no folder."""
    room = memory_gib * 2**30 if files is not None or folder is None else 0.0
    return KeptFeatures(features, store, room, files=files)


def _files(folder: Path | None, ranks: Ranks, asked: Any, name: str, *follow: Tensor) -> BlockFiles | None:
    """Return the files of arrays that follow from the settings of a split and from these tensors; None without a folder."""
    if folder is None:
        return None
    about = repr((asked, ranks.rank, ranks.size, [tensor.tolist() for tensor in follow]))
    return BlockFiles(folder, f"{name}-{ranks.rank}", hashlib.blake2b(about.encode(), digest_size=16).digest())


def _nearest(
    kept: KeptFeatures, centres: Tensor, executor: PassExecutor | None, files: BlockFiles | None
) -> tuple[Tensor, Tensor | BlockFiles | None]:
    """Return the place of the nearest centre of each record of this rank, and the same as `ClusteredRecords` takes it."""
    clusters = torch.zeros(len(kept), dtype=torch.int64)
    if len(centres) == 1:
        return clusters, None
    for key, found in (executor or InProcess()).map(NearestCentres(kept, centres, files), kept.keys):
        rows = kept.blocks[key]
        clusters[rows] = found["clusters"] if files is None else read_clusters(files, rows)
    return clusters, clusters if files is None else files


def _of_all(ranks: Ranks, clusters: Tensor, stretch: StoreSlice) -> Tensor:
    """Return the clusters of the records of all ranks, in each of them."""
    if ranks.size == 1:
        return clusters
    of_all = torch.zeros(len(stretch.store), dtype=torch.int32)
    of_all[stretch.rows] = clusters.to(torch.int32)
    return ranks.sum_(of_all).to(torch.int64)


def _check_rows(store: Store, m: int) -> None:
    none = store.take(np.zeros(0, np.int64))
    if not isinstance(none, Tensor) or none.dim() != 2 or none.shape[1] != m or none.is_complex():
        found = f"of shape (N, {', '.join(map(str, none.shape[1:]))})" if isinstance(none, Tensor) else "in several columns"
        raise BadRecords(f"records {found}: a split of {m} columns (scale) expects (N, {m}) numbers; flatten or join them")
    check_finite(store)


def _features(settings: SplitSettings, scale: Tensor, generator: torch.Generator) -> Features:
    if settings.kernel == "identity":
        return IdentityFeatures(scale, settings.radius)
    return FourierFeatures(
        scale, settings.features, settings.gamma, generator, kernel=settings.kernel, paired=settings.paired
    )


def _starts(settings: SplitSettings, centres: Tensor | None, m: int) -> Tensor | None:
    """Return the public records that the centres start at, if there are any."""
    if settings.start != "public" or settings.k == 1:
        if centres is not None and settings.start != "public":
            raise ValueError(f"centres: start={settings.start!r} does not use them; expected None, or start='public'")
        return None
    centres = None if centres is None else torch.as_tensor(centres)
    if centres is None or tuple(centres.shape) != (settings.k, m) or not torch.isfinite(centres).all():
        shape = None if centres is None else tuple(centres.shape)
        raise ValueError(
            f"centres of shape {shape}: start='public' needs ({settings.k}, {m}) finite numbers, a public record for each "
            "of k clusters, encoded as the records are"
        )
    return centres.to(torch.float32)
