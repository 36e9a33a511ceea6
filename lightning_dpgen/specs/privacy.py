"""`privacy`: the budget, whose presence is protected, where noise comes from, and what is bought besides the model."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from lightning_dpgen.privacy.accounting.epsilon_range import (
    LARGEST_EPSILON,
    PLD,
    SMALLEST_EPSILON,
    check_accountant,
    check_epsilon,
)
from lightning_dpgen.specs.spec import Place, Spec, Text, setting
from lightning_dpgen.specs.usage_error import UsageError

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
