"""The part of `--cfg resolved` that imports torch: settings with every default filled in. No record is read."""

from __future__ import annotations

from typing import Any

from lightning_dpgen.specs.projection import ProjectSpec
from lightning_dpgen.specs.projection_settings import fill_projection
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import fill
from lightning_dpgen.specs.sources import source_of


def resolved(spec: RunSpec | ProjectSpec) -> dict[str, Any]:
    """Return the settings by name, with defaults filled in.

    Where something is bought before the rest is planned (the number of records, open columns), and where the width of a
    projection's rows is not declared, the rest is still open, and stays null.

    Raises:
        UsageError: as a run of it would.
    """
    if isinstance(spec, ProjectSpec):
        if (d := spec.data.d) is not None:
            spec = fill_projection(spec, d).spec
    else:
        source = source_of(spec.data)
        source.check()
        if spec.data.n is not None and not source.open_parts and spec.privacy.selection is None:
            spec = fill(spec, source).spec
    return spec.model_dump(by_alias=True)
