"""All that a fit buys beside its steps: noisy means of its lots, and of validation records, and who is told of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning_dpgen.plugins.namespaces import pl
from lightning_dpgen.plugins.noisy_metrics import LotMetrics, NoisyMetrics
from lightning_dpgen.plugins.private_validation import Logged, PrivateValidation, ValidationPasses
from lightning_dpgen.plugins.public_numbers import PublicNumbers
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import TRAINING


class Purchases:
    """The numbers that one training buys, as its plan says.

    Args:
        metrics: means over its lots; None for none.
        validation: means over validation records; None for none.
        account: the account of the training.

    Attributes:
        names: the names of all public numbers but error bars.

    Raises:
        ValueError: if two numbers have the same name.
    """

    def __init__(self, metrics: NoisyMetrics | None, validation: PrivateValidation | None, account: Account) -> None:
        self._account, self._validation = account, validation
        self.lots = None if metrics is None else LotMetrics(metrics, account, TRAINING)
        self._numbers = [one.numbers for one in (metrics, validation) if one is not None]
        names = [name for numbers in self._numbers for name in numbers.public]
        self.names = frozenset(names)
        if len(self.names) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{twice}: metrics and validation buy a number by this name: log one of them by another name")
        self.declared = {
            name: one.as_json() for name, one in (("metrics", metrics), ("validation", validation)) if one is not None
        }
        self._shown: dict[str, float] = {}
        self._public: PublicNumbers | None = None
        self._passes: ValidationPasses | None = None

    @property
    def validates(self) -> bool:
        """True if validation records are looked at."""
        return self._validation is not None

    def begin(self, trainer: pl.Trainer) -> None:
        """Begin a fit."""
        self._public = PublicNumbers(trainer, self.names, self._account, TRAINING)
        self._public.shown.update(self._shown)

    def end(self) -> None:
        """End it: callbacks look at their numbers as ever."""
        if self._public is not None:
            self._shown = self._public.shown
            self._public.end()
        self._public = self._passes = None

    def rehearse(
        self,
        module: pl.LightningModule,
        hooks: Callable[[Any], Any],
        expected_lot: float,
        listen: Callable[[Callable[[], object]], Logged],
    ) -> None:
        """Try the validation step on made-up records; see `ValidationPasses`.

        Raises:
            ValueError: if it takes none, or does not log what is bought.
        """
        assert self._public is not None, "within a fit"
        self._public.show_again()
        if self._validation is not None:
            self._passes = ValidationPasses(self._validation, self._account, TRAINING, module, hooks, expected_lot, listen)
            self._passes.rehearse()

    def check_scalar(self, name: str, value: Any) -> None:
        """Refuse more than one number of a record under a name that is bought.

        Raises:
            ValueError: naming it.
        """
        for numbers in self._numbers:
            numbers.check_scalar(name, value)

    def after_step(self) -> Mapping[str, float]:
        """Return the numbers that are new after a step; they are shown."""
        assert self._public is not None, "within a fit"
        values = {} if self.lots is None else self.lots.due()
        if self._passes is not None:
            values |= self._passes.due()
        if values:
            self._public.show(values)
        return values

    def tell_callbacks(self, module: pl.LightningModule) -> None:
        """Let the callbacks that follow a new number look at it."""
        if self._public is not None:
            self._public.tell_callbacks(module)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps; all of it is public."""
        shown = self._shown if self._public is None else self._public.shown
        return {"shown": dict(shown), "lots": None if self.lots is None else self.lots.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was."""
        self._shown = {name: value for name, value in state["shown"].items() if name.removesuffix("_error") in self.names}
        if self._public is not None:
            self._public.shown.update(self._shown)
        if self.lots is not None and state["lots"] is not None:
            self.lots.load_state_dict(state["lots"])
