"""Pictures: where they are read, what is measured of them, and how they are released, written and compared."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.names import MOST_CLASSES, public_names
from lightning_dpgen.data.pictures.reading import read_pictures
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.kinds.kind import Kind
from lightning_dpgen.specs.data import PicturesSpec, PublicPicturesSpec
from lightning_dpgen.specs.source import PublicSource, Source
from lightning_dpgen.specs.usage_error import UsageError


class PublicPictures(PublicSource):
    """A public set of pictures, with fewer labels or grey levels where that is asked for."""

    def declare(self, discovery: dict[str, Any] | None = None) -> ImageSchema:
        return dataclasses.replace(super().declare(discovery), **self.spec.given("classes", "threshold"))


class PictureFiles(Source):
    """Pictures in a folder or an archive of arrays."""

    word = "picture"

    def declare(self, discovery: dict[str, Any] | None = None) -> ImageSchema:
        spec = self.spec
        names = tuple(spec.classes) if isinstance(spec.classes, list) else ()
        if any(type(name) is int for name in names):
            raise UsageError(
                f"data.classes={list(names[:5])}: expected names as text, as in data.classes=[cats,dogs], or data.classes="
                f"{len(names)} for labels that are the whole numbers from 0 to {len(names) - 1}"
            )
        if names:
            public_names("classes", names, 2, MOST_CLASSES)
        classes = len(names) if names else spec.classes or 0
        given = spec.given("height", "width", "channels", "threshold")
        return ImageSchema(**{"levels": 255, "classes": classes, "names": names} | given)

    def _read(self, schema: ImageSchema, held_out: bool) -> Reading:
        form = {"channels": schema.channels, "classes": list(schema.names) or schema.classes}
        given = self.spec.given("fit", "high")
        images, labels = read_pictures(self.spec.path, schema.height, schema.width, **form, **given)
        return Reading(schema.encode(images, labels), None, {})


class Pictures(Kind):
    """Grey, binary or colour pictures of one size."""

    name, schema, word = "images", ImageSchema, "picture"
    parts = "its height and width, the values of a pixel, and its labels"
    measured_networks = ("gaussian_mixture",)
    components = "model.cells"

    def source(self, spec: PicturesSpec | PublicPicturesSpec) -> Source:
        return PictureFiles(spec) if isinstance(spec, PicturesSpec) else PublicPictures(spec)

    def complete_measured(self, spec: Any, schema: ImageSchema, defaults: Any) -> dict[str, Any]:
        classifies = spec.name == "classifier"
        radius = schema.layout.default_radius if spec.radius is None else spec.radius
        has = {"waves": defaults.waves, "radius": radius, "spread": max(radius / 2, 1e-6), "means_share": 0.15}
        # Declared symmetries say it already.
        has["poses"] = "never" if classifies or spec.symmetries is not None else defaults.poses
        if spec.symmetries is not None and spec.poses not in (None, "never"):
            raise UsageError(f"model.poses={spec.poses}: expected never, or no model.symmetries")
        # A classifier tells shapes apart by itself.
        has["cells"] = 1 if classifies else defaults.cells
        if (has["cells"] if spec.cells is None else spec.cells) > 1:
            has["cells_share"] = defaults.cells_share
        return has | {"label_share": 0.0, "symmetries": None}

    def recipe(self, spec: Any, schema: ImageSchema, *, n: int, seed: int, strength: float, sets: Any = ()) -> Any:
        from lightning_dpgen.measure.gaussians import GaussianRecipe
        from lightning_dpgen.models.poses import Symmetries
        from lightning_dpgen.specs.defaults import labels_of

        symmetries = None if spec.symmetries is None else Symmetries(**spec.symmetries)
        of_cells = {} if spec.cells == 1 else spec.given("cells_share")
        return GaussianRecipe(
            schema, labels_of(schema.layout), n, spec.waves, spec.radius, spec.spread, spec.means_share, symmetries,
            spec.cells, poses=spec.poses, **of_cells,
        )  # fmt: skip

    def describe(self, schema: ImageSchema) -> tuple[str, list[Any]]:
        from lightning_dpgen.release.drawing.described import Described, describe_label
        from lightning_dpgen.release.pages.text import joined

        size = f"{schema.height} by {schema.width}"
        colour = "black-and-white" if schema.layout.levels == 1 else "grey" if schema.channels == 1 else "colour"
        threshold = "" if schema.threshold is None else f"1 where the pixel was above {schema.threshold}"
        channels = f"{schema.channels} channels" if schema.channels > 1 else ""
        values = f"whole numbers 0 to {schema.layout.levels}"
        pixels = Described("pixels", f"{size}, {colour}", values, joined([channels, threshold]))
        return f"{colour} pictures of {size} pixels", [pixels, *describe_label(schema)]

    def tasks(self, schema: ImageSchema) -> list[str]:
        return ["unconditional-image-generation"] + ["image-classification"] * bool(schema.classes)

    def picture(self) -> Any:
        from lightning_dpgen.release.rows.pictures import write_sheet

        return write_sheet

    def write_folder(self) -> Any:
        return write_pictures

    def sample(self, release: Any, *draw: Any) -> np.ndarray:
        """Draw pictures as an array: (n, height, width), and channels of colour ones."""
        return np.concatenate([release.schema.pictures(part) for part in release.sample_encoded_blocks(*draw)])

    def encode(self, records: Any, schema: ImageSchema) -> Encoded:
        if not isinstance(records, np.ndarray):
            raise ValueError(
                f"records: a {type(records).__name__}: expected an array (N, {', '.join(map(str, schema.shape))}) of "
                "pictures, or Records, as encode_images returns them"
            )
        return schema.encode(records)

    def sides(self, schema: ImageSchema) -> dict[str, Any]:
        # The page draws grey pictures alone.
        return {"shape": (schema.height, schema.width)} if schema.channels == 1 else {}


KIND = Pictures()


_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def write_pictures(folder: Path, schema: ImageSchema, drawn: Encoded, *, private: bool = True) -> None:
    """Write pictures to a new folder, which appears complete or not at all.

    Args:
        folder: does not exist.
        drawn: the pictures.
        private: whether the release is private; pictures of one that is not carry the mark.

    Raises:
        ValueError: for pictures that no PNG holds, or a label that is no name of a folder.
        OSError: from the disk.
    """
    from lightning_dpgen.release.publishing.mark import text_chunks

    if schema.channels not in _MODES:
        raise ValueError(f"pictures of {schema.channels} channels: expected 1, 3 or 4, which a PNG has")
    names = [str(name) for name in schema.class_names]
    for name in names:
        if name in (".", "..") or any(sign in name for sign in "/\\\0"):
            raise ValueError(f"the label {name!r} cannot be the name of a folder")
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    part.mkdir()
    try:
        for name in names:
            (part / name).mkdir()
        pictures = np.rint(schema.pictures(drawn) * (255 / schema.layout.levels)).astype(np.uint8)
        digits = len(str(max(1, len(pictures))))
        chunks = None if private else text_chunks()
        for number, picture in enumerate(pictures, 1):
            place = part / names[int(drawn.codes[number - 1, 0])] if names else part
            Image.fromarray(picture, _MODES[schema.channels]).save(place / f"{number:0{digits}}.png", pnginfo=chunks)
        os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
