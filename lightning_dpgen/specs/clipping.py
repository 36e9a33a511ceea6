"""`clipping`: how the bound of a record's gradient is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from lightning_dpgen.specs.spec import Spec, as_settings, setting
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.gradients.clipping import ClippingRule


# Bounds that the rules themselves allow.
_BOUND = {"ge": 1e-7, "lt": 1e30}


class _Rule(Spec):
    smooth: float = setting("the share of the previous lot's bound in the bound of a lot", 0.0, ge=0, lt=1)
    per_person: bool = setting(
        "whether the gradients of a person (data.person) are summed before they are clipped; the noise is then that of "
        "one bound instead of data.max_rows bounds", False
    )  # fmt: skip


class FixedSpec(_Rule):
    """One bound for the whole run."""

    rule: Literal["fixed"] = "fixed"
    c: float = setting("the bound", 1.0, **_BOUND)


class DecaySpec(_Rule):
    """A bound that shrinks by a factor every so many lots (dp-GAN)."""

    rule: Literal["decay"] = "decay"
    c: float = setting("the first bound", 1.0, **_BOUND)
    factor: float | None = setting("the factor", gt=0, le=1, by_default="0.99, or the factor that leads to the ratio")
    ratio: float | None = setting("the last bound of the run divided by the first, instead of a factor", ge=1e-4, le=1)
    every: int | None = setting(
        ("the number of lots between two factors"), ge=1, le=10**9, by_default="1; for model=wgan model.critic_steps"
    )
    least: float | None = setting("the smallest bound", **_BOUND, by_default="0.001, or less if the ratio requires it")

    def model_post_init(self, _: Any) -> None:
        if self.factor is not None and self.ratio is not None:
            raise UsageError(f"clipping.factor={self.factor:g}, clipping.ratio={self.ratio:g}: expected one of them")

    def solved(self, steps: int | None, rhythm: int) -> DecaySpec:
        """Return the settings without a ratio, for so many steps in loops of `rhythm` lots (dp-GAN, Algorithm 1).

        Raises:
            UsageError: for a ratio where the number of steps is still to be solved for.
        """
        every = self.every or rhythm
        if self.ratio is None:
            return self.changed(factor=0.99 if self.factor is None else self.factor, every=every, least=self.least or 1e-3)
        if steps is None:
            raise UsageError(
                f"clipping.ratio={self.ratio:g}: follows from model.steps, which are solved for here; give clipping.factor"
            )
        decays, last = (steps - 1) // every, self.ratio * self.c
        if not decays and self.ratio < 1.0:
            raise UsageError(f"clipping.ratio={self.ratio:g}: {steps} steps have no decay every {every}; give more of them")
        if self.least is not None and self.least > last:
            raise UsageError(f"clipping.ratio={self.ratio:g}: leads to {last:g}, below clipping.least={self.least:g}")
        factor = self.ratio ** (1.0 / decays) if decays else 1.0
        return self.changed(ratio=None, factor=factor, every=every, least=self.least or min(1e-3, last))


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
    lr: float = setting("the learning rate of the bound", 0.2, gt=0, lt=100)
    least: float | None = setting("the smallest bound", **_BOUND, by_default="0.001")
    most: float | None = setting("the largest bound", **_BOUND, by_default="1000")
    share: float = setting("the count's share of a lot's inverse squared noise", 0.05, gt=0, lt=1)


class NormalisedSpec(_Rule):
    """Every gradient brought near one length (automatic clipping, Bu and others 2023)."""

    rule: Literal["normalised"] = "normalised"
    c: float = setting("the length", 1.0, **_BOUND)
    stability: float = setting("the number that is added to each norm before the division", 0.01, **_BOUND)


class AutoRuleSpec(Spec):
    """The rule of the model that is chosen (only with model=auto)."""

    rule: Literal["auto"] = "auto"


ClippingSpec = Annotated[
    FixedSpec | DecaySpec | DPNormSpec | QuantileSpec | NormalisedSpec | AutoRuleSpec, Field(discriminator="rule")
]


def make_rule(
    spec: FixedSpec | DecaySpec | DPNormSpec | QuantileSpec | NormalisedSpec, steps: int | None = None, rhythm: int = 1
) -> ClippingRule:
    """Return the clipping rule of completed settings.

    Args:
        steps: the number of lots, if it is known; `rhythm` of them make an outer loop.

    Raises:
        UsageError: naming the setting that the rule refuses.
    """
    from lightning_dpgen.gradients.clipping import Decay, DPNorm, Fixed, Normalised, PerPerson, Quantile, Smoothed

    if isinstance(spec, DecaySpec):
        spec = spec.solved(steps, rhythm)
    kinds = {"fixed": Fixed, "decay": Decay, "dpnorm": DPNorm, "quantile": Quantile, "normalised": Normalised}
    values = {name: value for name, value in spec.given().items() if name not in ("rule", "smooth", "per_person")}
    try:
        rule = kinds[spec.rule](**values)
        rule = Smoothed(rule, spec.smooth) if spec.smooth else rule
        return PerPerson(rule) if spec.per_person else rule
    except ValueError as error:
        raise UsageError(as_settings(error, "clipping", spec)) from None
