"""The settings that all networks have, and those of autoencoders (`model=vae`) with the prior of their codes (PriVAE)."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar, Literal

from lightning_dpgen.common.plain_text import LONGEST_NAME, is_legible
from lightning_dpgen.data.declarations import as_text
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
        """Refuse settings that do not go with each other."""
        if self.init == "":
            raise UsageError("model.init: is empty; expected the folder of a release, or of its run")
        if self.init is None and self.init_public is not None:
            raise UsageError(f"model.init_public={as_text(self.init_public)}: applies only to model.init; leave it out")
        if self.init_public is not None and not is_legible(self.init_public):
            raise UsageError(
                f"model.init_public={as_text(self.init_public)}: expected a name, 1 to {LONGEST_NAME} characters on one "
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


_DIVERGENCE = {"group": ("groups", "group_c"), "embedding": ("features", "divergence_share", "divergence_averaging")}
_PRIOR = {
    "normal": (),
    "sparse": ("prior_off", "prior_scale"),
    "mixture": ("prior_centres", "prior_scale", "prior_learned"),
}


def _likelihood(defaults: Any) -> str:
    layout = defaults.layout
    return "gaussian" if layout.units and layout.levels is None else "bernoulli"


class VAESpec(NetworkSpec):
    """A variational autoencoder for each cluster, all trained together."""

    title = "mixture of variational autoencoders"
    own = (
        "network", "hidden", "layers", "trunk", "filters", "centred", "latent", "likelihood", "scale", "floor", "beta",
        "samples", "averaging", "optimizer", "momentum",
    )  # fmt: skip
    sizes = (
        "network", "hidden", "layers", "trunk", "filters", "centred", "latent", "likelihood", "scale", "floor", "prior",
        "prior_off", "prior_scale", "prior_centres", "prior_learned",
    )  # fmt: skip

    name: Literal["vae"] = "vae"
    network: Literal["dense", "waves", "conv", "deep_conv"] = setting(
        "dense layers, of records or of the waves of series; two convolutions (height and width are multiples of 4), or "
        "three convolutions of 4 by 4 (pictures)",
        "dense",
    )
    hidden: int | None = setting("units of a hidden layer of a dense network", **WIDTH, rule="hidden")
    layers: int = setting("hidden layers on each side of a dense network", 1, ge=1, le=8)
    filters: int | None = setting(
        "deep_conv: channels of the first convolution; the others have 2 and 4 times as many",
        **WIDTH, by_default="32",
    )  # fmt: skip
    trunk: bool = setting("dense networks: the components share the layers that are next to the records", False)
    centred: bool | None = setting(
        "dense networks: the encoder sees a unit x as sqrt(12) (x - 1/2), which has deviation 1 for uniform units",
        by_default="true, for bernoulli false",
    )  # fmt: skip
    latent: int | None = setting("dimensions of the code", **WIDTH, rule="latent")
    likelihood: Literal["bernoulli", "gaussian", "laplace", "censored"] | None = setting(
        "the likelihood of a unit around its mean: readings, pixels, scaled columns; censored is a gaussian one cut at the "
        "ends of the range, where many units are", rule=_likelihood,
        by_default="gaussian for real numbers, else bernoulli",
    )  # fmt: skip
    scale: float | None = setting(
        "not bernoulli: the scale of all units, which lie in [0, 1]", gt=0, le=1,
        by_default="learned for each component and unit",
    )  # fmt: skip
    floor: float | None = setting("not bernoulli: the smallest scale", ge=1e-4, le=1, by_default="0.01")
    prior: Literal["normal", "sparse", "mixture"] = setting(
        "the prior of codes: standard normal; most dimensions near 0; or equal parts around centres", "normal"
    )
    prior_off: float | None = setting("sparse: the probability that a dimension is off", ge=1e-4, lt=1, by_default="0.8")
    prior_scale: float | None = setting(
        "the standard deviation of a dimension that is off (below 1), or of a part of a mixture", ge=0.01, le=100,
        by_default="0.05, of a mixture 0.1",
    )  # fmt: skip
    prior_centres: list[list[float]] | None = setting(
        "mixture: the public centres, as in [[1,0],[-1,0]]", by_default="must be given for a mixture"
    )
    prior_learned: bool | None = setting("mixture: the centres are trained, starting at the given ones", by_default="false")
    beta: float = setting("the weight of the divergence of a record's code from the prior", 1.0, ge=0, le=1e6)
    samples: int = setting("draws of a code over which the loss of a record is averaged", 1, ge=1, le=1024)
    averaging: float = setting("the part of the released average of parameters that each step keeps", 0.0, ge=0, lt=1)
    divergence: Literal["mmd", "kl", "tc"] | None = setting(
        "an additional divergence of the codes of many records from the prior (PriVAE): mean discrepancy, KL, or total "
        "correlation",
        by_default="none",
    )
    divergence_release: Literal["group", "embedding"] | None = setting(
        "how the divergence becomes public: clipped for each of several random groups, or as a noisy mean of features "
        "(mmd)",
        by_default="embedding for mmd, else group",
    )
    kernel: Literal["cauchy", "gaussian", "imq"] | None = setting(
        "mmd: Cauchy kernels of six scales for each dimension, or one of the distance", by_default="gaussian"
    )
    kernel_width: float | None = setting(
        ("mmd: the width by which differences of codes are divided"), ge=0.01, le=1e6, by_default="1"
    )
    divergence_weight: float | None = setting(
        "the weight of the divergence, beside the loss of a record", ge=1e-6, le=1e6, by_default="10"
    )
    divergence_draws: int | None = setting(
        "mmd by group, kl: the number of draws of the prior that a group is compared with", ge=2, le=2**16, by_default="64"
    )
    groups: int | None = setting("group: the number of groups of a lot", **WIDTH, by_default="16")
    group_c: float | None = setting(
        "group: the bound of a group's gradient", ge=1e-6, le=1e6, by_default="a fifth of the cost of the records' term"
    )
    features: int | None = setting(
        "embedding: the number of features, which are pairs of a cosine and a sine", **WIDTH,
        by_default="64; for cauchy 12 times model.latent",
    )  # fmt: skip
    divergence_share: float | None = setting(
        "embedding: the share of a lot's inverse squared noise that it gets", gt=0, lt=0.9, by_default="0.05"
    )
    divergence_averaging: float | None = setting(
        "embedding: the part of the average of earlier embeddings that each step keeps", ge=0, lt=1, by_default="0"
    )

    def check(self) -> None:
        super().check()
        floor = 0.01 if self.floor is None else self.floor
        if self.scale is not None and self.scale < floor:
            raise UsageError(f"model.scale={self.scale:g}: is below model.floor={floor:g}, the least scale")
        if self.filters is not None and self.network != "deep_conv":
            raise UsageError(f"model.filters={self.filters}: applies only to model.network=deep_conv; leave it out")
        if self.hidden is not None and not self.dense:
            raise UsageError(
                f"model.hidden={self.hidden} with model.network={self.network}: applies only to dense networks; leave it "
                "out"
            )
        if self.centred and self.network != "dense":
            raise UsageError(
                f"model.centred=true with model.network={self.network}: applies only to dense networks; leave it out"
            )
        if not self.dense and (self.layers != 1 or self.trunk):
            raise UsageError(
                f"model.network={self.network} with model.layers={self.layers}, model.trunk={as_text(self.trunk)}: apply "
                "only to dense networks; leave them out"
            )
        if self.divergence_release == "embedding" and self.divergence != "mmd":
            raise UsageError(
                "model.divergence_release=embedding: applies only to model.divergence=mmd, which alone has one, and here "
                f"it is {as_text(self.divergence)}; leave it out"
            )
        if self.divergence == "tc" and self.latent == 1:
            raise UsageError(
                "model.divergence=tc with model.latent=1: one dimension has no total correlation; take 2 or more"
            )
        self._refuse_settings_of_others()

    @property
    def dense(self) -> bool:
        """True for fully connected layers."""
        return self.network in ("dense", "waves")

    @property
    def released_as(self) -> str:
        """The way in which the divergence becomes public, if there is one."""
        return self.divergence_release or ("embedding" if self.divergence == "mmd" else "group")

    @property
    def _of_divergence(self) -> tuple[str, ...]:
        """The settings of the divergence that is asked for."""
        if self.divergence is None:
            return ()
        kernel = ("kernel", "kernel_width") * (self.divergence == "mmd")
        draws = ("divergence_draws",) * (self.released_as == "group" and self.divergence != "tc")
        return ("divergence_weight", "divergence_release", *kernel, *draws, *_DIVERGENCE[self.released_as])

    def _refuse_settings_of_others(self) -> None:
        divergences = (
            "divergence_weight",
            "divergence_release",
            "kernel",
            "kernel_width",
            "divergence_draws",
            *itertools.chain(*_DIVERGENCE.values()),
        )
        for names, has, whose in (
            (divergences, self._of_divergence, self._divergence_in_words),
            (sorted(set(itertools.chain(*_PRIOR.values()))), _PRIOR[self.prior], f"model.prior={self.prior}"),
        ):
            for name in names:
                value = getattr(self, name)
                if value is not None and name not in has:
                    raise UsageError(f"model.{name}={as_text(value)}: model=vae with {whose} has no such setting")
        if self.prior == "mixture" and self.prior_centres is None:
            raise UsageError("model.prior=mixture: needs model.prior_centres, as in model.prior_centres=[[1,0],[-1,0]]")
        if self.features is not None and self.features % 2:
            raise UsageError(f"model.features={self.features}: expected an even number, pairs of a cosine and a sine")

    @property
    def _divergence_in_words(self) -> str:
        released = f" and model.divergence_release={self.released_as}" if self.divergence else ""
        return f"model.divergence={as_text(self.divergence)}{released}"

    @property
    def prior_settings(self) -> dict[str, Any]:
        """The prior as `models.priors.make_prior` takes it."""
        names = _PRIOR[self.prior]
        return {"kind": self.prior} | {name.removeprefix("prior_"): getattr(self, name) for name in names}

    def with_codes(self, bound: float, lot: float) -> VAESpec:
        """Return the settings with those of the prior and the divergence filled in.

        Args:
            bound: how far a record moves the sum of gradients (a person, where that is the unit): by the largest bound, or
                the first where it follows gradients.
            lot: the expected size of a lot.

        Raises:
            UsageError: for a number that does not go with the lot or the code.
        """
        # A group's bound so small that its term costs a fifth of what the records' does: a lot has few groups.
        groups = self.groups or 16
        values = {
            "divergence_weight": 10.0, "divergence_release": self.released_as, "kernel": "gaussian",
            "kernel_width": 1.0, "divergence_draws": 64,
            "groups": groups, "group_c": 0.1 * bound * groups / lot, "divergence_share": 0.05, "divergence_averaging": 0.0,
            "features": 12 * self.latent if self.kernel == "cauchy" else 64,
        }  # fmt: skip
        sizes = {"centred": self.network == "dense" and self.likelihood != "bernoulli"}
        sizes |= {"filters": 32} if self.network == "deep_conv" else {}
        priors = {"prior_off": 0.8, "prior_scale": 0.05 if self.prior == "sparse" else 0.1, "prior_learned": False}
        has = {name: values[name] for name in self._of_divergence} | {
            name: priors[name] for name in _PRIOR[self.prior] if name in priors
        }
        spec = self.changed(**{name: value for name, value in (sizes | has).items() if getattr(self, name) is None})
        if spec.groups is not None and spec.groups > lot:
            whose = "" if self.groups else ", the default"
            raise UsageError(
                f"model.groups={spec.groups}{whose}: expected {int(lot)} or fewer, as many as a lot has records on average"
            )
        if spec.kernel == "cauchy" and spec.features is not None and spec.features % (12 * self.latent):
            raise UsageError(
                f"model.features={spec.features}: expected a multiple of {12 * self.latent}, a pair for each of six "
                f"scales and model.latent={self.latent} dimensions"
            )
        if self.divergence and spec.prior_learned and not self.dense:
            raise UsageError(
                f"model.prior_learned=true with model.divergence={self.divergence} and model.network={self.network}: "
                "applies only to model.network=dense; take that, or fixed centres"
            )
        if spec.released_as == "embedding" and self.divergence and spec.prior_learned:
            raise UsageError(
                "model.prior_learned=true: the mean of an embedding would change with the centres; take "
                "model.divergence_release=group, or fixed centres"
            )
        return spec
