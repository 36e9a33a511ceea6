"""The projection as a scikit-learn transformer."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.projection.choice import TRIED, options
from lightning_dpgen.projection.matrices import distortion, make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection, Rows, check_rows, column_names
from lightning_dpgen.projection.recovery import Recovery


@dataclass(eq=False, repr=False)
class PrivateProjection(TransformerMixin, BaseEstimator):
    """A transformer that releases every row, projected and perturbed, once.

    `fit` takes the number of columns from the data and nothing else; `transform` spends the budget. A fitted projection
    transforms one table: a second time it refuses, for that would need a budget of its own. Its result is public, so a
    Pipeline may do anything with it. A search over parameters, or cross-validation, fits anew each time: every fit that
    transforms releases the same rows once more. These costs add up, and no account adds them.

    Args:
        n_components: k; None for the one with the least expected error of distances (`projection.choice`).
        epsilon: the budget, under replace-one.
        delta: 0; or in (0, 1), with Gaussian noise.
        unit: the part that is replaced between neighbours: ``row`` or ``element``.
        radius: rows (or elements) farther than this from the centre are pulled back, and any replacement is covered.
        distance: alternative to a radius: replacements within it are covered, and nothing enforces it.
        centre: (d,) a public row, or None for zero.
        matrix: a kind of `matrices.make_matrix`, or None for the best.
        noise: ``laplace``, ``spherical`` or ``gaussian``, or None for the best.
        count_share: share of the budget for the noisy number of rows that were pulled back.
        random_state: public seed of the matrix.
        secure: draw the noise from a cryptographic generator.
        ledger: a path for the ledger, or None to keep it in memory.

    Guarantee:
        (epsilon, delta)-private for one row, or one element, replaced by another: Laplace mechanism (Dwork et al. 2006),
        K-norm mechanism (Hardt and Talwar 2010) or Gaussian mechanism, calibrated on the matrix that was drawn
        (docs/guarantees/projections.md, "Projections").

    Raises:
        ValueError: in `fit`, for arguments that do not go together.
        BadRecords: in `transform`, for rows that are not finite or have another width; nothing is spent then.
        LedgerError: in `transform`, the second time.

    Attributes:
        projection_: the matrix, and the protection of its rows.
        account_: its plan and ledger.
        scale_: scale of the noise.
        recovery_: unbiased distances, their errors, neighbours.
        pulled_back_: after `transform`, the noisy number of rows that were pulled back, or None.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(100, 8))
        >>> PrivateProjection(4, epsilon=4.0, radius=3.0).fit_transform(rows).shape
        (100, 4)
    """

    n_components: int | None = None
    _: KW_ONLY
    epsilon: float = 1.0
    delta: float = 0.0
    unit: str = "row"
    radius: float | None = None
    distance: float | None = None
    centre: np.ndarray | None = None
    matrix: str | None = None
    noise: str | None = None
    count_share: float = 0.01
    random_state: int = 0
    secure: bool = False
    ledger: str | Path | None = None

    def fit(self, X: Rows, y: object = None) -> PrivateProjection:
        """Draw the matrix for as many columns as X has; no row is looked at."""
        if not isinstance(self.random_state, (int, np.integer)):
            raise ValueError(f"random_state={self.random_state!r}: expected a whole number, since the matrix is public")
        d = np.shape(X)[1]
        neighbourhood = Neighbourhood(self.unit, self.radius, self.distance)
        chosen = options(
            d,
            neighbourhood,
            self.epsilon,
            self.delta,
            ks=None if self.n_components is None else [self.n_components],
            matrices=[self.matrix] if self.matrix else TRIED,
            noises=[self.noise] if self.noise else None,
            count_share=self.count_share,
            seed=self.random_state,
        )[0]
        centre = None if self.centre is None else np.asarray(self.centre, dtype=np.float64)
        matrix = make_matrix(chosen.matrix, d, chosen.k, self.random_state)
        self.n_features_in_ = d
        self.projection_ = Projection(matrix, neighbourhood, chosen.noise, centre)
        plan = self.projection_.plan(self.epsilon, self.delta, count_share=self.count_share)
        self.account_ = Account(plan, self.ledger, PrivateStream(secure=self.secure))
        self.scale_ = self.projection_.scale(plan)
        self.recovery_ = Recovery(chosen.k, chosen.noise, self.scale_, distortion(chosen.matrix, d, chosen.k))
        return self

    def transform(self, X: Rows) -> np.ndarray:
        """Release the rows, to (n, k)."""
        check_is_fitted(self)
        if self.account_.ledger.accesses:
            raise LedgerError(
                "this projection has released its rows: a second release needs a budget of its own, so fit a new one"
            )
        released, self.pulled_back_ = self.projection_.release(check_rows(X), self.account_)
        self.account_.verify_complete()
        return released

    def get_feature_names_out(self, input_features: object = None) -> np.ndarray:
        """Return the names of the released columns."""
        check_is_fitted(self)
        return np.asarray(column_names(self.projection_.k), dtype=object)
