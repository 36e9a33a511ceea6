"""The label of a table given its other columns: softmax regression by noisy gradients, on top of a fitted mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.statistics import Statistic, check_radius, shortened
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.models.mixture import Mixture

# Made-up records, drawn from the mixture, that stand for real ones where that saves budget.
_MADE = 10_000
# The ridge that draws weights to 0: so many times the variance of a noisy share, and the least ridge.
_RIDGE, _LEAST = 140.0, 2e-4
# This share of the made-up records' gradients is within the bound.
_KEPT = 0.9
# The largest weight with which labels follow their components, and its prior mean.
_CLOSEST, _EXPECTED = 8.0, 4.0


class Gradient(Statistic):
    """Sums of gradients of the softmax regression loss at public weights, each shortened to a bound.

    A record's is ``u (p - y)^T``: u are its features, p the shares that weights give to labels, y is its label as one-hot.

    Args:
        layout: the records' layout, with a label.
        features: (width, d) the features that each choice adds to those of a record; 0 for labels. Public.
        weights: (d, labels), public.
        bound: the length to which gradients are shortened.
    """

    def __init__(self, layout: Layout, features: Tensor, weights: Tensor, bound: float) -> None:
        check_radius(bound, "bound")
        self.layout, self._features, self._weights = layout, features, weights
        self.shape, self.bound = tuple(weights.shape), bound

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        u = added_up(records, self.layout, self._features)
        # Weights that overflow count as if they said nothing.
        errors = torch.softmax(u @ self._weights, dim=1).nan_to_num(0.0)
        errors[torch.arange(len(u)), labels_of(records, self.layout)] -= 1.0
        # The length of an outer product is that of its factors, so shortening one shortens it.
        lengths = torch.linalg.vector_norm(errors, dim=1, keepdim=True)
        # Squares of smaller lengths underflow; such a record adds nothing.
        errors = errors.where(lengths > 1e-100, 0.0)
        return shortened(u * lengths, self.bound).T @ (errors / lengths.clamp(min=1e-300))


class Agreement(Statistic):
    """Sums of the shares that weights give to the records' own labels: a share is at most 1, so the bound is 1.

    Args:
        layout, features, weights: see `Gradient`.
    """

    shape, bound = (1,), 1.0

    def __init__(self, layout: Layout, features: Tensor, weights: Tensor) -> None:
        self.layout, self._features, self._weights = layout, features, weights

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        shares = torch.softmax(added_up(records, self.layout, self._features) @ self._weights, dim=1)
        own = shares[torch.arange(len(shares)), labels_of(records, self.layout)]
        return own.nan_to_num(0.0).sum()[None]


class LabelRegression:
    """Softmax regression that begins with the label of a mixture, and is corrected by noisy gradients of real records.

    Everything but these gradients is public: the start, features in which the loss is about equally curved in all
    directions (so that a few steps suffice, and noise that is alike in all of them hurts least), and the bound follow from
    records made up by the mixture. Steps are those of Newton's method in these features, averaged; their mean is shrunk to
    the start by the share of it that noise explains (James and Stein).

    Args:
        mixture: a mixture of products, fitted to noisy tables.
        noise: standard deviation of the noise of a share in these tables.
        n: about the number of records; public.
        seed: the seed of made-up records; public.
    """

    def __init__(self, mixture: Mixture, noise: float, n: float, seed: int) -> None:
        self._layout, self._n = mixture.network.schema.layout, n
        generator = torch.Generator().manual_seed(seed)
        self._component = torch.multinomial(mixture.weights, _MADE, replacement=True, generator=generator)
        self._made = mixture.sample_components(self._component, generator)
        self._log_shares = mixture.network.means[:, self._layout.labels].double().clamp(min=1e-4).log()
        self._label_shares = mixture.weights.double() @ self._log_shares.exp()
        others = torch.ones(self._layout.width, dtype=torch.bool)
        others[self._layout.labels] = False
        written = torch.eye(self._layout.width, dtype=torch.float64)[:, others]
        x = added_up(self._made, self._layout, written)
        ridge = max(_RIDGE * noise**2, _LEAST)
        weights = _fit(x, _labels_given(mixture, self._made), ridge)
        p = torch.softmax(x @ weights, dim=1)
        classes = weights.shape[1]
        # The mean curvature of the loss over directions in which weights matter.
        curvature = (1.0 - p.square().sum(dim=1)) / (classes - 1)
        values, vectors = torch.linalg.eigh((x * curvature[:, None]).T @ x / len(x))
        roots = (values.clamp(min=0.0) + ridge / 4).sqrt()
        # The symmetric root: a run that goes on finds the same features though vectors may have other signs then.
        whitened = (vectors / roots) @ vectors.T
        self._features = written @ whitened
        self._start = (vectors * roots) @ (vectors.T @ weights)
        errors = p.clone()
        errors[torch.arange(len(p)), labels_of(self._made, self._layout)] -= 1.0
        lengths = torch.linalg.vector_norm(x @ whitened, dim=1) * torch.linalg.vector_norm(errors, dim=1)
        self._bound = max(float(torch.quantile(lengths, _KEPT)), 1e-3)

    def statistics(self, rounds: Sequence[Mapping[str, Measured]]) -> dict[str, Statistic]:
        """Return the statistics of the next access, after these rounds."""
        weights = self._corrected(rounds)
        gradient = Gradient(self._layout, self._features, weights, self._bound)
        return {"gradient": gradient, "agreement": Agreement(self._layout, self._features, weights)}

    def fitted(self, rounds: Sequence[Mapping[str, Measured]], sharpness: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return weights (width, labels) of choices and offsets (k, labels) of components: a label's logits are their sum.

        Offsets make labels occur as often as tables say. They follow components just enough to make labels as predictable
        from made-up columns, which may tell less, as from real ones (`Agreement`).

        Args:
            rounds: the measurements of all accesses.
            sharpness: factor of differences of logits; above 1 labels are more predictable than real ones.
        """
        weights = self._corrected(rounds)
        made = self._shares(weights)
        later = range(len(rounds) // 2, len(rounds))
        gaps = [self._gap(rounds[i]["agreement"], self._corrected(rounds[:i])) for i in later]
        wanted = float(made.square().sum(dim=1).mean()) + sum(gaps) / max(len(gaps), 1)
        # Without noise a difference of a thousandth counts as none.
        doubt = sum((rounds[i]["agreement"].deviation / self._n) ** 2 for i in later) / max(len(gaps), 1) ** 2 + 1e-6
        logits = added_up(self._made, self._layout, self._features) @ weights

        def with_offsets(closeness: float, sharpness: float = 1.0) -> tuple[float, Tensor]:
            followed = sharpness * closeness * self._log_shares
            level = torch.zeros(logits.shape[1], dtype=torch.float64)
            for _ in range(25):
                shares = torch.softmax(sharpness * logits + followed[self._component] + level, dim=1)
                level += (self._label_shares / shares.mean(dim=0).clamp(min=1e-12)).log()
            return float((shares * made).sum(dim=1).mean()), followed + level

        low, high = 0.0, _CLOSEST
        if with_offsets(low)[0] >= wanted:
            high = low
        for _ in range(12 if high else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if with_offsets(middle)[0] < wanted else (low, middle)
        if high > _EXPECTED / 10.0:
            # Agreement grows less and less, and then falls: beyond its peak noise would tie labels to components alone.
            high = minimize_scalar(
                lambda closeness: (with_offsets(closeness)[0] - wanted) ** 2 / (2.0 * doubt) + closeness / _EXPECTED,
                bounds=(0.0, high), method="bounded", options={"xatol": 0.02 * high},
            ).x  # fmt: skip
        return sharpness * self._features @ weights, with_offsets(high, sharpness)[1]

    def _corrected(self, rounds: Sequence[Mapping[str, Measured]]) -> Tensor:
        """Return the weights after these rounds."""
        weights, reached = self._start, torch.zeros_like(self._start)
        for i, measured in enumerate(rounds, start=1):
            gradient = measured["gradient"].sums / self._n
            # Only differences between labels matter; the part that all have in common is noise.
            reached = reached + weights - (gradient - gradient.mean(dim=1, keepdim=True))
            moved = reached / i - self._start
            numbers = moved.shape[0] * (moved.shape[1] - 1)
            noise = numbers * (measured["gradient"].deviation / self._n) ** 2 / i
            weights = self._start + max(0.0, 1.0 - noise / max(float(moved.square().sum()), 1e-300)) * moved
        return weights

    def _shares(self, weights: Tensor) -> Tensor:
        return torch.softmax(added_up(self._made, self._layout, self._features) @ weights, dim=1)

    def _gap(self, measured: Measured, weights: Tensor) -> float:
        """Return by how much real records agree with weights more than records do whose labels are drawn by them."""
        return float(measured.sums) / self._n - float(self._shares(weights).square().sum(dim=1).mean())


def added_up(records: Encoded, layout: Layout, features: Tensor) -> Tensor:
    """Sum the rows of `features` (width, d) that belong to the choices of each record: (B, d), of that record alone."""
    total = torch.zeros(len(records), features.shape[1], dtype=torch.float64)
    for group, span in enumerate(layout.spans):
        if group != layout.label:
            total += features[span.start + torch.from_numpy(records.codes[:, group].astype(np.int64))]
    return total


def labels_of(records: Encoded, layout: Layout) -> Tensor:
    """Return the label of each record, (B,) int64."""
    return torch.from_numpy(records.codes[:, layout.label].astype(np.int64))


def _labels_given(mixture: Mixture, records: Encoded) -> Tensor:
    """Return the shares (B, labels) that a mixture gives to labels, given the other columns of these records."""
    layout = mixture.network.schema.layout
    means = mixture.network.means.double()
    likely = added_up(records, layout, means.clamp(min=1e-9).log().T) + mixture.weights.double().clamp(min=1e-30).log()
    return torch.softmax(likely, dim=1) @ means[:, layout.labels]


def _fit(x: Tensor, shares: Tensor, ridge: float) -> Tensor:
    """Fit weights (d, labels) of softmax regression on shares of labels; the penalty is ridge / 2 times their squares."""
    weights = torch.zeros(x.shape[1], shares.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        fit = -(shares * torch.log_softmax(x @ weights, dim=1)).sum(dim=1).mean() + ridge / 2 * weights.square().sum()
        fit.backward()
        return fit

    with torch.enable_grad():
        optimizer.step(loss)
    return weights.detach()
