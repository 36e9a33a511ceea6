"""Release of projected rows: written, read again, and checked against the sensitivity that it states."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import safetensors.numpy
from safetensors import SafetensorError

from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.projection.matrices import MATRICES, check_matrix, distortion
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection, column_names
from lightning_dpgen.projection.recovery import Recovery
from lightning_dpgen.projection.sensitivity import NOISES
from lightning_dpgen.projection.steps import matrix_unit
from lightning_dpgen.release.bounds import check_tensors
from lightning_dpgen.release.drawing.description import PROJECTION, in_plain_words
from lightning_dpgen.release.drawing.opened import check_ordinary, read_json_file
from lightning_dpgen.release.files import MODEL, PROJECTED, WEIGHTS, NotARelease
from lightning_dpgen.release.publishing.mark import marked_schema

# Bytes of numbers for each byte of a file: noise spans 8 steps of its grid, and nearly always thousands.
_MOST_PACKED, _ALWAYS = 16, 1 << 20
# Sums of squares of numbers up to this one are finite.
_LARGEST = 1e100
_FIELDS = {"model", "d", "matrix", "k", "unit", "radius", "distance", "noise", "grid", "scale", "pulled_back"}


@dataclass(frozen=True)
class ProjectedRows:
    """Released rows, and the quantities that can be computed from them.

    Args:
        rows: (n, k) float64, with noise; multiples of the projection's grid.
        projection: the matrix, the neighbourhood and the noise.
        matrix: the kind of the matrix.
        scale: scale of the noise; 0 in the non-private twin.
        pulled_back: the number of rows farther from the centre than the radius, with noise; None if not counted.

    Example:
        >>> release = load_release(folder)                                       # doctest: +SKIP
        >>> release.recovery.squared_distances(release.rows[:9], release.rows[9:18])   # doctest: +SKIP
    """

    rows: np.ndarray
    projection: Projection
    matrix: str
    scale: float
    pulled_back: int | None

    @cached_property
    def recovery(self) -> Recovery:
        """Distances, their errors, neighbours and kernels; see `projection.recovery`."""
        projection = self.projection
        return Recovery(projection.k, projection.noise, self.scale, distortion(self.matrix, projection.d, projection.k))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that were asked for, or chosen, as in a certificate's ``declared.projection``."""
        around = self.projection.neighbourhood
        return {
            "matrix": self.matrix,
            "k": self.projection.k,
            "unit": around.unit,
            "radius": around.radius,
            "distance": around.distance,
            "noise": self.projection.noise,
        }

    def whitened(self, variance: float = 1.0) -> np.ndarray:
        """Return the rows (n, k) with the distortion by matrix and noise taken out, for clustering.

        If the columns of the data have this variance within a cluster and do not correlate, the returned ones have
        variance 1 there and do not correlate.
        """
        matrix = self.projection.matrix
        covariance = variance * matrix.T @ matrix + self.recovery.coordinate_variance * np.eye(self.projection.k)
        values, vectors = np.linalg.eigh(covariance)
        # Noise adds this much to each value; a smaller one is rounding.
        values = np.maximum(values, self.recovery.coordinate_variance)
        return self.rows @ (vectors / np.sqrt(values)) @ vectors.T


def write_projected(folder: Path, projected: ProjectedRows, *, private: bool = True) -> None:
    """Write rows, matrix and description into a folder; rows that are not private are marked (`publishing.mark`)."""
    projection = projected.projection
    description = {"model": PROJECTION, "d": projection.d, **projected.settings} | {
        "grid": projection.grid,
        "scale": projected.scale,
        "pulled_back": projected.pulled_back,
    }
    (folder / MODEL).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    centre = np.zeros(projection.d) if projection.centre is None else projection.centre
    safetensors.numpy.save_file({"matrix": projection.matrix, "centre": centre}, folder / WEIGHTS)
    (folder / WEIGHTS).chmod(0o644)
    columns = np.asfortranarray(projected.rows)
    arrays = [pa.array(columns[:, i]) for i in range(projection.k)]
    # Rows without noise could be packed without limit; see `_check_rows`.
    packed = projected.scale > 0.0
    table = pa.table(arrays, names=column_names(projection.k))
    if not private:
        table = table.cast(marked_schema(table.schema))
    with open(folder / PROJECTED, "wb") as file:
        pa.parquet.write_table(table, file, compression="zstd" if packed else "none", use_dictionary=packed)


