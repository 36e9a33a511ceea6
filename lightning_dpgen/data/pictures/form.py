"""The form that every picture is brought to: a public rule that looks at one picture at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from lightning_dpgen.data.names import public_names, shown

FITS = ("stretch", "pad", "crop")
MOST_CLASSES = 10_000


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
                raise ValueError(f"{name}={shown(value)}: expected a whole number from 1 to 4096")
        if self.channels not in (1, 3):
            raise ValueError(f"channels={shown(self.channels)}: expected 1 (grey) or 3 (colour)")
        if self.fit not in FITS:
            raise ValueError(f"fit={shown(self.fit)}: expected one of {', '.join(FITS)}")
        classes = self.classes
        if type(classes) is int:
            if not 0 <= classes <= MOST_CLASSES:
                raise ValueError(f"classes={shown(classes)}: expected 0 to {MOST_CLASSES:,}")
            classes = [str(i) for i in range(classes)]
        classes = public_names("classes", classes, 0, MOST_CLASSES)
        if len(classes) == 1 or (classes and type(classes[0]) is not str):
            raise ValueError(f"classes={shown(list(classes))}: expected none (no labels), or the names of two and more")
        object.__setattr__(self, "classes", classes)
        if not isinstance(self.high, int | float | None) or (self.high is not None and not 0.0 < self.high < float("inf")):
            raise ValueError(f"high={shown(self.high)}: expected a positive number")

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
