"""`model=own model.target=package.Class`: a LightningModule of somebody's own in the place of VAE and its like."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.release.sampler import rebuilt
from lightning_dpgen.specs.configuration import ModelConf
from lightning_dpgen.specs.target import named, options_of, said
from lightning_dpgen.specs.usage_error import UsageError

# What every module is made with.
_KEYWORDS = ("n", "k", "bias", "lr", "seed", "log_every")


def check_own(model: ModelConf) -> None:
    """Refuse a target that makes no module, or does not take the options.

    Raises:
        UsageError: naming the setting.
    """
    made, where = named("model.target", model.target), f"model.target={model.target}"
    if not isinstance(made, type) or not issubclass(made, PrivateMixture):
        raise UsageError(f"{where}: expected a class that derives from lightning_dpgen.PrivateMixture, as VAE does")
    options = options_of("model.options", model.options)
    for name in options:
        if name in (*_KEYWORDS, "rate", "steps", "noise", "target", "name"):
            raise UsageError(f"model.options.{name}: has a setting of its own, {'' if name == 'n' else 'model.'}{name}")
    try:
        inspect.signature(made).bind(None, None, None, **dict.fromkeys([*_KEYWORDS, *options]))
    except TypeError as error:
        raise UsageError(f"{where}: cannot be made from schema, account, clipping, {', '.join(_KEYWORDS)} and "
                      f"model.options ({error})") from None  # fmt: skip


def make_own(
    schema: Schema,
    account: Account,
    clipping: ClippingRule | Sequence[ClippingRule],
    *,
    target: str,
    options: dict[str, Any] | None = None,
    **keywords: Any,
) -> PrivateMixture:
    """The module that ``model.target`` makes.

    Raises:
        UsageError: if it fails.
    """
    made = named("model.target", target)
    try:
        return made(schema, account, clipping, **keywords, **options_of("model.options", options))
    except Exception as error:
        raise UsageError(f"model.target={target}: it cannot be made ({said(error)})") from None


def rehearse(module: PrivateMixture, target: str) -> None:
    """Refuse a module whose release nobody could read, or sample from, before anything is spent on it.

    Args:
        module: made on an account without a ledger.
        target: its name, for messages.

    Raises:
        UsageError: saying what its network lacks.
    """
    network, where = module.network, f"model.target={target}: its network"
    kind = f"{type(network).__module__}:{type(network).__qualname__}"
    if getattr(network, "kind", None) != kind:
        raise UsageError(
            f"{where} has kind={getattr(network, 'kind', None)!r}: expected {kind!r}, by which it is found again"
        )
    try:
        again = rebuilt(network)
        offsets = [min(2, i) for i in range(network.k + 1)]
        made = again.generate(offsets, torch.Generator().manual_seed(0)).detach()
    except Exception as error:
        raise UsageError(f"{where} cannot be released, read again and sampled from ({said(error)})") from None
    width = module.network.schema.layout.width
    if made.shape != (offsets[-1], width) or not torch.isfinite(made).all() or (made < 0).any() or (made > 1).any():
        shape = f"({offsets[-1]}, {width})"
        raise UsageError(f"{where} generates numbers of shape {tuple(made.shape)}: expected {shape}, all in [0, 1]")
