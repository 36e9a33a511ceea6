"""From settings of a model to the module that is trained, and to the stage that its training is."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from lightning_dpgen.data.schema import Schema, kind_of
from lightning_dpgen.gradients.clipping import ClippingRule, Fixed
from lightning_dpgen.models.priors import make_prior
from lightning_dpgen.models.slow_waves import MOST_UNITS
from lightning_dpgen.optim.stages import training_stage
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.calibration import StageSpec
from lightning_dpgen.release.bounds import check_numbers
from lightning_dpgen.release.drawing.model_files import NETWORKS, rebuilt
from lightning_dpgen.specs.custom import describe_error, import_by_name, options_of
from lightning_dpgen.specs.model import AutoregressiveSpec, CustomSpec, RBMSpec, WGANSpec
from lightning_dpgen.specs.network import TrainedSpec, VAESpec
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.usage_error import UsageError

# Modules import Lightning and Opacus, seconds that a run which trains nothing does not wait for: they are imported by the
# functions that need them.
if TYPE_CHECKING:
    from lightning_dpgen.plugins.mixture import PrivateMixture
    from lightning_dpgen.plugins.vae import Divergence

# Keywords that every module is made with.
_KEYWORDS = ("n", "k", "bias", "lr", "seed")


def check_model(spec: TrainedSpec, schema: Schema, n: int, source: str) -> None:
    """Refuse settings of a model that do not fit the records."""
    if spec.name not in (trained := kind_of(schema).trained_networks):
        known = " or ".join(f"model={name}" for name in ("measured", *trained))
        raise UsageError(f"model={spec.name}: is not trained on records of kind {schema.kind}; take {known}")
    if getattr(spec, "network", None) == "deep_conv" and schema.dimensions != 2:
        raise UsageError(f"model.network=deep_conv: is for pictures, and data={source} has none; use model.network=dense")
    for name, words, dimensions in (("network", "pictures", (2,)), ("critic", "pictures and series", (1, 2))):
        if getattr(spec, name, None) != "conv":
            continue
        if schema.dimensions not in dimensions:
            raise UsageError(f"model.{name}=conv: is for {words}, and data={source} has none; use model.{name}=dense")
        height, width = schema.axes[:2]
        if schema.dimensions == 2 and (height % 4 or width % 4):
            raise UsageError(
                f"model.{name}=conv: pictures of {height} by {width} do not go through it, which needs "
                f"multiples of 4; model.{name}=dense takes any"
            )
    if (network := getattr(spec, "network", None)) in ("lstm", "waves") and schema.dimensions != 1:
        raise UsageError(f"model.network={network}: is for series, and data={source} has none; use model.network=dense")
    if network == "waves" and schema.layout.units > MOST_UNITS:
        raise UsageError(
            f"model.network=waves: takes series of {MOST_UNITS:,} numbers at most, and those of data={source} have "
            f"{schema.layout.units:,}; use model.network=dense"
        )
    if getattr(spec, "conditional", False) and schema.layout.label is None:
        raise UsageError(f"model.conditional=true: data={source} has no label; leave it out")
    if getattr(spec, "sampling", None) == "straight_through" and not schema.layout.groups:
        raise UsageError(f"model.sampling=straight_through: data={source} has no choices to be drawn; leave it out")
    if isinstance(spec, VAESpec):
        _check_likelihood(spec, schema)
        _check_prior(spec)
    if spec.rate * n < 1.0:
        raise UsageError(f"model.rate={spec.rate:g}: expected 1/n = {1.0 / n:.3g} or more, or no lot holds a record")


def _check_likelihood(spec: VAESpec, schema: Schema) -> None:
    layout = schema.layout
    for name in ("scale", "floor"):
        if spec.likelihood == "bernoulli" and (value := getattr(spec, name)) is not None:
            raise UsageError(f"model.{name}={value:g}: model.likelihood=bernoulli has none; take another likelihood")
    if spec.likelihood != "bernoulli" and (not layout.units or layout.levels == 1):
        here = "each unit is 0 or 1" if layout.units else "no column has encoding: scaled"
        raise UsageError(
            f"model.likelihood={spec.likelihood}: applies only to numbers between 0 and 1, and here {here}; leave it out"
        )


def _check_prior(spec: VAESpec) -> None:
    try:
        make_prior(spec.latent, spec.prior_settings)
    except ValueError as error:
        words = str(error).removeprefix("prior: ")
        is_setting = words.partition("=")[0] in ("off", "scale", "centres")
        raise UsageError(f"model.prior_{words}" if is_setting else f"model.prior={spec.prior}: {words}") from None


def rules_of(spec: TrainedSpec, clipping: ClippingRule) -> tuple[ClippingRule, ...]:
    """Return the clipping rules of a model's terms."""
    grouped = isinstance(spec, VAESpec) and spec.divergence is not None and spec.released_as == "group"
    return (clipping, Fixed(spec.group_c)) if grouped else (clipping,)


def stage_of_training(spec: TrainedSpec, clipping: ClippingRule, n: int) -> StageSpec:
    """Return the stage that the training of a model is.

    Raises:
        ValueError: if the shares of its noises leave nothing for the gradient.
    """
    embedded = isinstance(spec, VAESpec) and spec.divergence is not None and spec.released_as == "embedding"
    stage = training_stage(
        rules_of(spec, clipping),
        n=n,
        sample_rate=spec.rate,
        steps=spec.steps,
        noise=spec.noise,
        embeddings={"embedding": spec.divergence_share} if embedded else None,
    )
    return replace(stage, multiple=getattr(spec, "critic_steps", 1))


