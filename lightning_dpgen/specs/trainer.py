"""`trainer`: where and how a network is trained, and what is logged."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lightning_dpgen.specs.spec import Spec, Text, setting


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
    log_every: int = setting("steps between two lines of the logs", 50, ge=1, le=10**9)
    previews_every: int | None = setting(
        "steps between two sheets of samples in the logs; 0 for none", ge=0, le=10**9, by_default="a tenth of the steps"
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
