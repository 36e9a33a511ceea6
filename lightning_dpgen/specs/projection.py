"""`project`: how rows are projected and perturbed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lightning_dpgen.release.publishing.licenses import License
from lightning_dpgen.specs.data import AnyRows
from lightning_dpgen.specs.privacy import OffSpec, PurePrivacySpec
from lightning_dpgen.specs.spec import Place, Spec, setting
from lightning_dpgen.specs.trainer import DebugSpec


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
