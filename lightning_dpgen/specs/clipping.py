"""`clipping`: how the bound of a record's gradient is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from lightning_dpgen.specs.spec import Spec, setting
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.gradients.clipping import ClippingRule


class _Rule(Spec):
    smooth: float = setting("share of the bound of the lot before in that of a lot", 0.0, ge=0, lt=1)


class FixedSpec(_Rule):
    """One bound for the whole run."""

    rule: Literal["fixed"] = "fixed"
    c: float = setting("the bound", 1.0)


class DecaySpec(_Rule):
    """A bound that shrinks by a factor every so many lots (dp-GAN)."""

    rule: Literal["decay"] = "decay"
    c: float = setting("the first bound", 1.0)
    factor: float = setting("the factor", 0.99)
    every: int = setting("lots for one factor", 1)
    least: float = setting("the smallest bound", 0.001)


class DPNormSpec(_Rule):
    """The noisy mode of a histogram of gradient norms, chosen anew for each lot (DPGM, Algorithm 3)."""

    rule: Literal["dpnorm"] = "dpnorm"
    c_max: float | None = setting("the largest bound; longer gradients count in the last bin", rule="c_max")
    bins: int = setting("bins of the histogram", 20)
    share: float = setting("the histogram's share of a lot's inverse squared noise", 0.05)


class QuantileSpec(_Rule):
    """A bound that follows a quantile of the norms (Andrew and others 2021)."""

    rule: Literal["quantile"] = "quantile"
    c: float = setting("the first bound", 1.0)
    target: float = setting("the share of the norms below the bound", 0.5)
    lr: float = setting("how fast the bound follows", 0.2)
    least: float | None = setting("the smallest bound")
    most: float | None = setting("the largest bound")
    share: float = setting("the count's share of a lot's inverse squared noise", 0.05)


class NormalisedSpec(_Rule):
    """Every gradient brought near one length (automatic clipping, Bu and others 2023)."""

    rule: Literal["normalised"] = "normalised"
    c: float = setting("the length", 1.0)
    stability: float = setting("what is added to each norm before the division", 0.01)


ClippingSpec = Annotated[FixedSpec | DecaySpec | DPNormSpec | QuantileSpec | NormalisedSpec, Field(discriminator="rule")]


def make_rule(spec: FixedSpec | DecaySpec | DPNormSpec | QuantileSpec | NormalisedSpec) -> ClippingRule:
    """Return the clipping rule of completed settings.

    Raises:
        UsageError: naming the setting that the rule refuses.
    """
    from lightning_dpgen.gradients.clipping import Decay, DPNorm, Fixed, Normalised, Quantile, Smoothed

    kinds = {"fixed": Fixed, "decay": Decay, "dpnorm": DPNorm, "quantile": Quantile, "normalised": Normalised}
    values = {name: value for name, value in spec.given().items() if name not in ("rule", "smooth")}
    try:
        rule = kinds[spec.rule](**values)
        return Smoothed(rule, spec.smooth) if spec.smooth else rule
    except ValueError as error:
        raise UsageError(f"clipping.{error}") from None
