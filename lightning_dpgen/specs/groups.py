"""The small groups of settings: `split`, `trainer`, `compute`, `debug` and `project`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from lightning_dpgen.release.publishing.licenses import License
from lightning_dpgen.specs.data import AnyRows
from lightning_dpgen.specs.privacy import OffSpec, PurePrivacySpec
from lightning_dpgen.specs.spec import Place, Spec, Text, as_settings, setting
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.passes.on_ray import Workers
    from lightning_dpgen.passes.reduce import PartialSums, PassExecutor


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


class TrainerSpec(Spec):
    """The Lightning Trainer."""

    accelerator: Text = setting("auto, cpu, gpu, cuda or mps", "auto")
    devices: int = setting(
        "the number of processes on this machine, or of workers of a Ray cluster; each has a GPU, or a part of the "
        "processor",
        1,
        ge=1,
        le=2**16,
    )
    num_nodes: int = setting("the number of machines; torchrun or srun starts the command on each", 1, ge=1, le=2**16)
    precision: Literal["32-true", "bf16-mixed", "64-true"] = setting(
        "the precision of the computation; parameters and noise keep full precision", "32-true"
    )
    threads: int | None = setting("the number of threads of torch", ge=1, le=4096, by_default="torch's choice")
    micro_batch: Annotated[int, Field(ge=1, le=10**9)] | Literal["auto"] | None = setting(
        "the number of records whose gradients are computed at once, so that large lots fit into memory; auto takes as "
        "many as fit",
        by_default="a lot in one piece",
    )
    slots: bool | None = setting(
        "whether each lot is laid out in a fixed number of rows, so that no bit of a gradient follows from how many records"
        " it has; it takes longer by the rows that are empty",
        by_default="on a GPU",
    )
    log_every: int = setting("steps between two lines of the logs", 50, ge=1, le=10**9)
    previews_every: int | None = setting(
        "steps between two looks at samples in the logs; 0 for none", ge=0, le=10**9, by_default="a tenth of the steps"
    )
    checkpoint_every: int | None = setting(
        "steps between two checkpoints", ge=1, le=10**9, by_default="a fiftieth of the steps"
    )


class DebugSpec(Spec):
    """Switches that make a run repeatable, for tests."""

    private_seed: int | None = setting(
        "repeatable noise: the certificate says NOT PRIVATE, and verify fails it", ge=0, lt=2**62
    )


# Options of a Trainer that a private training cannot have.
NEVER = {
    "trainer.strategy": "is ddp where trainer.devices or trainer.num_nodes say so; fsdp and deepspeed keep a part of each "
    "parameter in each process, where no gradient of a record has a norm to be clipped by",
    "trainer.accumulate_grad_batches": "a lot is one access, and is drawn whole; model.rate says how large it is",
    "trainer.gradient_clip_val": "gradients are clipped record by record, as clipping says",
    "trainer.use_distributed_sampler": "which records a lot holds is drawn in secret; a sampler takes them in turn",
}


class InProcessSpec(Spec):
    """This process makes all passes; `trainer` says what trains a network."""

    name: Literal["in_process"] = "in_process"


class RaySpec(Spec):
    """The workers of a Ray cluster train a network, or read and sum up records in blocks (extra `ray`).

    A network has as many workers as `trainer.devices` says, the first of which writes the ledger. They share the sums of
    the private split; where records are in blocks, the other cores of the cluster read and sum up blocks, too. Noise and
    ledger of passes stay with the command.
    """

    name: Literal["ray"] = "ray"
    address: Text = setting(
        "the address of a running cluster; auto for that of RAY_ADDRESS or of this machine, local to start one here", "auto"
    )
    cores: int | None = setting("the number of cores of a local cluster", ge=1, le=4096, by_default="all of this machine")

    def model_post_init(self, _: Any) -> None:
        if self.cores is not None and self.address != "local":
            raise UsageError(f"compute.cores={self.cores}: is for compute.address=local; a running cluster has its own")


ComputeSpec = Annotated[InProcessSpec | RaySpec, Field(discriminator="name")]


@dataclass(frozen=True)
class _Named:
    """An executor whose errors name settings."""

    executor: PassExecutor
    spec: RaySpec

    def map(self, task: Callable[[str], PartialSums], keys: Sequence[str]) -> Iterator[tuple[str, PartialSums]]:
        """Yield what the executor yields."""
        try:
            yield from self.executor.map(task, keys)
        except OSError as error:
            raise OSError(as_settings(error, "compute", self.spec)) from None


def make_executor(spec: InProcessSpec | RaySpec, beside: Workers | None = None) -> PassExecutor:
    """Return what computes passes; nothing is connected or started yet.

    Args:
        beside: the workers of a training on the cluster, of which this process is one; None where it is none.
    """
    if isinstance(spec, RaySpec):
        from lightning_dpgen.passes.on_ray import OnRay

        return _Named(OnRay(spec.address, cores=spec.cores, beside=beside), spec)
    from lightning_dpgen.passes.reduce import InProcess

    return InProcess()


class ProjectionSpec(Spec):
    """Every row is projected, and noise is added. Give either radius or distance."""

    unit: Literal["row", "element"] = setting("the protected unit: a row, or one number of a row", "row")
    radius: float | None = setting(
        "rows farther than this from the centre are pulled back; any replacement is covered", ge=1e-12, le=1e12
    )
    distance: float | None = setting(
        "the distance of the paper: replacements within it are covered, and nothing enforces it", ge=1e-12, le=1e12
    )
    k: int | None = setting("the number of released columns", ge=1, by_default="chosen by the expected error of distances")
    matrix: Literal["gaussian", "orthonormal", "rademacher", "sparse", "hashed", "identity"] | None = setting(
        "the projection", by_default="chosen"
    )
    noise: Literal["laplace", "spherical", "gaussian"] | None = setting(
        "the noise; gaussian with a delta above 0", by_default="chosen"
    )
    centre: float | list[float] | None = setting(
        ("public: a number, or a list with one number for each column"), by_default="0"
    )
    typical: float | None = setting(
        "public: the distance between two rows at which the error is judged", gt=0, lt=1e12,
        by_default="follows from the rest",
    )  # fmt: skip
    count_share: float = setting(
        "the share of the budget for the noisy number of rows that were pulled back", 0.01, ge=0, lt=1
    )


class ProjectSpec(Spec):
    """The settings of a projection."""

    data: AnyRows
    project: ProjectionSpec = ProjectionSpec()
    privacy: Annotated[PurePrivacySpec | OffSpec, Field(discriminator="noise")]
    debug: DebugSpec = DebugSpec()
    run_dir: Place | None = setting("the folder of the run", by_default="runs/<date>_<time>")
    seed: int = setting("public: the matrix, and the simulated rows", 0, ge=0, lt=2**62)
    license: License | None = setting(
        "the licence that the publisher puts the release under; it stands in certificate and card",
        by_default="none is stated",
    )
