"""Pictures from folders and files of arrays, brought to one size by a public rule that looks at one picture at a time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image, ImageOps

from lightning_dpgen.common.nearest_word import suggest_file
from lightning_dpgen.data.files.arrays import ENDINGS as ARRAY_ENDINGS
from lightning_dpgen.data.files.arrays import load_arrays
from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.names import MOST_CLASSES, positions, public_names, quote
from lightning_dpgen.sampling.errors import BadRecords

FITS = ("stretch", "pad", "crop")


@dataclass(frozen=True)
class PictureForm:
    """The public form that every picture is brought to.

    Args:
        height, width: in pixels, 1 to 4096.
        channels: 1 for grey (ITU-R 601 of colours), 3 for red, green and blue.
        classes: names of the sub-folders that are the labels; or the number of those named 0, 1, ...; empty without labels.
        fit: the way from another size, each pixel the mean over the area that it covers: ``stretch`` to the size,
            whatever the aspect; ``pad`` by black, the whole picture in the middle; ``crop`` both sides that stand over.
        high: the largest value of arrays, which go from 0 to this; None where their type says it.

    Raises:
        ValueError: for anything else.

    Example:
        >>> PictureForm(1, 2, fit="pad").of(Image.fromarray(np.array([[8, 8], [9, 11]], np.uint8))).tolist()
        [[9, 0]]
    """

    height: int
    width: int
    channels: int = 1
    classes: int | Sequence[str] = ()
    fit: str = "stretch"
    high: float | None = None

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 4096:
                raise ValueError(f"{name}={quote(value)}: expected a whole number from 1 to 4096")
        if self.channels not in (1, 3):
            raise ValueError(f"channels={quote(self.channels)}: expected 1 (grey) or 3 (colour)")
        if self.fit not in FITS:
            raise ValueError(f"fit={quote(self.fit)}: expected one of {', '.join(FITS)}")
        classes = self.classes
        if type(classes) is int:
            if not 0 <= classes <= MOST_CLASSES:
                raise ValueError(f"classes={quote(classes)}: expected 0 to {MOST_CLASSES:,}")
            classes = [str(i) for i in range(classes)]
        classes = public_names("classes", classes, 0, MOST_CLASSES)
        if len(classes) == 1 or (classes and type(classes[0]) is not str):
            raise ValueError(f"classes={quote(list(classes))}: expected none (no labels), or the names of two and more")
        object.__setattr__(self, "classes", classes)
        if not isinstance(self.high, int | float | None) or (self.high is not None and not 0.0 < self.high < float("inf")):
            raise ValueError(f"high={quote(self.high)}: expected a positive number")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one picture: (height, width), or (height, width, 3)."""
        return (self.height, self.width) if self.channels == 1 else (self.height, self.width, 3)

    def of(self, picture: Image.Image) -> np.ndarray:
        """Return a picture of any size and mode as uint8 of `shape`.

        Transparent parts are laid on white; 16 bits are divided by the range of their type.

        Raises:
            ValueError: for a mode whose range is not known (32-bit and floating).
        """
        picture = _plain(picture).convert("L" if self.channels == 1 else "RGB")
        size, box = (self.width, self.height), Image.Resampling.BOX
        if picture.size == size:
            return np.asarray(picture)
        if self.fit == "stretch":
            return np.asarray(picture.resize(size, box))
        if self.fit == "crop":
            return np.asarray(ImageOps.fit(picture, size, box))
        scale = min(self.width / picture.width, self.height / picture.height)
        # At least one pixel of the narrowest picture remains.
        inner = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
        padded = Image.new(picture.mode, size)
        padded.paste(picture.resize(inner, box), ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
        return np.asarray(padded)


def _plain(picture: Image.Image) -> Image.Image:
    """Return a picture without transparency, and of 8 bits."""
    if picture.mode.startswith("I;16") or picture.mode == "I":
        values = np.asarray(picture).astype(np.int64)
        if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
            raise ValueError("its values are beyond 16 bits")
        return Image.fromarray(eight_bits(values))
    if picture.mode == "F":
        raise ValueError("it is of floats, whose range is not known")
    if picture.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture


def eight_bits(values: np.ndarray) -> np.ndarray:
    """Round values of 16 bits, 0 to 65535, to 0 to 255."""
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


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
    if path.suffix not in ARRAY_ENDINGS:
        raise BadRecords(f"{path}: expected a folder of pictures, or a file that ends in {', '.join(ARRAY_ENDINGS)}")
    arrays = load_arrays(path, ("images", "labels"))
    images = _channels_last(arrays["images"], form, path)
    if images.dtype.kind not in "uifb":
        raise BadRecords(f"{path}: images are of {images.dtype}: expected numbers; convert them")
    if images.dtype not in (np.uint8, np.uint16, np.bool_) and form.high is None:
        raise BadRecords(f"{path}: images are of {images.dtype}, of unknown range: declare the largest, as in high=1.0")
    if not len(images):
        raise BadRecords(f"{path} holds no pictures")
    labels = _labels(arrays.get("labels"), len(images), form, path) if form.classes else None
    channels = () if images.ndim == 3 else (images.shape[3],)
    fits = images.shape[1:3] == (form.height, form.width) and (channels or (1,))[0] == form.channels
    if fits and images.dtype == np.uint8 and form.high is None:
        return images.reshape(len(images), *form.shape), labels
    done = np.empty((len(images), *form.shape), np.uint8)
    for i, picture in enumerate(images):
        picture = _bytes(picture, form, path).reshape(*picture.shape[:2], *(3,) * (channels == (3,)))
        done[i] = picture if fits else form.of(Image.fromarray(picture))
    return done, labels


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
        label = quote(labels[unknown[0]].item())
        raise BadRecords(
            f"{path}: the label {label} of picture {unknown[0] + 1} is not among the {len(classes)} classes: expected "
            f"one of {quote(list(classes))}, or 0 to {len(classes) - 1}"
        )
    return at


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
            f"{folder} holds both files ({quote(files[0].name)}) and sub-folders ({quote(folders[0].name)}): expected "
            "pictures, or one sub-folder of pictures for each class"
        )
    if folders and not classes:
        found = quote(folders[0].name)
        raise BadRecords(f"{folder} has sub-folders ({found}): declare them as classes, as in classes=[{found}]")
    if files and classes:
        expected = quote(list(classes))
        raise BadRecords(f"{folder} has no sub-folders: expected one for each of the classes {expected}")
    labels = [0] * len(files)
    for entry in folders:
        if entry.name not in classes:
            raise BadRecords(
                f"{folder} has a sub-folder {quote(entry.name)}: expected only the declared classes {quote(list(classes))}"
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
