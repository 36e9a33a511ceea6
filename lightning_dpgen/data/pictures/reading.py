"""Pictures from folders and files, all brought to one size."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from lightning_dpgen.common.nearest_word import suggest_file
from lightning_dpgen.data.errors import MissingData
from lightning_dpgen.data.names import shown
from lightning_dpgen.data.pictures.arrays import read_arrays
from lightning_dpgen.data.pictures.form import PictureForm
from lightning_dpgen.sampling.errors import BadRecords

ENDINGS = (".png", ".jpg", ".jpeg")
# Files that file managers put beside pictures, and do not hide everywhere.
_LEFT_BY_SYSTEMS = ("thumbs.db", "ehthumbs.db", "desktop.ini")
# No camera takes more pixels; a file of a few bytes may claim far more.
MOST_PIXELS = 1 << 26


def read_pictures(
    source: str | Path,
    height: int,
    width: int,
    *,
    channels: int = 1,
    classes: int | Sequence[str] = (),
    fit: str = "stretch",
    high: float | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Read pictures, bring them to one size, and return them with their labels.

    Args:
        source: a folder of .png, .jpg and .jpeg files, in a sub-folder for each class where there are classes (one without
            pictures is fine; hidden files, and those that systems leave in folders, are passed over); or a file of
            arrays, see `read_arrays`.
        height, width, channels, classes, fit, high: see `PictureForm`.

    Returns:
        images: (N, height, width), or (N, height, width, 3), uint8; mapped from a .npy file that has this form already.
        labels: (N,) int64, places among the classes; None without classes.

    Raises:
        MissingData: if there is nothing at `source`.
        BadRecords: for a file that is no whole picture or larger than `MOST_PIXELS`, one of another kind, a sub-folder that
            is no declared class, pictures beside sub-folders, or none at all; by name.
        ValueError: for a wrong argument.
    """
    form = PictureForm(height, width, channels, classes, fit, high)
    path = Path(source)
    if not path.exists():
        raise MissingData(f"no folder or file {path}{suggest_file(path)}")
    if not path.is_dir():
        return read_arrays(path, form)
    files, labels = _listed(path, form.classes)
    images = np.empty((len(files), *form.shape), np.uint8)
    for i, file in enumerate(files):
        images[i] = _opened(file, form)
    return images, np.array(labels, np.int64) if form.classes else None


def _listed(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """Return files and their labels, in the order of their names."""
    entries = _visible(folder)
    folders = [entry for entry in entries if entry.is_dir()]
    files = [entry for entry in entries if not entry.is_dir()]
    if folders and files:
        raise BadRecords(
            f"{folder} holds both files ({shown(files[0].name)}) and sub-folders ({shown(folders[0].name)}): expected "
            "pictures, or one sub-folder of pictures for each class"
        )
    if folders and not classes:
        found = shown(folders[0].name)
        raise BadRecords(f"{folder} has sub-folders ({found}): declare them as classes, as in classes=[{found}]")
    if files and classes:
        expected = shown(list(classes))
        raise BadRecords(f"{folder} has no sub-folders: expected one for each of the classes {expected}")
    labels = [0] * len(files)
    for entry in folders:
        if entry.name not in classes:
            raise BadRecords(
                f"{folder} has a sub-folder {shown(entry.name)}: expected only the declared classes {shown(list(classes))}"
            )
        held = _visible(entry)
        files += held
        labels += [classes.index(entry.name)] * len(held)
    for file in files:
        if file.is_dir():
            raise BadRecords(f"{file} is a folder within a folder: expected pictures there")
        if file.suffix.lower() not in ENDINGS:
            raise BadRecords(f"{file}: expected a name that ends in {', '.join(ENDINGS)}; convert it, or move it away")
    if not files:
        raise BadRecords(f"{folder} holds no pictures: expected files that end in {', '.join(ENDINGS)}")
    return files, labels


def _visible(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise BadRecords(f"{folder} cannot be read: {error.strerror}") from None
    return [entry for entry in entries if not entry.name.startswith(".") and entry.name.lower() not in _LEFT_BY_SYSTEMS]


def _opened(file: Path, form: PictureForm) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            # Sizes are judged below; nothing else that is odd about a readable file matters.
            warnings.simplefilter("ignore")
            with Image.open(file, formats=("PNG", "JPEG")) as picture:
                if picture.width * picture.height > MOST_PIXELS:
                    size = f"{picture.width} x {picture.height}"
                    raise BadRecords(f"{file} is of {size}: expected at most {MOST_PIXELS:,} pixels")
                # The picture is turned as the camera says it was held.
                return form.of(ImageOps.exif_transpose(picture))
    except BadRecords:
        raise
    except Image.DecompressionBombError:
        raise BadRecords(f"{file} is too large: expected at most {MOST_PIXELS:,} pixels") from None
    # A broken file raises any error, as its decoder stumbles.
    except Exception as error:
        found = " ".join(str(error).split())[:200]
        raise BadRecords(f"{file} is not a whole PNG or JPEG picture: {found}") from None
