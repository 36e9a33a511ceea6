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

# Made-up records, drawn from the mixture, that stand for real ones wherever nobody has to pay.
_MADE = 10_000
# Weights are drawn to 0 by so many times the variance of a noisy share, and where nothing is noisy by the least.
_RIDGE, _LEAST = 140.0, 2e-4
# The bound is what this share of the made-up records' gradients keep to.
_KEPT = 0.9
# How much labels may follow their components, and what is expected of that before anything is known.
_CLOSEST, _EXPECTED = 8.0, 4.0


class Gradient(Statistic):
    """Sums of gradients of the softmax regression loss at public weights, each shortened to a bound.

    A record's is ``u (p - y)^T``: u are its features, p the shares that weights give to labels, y is its label as one-hot.

    Args:
        layout: of the records, with a label.
        features: (width, d) what each choice adds to the features of a record; 0 for labels. Public.
        weights: (d, labels), public.
        bound: to which gradients are shortened.
    """

    def __init__(self, layout: Layout, features: Tensor, weights: Tensor, bound: float) -> None:
        check_radius(bound, "bound")
        self.layout, self._features, self._weights = layout, features, weights
        self.shape, self.bound = tuple(weights.shape), bound

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        u = added_up(records, self.layout, self._features)
        # Of weights that overflow nothing is known.
        errors = torch.softmax(u @ self._weights, dim=1).nan_to_num(0.0)
        errors[torch.arange(len(u)), labels_of(records, self.layout)] -= 1.0
        # The length of an outer product is that of its factors, so shortening one shortens it.
        lengths = torch.linalg.vector_norm(errors, dim=1, keepdim=True)
        # Squares of what is smaller are too small to be seen; such a record adds nothing.
        errors = errors.where(lengths > 1e-100, 0.0)
        return shortened(u * lengths, self.bound).T @ (errors / lengths.clamp(min=1e-300))


class Agreement(Statistic):
    """Sums of the shares that weights give to the labels that records have: a share is at most 1, so the bound is 1.

    Args:
        layout, features, weights: as for `Gradient`.
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
    records made up by the mixture. Steps are those of Newton's method in these features, averaged; their mean is drawn to
    the start by the share of it that noise explains (James and Stein).

    Args:
        mixture: of products, fitted to noisy tables.
        noise: standard deviation of the noise of a share in these tables.
        n: about how many records there are; public.
        seed: of made-up records; public.
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
        # The symmetric root: a run that goes on finds the same features though the signs of vectors come out otherwise.
        whitened = (vectors / roots) @ vectors.T
        self._features = written @ whitened
        self._start = (vectors * roots) @ (vectors.T @ weights)
        errors = p.clone()
        errors[torch.arange(len(p)), labels_of(self._made, self._layout)] -= 1.0
        lengths = torch.linalg.vector_norm(x @ whitened, dim=1) * torch.linalg.vector_norm(errors, dim=1)
        self._bound = max(float(torch.quantile(lengths, _KEPT)), 1e-3)

    def statistics(self, rounds: Sequence[Mapping[str, Measured]]) -> dict[str, Statistic]:
        """What the next access measures, after these."""
        weights = self._corrected(rounds)
        gradient = Gradient(self._layout, self._features, weights, self._bound)
        return {"gradient": gradient, "agreement": Agreement(self._layout, self._features, weights)}

    def fitted(self, rounds: Sequence[Mapping[str, Measured]], sharpness: float = 1.0) -> tuple[Tensor, Tensor]:
        """Weights (width, labels) of choices, and offsets (k, labels) of components: logits of the label are their sum.

        Offsets make labels occur as often as tables say, and follow components as far as is needed for labels to be as
        predictable from what the mixture makes up as from real records (`Agreement`): made-up columns may be less telling.

        Args:
            rounds: what all accesses have given.
            sharpness: by which differences of logits are multiplied; above 1 labels are more predictable than real ones.
        """
        weights = self._corrected(rounds)
        made = self._shares(weights)
        later = range(len(rounds) // 2, len(rounds))
        gaps = [self._gap(rounds[i]["agreement"], self._corrected(rounds[:i])) for i in later]
        wanted = float(made.square().sum(dim=1).mean()) + sum(gaps) / max(len(gaps), 1)
        # Without noise a thousandth is level.
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
            # Agreement grows less and less, and then falls: what noise asks for beyond it would tie labels to components as
            # if there was nothing else.
            high = minimize_scalar(
                lambda closeness: (with_offsets(closeness)[0] - wanted) ** 2 / (2.0 * doubt) + closeness / _EXPECTED,
                bounds=(0.0, high), method="bounded", options={"xatol": 0.02 * high},
            ).x  # fmt: skip
        return sharpness * self._features @ weights, with_offsets(high, sharpness)[1]

    def _corrected(self, rounds: Sequence[Mapping[str, Measured]]) -> Tensor:
        """The weights after these rounds."""
        weights, reached = self._start, torch.zeros_like(self._start)
        for i, measured in enumerate(rounds, start=1):
            gradient = measured["gradient"].sums / self._n
            # Only differences between labels matter; what all have in common is noise.
            reached = reached + weights - (gradient - gradient.mean(dim=1, keepdim=True))
            moved = reached / i - self._start
            numbers = moved.shape[0] * (moved.shape[1] - 1)
            noise = numbers * (measured["gradient"].deviation / self._n) ** 2 / i
            weights = self._start + max(0.0, 1.0 - noise / max(float(moved.square().sum()), 1e-300)) * moved
        return weights

    def _shares(self, weights: Tensor) -> Tensor:
        return torch.softmax(added_up(self._made, self._layout, self._features) @ weights, dim=1)

    def _gap(self, measured: Measured, weights: Tensor) -> float:
        """By how much real records agree with weights more than those do whose labels are drawn by them."""
        return float(measured.sums) / self._n - float(self._shares(weights).square().sum(dim=1).mean())


def added_up(records: Encoded, layout: Layout, features: Tensor) -> Tensor:
    """(B, d) sums of the rows of `features` (width, d) that belong to the choices of each record; of that record alone."""
    total = torch.zeros(len(records), features.shape[1], dtype=torch.float64)
    for group, span in enumerate(layout.spans):
        if group != layout.label:
            total += features[span.start + torch.from_numpy(records.codes[:, group].astype(np.int64))]
    return total


def labels_of(records: Encoded, layout: Layout) -> Tensor:
    """(B,) the label of each record, int64."""
    return torch.from_numpy(records.codes[:, layout.label].astype(np.int64))


def _labels_given(mixture: Mixture, records: Encoded) -> Tensor:
    """(B, labels) the shares of labels that a mixture gives to records of these other columns."""
    layout = mixture.network.schema.layout
    means = mixture.network.means.double()
    likely = added_up(records, layout, means.clamp(min=1e-9).log().T) + mixture.weights.double().clamp(min=1e-30).log()
    return torch.softmax(likely, dim=1) @ means[:, layout.labels]


def _fit(x: Tensor, shares: Tensor, ridge: float) -> Tensor:
    """(d, labels) weights of softmax regression on shares of labels, drawn to 0 by ridge / 2 times their squares."""
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
