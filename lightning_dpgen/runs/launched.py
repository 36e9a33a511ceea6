"""The launcher that has started this process as one of several: torchrun or SLURM."""

from __future__ import annotations

from lightning_fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment


def started() -> bool:
    """Return True where a launcher has started this process as one of several."""
    environment = launcher()
    return environment is not None and environment.world_size() > 1


def launcher() -> ClusterEnvironment | None:
    """Return the launcher's description of its processes; None where this process was started alone."""
    for kind in (TorchElasticEnvironment, SLURMEnvironment):
        if kind.detect():
            return kind()
    return None
