"""The release of every row, projected and perturbed: one access to the records, under replace-one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.sparse
import torch

from lightning_dpgen.privacy.access import GAUSSIAN, PURE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.calibration import make_plan
from lightning_dpgen.privacy.mechanisms import discrete_laplace, rounded_gaussian
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.pld import REPLACE_ONE
from lightning_dpgen.privacy.stage_spec import StageSpec
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.noises import NOISES
from lightning_dpgen.sampling.csr import check_csr
from lightning_dpgen.sampling.errors import BadRecords

# Stages of the plan: the released rows, and the count of rows that were pulled back.
ROWS, CLIPPED = "rows", "clipped"
# Numbers of the data that are taken together.
_CHUNK = 1 << 22

_GRID_BITS = 20
# Beyond this number sums, and released numbers, may overflow.
_LARGEST = 1e30
# Farther than so many declared distances from the centre, rounding in float64 would be no small part of the distance.
_FAR = 1e6

Rows = np.ndarray | scipy.sparse.csr_array


@dataclass(frozen=True)
class Projection:
    """A projection that was drawn, and the protection of its rows. All of it is public.

    Args:
        matrix: (d, k), drawn without looking at a record.
        noise: ``laplace``, ``spherical`` or ``gaussian``.
        centre: (d,) a public row that is subtracted from every row, and that a radius is measured from; None for zero.

    Raises:
        ValueError: if the parts do not fit together.
    """

    matrix: np.ndarray
    neighbourhood: Neighbourhood
    noise: str
    centre: np.ndarray | None = field(default=None)

    def __post_init__(self) -> None:
        if self.noise not in NOISES:
            raise ValueError(f"noise={self.noise!r}: expected one of {', '.join(NOISES)}")
        if self.matrix.ndim != 2 or not np.isfinite(self.matrix).all() or not self.matrix.any():
            raise ValueError(f"matrix of shape {self.matrix.shape}: expected finite numbers (d, k), not all of them zero")
        if self.centre is not None and (self.centre.shape != (self.d,) or not np.isfinite(self.centre).all()):
            raise ValueError(f"centre of shape {self.centre.shape}: expected {self.d} finite numbers, one a column")

    @property
    def d(self) -> int:
        return self.matrix.shape[0]

    @property
    def k(self) -> int:
        return self.matrix.shape[1]

    @cached_property
    def sensitivity(self) -> float:
        """The largest change of a released row between neighbours, in the norm that the noise needs."""
        return self.neighbourhood.change * NOISES[self.noise].sensitivity(self.matrix, self.neighbourhood.unit)

    def plan(self, epsilon: float, delta: float = 0.0, *, count_share: float = 0.01) -> Plan:
        """Plan the release, under replace-one: the rows, and before them the count of rows that were pulled back.

        Args:
            epsilon: the budget; infinite for the non-private twin.
            delta: 0 for Laplace and spherical noise, in (0, 1) for Gaussian noise.
            count_share: share of the budget for the count; 0, or a neighbourhood that is not enforced, leaves it out.

        Raises:
            ValueError: for a budget that does not go with the noise.
        """
        if (self.noise == "gaussian") != (delta > 0.0):
            raise ValueError(
                f"delta={delta:g} with noise={self.noise!r}: Gaussian noise needs a delta above 0, and with Laplace or "
                "spherical noise delta is 0"
            )
        if not 0.0 <= count_share < 1.0:
            raise ValueError(f"count_share={count_share}: expected a share of the budget from 0 up to 1")
        kind = NOISES[self.noise].kind
        specs = [StageSpec(ROWS, {"rows": 1.0}, 1, max_noise=np.inf, kinds={"rows": kind})]
        if self.neighbourhood.enforced and count_share:
            how = GAUSSIAN if delta else PURE
            specs.insert(
                0, StageSpec(CLIPPED, {"count": 1.0}, 1, max_noise=np.inf, share=count_share, kinds={"count": how})
            )
        return make_plan(specs, epsilon=epsilon, delta=delta, relation=REPLACE_ONE)

    def scale(self, plan: Plan) -> float:
        """Return the scale of a plan's noise: b of Laplace and spherical noise, the standard deviation of a Gaussian."""
        multiplier = plan.stage(ROWS).access.multipliers["rows"]
        return multiplier * self.sensitivity / (2.0 if self.noise == "gaussian" else 1.0)

    def release(self, rows: Rows, account: Account) -> tuple[np.ndarray, int | None]:
        """Release the projected rows (n, k), and the count of rows that were pulled back, both with noise.

        Released numbers are rounded to multiples of about a millionth of the scale, after the noise: a grid that does not
        depend on the records, far coarser than float64, in whose last digits noise of floating point is weak.

        Args:
            rows: (n, d), an array or CSR.
            account: an account of `plan`; it pays for nothing else.

        Raises:
            BadRecords: for another shape, or values that are not finite; nothing is spent then.
            PlanMismatch: if the account has paid for a release already: a second one would need a budget of its own.
        """
        projected, clipped = self._exact(check_rows(rows, self.d))
        count = None
        if CLIPPED in [stage.name for stage in account.plan.stages]:
            with account.open(CLIPPED) as access:
                add = discrete_laplace if access.access.kind("count") == PURE else rounded_gaussian
                count = int(add(access, "count", torch.tensor([clipped]), sensitivity=1))
            # The count changes by 1 between neighbours. n is no secret here, so an impossible count is corrected.
            count = min(max(count, 0), len(projected))
        with account.open(ROWS) as access:
            NOISES[self.noise].add(access, "rows", torch.from_numpy(projected), sensitivity=self.sensitivity)
        if account.plan.private:
            grid = 2.0 ** (math.floor(math.log2(self.scale(account.plan))) - _GRID_BITS)
            np.rint(np.divide(projected, grid, out=projected), out=projected)
            projected *= grid
        return projected, count

    def _exact(self, rows: Rows) -> tuple[np.ndarray, int]:
        """Compute the projected rows without noise, and the count of rows that were pulled back: private."""
        projected, clipped = np.empty((rows.shape[0], self.k)), 0
        for part in _parts(rows):
            chunk = rows[part]
            if self.centre is not None or not scipy.sparse.issparse(chunk):
                chunk = _dense(chunk)
            if self.centre is not None:
                # It is subtracted first, since a later difference of two large numbers would be mostly rounding.
                chunk = chunk - self.centre
            if self.neighbourhood.enforced:
                chunk, factors = self._pulled_back(chunk)
                clipped += int((factors < 1.0).sum())
            elif abs(chunk).max() > _FAR * self.neighbourhood.change:
                raise BadRecords(
                    f"rows hold values more than {_FAR:g} times the declared distance {self.neighbourhood.change:g} away "
                    "from the centre, beside which it is lost in rounding: give a centre (public) near the rows"
                )
            out = projected[part]
            out[:] = chunk @ self.matrix
            if self.neighbourhood.enforced and self.neighbourhood.unit == "row":
                out *= factors[:, None]
        return projected, clipped

    def _pulled_back(self, chunk: Rows) -> tuple[Rows, np.ndarray]:
        """Pull values, less the centre, back to the radius; give a factor below 1 for each row with a value pulled back.

        Whole rows are only given factors: these are linear, and are applied after the projection.
        """
        radius = self.neighbourhood.radius
        if self.neighbourhood.unit == "row":
            lengths = _lengths(chunk)
            return chunk, np.where(lengths > radius, radius / np.maximum(lengths, radius), 1.0)
        if scipy.sparse.issparse(chunk):
            near = chunk.copy()
            np.clip(near.data, -radius, radius, out=near.data)
            changed = abs(chunk).max(axis=1).toarray().ravel() > radius
        else:
            near = np.clip(chunk, -radius, radius)
            changed = (near != chunk).any(axis=1)
        return near, np.where(changed, 0.0, 1.0)


