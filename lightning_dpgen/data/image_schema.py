"""Pictures: what is publicly known of them before one is read."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class ImageSchema:
    """Grey or binary pictures with an optional class label; everything here is declared, nothing is read off the data.

    A record is encoded as ``height * width`` numbers in [0, 1], followed by the label as one-hot.

    Args:
        height: rows of a picture.
        width: columns of a picture.
        levels: the largest pixel value; pixels are whole numbers from 0 to this.
        classes: number of labels 0, 1, ...; 0 for pictures without a label.
        threshold: if set, a pixel above this value is 1 and any other 0 (the pictures become binary).

    Example:
        >>> ImageSchema(8, 8, levels=16, classes=10).encoded_width
        74
    """

    height: int
    width: int
    levels: int
    classes: int = 0
    threshold: int | None = None

    def __post_init__(self) -> None:
        for name, least, most in (("height", 1, 4096), ("width", 1, 4096), ("levels", 1, 2**24), ("classes", 0, 10_000)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name}={value!r}: expected a whole number from {least} to {most}")
        if self.classes == 1:
            raise ValueError(f"classes={self.classes}: expected 0 (no label) or 2 and more")
        if self.threshold is not None and not 0 <= self.threshold < self.levels:
            raise ValueError(f"threshold={self.threshold}: expected 0 to {self.levels - 1}")

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @property
    def encoded_width(self) -> int:
        return self.pixels + self.classes

    @property
    def binary(self) -> bool:
        """Whether pixels are 0 or 1, so that samples are drawn and not averaged."""
        return self.threshold is not None or self.levels == 1

    @property
    def out_levels(self) -> int:
        """The largest value of a synthetic pixel."""
        return 1 if self.binary else self.levels

    @property
    def columns(self) -> list[str]:
        """Columns of a synthetic table: pixels in row order, then the label."""
        return [f"pixel_{i}" for i in range(self.pixels)] + (["label"] if self.classes else [])

    def as_json(self) -> dict[str, object]:
        return {"kind": "images", **asdict(self)}

    @classmethod
    def from_json(cls, fields: dict) -> ImageSchema:
        """The schema that `as_json` described.

        Raises:
            ValueError: for another kind of record or foreign fields.
        """
        fields = dict(fields)
        if fields.pop("kind", None) != "images":
            raise ValueError("the schema does not describe images")
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"the schema has missing or foreign fields: {error}") from None
