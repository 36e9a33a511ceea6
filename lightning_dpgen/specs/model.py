"""`model`: what is learned, and how large it is."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lightning_dpgen.specs.network import (
    CLASSIFIER_SHARE,
    LABEL_SHARE,
    LABEL_SHARPNESS,
    WIDTH,
    NetworkSpec,
    TrainedSpec,
    VAESpec,
)
from lightning_dpgen.specs.spec import Spec, Text, setting
from lightning_dpgen.specs.usage_error import UsageError


class RBMSpec(NetworkSpec):
    """A restricted Boltzmann machine for each cluster, all trained together by persistent contrastive divergence."""

    title = "mixture of restricted Boltzmann machines"
    sizes = ("hidden", "chains")
    own = (*sizes, "optimizer", "momentum")

    name: Literal["rbm"] = "rbm"
    hidden: int | None = setting("hidden units", **WIDTH, rule="hidden")
    chains: int = setting("the number of persistent chains of each component", 20, **WIDTH)
    lr: float | None = setting("learning rate", gt=0, le=1e3, rule=lambda d: 1e-2, by_default="0.01")


class WGANSpec(NetworkSpec):
    """A Wasserstein GAN for each cluster, all trained together (dp-GAN)."""

    title = "mixture of Wasserstein generative adversarial networks"
    sizes = ("network", "hidden", "layers", "latent", "conditional")
    own = (
        *sizes, "sampling", "critic", "loss", "penalty", "generated", "weight_bound", "critic_steps", "made", "averaging",
        "generator_lr", "optimizer", "momentum",
    )  # fmt: skip

    name: Literal["wgan"] = "wgan"
    network: Literal["dense", "conv", "lstm"] = setting(
        "dense layers, two convolutions (height and width are multiples of 4), or a recurrent generator of series", "dense"
    )
    hidden: int | None = setting("units of a hidden layer of generators and critics", **WIDTH, rule="hidden")
    layers: int = setting("hidden layers of dense generators and critics", 2, ge=1, le=8)
    latent: int | None = setting(
        "dimensions of the generators' code", **WIDTH, rule=lambda d: 2 * d.latent, by_default="twice that of a VAE"
    )
    conditional: bool = setting("the label is drawn first, by noisy shares, and the rest is drawn for this label", False)
    sampling: Literal["softmax", "straight_through"] = setting(
        "what critics see of a choice: its shares, or one value that is drawn by them", "softmax"
    )
    critic: Literal["dense", "conv"] | None = setting(
        "the network of the critics: dense layers, or two convolutions (pictures and series)",
        by_default="that of the generators; dense for lstm",
    )
    loss: Literal["wgan_gp", "wgan_clip", "vanilla"] = setting(
        "the loss: Wasserstein with gradient penalty, Wasserstein with bounded weights, or that of the first GANs",
        "wgan_gp",
    )
    penalty: float | None = setting(
        "wgan_gp: the weight of the gradient penalty",
        ge=1e-6,
        le=1e6,
        by_default="0.1 if most of a record is real numbers, else 10",
    )
    weight_bound: float | None = setting("wgan_clip: the bound of the critics' weights", gt=0, le=1, by_default="0.01")
    generated: Literal["record", "data_free"] = setting(
        "a generated record is paired with each real one in its clipped gradient, or generated records are a term "
        "without noise",
        "record",
    )
    critic_steps: int = setting("private steps of the critics for each step of the generators", 2, **WIDTH)
    made: int = setting("the number of records of each component that a public step generates", 64, **WIDTH)
    label_share: float | None = setting(
        LABEL_SHARE,
        ge=0,
        lt=1,
        by_default="with model.bias=means 0.3 if s is at least 200 and at least the number of all choices, else 0",
    )
    averaging: float = setting(
        ("the part of the released average of generators that each of their steps keeps"), 0.0, ge=0, lt=1
    )
    lr: float | None = setting("learning rate of the critics", gt=0, le=1e3, rule=lambda d: 2e-3, by_default="0.002")
    generator_lr: float | None = setting(
        "learning rate of the generators' Adam", gt=0, le=1e3, by_default="model.lr, with sgd 0.002"
    )

    def check(self) -> None:
        super().check()
        for name, loss in (("penalty", "wgan_gp"), ("weight_bound", "wgan_clip")):
            if getattr(self, name) is not None and self.loss != loss:
                raise UsageError(f"model.{name}={getattr(self, name):g}: applies only to model.loss={loss}; leave it out")
        if self.network == "conv" and self.layers != 2:
            raise UsageError(
                f"model.network=conv with model.layers={self.layers}: applies only to dense networks; leave it out"
            )
        if self.network == "lstm" and self.critic == "conv" and self.layers != 2:
            raise UsageError(
                f"model.layers={self.layers} with model.network=lstm and model.critic=conv: applies only to dense "
                "networks; leave it out"
            )
        if self.conditional and self.bias == "zero":
            raise UsageError(
                "model.conditional=true with model.bias=zero: labels are drawn by noisy shares, which come with the means "
                "of clusters; take model.bias=means"
            )
        if self.steps is not None and self.steps % self.critic_steps:
            down = self.steps - self.steps % self.critic_steps
            raise UsageError(
                f"model.steps={self.steps}: expected a multiple of model.critic_steps={self.critic_steps}, as generators "
                f"learn nothing from the rest, which is paid for; take {down or self.critic_steps}"
            )

    def with_loss(self, layout: Any) -> WGANSpec:
        """Return the settings with those of the loss filled in, for records of a layout."""
        # Where records differ by a tenth of a unit and not by whole choices, scores differ by as little, and a penalty of
        # 10 leaves nothing but slopes of 1 (experiments/dpgan/gaussians.py).
        penalty = 0.1 if layout.units > len(layout.groups) and layout.levels is None else 10.0
        values = {"wgan_gp": {"penalty": penalty}, "wgan_clip": {"weight_bound": 0.01}, "vanilla": {}}[self.loss]
        # A rate for SGD says nothing of one for Adam.
        values |= {"generator_lr": 2e-3 if self.optimizer == "sgd" else self.lr}
        return self.changed(**{name: value for name, value in values.items() if getattr(self, name) is None})


class AutoregressiveSpec(NetworkSpec):
    """A network of histories, which draws choice after choice: attributes of persons, numbers of rows, and row by row."""

    title = "autoregressive network of histories"
    sizes = ("hidden",)
    own = (*sizes, "averaging", "optimizer", "momentum")

    name: Literal["autoregressive"] = "autoregressive"
    hidden: int = setting("units of the network of each column", 16, **WIDTH)
    averaging: float = setting("the part of the released average of parameters that each step keeps", 0.95, ge=0, lt=1)
    lr: float | None = setting("learning rate", gt=0, le=1e3, rule=lambda d: 2e-2, by_default="0.02")
    steps: int | None = setting(
        "the number of training steps, one lot each", ge=1, le=10**9, rule=lambda d: max(150, d.steps),
        by_default="60 sqrt(s / 1400), 150 to 2000",
    )  # fmt: skip


class CustomSpec(TrainedSpec):
    """Your own LightningModule, which derives from lightning_dpgen.PrivateMixture and is made like VAE."""

    title = "a model of the user's own"
    own = ("target", "options")

    name: Literal["own"] = "own"
    target: Text | None = setting("package.Class", needed=True)
    options: dict[str, Any] | None = setting(
        "further keyword arguments, plain values; PUBLISHED as given", by_default="none"
    )


class MeasuredSpec(Spec):
    """Noisy statistics, measured once, and a model fitted to them: no network, no training steps."""

    title: ClassVar[str] = "noisy statistics, measured once"

    name: Literal["measured"] = "measured"
    waves: int | None = setting(
        "pictures and series: the number of slowest waves that describe a record", ge=1,
        by_default="3 sqrt(s / labels), 16 to 140; for series s^2 / 7000, 8 to 200; at most the numbers of a record",
    )  # fmt: skip
    radius: float | None = setting(
        "pictures: the L2 bound of a record in these waves", ge=1e-6, le=1e6, by_default="that of split.radius"
    )
    spread: float | None = setting(
        "pictures: the L2 bound of a record's difference from the mean of its component", ge=1e-6, le=1e6,
        by_default="half of model.radius",
    )  # fmt: skip
    means_share: float | None = setting(
        "pictures: the share of counts and means; second moments get the rest", gt=0, lt=1, by_default="0.15"
    )
    symmetries: str | dict[str, Any] | None = setting(
        "pictures: declared symmetries, which are handwriting, small, or numbers, as in {turn: 5, shear: 0.1}",
        by_default="none",
    )
    poses: Literal["measured", "always", "never"] | None = setting(
        "pictures: whether they are described without their slant and place, which are then modelled separately",
        by_default="measured; never if s / labels is below 600, with declared symmetries, or for a classifier",
    )  # fmt: skip
    cells: int | None = setting(
        "pictures: the largest number of cells of a label, each with a Gaussian; as many are used as stand out from the "
        "noise", ge=1,
        le=100, by_default="20; 1 if s / labels is below 1500, and for a classifier",
    )  # fmt: skip
    cells_share: float | None = setting(
        "pictures: the share for the measurement of cells, if there are several", gt=0, lt=1,
        by_default="0.8; 0.9 if s / labels is at least 5000",
    )  # fmt: skip
    components: int | None = setting(
        "tables, baskets and series: the number of components of the fitted mixture; for baskets, of each of four mixtures",
        ge=1, le=10_000, by_default="s / 25, 10 to 60 for tables, 10 to 100 for baskets; for series 20",
    )  # fmt: skip
    pairs_share: float | None = setting(
        "tables and baskets: the share for tables of two columns, or for pairs of items", gt=0, lt=1,
        by_default="0.8 for tables, 0.7 for baskets",
    )  # fmt: skip
    label_share: float | None = setting(
        CLASSIFIER_SHARE, ge=0, lt=1,
        by_default="for tables 0.3 if s is at least 200 and at least the number of all choices, else 0",
    )  # fmt: skip
    label_sharpness: float | None = setting(LABEL_SHARPNESS, ge=0.1, le=100, by_default="1")
    crossings: bool | None = setting(
        "tables, with model.label_share: whether twos and threes of columns are looked for that tell of the label together",
        by_default="true where one that tells of a fifth of the labels would surely be found",
    )  # fmt: skip


class ClassifierSpec(MeasuredSpec):
    """A classifier of the label, which most of the budget pays for, beside the measured model that it started from."""

    title: ClassVar[str] = "private classifier, beside noisy statistics, measured once"

    name: Literal["classifier"] = "classifier"
    label_share: float | None = setting(CLASSIFIER_SHARE, gt=0, lt=1, by_default="0.75")


class AutoSpec(Spec):
    """The model that was best on records of this kind, of about this number and budget (experiments/league/choice.py)."""

    name: Literal["auto"] = "auto"


ModelSpec = Annotated[
    VAESpec | RBMSpec | WGANSpec | AutoregressiveSpec | CustomSpec | MeasuredSpec | ClassifierSpec | AutoSpec,
    Field(discriminator="name"),
]
