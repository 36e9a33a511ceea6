"""The network that a run starts from: whose records it is not of, and the copy of it from which the run goes on."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lightning_dpgen.common.folders import make_private, place_of, restrict, sync_files
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.files import MODEL
from lightning_dpgen.runs.identity import is_about
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.starts import read_initial
from lightning_dpgen.specs.usage_error import UsageError


def check_other_records(spec: RunSpec, contents: Iterable[np.ndarray]) -> None:
    """Refuse to start from a network that was learned from the very records of this run, private or not.

    They cannot be declared public and protected at once. It is known where the folder of that run still has its ledger,
    which holds a keyed fingerprint of its records.

    Args:
        contents: the records of this run, as bytes. Private.

    Raises:
        UsageError: if they are the same.
    """
    init = getattr(spec.model, "init", None)
    if init is None:
        return
    place, arrays = place_of(init), list(contents)
    # A link may lead to the release from anywhere.
    for root in dict.fromkeys((place, place.parent, place.resolve(), place.resolve().parent)):
        try:
            about = Ledger.read(RunFolder(root).ledger).about
        except (LedgerError, OSError):
            continue
        if is_about(about, arrays):
            raise UsageError(
                f"model.init={init}: was learned from the same file as this run would be, so its data are not public "
                "while those of this run are private: start from random weights, or from a release of other data"
            )


def keep_initial(spec: RunSpec, folder: RunFolder) -> RunSpec:
    """Keep a copy of the network that a run starts from, if it does, and return the settings with the copy in its place.

    Raises:
        UsageError: as `read_initial`.
        OSError: from the disk.
    """
    initial = read_initial(spec)
    if initial is not None:
        make_private(folder.initial, MODEL)
        write_model(folder.initial, initial.mixture, private=False)
        restrict(folder.initial)
        sync_files(folder.initial)
    return with_kept_initial(spec, folder)


def with_kept_initial(spec: RunSpec, folder: RunFolder) -> RunSpec:
    """Return the settings of a run that has begun, with the copy of the network that it starts from, where there is one.

    The digest of the weights is among the settings of a run, so a copy that was changed is noticed.

    Raises:
        UsageError: if the copy cannot be read.
    """
    init = getattr(spec.model, "init", None)
    if init is None or not (folder.initial / MODEL).is_file():
        return spec
    copied = spec.changed(model=spec.model.changed(init=str(folder.initial)))
    try:
        read_initial(copied)
    except UsageError as error:
        damage = str(error).removeprefix(f"model.init={folder.initial}: ")
        raise UsageError(
            f"run_dir={folder.root}: {folder.initial.relative_to(folder.root)}, its copy of model.init={init}, is damaged "
            f"({damage}): delete that folder, and the run goes on from model.init itself if that is what it was"
        ) from None
    return copied
