"""Pictures from files of arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from lightning_dpgen.data.files.arrays import ENDINGS, load_arrays
from lightning_dpgen.data.names import positions, shown
from lightning_dpgen.data.pictures.form import PictureForm, eight_bits
from lightning_dpgen.sampling.errors import BadRecords


def read_arrays(path: Path, form: PictureForm) -> tuple[np.ndarray, np.ndarray | None]:
    """Read pictures of a .npz file with ``images`` and, where there are classes, ``labels``; or of a .npy file, without.

    Images are (N, h, w), (N, h, w, 1) or (N, h, w, 3); channels may come first where no other reading fits. Values
    are from 0 to ``form.high``; of uint8, uint16 and bool, where that is None, from 0 to the largest of their type. Labels
    are names of classes, or their places.

    Returns:
        As `read_pictures`; images of a .npy file stay mapped where nothing has to be done to them.

    Raises:
        BadRecords: for anything else.
    """
    if path.suffix not in ENDINGS:
        raise BadRecords(f"{path}: expected a folder of pictures, or a file that ends in {', '.join(ENDINGS)}")
    arrays = load_arrays(path, ("images", "labels"))
    images = _channels_last(arrays["images"], form, path)
    if images.dtype.kind not in "uifb":
        raise BadRecords(f"{path}: images are of {images.dtype}: expected numbers; convert them")
    if images.dtype not in (np.uint8, np.uint16, np.bool_) and form.high is None:
        raise BadRecords(f"{path}: images are of {images.dtype}, of unknown range: declare the largest, as in high=1.0")
    if not len(images):
        raise BadRecords(f"{path} holds no pictures")
    found = _labels(arrays.get("labels"), len(images), form, path) if form.classes else None
    channels = () if images.ndim == 3 else (images.shape[3],)
    fits = images.shape[1:3] == (form.height, form.width) and (channels or (1,))[0] == form.channels
    if fits and images.dtype == np.uint8 and form.high is None:
        return images.reshape(len(images), *form.shape), found
    done = np.empty((len(images), *form.shape), np.uint8)
    for i, picture in enumerate(images):
        picture = _bytes(picture, form, path).reshape(*picture.shape[:2], *(3,) * (channels == (3,)))
        done[i] = picture if fits else form.of(Image.fromarray(picture))
    return done, found


def _channels_last(images: np.ndarray, form: PictureForm, path: Path) -> np.ndarray:
    shape = images.shape
    size = (form.height, form.width)
    wrong = f"{path}: images have shape {shape}: expected (N, h, w), (N, h, w, 1) or (N, h, w, 3)"
    if images.ndim == 3 and 0 not in shape[1:]:
        return images
    if images.ndim != 4 or 0 in shape[1:]:
        raise BadRecords(wrong)
    last, first = shape[3] in (1, 3), shape[1] in (1, 3)
    # The declared size tells which of the two it is; last is the usual way.
    if last and first and size in (shape[1:3], shape[2:4]):
        last, first = shape[1:3] == size, shape[1:3] != size
    if last and first:
        raise BadRecords(f"{wrong}; here channels may be first or last: save them last, by numpy.moveaxis(images, 1, 3)")
    if not (last or first):
        raise BadRecords(f"{wrong}; leave transparency out")
    return images if last else np.moveaxis(images, 1, 3)


def _bytes(picture: np.ndarray, form: PictureForm, path: Path) -> np.ndarray:
    if form.high is None:
        if picture.dtype == np.uint16:
            return eight_bits(picture)
        return picture * np.uint8(255) if picture.dtype == np.bool_ else np.ascontiguousarray(picture)
    # NaN fails the comparison too.
    if not ((picture >= 0) & (picture <= form.high)).all():
        raise BadRecords(f"{path}: images hold NaN, or values outside 0 to high={form.high:g}, as declared")
    return np.rint(picture.astype(np.float64) * (255.0 / form.high)).astype(np.uint8)


def _labels(labels: np.ndarray | None, n: int, form: PictureForm, path: Path) -> np.ndarray:
    classes = form.classes
    if labels is None:
        advice = "; a .npz file may hold images and labels" if path.suffix == ".npy" else ""
        raise BadRecords(f"{path}: {len(classes)} classes are declared, but there are no labels{advice}")
    if labels.shape != (n,) or labels.dtype.kind not in "uiU":
        raise BadRecords(f"{path}: labels are {labels.dtype} of shape {labels.shape}: expected one for each picture")
    if labels.dtype.kind == "U":
        at = positions(classes, pa.array(labels.tolist(), pa.string()))
    else:
        at, known = np.full(n, -1), (labels >= 0) & (labels < len(classes))
        at[known] = labels[known]
    unknown = np.flatnonzero(at < 0)
    if len(unknown):
        label = shown(labels[unknown[0]].item())
        raise BadRecords(
            f"{path}: the label {label} of picture {unknown[0] + 1} is not among the {len(classes)} classes: expected "
            f"one of {shown(list(classes))}, or 0 to {len(classes) - 1}"
        )
    return at
