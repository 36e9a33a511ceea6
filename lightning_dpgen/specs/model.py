"""`model`: what is learned, and how large it is."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lightning_dpgen.privacy.plain_text import LONGEST_NAME, is_legible
from lightning_dpgen.specs.spec import Place, Spec, Text, setting, shown
from lightning_dpgen.specs.usage_error import UsageError

_DIVERGENCE = {"group": ("groups", "group_c"), "embedding": ("features", "divergence_share")}
_Network = Literal["dense", "conv"]
_WIDTH = {"ge": 1, "le": 2**16}
_LABEL_SHARE = (
    "tables: the share of the budget, after the split, for drawing the label given all other columns; 0 leaves it to the "
    "model"
)
_LABEL_SHARPNESS = "with model.label_share: 1 draws labels as real ones are; 4, say, makes them clearer for classifiers"


class TrainedSpec(Spec):
    """The settings of every network."""

    title: ClassVar[str]
    # Settings that the module is made with (`specs/modules.py`).
    own: ClassVar[tuple[str, ...]]

    bias: Literal["means", "learned", "zero"] = setting(
        "the output's bias: kept at noisy cluster means, learned from them, or learned from zero", "means"
    )
    lr: float | None = setting("learning rate", gt=0, le=1e3, rule="lr")
    rate: float | None = setting("sampling rate of a lot", gt=0, le=1, rule="rate")
    steps: int | None = setting("training steps, one lot each", ge=1, le=10**9, rule="steps")
    noise: float | None = setting(
        "noise multiplier of a lot: any two of privacy.epsilon, noise and steps give the third", gt=0, le=1e9,
        by_default="solved for",
    )  # fmt: skip
    label_share: float | None = setting(_LABEL_SHARE, ge=0, lt=1, by_default="0")
    label_sharpness: float | None = setting(_LABEL_SHARPNESS, ge=0.1, le=100, by_default="1")


class NetworkSpec(TrainedSpec):
    """The settings of the networks of this package."""

    # Settings that are those of a network from which a training starts.
    sizes: ClassVar[tuple[str, ...]]

    optimizer: Literal["adam", "sgd"] = setting(
        "of private steps; those of sgd are in proportion to the bound of clipping", "adam"
    )
    momentum: float | None = setting("momentum of sgd", ge=0, lt=1, by_default="0")
    init: Place | None = setting(
        "the folder of a release, or of its run, from whose network the training starts; of public data alone",
        by_default="random weights",
    )
    init_public: Text | None = setting(
        "model.init: the name of the public data that it was learned from; PUBLISHED as given",
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
            raise UsageError(f"model.init_public={shown(self.init_public)}: is of model.init; leave it out")
        if self.init_public is not None and not is_legible(self.init_public):
            raise UsageError(
                f"model.init_public={shown(self.init_public)}: expected a name, 1 to {LONGEST_NAME} characters on one "
                "line, all seen"
            )
        if self.init is not None and self.init_public is None:
            raise UsageError(
                f"model.init={self.init}: a training starts from public data alone, since this run's certificate would not "
                "state the cost of others: name the public data that it was learned from, as in "
                "model.init_public='census sample of 1990', which the certificate will say"
            )
        if self.optimizer == "adam" and self.momentum is not None:
            raise UsageError(f"model.momentum={self.momentum:g}: is of model.optimizer=sgd; leave it out")
        if self.optimizer == "sgd" and self.lr is None:
            raise UsageError(
                "model.optimizer=sgd: needs a learning rate, as in model.lr=0.01; that of adam says nothing of it"
            )


def _likelihood(defaults: Any) -> str:
    layout = defaults.layout
    return "gaussian" if layout.units and layout.levels is None else "bernoulli"


class VAESpec(NetworkSpec):
    """A variational autoencoder for each cluster, all trained together."""

    title = "mixture of variational autoencoders"
    sizes = ("network", "hidden", "layers", "trunk", "latent", "likelihood", "scale", "floor")
    own = (*sizes, "optimizer", "momentum")

    name: Literal["vae"] = "vae"
    network: _Network = setting("dense layers, or two convolutions (height and width multiples of 4)", "dense")
    hidden: int | None = setting("units of a hidden layer of a dense network", **_WIDTH, rule="hidden")
    layers: int = setting("hidden layers on each side of a dense network", 1, ge=1, le=8)
    trunk: bool = setting("the layers beside the records are shared by the components (dense networks)", False)
    latent: int | None = setting("dimensions of the code", **_WIDTH, rule="latent")
    likelihood: Literal["bernoulli", "gaussian", "laplace"] | None = setting(
        "of a unit about its mean: readings, pixels, scaled columns", rule=_likelihood,
        by_default="gaussian for real numbers, else bernoulli",
    )  # fmt: skip
    scale: float | None = setting(
        "gaussian and laplace: the scale of all units, which lie in [0, 1]", gt=0, le=1,
        by_default="learned for each component and unit",
    )  # fmt: skip
    floor: float | None = setting("gaussian and laplace: the least scale", ge=1e-4, le=1, by_default="0.01")
    divergence: Literal["group", "embedding"] | None = setting(
        "a divergence of the codes of many records, besides (PriVAE): of random groups, or a noisy mean", by_default="none"
    )
    divergence_weight: float | None = setting(
        "of the divergence, beside the loss of a record", ge=1e-6, le=1e6, by_default="10"
    )
    groups: int | None = setting("group: into how many groups a lot is divided", **_WIDTH, by_default="16")
    group_c: float | None = setting(
        "group: the bound of a group's gradient", ge=1e-6, le=1e6, by_default="a fifth of the cost of the records' term"
    )
    features: int | None = setting("embedding: how many numbers, an even one", **_WIDTH, by_default="64")
    divergence_share: float | None = setting(
        "embedding: its share of a lot's inverse squared noise", gt=0, lt=0.9, by_default="0.05"
    )

    def check(self) -> None:
        super().check()
        floor = 0.01 if self.floor is None else self.floor
        if self.scale is not None and self.scale < floor:
            raise UsageError(f"model.scale={self.scale:g}: is below model.floor={floor:g}, the least scale")
        if self.network == "conv" and (self.layers != 1 or self.trunk):
            raise UsageError(
                f"model.network=conv with model.layers={self.layers}, model.trunk={shown(self.trunk)}: are of dense "
                "networks; leave them out"
            )
        has = {"divergence_weight", *_DIVERGENCE[self.divergence]} if self.divergence else set()
        for name in ("divergence_weight", *(name for names in _DIVERGENCE.values() for name in names)):
            value = getattr(self, name)
            if value is not None and name not in has:
                raise UsageError(
                    f"model.{name}={shown(value)}: model=vae with model.divergence={shown(self.divergence)} has no such "
                    "setting"
                )
        if self.features is not None and self.features % 2:
            raise UsageError(f"model.features={self.features}: expected an even number, pairs of a cosine and a sine")

    def with_divergence(self, c_max: float, lot: float) -> VAESpec:
        """Return the settings with those of its divergence filled in.

        Args:
            c_max: the default largest bound of a record.
            lot: the expected size of a lot.
        """
        if self.divergence is None:
            return self
        # A group's bound so small that its term costs a fifth of what the records' does: a lot has few groups.
        groups = self.groups or 16
        values = {
            "divergence_weight": 10.0, "groups": groups, "group_c": 0.1 * c_max * groups / lot, "features": 64,
            "divergence_share": 0.05,
        }  # fmt: skip
        has = ("divergence_weight", *_DIVERGENCE[self.divergence])
        return self.changed(**{name: values[name] for name in has if getattr(self, name) is None})


class RBMSpec(NetworkSpec):
    """A restricted Boltzmann machine for each cluster, all trained together by persistent contrastive divergence."""

    title = "mixture of restricted Boltzmann machines"
    sizes = ("hidden", "chains")
    own = (*sizes, "optimizer", "momentum")

    name: Literal["rbm"] = "rbm"
    hidden: int | None = setting("hidden units", **_WIDTH, rule="hidden")
    chains: int = setting("persistent chains of each component", 20, **_WIDTH)
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
        "dense layers, two convolutions (height and width multiples of 4), or a recurrent generator of series", "dense"
    )
    hidden: int | None = setting("units of a hidden layer of generators and critics", **_WIDTH, rule="hidden")
    layers: int = setting("hidden layers of dense generators and critics", 2, ge=1, le=8)
    latent: int | None = setting(
        "dimensions of the generators' code", **_WIDTH, rule=lambda d: 2 * d.latent, by_default="twice that of a VAE"
    )
    conditional: bool = setting("the label is drawn first, by noisy shares, and the rest given it", False)
    sampling: Literal["softmax", "straight_through"] = setting(
        "what critics see of a choice: its shares, or one that is drawn by them", "softmax"
    )
    critic: Literal["dense", "conv"] | None = setting(
        "the critics' network: dense layers, or two convolutions, of pictures and series",
        by_default="that of the generators, dense beside lstm",
    )
    loss: Literal["wgan_gp", "wgan_clip", "vanilla"] = setting(
        "Wasserstein with gradient penalty, with bounded weights, or the loss of the first GANs", "wgan_gp"
    )
    penalty: float | None = setting(
        "wgan_gp: weight of the gradient penalty",
        ge=1e-6,
        le=1e6,
        by_default="0.1 where most of a record is real numbers, else 10",
    )
    weight_bound: float | None = setting("wgan_clip: bound of the critics' weights", gt=0, le=1, by_default="0.01")
    generated: Literal["record", "data_free"] = setting(
        "a generated record stands beside each real one, in its clipped gradient, or is a term without noise", "record"
    )
    critic_steps: int = setting("private steps of the critics for one of the generators", 2, **_WIDTH)
    made: int = setting("records of each component that a public step generates", 64, **_WIDTH)
    averaging: float = setting("the part of the released average of generators that stays in a step", 0.0, ge=0, lt=1)
    lr: float | None = setting("learning rate of the critics", gt=0, le=1e3, rule=lambda d: 2e-3, by_default="0.002")
    generator_lr: float | None = setting(
        "learning rate of the generators' Adam", gt=0, le=1e3, by_default="model.lr, with sgd 0.002"
    )

    def check(self) -> None:
        super().check()
        for name, loss in (("penalty", "wgan_gp"), ("weight_bound", "wgan_clip")):
            if getattr(self, name) is not None and self.loss != loss:
                raise UsageError(f"model.{name}={getattr(self, name):g}: is of model.loss={loss}; leave it out")
        if self.network == "conv" and self.layers != 2:
            raise UsageError(f"model.network=conv with model.layers={self.layers}: is of dense networks; leave it out")
        if self.network == "lstm" and self.critic == "conv" and self.layers != 2:
            raise UsageError(
                f"model.layers={self.layers} with model.network=lstm and model.critic=conv: is of dense networks; leave it "
                "out"
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
        # 10 leaves nothing but slopes of 1 (experiments/six_gaussians.py).
        penalty = 0.1 if layout.units > len(layout.groups) and layout.levels is None else 10.0
        values = {"wgan_gp": {"penalty": penalty}, "wgan_clip": {"weight_bound": 0.01}, "vanilla": {}}[self.loss]
        # A rate for SGD says nothing of one for Adam.
        values |= {"generator_lr": 2e-3 if self.optimizer == "sgd" else self.lr}
        return self.changed(**{name: value for name, value in values.items() if getattr(self, name) is None})


class CustomSpec(TrainedSpec):
    """A LightningModule of your own that derives from lightning_dpgen.PrivateMixture, made as VAE is."""

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
        "pictures and series: in how many of the slowest waves a record is described", ge=1,
        by_default="3 sqrt(s / components), 16 to 200; with smoothness 200; no more than a record has numbers",
    )  # fmt: skip
    radius: float | None = setting(
        "pictures and series: the L2 bound of a record in these", ge=1e-6, le=1e6,
        by_default="that of split.radius; with smoothness 1.5 sqrt(numbers of a record)",
    )  # fmt: skip
    spread: float | None = setting(
        "pictures and series: the L2 bound of its difference from the mean of its component", ge=1e-6, le=1e6,
        by_default="half of model.radius",
    )  # fmt: skip
    means_share: float | None = setting(
        "pictures and series: the share of counts and means; second moments get the rest", gt=0, lt=1,
        by_default="0.15; with smoothness 0.3",
    )  # fmt: skip
    smoothness: float | None = setting(
        "series, declared: p, where a wave of j half turns is about (1 + j)^-p large; 0 says nothing of it", ge=0, le=4,
        by_default="0",
    )  # fmt: skip
    symmetries: str | dict[str, Any] | None = setting(
        "pictures, declared: handwriting, small, or numbers, as in {turn: 5, shear: 0.1}", by_default="none"
    )
    components: int | None = setting(
        "tables and baskets: components of the mixture that is fitted", ge=1, le=10_000, by_default="s / 25, 10 to 100"
    )
    pairs_share: float | None = setting(
        "tables and baskets: the share of tables of two columns, or of pairs of items", gt=0, lt=1,
        by_default="0.8 of tables, 0.7 of baskets",
    )  # fmt: skip
    label_share: float | None = setting(
        _LABEL_SHARE, ge=0, lt=1, by_default="0.3 where s is at least 200 and at least the number of all choices, else 0"
    )
    label_sharpness: float | None = setting(_LABEL_SHARPNESS, ge=0.1, le=100, by_default="1")


class AutoSpec(Spec):
    """The model that was best on records of this kind, of about this number and budget (experiments/choice.py)."""

    name: Literal["auto"] = "auto"


ModelSpec = Annotated[VAESpec | RBMSpec | WGANSpec | CustomSpec | MeasuredSpec | AutoSpec, Field(discriminator="name")]