def make_module(run: RunSpec, schema: Schema, clipping: ClippingRule, account: Account) -> PrivateMixture:
    """Return the module that is trained; before anything is spent on it.

    Raises:
        UsageError: if it cannot be made, or is larger than a release may be.
    """
    spec = run.model
    # The modules have the defaults of what is open here.
    options = {name: value for name in spec.own if (value := getattr(spec, name)) is not None}
    if isinstance(spec, VAESpec):
        options["prior"] = spec.prior_settings
        if spec.divergence is not None:
            options["divergence"] = _divergence(spec)
    rules = rules_of(spec, clipping)
    keywords = {"n": run.data.n, "k": run.split.k, "bias": spec.bias, "lr": spec.lr, "seed": run.seed}
    given = schema, account, rules[0] if len(rules) == 1 else rules
    if isinstance(spec, CustomSpec):
        try:
            options = options_of("model.options", spec.options)
            module = import_by_name("model.target", spec.target)(*given, **keywords, **options)
        except (Exception, SystemExit) as error:
            raise UsageError(f"model.target={spec.target}: it cannot be made ({describe_error(error)})") from None
    else:
        module = _class_of(spec)(*given, **keywords, **options)
    size = module.micro_batch = run.trainer.micro_batch
    module.slots = run.trainer.slots
    if module.slots and module.without_slots is not None:
        raise UsageError(f"trainer.slots=true: {module.without_slots}; leave it out")
    if size is not None and module.whole_lots is not None:
        raise UsageError(f"trainer.micro_batch={size}: {module.whole_lots}; leave it out")
    try:
        check_numbers(module.network)
    except ValueError as error:
        raise UsageError(f"model={spec.name}: {error}; take fewer or narrower layers, or fewer components") from None
    return module


def _class_of(spec: TrainedSpec) -> type[PrivateMixture]:
    from lightning_dpgen.plugins.history_module import HistoryModule
    from lightning_dpgen.plugins.rbm import RBM
    from lightning_dpgen.plugins.vae import VAE
    from lightning_dpgen.plugins.wgan import WGAN

    return {VAESpec: VAE, RBMSpec: RBM, WGANSpec: WGAN, AutoregressiveSpec: HistoryModule}[type(spec)]


def _divergence(spec: VAESpec) -> Divergence:
    from lightning_dpgen.plugins.vae import Divergence

    named = {
        "width": "kernel_width",
        "draws": "divergence_draws",
        "averaging": "divergence_averaging",
        "weight": "divergence_weight",
    }
    given = {name: value for name, whose in named.items() if (value := getattr(spec, whose)) is not None}
    return Divergence(spec.divergence, spec.released_as, **given, **spec.given("kernel", "groups", "features"))


def check_custom(spec: CustomSpec) -> None:
    """Refuse a target that makes no module, or does not take the options."""
    from lightning_dpgen.plugins.mixture import PrivateMixture

    target, where = import_by_name("model.target", spec.target), f"model.target={spec.target}"
    if not isinstance(target, type) or not issubclass(target, PrivateMixture):
        raise UsageError(f"{where}: expected a class that derives from lightning_dpgen.PrivateMixture, as VAE does")
    options = options_of("model.options", spec.options)
    for name in options:
        if name in (*_KEYWORDS, *CustomSpec.model_fields):
            raise UsageError(f"model.options.{name}: has a setting of its own, {'' if name == 'n' else 'model.'}{name}")
    try:
        inspect.signature(target).bind(None, None, None, **dict.fromkeys([*_KEYWORDS, *options]))
    except TypeError as error:
        raise UsageError(
            f"{where}: cannot be made from schema, account, clipping, {', '.join(_KEYWORDS)} and model.options ({error})"
        ) from None


def rehearse(module: PrivateMixture, target: str) -> None:
    """Refuse a module whose release no one could read, or sample from, before anything is spent on it.

    Args:
        module: made on an account without a ledger.
        target: its name, for messages.

    Raises:
        UsageError: saying what its network lacks.
    """
    network, where = module.network, f"model.target={target}: its network"
    kind = f"{type(network).__module__}:{type(network).__qualname__}"
    known = getattr(network, "kind", None)
    if known != kind and NETWORKS.get(known) is not type(network):
        raise UsageError(f"{where} has kind={known!r}: expected {kind!r}, by which it is found again")
    try:
        again = rebuilt(network)
        offsets = [min(2, i) for i in range(network.k + 1)]
        records = again.generate(offsets, torch.Generator().manual_seed(0)).detach()
    except Exception as error:
        raise UsageError(f"{where} cannot be released, read again and sampled from ({describe_error(error)})") from None
    width = module.network.schema.layout.width
    if records.shape != (offsets[-1], width) or not ((records >= 0) & (records <= 1)).all():
        shape = f"({offsets[-1]}, {width})"
        raise UsageError(f"{where} generates numbers of shape {tuple(records.shape)}: expected {shape}, all in [0, 1]")
