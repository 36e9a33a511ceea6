"""The release of every row, projected and perturbed: one access to the records, under replace-one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.sparse
import torch

from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.mechanisms import rounded_gaussian, rounded_laplace
from lightning_dpgen.privacy.noise.units import check_steps
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.sensitivity import NOISES
from lightning_dpgen.projection.steps import Rows, Steps, round_matrix
from lightning_dpgen.sampling.csr import check_csr, merge_entries
from lightning_dpgen.sampling.errors import BadRecords

# Stages of the plan: the released rows, and the count of rows that were pulled back.
ROWS, CLIPPED = "rows", "clipped"
# Numbers of the data that are taken together.
_CHUNK = 1 << 22

# Beyond this number sums, and released numbers, may overflow.
_LARGEST = 1e30


@dataclass(frozen=True)
class Projection:
    """A projection that was drawn, and the protection of its rows. All of it is public.

    Args:
        matrix: (d, k), drawn without looking at a record; it is kept on the grid of `steps.round_matrix`.
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
            raise ValueError(f"centre of shape {self.centre.shape}: expected {self.d} finite numbers, one for each column")
        object.__setattr__(self, "matrix", round_matrix(self.matrix))

    @property
    def d(self) -> int:
        return self.matrix.shape[0]

    @property
    def k(self) -> int:
        return self.matrix.shape[1]

    @cached_property
    def steps(self) -> Steps:
        """The map from rows to whole numbers of steps of the released grid, and its sensitivity."""
        return Steps(self.matrix, self.neighbourhood, self.noise, self.centre)

    @property
    def grid(self) -> float:
        """A power of two, of which all released numbers are multiples: at most 2^-13 of the sensitivity."""
        return self.steps.grid

    @property
    def sensitivity(self) -> float:
        """The largest change of a released row between neighbours, in the norm that the noise needs, rounding included."""
        return self.steps.sensitivity * self.grid

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
            how = GAUSSIAN if delta else LAPLACE
            specs.insert(
                0, StageSpec(CLIPPED, {"count": 1.0}, 1, max_noise=np.inf, share=count_share, kinds={"count": how})
            )
        plan = make_plan(specs, epsilon=epsilon, delta=delta, relation=REPLACE_ONE)
        check_steps("rows", plan.stage(ROWS).access.multipliers["rows"] * self.steps.sensitivity)
        return plan

    def scale(self, plan: Plan) -> float:
        """Return the scale of a plan's noise: b of Laplace and spherical noise, the standard deviation of a Gaussian."""
        multiplier = plan.stage(ROWS).access.multipliers["rows"]
        return multiplier * self.sensitivity / (2.0 if self.noise == "gaussian" else 1.0)

    def release(self, rows: Rows, account: Account) -> tuple[np.ndarray, int | None]:
        """Release the projected rows (n, k), and the count of rows that were pulled back, both with noise.

        Rows become whole numbers of steps of a public grid, each an exact function of its own row, and noise has the law of
        a rounded number, so the guarantee is that of noise in real numbers (docs/guarantees/projections.md, "Projections").

        Args:
            rows: (n, d), an array or CSR.
            account: an account of `plan`; it pays for nothing else.

        Raises:
            BadRecords: for another shape, or values that are not finite; nothing is spent then.
            PlanMismatch: if the account has paid for a release already: a second one would need a budget of its own.
        """
        steps, clipped = self._exact(check_rows(rows, self.d))
        count = None
        if CLIPPED in [stage.name for stage in account.plan.stages]:
            # The count changes by 1 between neighbours.
            exact = torch.tensor([clipped])
            with account.open(CLIPPED) as access:
                noised = rounded_laplace if access.access.kind("count") == LAPLACE else rounded_gaussian
                count = int(noised(access, "count", exact, sensitivity=1.0))
            # n is no secret here, so an impossible count is corrected.
            count = min(max(count, 0), len(steps))
        with account.open(ROWS) as access:
            noisy = NOISES[self.noise].add(
                access, "rows", torch.from_numpy(steps), unit=self.grid, sensitivity=self.sensitivity
            )
        return noisy.numpy(), count

    def _exact(self, rows: Rows) -> tuple[np.ndarray, int]:
        """Return the steps of the rows without noise, int64, and the count of rows that were pulled back: private."""
        steps, clipped = np.empty((rows.shape[0], self.k), np.int64), 0
        for part in _parts(rows):
            # A file may still be written to, so each part is checked and multiplied as a copy.
            copied = rows[part].copy() if scipy.sparse.issparse(rows) else np.array(rows[part], dtype=np.float64)
            _check_numbers(copied)
            steps[part], far = self.steps(copied)
            clipped += int(far.sum())
        return steps, clipped


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
        rows = merge_entries(scipy.sparse.csr_array(rows, dtype=np.float64))
    else:
        rows = rows if isinstance(rows, np.memmap) else np.asarray(rows)
        if rows.dtype.kind not in "fiub":
            raise BadRecords(f"rows are {rows.dtype}: expected numbers")
    if len(rows.shape) != 2 or not all(rows.shape):
        raise BadRecords(f"rows of shape {rows.shape}: expected (n, d), at least one row and one column")
    if d is not None and rows.shape[1] != d:
        raise BadRecords(f"rows have {rows.shape[1]} columns: expected {d}")
    for part in _parts(rows):
        _check_numbers(rows[part])
    return rows


def _check_numbers(rows: Rows) -> None:
    # One quick pass that most rows satisfy; NaN fails every comparison, and so does a sum that overflows.
    with np.errstate(over="ignore", invalid="ignore"):
        flat = rows.data if scipy.sparse.issparse(rows) else np.asarray(rows, dtype=np.float64).reshape(-1)
        quick = flat @ flat < _LARGEST**2
    if not quick and not (flat.min() > -_LARGEST and flat.max() < _LARGEST):
        raise BadRecords(f"rows hold NaN, or values beyond {_LARGEST:g}: fill these in, or leave those rows out")


def _parts(rows: Rows) -> Iterator[slice]:
    step = max(1, _CHUNK // rows.shape[1])
    for start in range(0, rows.shape[0], step):
        yield slice(start, start + step)
