"""The network that a run starts from, kept in its folder, so that the run goes on when the release is moved or changed."""

from __future__ import annotations

from lightning_dpgen.privacy.durable import sync_files
from lightning_dpgen.privacy.folders import make_private, restrict
from lightning_dpgen.release.certificate import MODEL
from lightning_dpgen.release.sampler import write_model
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.start import read_start


def keep_start(spec: RunSpec, folder: RunFolder) -> RunSpec:
    """Keep a copy of the network that a run starts from, if it does, and return the settings with the copy in its place.

    Raises:
        UsageError: as `read_start`.
        OSError: from the disk.
    """
    start = read_start(spec)
    if start is not None:
        make_private(folder.start, MODEL)
        write_model(folder.start, start.mixture)
        restrict(folder.start)
        sync_files(folder.start)
    return with_kept_start(spec, folder)


def with_kept_start(spec: RunSpec, folder: RunFolder) -> RunSpec:
    """Return the settings of a run that has begun, with the copy of the network that it starts from, where there is one.

    The digest of the weights is among the settings of a run, so a copy that was changed is noticed.
    """
    if getattr(spec.model, "init", None) is None or not (folder.start / MODEL).is_file():
        return spec
    return spec.changed(model=spec.model.changed(init=str(folder.start)))