def column_names(k: int) -> list[str]:
    """Return the names of the released columns."""
    return [f"projected_{i}" for i in range(k)]


def check_rows(rows: Rows, d: int | None = None) -> Rows:
    """Check rows, and return them as an array (numbers of any kind, perhaps on disk) or CSR in float64 without duplicates.

    Raises:
        BadRecords: if they are not (n, d) finite numbers, n at least 1.
    """
    if scipy.sparse.issparse(rows):
        if rows.format not in ("csr", "csc") or rows.ndim != 2:
            raise BadRecords(f"rows are a sparse {rows.format} of {rows.ndim} dimensions: expected csr of 2; use .tocsr()")
        if rows.dtype.kind not in "fiub":
            raise BadRecords(f"rows are {rows.dtype}: expected numbers")
        check_csr(rows, "the matrix of rows")
        rows = scipy.sparse.csr_array(rows, dtype=np.float64)
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
    else:
        rows = rows if isinstance(rows, np.memmap) else np.asarray(rows)
        if rows.dtype.kind not in "fiub":
            raise BadRecords(f"rows are {rows.dtype}: expected numbers")
    if len(rows.shape) != 2 or not all(rows.shape):
        raise BadRecords(f"rows of shape {rows.shape}: expected (n, d), at least one row and one column")
    if d is not None and rows.shape[1] != d:
        raise BadRecords(f"rows have {rows.shape[1]} columns: expected {d}")
    for part in _parts(rows):
        # One quick pass that most rows satisfy; NaN fails every comparison, and so does a sum that overflows.
        with np.errstate(over="ignore", invalid="ignore"):
            flat = rows[part].data if scipy.sparse.issparse(rows) else _dense(rows[part]).reshape(-1)
            quick = flat @ flat < _LARGEST**2
        if not quick and not (flat.min() > -_LARGEST and flat.max() < _LARGEST):
            raise BadRecords(f"rows hold NaN, or values beyond {_LARGEST:g}: fill these in, or leave those rows out")
    return rows


def _dense(chunk: Rows) -> np.ndarray:
    return np.asarray(chunk.toarray() if scipy.sparse.issparse(chunk) else chunk, dtype=np.float64)


def _parts(rows: Rows) -> Iterator[slice]:
    step = max(1, _CHUNK // rows.shape[1])
    for start in range(0, rows.shape[0], step):
        yield slice(start, start + step)


def _lengths(chunk: Rows) -> np.ndarray:
    """Return the Euclidean length of each row."""
    if scipy.sparse.issparse(chunk):
        return np.sqrt(chunk.multiply(chunk).sum(axis=1))
    return np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
