"""The families of models by their name on the command line: which settings each has, its defaults, and its module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_dpgen.cli.configuration import Conf, ModelConf
from lightning_dpgen.cli.defaults import Defaults
from lightning_dpgen.cli.own_model import check_own, make_own
from lightning_dpgen.cli.usage_error import UsageError
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.clipping import ClippingRule, Fixed
from lightning_dpgen.optim.training_stage import training_stage
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.plugins.rbm import RBM
from lightning_dpgen.plugins.vae import VAE, Divergence
from lightning_dpgen.plugins.wgan import WGAN
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.calibration import StageSpec
from lightning_dpgen.release.bounds import check_numbers

# What every family has that is trained.
_ALWAYS = ("name", "bias", "lr", "rate", "steps", "noise")
# Of a divergence, where there is one.
_DIVERGENCE = {"group": ("groups", "group_c"), "embedding": ("features", "divergence_share")}
# Of a network that learns from a measured model besides, which has settings of its own.
_HYBRID = ("measured_steps", "measured_weight")
_ALL_OF_DIVERGENCES = {"divergence_weight", *(name for names in _DIVERGENCE.values() for name in names)}


@dataclass(frozen=True)
class Family:
    """A family of models.

    Args:
        title: in certificates.
        make: its module; None where nothing is trained.
        settings: names of its settings in the group ``model``, besides those that all have that are trained.
        defaults: of those that are left out, from the defaults that follow from the data.
    """

    title: str
    make: Callable[..., PrivateMixture] | None
    settings: tuple[str, ...]
    defaults: Callable[[Defaults], Mapping[str, Any]]

    @property
    def trained(self) -> bool:
        return self.make is not None


FAMILIES = {
    "vae": Family(
        "mixture of variational autoencoders",
        VAE,
        ("network", "hidden", "layers", "trunk", "latent", "divergence", "divergence_weight"),
        lambda d: {
            "network": "dense", "hidden": d.hidden, "layers": 1, "trunk": False, "latent": d.latent, "lr": d.lr,
        },
    ),
    "own": Family(
        "a model of somebody's own",
        make_own,
        ("target", "options"),
        lambda d: {"lr": d.lr},
    ),
    "rbm": Family(
        "mixture of restricted Boltzmann machines",
        RBM,
        ("hidden", "chains"),
        lambda d: {"hidden": d.hidden, "chains": 20, "lr": 1e-2},
    ),
    "wgan": Family(
        "mixture of Wasserstein generative adversarial networks",
        WGAN,
        ("network", "hidden", "latent", "penalty", "critic_steps"),
        lambda d: {
            "network": "dense", "hidden": d.hidden, "latent": 2 * d.latent, "penalty": 10.0, "critic_steps": 2, "lr": 2e-3,
        },
    ),
    # What there is to set, and its defaults, follows from the kind of records (`cli/measured.py`).
    "measured": Family(
        "noisy statistics, measured once",
        None,
        (
            "waves", "radius", "spread", "means_share", "symmetries", "components", "pairs_share",
            "label_share", "label_sharpness",
        ),
        lambda d: {},
    ),
}  # fmt: skip


def complete(model: ModelConf, chosen: Defaults, expected_batch_size: float, left_open: set[str]) -> None:
    """Fill in what is left out, and refuse what the family does not have.

    Args:
        model: changed in place.
        chosen: defaults that follow from the data.
        expected_batch_size: expected size of a lot.
        left_open: settings that are solved for.

    Raises:
        UsageError: naming the setting.
    """
    if model.name not in FAMILIES:
        raise UsageError(f"model.name={model.name}: expected one of {', '.join(FAMILIES)}")
    family = FAMILIES[model.name]
    if model.name == "own":
        check_own(model)
    if model.divergence not in (None, *_DIVERGENCE):
        raise UsageError(f"model.divergence={model.divergence}: expected null, {' or '.join(_DIVERGENCE)}")
    has = {"name", "chosen", *(_ALWAYS if family.trained else ()), *family.settings, *_DIVERGENCE.get(model.divergence, ())}
    if family.trained and model.name != "own":
        has |= {"measured_share"}
    if model.measured_share is not None and "measured_share" in has:
        # What is measured by follows from the data; a run that goes on has it filled in already.
        has |= {*_HYBRID, *FAMILIES["measured"].settings}
    for field in dataclasses.fields(model):
        value = getattr(model, field.name)
        if value is not None and field.name not in has:
            hint = f"with model.divergence={model.divergence} " if field.name in _ALL_OF_DIVERGENCES else ""
            if model.measured_share is None and field.name in _HYBRID:
                hint = "without model.measured_share "
            raise UsageError(f"model.{field.name}={value}: model={model.name} {hint}has no such setting")
    values = dict(family.defaults(chosen)) | {"rate": chosen.rate, "steps": chosen.steps, "bias": "means"}
    values |= {"measured_steps": 1000, "measured_weight": 0.5}
    if model.divergence is not None:
        # A group's bound so small that its term costs a fifth of what the records' does: a lot has few groups.
        groups = 16 if model.groups is None else model.groups
        bound = 0.1 * chosen.c_max * groups / expected_batch_size
        values |= {"divergence_weight": 10.0, "groups": 16, "group_c": bound, "features": 64, "divergence_share": 0.05}
    for name in has - left_open:
        if getattr(model, name) is None and name in values:
            setattr(model, name, values[name])


def rules_of(model: ModelConf, clipping: ClippingRule) -> tuple[ClippingRule, ...]:
    """The clipping rules of a model's terms."""
    return (clipping, Fixed(model.group_c)) if model.divergence == "group" else (clipping,)


def training_of(conf: Conf, clipping: ClippingRule) -> StageSpec:
    """What the training of a model promises.

    Raises:
        ValueError: if the shares of its noises leave nothing for the gradient.
    """
    model = conf.model
    embeddings = {"embedding": model.divergence_share} if model.divergence == "embedding" else None
    return training_stage(
        rules_of(model, clipping),
        n=conf.data.n,
        sample_rate=model.rate,
        steps=model.steps,
        noise=model.noise,
        embeddings=embeddings,
    )


def make_module(conf: Conf, schema: Schema, clipping: ClippingRule, account: Account) -> PrivateMixture:
    """Make the module that is trained; before anything is spent on it.

    Raises:
        UsageError: if it is larger than a release may be.
    """
    model, family = conf.model, FAMILIES[conf.model.name]
    own = {name: getattr(model, name) for name in family.settings if not name.startswith("divergence")}
    if model.divergence is not None:
        numbers = {name: getattr(model, name) for name in ("groups", "features") if getattr(model, name) is not None}
        own["divergence"] = Divergence(model.divergence, weight=model.divergence_weight, **numbers)
    rules = rules_of(model, clipping)
    module = family.make(
        schema,
        account,
        rules[0] if len(rules) == 1 else rules,
        n=conf.data.n,
        k=conf.split.k,
        bias=model.bias,
        lr=model.lr,
        seed=conf.seed,
        log_every=conf.trainer.log_every,
        **own,
    )
    try:
        check_numbers(module.network)
    except ValueError as error:
        raise UsageError(f"model={model.name}: {error}; take fewer or narrower layers, or fewer components") from None
    return module
