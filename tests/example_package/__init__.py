"""Data and a model of the user's own, as `data=own` and `model=own` take them."""

from example_package.model import Independent, Independents
from example_package.records import codes, encoded, frame, owned, people

__all__ = ["Independent", "Independents", "codes", "encoded", "frame", "owned", "people"]
