"""`compute`: where networks are trained, and where the passes over records in blocks are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from lightning_dpgen.specs.spec import Spec, Text, as_settings, setting
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.passes.on_ray import Workers
    from lightning_dpgen.passes.reduce import PartialSums, PassExecutor


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
