"""`split`: the private kernel k-means that divides records among the components of a model."""

from __future__ import annotations

from typing import Literal

from lightning_dpgen.specs.spec import Spec, Text, setting


class SplitSpec(Spec):
    """Private kernel k-means on random Fourier features."""

    k: int | None = setting("the number of clusters, and of components of the model", ge=1, le=10_000, rule="k")
    kernel: Literal["rbf", "laplacian", "identity"] = setting(
        "the kernel: of the Euclidean distance, of the L1 distance, or the records themselves", "rbf"
    )
    paired: bool = setting("cosines and sines in pairs, of norm 1; or single cosines, shortened to norm 1 (DPGM)", True)
    start: Text = setting(
        ("the start of the centres: mean (the noisy mean), random, or a FILE.npy of k public records"), "mean"
    )
    memory_gib: float = setting(
        ("GiB of memory for features; features that do not fit are computed again"), 4.0, ge=0, le=1e9
    )
    dimensions: int | None = setting(
        "the number of leading directions of the features that are searched; null: all (DPGM)", 16, ge=1, le=4096
    )
    iterations: int | None = setting("Lloyd iterations", ge=1, le=100_000, rule="iterations")
    features: int | None = setting(
        ("the number of Fourier features; an even number if they are paired"), ge=1, le=1_000_000, rule="features"
    )
    gamma: float | None = setting(
        "the gamma of the kernel exp(-gamma d^2), or of the kernel of the L1 distance", ge=1e-9, le=1e9,
        by_default="4 / columns; 1 over the squared norm of a record if that is known",
    )  # fmt: skip
    label_weight: float | None = setting(
        "the weight of labels: two different labels multiply the kernel by exp(-label_weight)",
        ge=0,
        le=1e9,
        rule=lambda d: 2.0,
        by_default="2",
    )
    radius: float | None = setting(
        "the L2 bound of a record for the cluster means", ge=1e-9, le=1e9, by_default="follows from the layout"
    )
    moments_share: float | None = setting(
        "the share of the budget for mean and second moments of features", gt=0, lt=1, rule="moments_share"
    )
    lloyd_share: float | None = setting("the same for all iterations", gt=0, lt=1, rule="lloyd_share")
    means_share: float | None = setting("the same for counts and cluster means", gt=0, lt=1, rule="means_share")
