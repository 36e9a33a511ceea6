"""`clipping`: how the bound of a record's gradient is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from lightning_dpgen.specs.argument_names import as_settings
from lightning_dpgen.specs.spec import Spec, setting
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.gradients.clipping import ClippingRule


# Bounds that the rules themselves allow.
_BOUND = {"ge": 1e-7, "lt": 1e30}


class _Rule(Spec):
    smooth: float = setting("share of the bound of the lot before in that of a lot", 0.0, ge=0, lt=1)


class FixedSpec(_Rule):
    """One bound for the whole run."""

    rule: Literal["fixed"] = "fixed"
    c: float = setting("the bound", 1.0, **_BOUND)


class DecaySpec(_Rule):
    """A bound that shrinks by a factor every so many lots (dp-GAN)."""

    rule: Literal["decay"] = "decay"
    c: float = setting("the first bound", 1.0, **_BOUND)
    factor: float = setting("the factor", 0.99, gt=0, le=1)
    every: int = setting("lots for one factor", 1, ge=1, le=10**9)
    least: float = setting("the smallest bound", 0.001, **_BOUND)


class DPNormSpec(_Rule):
    """The noisy mode of a histogram of gradient norms, chosen anew for each lot (DPGM, Algorithm 3)."""

    rule: Literal["dpnorm"] = "dpnorm"
    c_max: float | None = setting("the largest bound; longer gradients count in the last bin", **_BOUND, rule="c_max")
    bins: int = setting("bins of the histogram", 20, ge=2, le=10**6)
    share: float = setting("the histogram's share of a lot's inverse squared noise", 0.05, gt=0, lt=1)


class QuantileSpec(_Rule):
    """A bound that follows a quantile of the norms (Andrew and others 2021)."""

    rule: Literal["quantile"] = "quantile"
    c: float = setting("the first bound", 1.0, **_BOUND)
    target: float = setting("the share of the norms below the bound", 0.5, gt=0, lt=1)
    lr: float = setting("how fast the bound follows", 0.2, gt=0, lt=100)
    least: float | None = setting("the smallest bound", **_BOUND, by_default="0.001")
    most: float | None = setting("the largest bound", **_BOUND, by_default="1000")
    share: float = setting("the count's share of a lot's inverse squared noise", 0.05, gt=0, lt=1)


class NormalisedSpec(_Rule):
    """Every gradient brought near one length (automatic clipping, Bu and others 2023)."""

    rule: Literal["normalised"] = "normalised"
    c: float = setting("the length", 1.0, **_BOUND)
    stability: float = setting("what is added to each norm before the division", 0.01, **_BOUND)


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
        raise UsageError(as_settings(error, "clipping", spec)) from None