def load_projected(folder: Path) -> ProjectedRows:
    """Read the files of `write_projected`.

    Raises:
        NotARelease: if it cannot be read, or its parts do not fit together.
    """
    try:
        description = read_json_file(folder / MODEL, links=True)
        d, k = (description[name] for name in ("d", "k"))
        check_matrix(description["matrix"], d, k)
        check_tensors(folder / WEIGHTS, {"matrix": (d, k), "centre": (d,)}, "F64")
        _check_rows(folder / PROJECTED, k)
        tensors = safetensors.numpy.load_file(folder / WEIGHTS)
        with open(folder / PROJECTED, "rb") as file:
            table = pa.parquet.read_table(file)
        return _checked(description, tensors, table)
    except (ValueError, KeyError, TypeError, OverflowError, OSError, SafetensorError, pa.ArrowException) as error:
        raise NotARelease(f"the projection in {folder} cannot be read: {in_plain_words(error)}") from None


def _check_rows(path: Path, k: int) -> None:
    """Refuse a file that claims far more numbers than it has room for, before one is read.

    Noise spans many steps of the grid that rows are rounded to, so no packing makes much less of it, and rows without
    noise are written unpacked (`write_projected`).
    """
    check_ordinary(path)
    with open(path, "rb") as opened, pa.parquet.ParquetFile(opened) as file:
        columns, rows = file.metadata.num_columns, file.metadata.num_rows
    if columns != k:
        raise ValueError(f"{path.name} has {say_count(columns, 'column')}: expected {k}")
    if 8 * rows * k > _MOST_PACKED * path.stat().st_size + _ALWAYS:
        raise ValueError(f"{path.name} claims {say_count(rows, 'row')}, for which it is too short")


def _checked(description: dict[str, Any], tensors: dict[str, np.ndarray], table: pa.Table) -> ProjectedRows:
    if description["model"] != PROJECTION or description["matrix"] not in MATRICES or description["noise"] not in NOISES:
        raise ValueError(f"model={description['model']!r}, matrix={description['matrix']!r}: unknown")
    if set(description) != _FIELDS or set(tensors) != {"matrix", "centre"}:
        raise ValueError(f"{MODEL} or {WEIGHTS} holds less or more than a projection has")
    matrix, centre = tensors["matrix"], tensors["centre"]
    if matrix.dtype != np.float64 or centre.dtype != np.float64:
        raise ValueError(f"matrix and centre are {matrix.dtype} and {centre.dtype}: expected float64")
    neighbourhood = Neighbourhood(description["unit"], description["radius"], description["distance"])
    projection = Projection(matrix, neighbourhood, description["noise"], centre)
    if (projection.d, projection.k) != (description["d"], description["k"]):
        raise ValueError(f"a matrix of shape {matrix.shape} with d={description['d']} and k={description['k']}")
    grid = description["grid"]
    if type(grid) is not float or not 1.0 / _LARGEST <= grid <= _LARGEST:
        raise ValueError(f"grid={grid!r}: expected a number from {1.0 / _LARGEST:g} to {_LARGEST:g}, written with a point")
    if not np.array_equal(matrix, projection.matrix):
        raise ValueError(f"the matrix holds numbers that are not multiples of {matrix_unit(matrix)!r}")
    if table.column_names != column_names(projection.k):
        raise ValueError(f"{PROJECTED} has other columns than {column_names(projection.k)[0]}, ...")
    rows = np.column_stack([column.to_numpy() for column in table.columns])
    scale = description["scale"]
    for name, numbers in (("matrix", matrix), ("centre", centre), (PROJECTED, rows)):
        if numbers.size and not np.abs(numbers).max() <= _LARGEST:
            raise ValueError(f"{name} holds numbers beyond {_LARGEST:g}: expected numbers whose squares can be added up")
    if rows.dtype != np.float64 or not np.isfinite(rows).all():
        raise ValueError(f"{PROJECTED} holds {rows.dtype}: expected finite float64")
    if not np.array_equal(np.rint(rows / grid) * grid, rows):
        raise ValueError(f"{PROJECTED} holds numbers that are not multiples of the grid, {grid!r}")
    if type(scale) not in (int, float) or not 0.0 <= scale <= _LARGEST:
        raise ValueError(f"scale={scale!r}: expected a number from 0 to {_LARGEST:g}")
    pulled_back = description["pulled_back"]
    if pulled_back is not None and not (type(pulled_back) is int and 0 <= pulled_back <= len(rows)):
        raise ValueError(f"pulled_back={pulled_back!r}: expected a whole number up to {len(rows)}, or null")
    return ProjectedRows(rows, projection, description["matrix"], float(scale), pulled_back)
