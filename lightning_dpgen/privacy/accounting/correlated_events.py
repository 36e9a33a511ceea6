"""The event of correlated noise, and the standard events that it costs as much as."""

from __future__ import annotations

import math

import attrs
import dp_accounting

from lightning_dpgen.privacy.sampling.strategy import Strategy

# Far more than rounding moves a sensitivity that is computed again, and far less than a difference that matters.
_ROUNDING = 1e-9


@attrs.frozen
class CorrelatedGaussianDpEvent(dp_accounting.DpEvent):
    """All steps of a mechanism with correlated noise: they are one event, from the first step on.

    Args:
        noise_multiplier: the standard deviation of the independent noise over `sensitivity`.
        sampling_probability: the probability with which a record of a step's group takes part.
        sensitivity: that of the strategy; stated for its readers, and computed again by them.
        strategy: the matrix and the sampler.

    Raises:
        ValueError: for a sensitivity that is not the strategy's, or a probability that is none.

    Example:
        >>> noise = CorrelatedGaussianDpEvent.of(2.0, 0.1, Strategy(steps=20, period=4, coefficients=(1.0, 0.5)))
        >>> noise.standard
        SelfComposedDpEvent(event=PoissonSampledDpEvent(...), count=5)
    """

    noise_multiplier: float
    sampling_probability: float
    sensitivity: float
    strategy: Strategy

    def __attrs_post_init__(self) -> None:
        if not math.isclose(self.sensitivity, self.strategy.sensitivity, rel_tol=_ROUNDING):
            raise ValueError(
                f"sensitivity={self.sensitivity!r}: a record moves this strategy by {self.strategy.sensitivity:.9g}"
            )
        if not 0.0 < self.sampling_probability <= 1.0:
            raise ValueError(f"sampling_probability={self.sampling_probability!r}: expected above 0, up to 1")

    @classmethod
    def of(cls, multiplier: float, probability: float, strategy: Strategy) -> CorrelatedGaussianDpEvent:
        """Return the event of a strategy, with its sensitivity."""
        return cls(multiplier, probability, strategy.sensitivity, strategy)

    @property
    def standard(self) -> dp_accounting.DpEvent:
        """The event of dp-accounting that costs as much (docs/guarantees/correlated_noise.md, "Correlated noise").

        That is a Poisson-sampled Gaussian for each round.
        """
        noise = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.sampling_probability < 1.0:
            noise = dp_accounting.PoissonSampledDpEvent(self.sampling_probability, noise)
        return dp_accounting.SelfComposedDpEvent(noise, self.strategy.rounds)
