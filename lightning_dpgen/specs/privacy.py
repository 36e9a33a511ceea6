"""`privacy` and `clipping`: the budget, whose presence is protected, where noise comes from, how gradients are bounded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from lightning_dpgen.privacy.accounting.epsilon_range import (
    LARGEST_EPSILON,
    PLD,
    SMALLEST_EPSILON,
    check_accountant,
    check_epsilon,
)
from lightning_dpgen.specs.spec import Place, Spec, Text, as_settings, setting
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.gradients.clipping import ClippingRule

# Below it nothing can be computed soundly.
SMALLEST_DELTA = 1e-30
_NOISE = "the source of noise; secure: sampling (and the noise on a GPU) also come from the cipher"


class _Privacy(Spec):
    epsilon: float | None = setting(
        "the budget: the epsilon that the whole run may cost, or null if noise and steps are given",
        ge=SMALLEST_EPSILON,
        le=LARGEST_EPSILON,
    )
    delta: float | None = setting(
        "the most, of the probability of any outcome, that epsilon does not bound",
        ge=SMALLEST_DELTA,
        lt=1,
        by_default="the power of ten at or below 1 / (10 n), at most 1e-5",
    )
    unit: Text | None = setting(
        ("the unit whose presence is protected, in words"), by_default="a record, or a person (data.person)"
    )
    study: Text | None = setting("the name of a study, which adds up runs on the same population")
    study_folder: Place | None = setting("the folder in which studies are kept", by_default="the folder studies")
    study_epsilon: float | None = setting("the total of a study, declared when it begins", gt=0, le=LARGEST_EPSILON)
    study_delta: float | None = setting("the delta of that total", gt=0, lt=1)

    @property
    def private(self) -> bool:
        """True where noise is drawn."""
        return self.noise != "off"

    @property
    def target(self) -> float:
        """The epsilon that a plan is made for; infinite without privacy."""
        return self.epsilon if self.private else float("inf")

    def model_post_init(self, _: Any) -> None:
        if self.unit is not None and not self.unit.strip():
            raise UsageError("privacy.unit is empty: expected the unit whose presence is protected, in words")


class PrivacySpec(_Privacy):
    """One record added or removed."""

    noise: Literal["standard", "secure"] = setting(_NOISE, "standard")
    accountant: Text = setting("the accountant that computes epsilon: pld, or rdp (Renyi moments), which is looser", PLD)
    fidelity_share: float | None = setting(
        "the share of the budget for a public figure that says how close the synthetic records are to the real ones",
        gt=0,
        lt=0.5,
    )
    selection: Text | None = setting("the law of a secret number of trials, of which the best is released")
    selection_mean: float | None = setting("the mean number of trials", ge=1.01, le=1000, by_default="10")
    selection_score: Text | None = setting("the score by which a trial is best: fidelity, or package.function of a release")

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        try:
            check_accountant(self.accountant)
        except ValueError as error:
            raise UsageError(f"privacy.{error}") from None
        if self.selection is not None and self.accountant != PLD:
            raise UsageError(
                f"privacy.accountant={self.accountant}: privacy.selection is accounted for by Renyi moments in any case: "
                "leave the accountant out"
            )
        for name in ("selection_mean", "selection_score"):
            value = getattr(self, name)
            if value is not None and self.selection is None:
                raise UsageError(
                    f"privacy.{name}={value}: belongs to no selection; give its law, as in privacy.selection=logarithmic"
                )


class OffSpec(_Privacy):
    """The non-private twin: the same path without noise and bound. Its release is labelled, and verify refuses it."""

    noise: Literal["off"] = setting("no noise", "off")
    accountant: None = setting("privacy=off draws no noise, and there is nothing to account for")
    fidelity_share: None = setting("privacy=off draws no noise, and buys nothing")
    selection: None = setting("privacy=off draws no noise: dpgen train -m compares as many runs as you like")

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.epsilon is not None:
            raise UsageError(f"privacy.epsilon={self.epsilon:g}: privacy=off draws no noise, so it takes no epsilon")


class PurePrivacySpec(_Privacy):
    """Pure epsilon (delta = 0), one row or element replaced: for projections."""

    delta: float | None = setting(
        "the most, of the probability of any outcome, that epsilon does not bound; above 0 for Gaussian noise",
        0.0,
        ge=0,
        lt=1,
    )
    noise: Literal["standard", "secure"] = setting(_NOISE, "standard")


AnyPrivacy = Annotated[PrivacySpec | OffSpec, Field(discriminator="noise")]


def check_budget(epsilon: float | None) -> None:
    """Refuse an epsilon that no run can be planned for.

    Raises:
        UsageError: saying the least and the largest.
    """
    try:
        check_epsilon(epsilon)
    except ValueError as error:
        raise UsageError(f"privacy.{error}, or privacy=off") from None


def default_delta(n: int | None) -> float:
    """Return the power of ten at or below 1 / (10 n), at most 1e-5; 1e-8, for ten million, where n is still to be bought.

    Example:
        >>> default_delta(1_500), default_delta(32_561), default_delta(None)
        (1e-05, 1e-06, 1e-08)
    """
    return 1e-8 if n is None else float(f"1e{min(-5, math.floor(-math.log10(10 * max(n, 1))))}")


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

    def solve_ratio(self, steps: int | None, rhythm: int) -> DecaySpec:
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
    """
    from lightning_dpgen.gradients.clipping import Decay, DPNorm, Fixed, Normalised, PerPerson, Quantile, Smoothed

    if isinstance(spec, DecaySpec):
        spec = spec.solve_ratio(steps, rhythm)
    kinds = {"fixed": Fixed, "decay": Decay, "dpnorm": DPNorm, "quantile": Quantile, "normalised": Normalised}
    values = {name: value for name, value in spec.given().items() if name not in ("rule", "smooth", "per_person")}
    try:
        rule = kinds[spec.rule](**values)
        rule = Smoothed(rule, spec.smooth) if spec.smooth else rule
        return PerPerson(rule) if spec.per_person else rule
    except ValueError as error:
        raise UsageError(as_settings(error, "clipping", spec)) from None
