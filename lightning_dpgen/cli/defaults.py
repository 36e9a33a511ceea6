"""Defaults: public functions of the declared number of records, the budget and the schema (docs/DEFAULTS.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_dpgen.clustering.settings import default_radius
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.privacy.gaussian_cost import gaussian_mu

# Numbers that a lot holds when it is written out.
_NUMBERS = 5e7
# Steps that a default has.
MOST_STEPS = 2000


@dataclass(frozen=True)
class Defaults:
    """Every setting that may be left out.

    Args:
        hidden, latent, lr: of the networks.
        rate, steps: of the lots.
        k, features, iterations, label_weight, moments_share, lloyd_share, means_share: of the split.
        c_max: of the clipping rule.
        waves: of measured moments.
        components, label_share: of a mixture that is fitted to measured tables, and for its label.
    """

    hidden: int
    latent: int
    lr: float
    rate: float
    steps: int
    k: int
    features: int
    iterations: int
    label_weight: float
    moments_share: float
    lloyd_share: float
    means_share: float
    c_max: float
    waves: int
    components: int
    label_share: float


def defaults(
    n: int, layout: Layout, epsilon: float | None, delta: float, max_rows: int = 1, k: int | None = None
) -> Defaults:
    """Defaults for `n` declared records of that layout, of which a person has up to `max_rows`, in `k` clusters if given.

    All scale with the strength ``s = n mu``, the size of the data in units of the noise that the budget buys: means
    have error 1/s, so little data spends more of its budget on them and less on networks that it cannot train.

    Example:
        >>> defaults(60_000, Layout(units=784, levels=255, groups=(10,)), 1.74, 1e-5).hidden
        64
    """
    strength = strength_of(n, epsilon, delta, max_rows)
    share = _between(0.3 * math.sqrt(1400 / strength), 0.05, 0.3)
    # The noise of all means beside what a record holds: that of a picture, of which a fifth is at 1, is the measure.
    of_means = strength * min(1.0, default_radius(layout) / (0.45 * math.sqrt(layout.width)))
    # Of many items, each rare, means carry nearly all, and of a network's many parameters each learns little.
    rare = layout.most is not None
    # The means of k clusters have as much noise each as those of all records have together.
    k = (1 if rare else round(_between(strength / 75, 1, 10))) if k is None else k
    return Defaults(
        # A component learns from its own records alone; sizes were chosen with ten.
        hidden=default_hidden(10 * strength / max(k, 1), layout),
        latent=4 if strength < 5000 else 8,
        lr=3e-3,
        rate=min(0.5, _between(_NUMBERS / layout.width, 500, 3000) / n),
        steps=round(_between(60 * math.sqrt((of_means if rare else strength) / 1400), 40, MOST_STEPS)),
        k=k,
        features=2 * round(_between(strength / 12, 64, 400) / 2),
        iterations=round(_between(math.log2(strength) - 5, 3, 10)),
        label_weight=2.0,
        moments_share=0.35 * (share + 0.02),
        lloyd_share=0.65 * (share + 0.02),
        means_share=_between((0.6 if rare else 0.3) * math.sqrt(1400 / of_means), 0.05, 0.5 if rare else 0.3),
        c_max=2.0 * _output_norm(layout),
        # Second moments of d waves are found where they are above sqrt(d) / strength of a component.
        waves=min(max(layout.units, 1), round(_between(3.0 * math.sqrt(strength / _components(layout, k)), 16, 200))),
        # Tables with more noise tell fewer apart.
        components=round(_between(strength / 25, 10, 100)),
        # A gradient of more numbers than that is nothing but noise.
        label_share=0.3 if strength >= max(200, layout.width) else 0.0,
    )


def strength_of(n: int, epsilon: float | None, delta: float, max_rows: int = 1) -> float:
    """The declared number of records in units of the noise that the budget buys, ``n mu``.

    Example:
        >>> round(strength_of(60_000, 1.74, 1e-5) / 1000)
        27
    """
    # Noise is that of all records of a person.
    return n * _mu(epsilon, delta) / max_rows


def default_hidden(strength: float, layout: Layout) -> int:
    """Units of a hidden layer: noise grows with the number of parameters, two for each number of a record.

    The second bound is for wide records: a component's weights at most so many times the strength.

    Example:
        >>> default_hidden(30_000, Layout(units=784)), default_hidden(67_000, Layout(units=16_470))
        (64, 8)
    """
    narrow = _between(math.sqrt(strength) / 2.6, 16, 256)
    return 2 ** round(math.log2(max(4.0, min(narrow, 1.7 * strength / layout.width))))


def default_delta(n: int | None) -> float:
    """The power of ten at or below 1 / (10 n), at most 1e-5; 1e-8, for ten million, where n is still to be bought.

    Example:
        >>> default_delta(1_500), default_delta(32_561), default_delta(None)
        (1e-05, 1e-06, 1e-08)
    """
    return 1e-8 if n is None else float(f"1e{min(-5, math.floor(-math.log10(10 * max(n, 1))))}")


def default_bins(n: int, epsilon: float | None, delta: float) -> int:
    """Into how many bins a column of numbers is cut, where its schema does not say.

    About the cube root of the strength: with b bins the shares of a column have error sqrt(b) / strength together from
    noise and b / n from chance, and 1 / b from the width of a bin; the last is what a reader of the table sees.

    Example:
        >>> default_bins(1_000, 1.0, 1e-5), default_bins(32_561, 4.0, 1e-6), default_bins(10**6, 4.0, 1e-7)
        (6, 30, 50)
    """
    return round(_between((n * _mu(epsilon, delta)) ** (1 / 3), 5, 50))


def _mu(epsilon: float | None, delta: float) -> float:
    # Without noise, as with the most generous budget.
    return gaussian_mu(100.0 if epsilon is None else epsilon, delta)


def clusters_of_labels(n: int, layout: Layout, epsilon: float | None, delta: float, max_rows: int = 1) -> int:
    """How many clusters of measured pictures and series, of which each label has its own Gaussians.

    More shapes of a label are told apart, until second moments of each are lost in noise.

    Example:
        >>> mnist = Layout(units=784, levels=255, groups=(10,), label=0)
        >>> [clusters_of_labels(60_000, mnist, epsilon, 1e-5) for epsilon in (0.5, 1.74, 10.0)]
        [1, 1, 5]
    """
    strength = strength_of(n, epsilon, delta, max_rows)
    return round(_between(strength / _components(layout, 1) / 2400, 1, 5))


def _components(layout: Layout, k: int) -> int:
    """Of measured moments: one for each label and cluster."""
    return max(k, 1) * (1 if layout.label is None else layout.groups[layout.label])


def _output_norm(layout: Layout) -> float:
    """How long the gradient of a record's loss in its logits can be, about: a choice moves by at most sqrt 2."""
    return math.sqrt(layout.units + 2 * len(layout.groups)) if layout.norm is None else math.sqrt(2.0) * layout.norm


def _between(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))
