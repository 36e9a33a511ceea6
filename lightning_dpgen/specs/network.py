"""The settings that all networks have: training, optimizer, label, initial weights."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from lightning_dpgen.common.plain_text import LONGEST_NAME, is_legible
from lightning_dpgen.data.declarations import shown
from lightning_dpgen.specs.spec import Place, Spec, Text, setting
from lightning_dpgen.specs.usage_error import UsageError

# The range of a width, and of other numbers of things.
WIDTH = {"ge": 1, "le": 2**16}
LABEL_SHARE = (
    "tables: the share of the budget, after the split, for drawing the label from all other columns; 0 leaves the label "
    "to the model"
)
CLASSIFIER_SHARE = LABEL_SHARE + "; pictures and series: for a classifier beside the model; 0 for none"
LABEL_SHARPNESS = (
    "with model.label_share: 1 draws labels like the real ones; a larger number, such as 4, makes them clearer for "
    "classifiers"
)


class TrainedSpec(Spec):
    """The settings of every network."""

    title: ClassVar[str]
    # Settings that the module is made with (`specs/modules.py`).
    own: ClassVar[tuple[str, ...]]

    bias: Literal["means", "learned", "zero"] = setting(
        "the output's bias: kept at noisy cluster means, learned from them, or learned from zero", "means"
    )
    lr: float | None = setting("learning rate", gt=0, le=1e3, rule="lr")
    rate: float | None = setting("the rate at which a lot samples records", gt=0, le=1, rule="rate")
    steps: int | None = setting("the number of training steps, one lot each", ge=1, le=10**9, rule="steps")
    noise: float | None = setting(
        "noise multiplier of a lot: any two of privacy.epsilon, noise and steps give the third", gt=0, le=1e9,
        by_default="solved for",
    )  # fmt: skip
    label_share: float | None = setting(LABEL_SHARE, ge=0, lt=1, by_default="0")
    label_sharpness: float | None = setting(LABEL_SHARPNESS, ge=0.1, le=100, by_default="1")


class NetworkSpec(TrainedSpec):
    """The settings of the networks of this package."""

    # Settings that are those of a network from which a training starts.
    sizes: ClassVar[tuple[str, ...]]

    optimizer: Literal["adam", "sgd"] = setting(
        "the optimizer of private steps; steps of sgd are proportional to the clipping bound", "adam"
    )
    momentum: float | None = setting("momentum of sgd", ge=0, lt=1, by_default="0")
    init: Place | None = setting(
        "the folder of a release, or of its run, from whose network training starts; only for a release of public data",
        by_default="random weights",
    )
    init_public: Text | None = setting(
        "model.init: the name of the public data that its network was learned from; PUBLISHED as given",
        by_default="none, and model.init is refused",
    )

    def model_post_init(self, _: Any) -> None:
        self.check()

    def check(self) -> None:
        """Refuse settings that do not go with each other.

        Raises:
            UsageError: naming them.
        """
        if self.init == "":
            raise UsageError("model.init: is empty; expected the folder of a release, or of its run")
        if self.init is None and self.init_public is not None:
            raise UsageError(f"model.init_public={shown(self.init_public)}: applies only to model.init; leave it out")
        if self.init_public is not None and not is_legible(self.init_public):
            raise UsageError(
                f"model.init_public={shown(self.init_public)}: expected a name, 1 to {LONGEST_NAME} characters on one "
                "line, all seen"
            )
        if self.init is not None and self.init_public is None:
            raise UsageError(
                f"model.init={self.init}: training starts only from public data, since this run's certificate would not "
                "state the cost of other data: name the public data that the network was learned from, as in "
                "model.init_public='census sample of 1990', which the certificate will state"
            )
        if self.optimizer == "adam" and self.momentum is not None:
            raise UsageError(f"model.momentum={self.momentum:g}: applies only to model.optimizer=sgd; leave it out")
        if self.optimizer == "sgd" and self.lr is None:
            raise UsageError("model.optimizer=sgd: needs a learning rate, as in model.lr=0.01; the default is for adam")
