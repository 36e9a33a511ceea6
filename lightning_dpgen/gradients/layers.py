"""The parameters of a network: grouped by layers that are checked, and replaced by other tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

import lightning_dpgen.gradients.isolation.torch_names  # noqa: F401 (checks private names of torch)


def modules_of(network: nn.Module) -> list[nn.Module]:
    """Return a network and all modules below it, once each, as ``network.modules()`` does in many times as long.

    Example:
        >>> shared = nn.Linear(1, 1)
        >>> network = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared))
        >>> modules_of(network) == list(network.modules())
        True
    """
    modules: dict[nn.Module, None] = {}
    waiting: list[nn.Module | None] = [network]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in modules:
            modules[module] = None
            waiting.extend(reversed(module._modules.values()))
    return list(modules)


def checked_layers(network: nn.Module) -> list[list[nn.Parameter]]:
    """Return the trainable parameters, grouped by the module that holds them; one that several hold belongs to the first.

    Raises:
        ValueError: if a layer lets one record change what another contributes; it names the layer and what to use instead.
    """
    seen: set[int] = set()
    layers = []
    for module in modules_of(network):
        reason = _reason(module)
        if reason:
            name = next(name for name, layer in network.named_modules() if layer is module)
            raise ValueError(f"layer {name or 'the network itself'} ({type(module).__name__}) {reason}")
        layer = []
        for p in module._parameters.values():
            if p is not None and p.requires_grad and id(p) not in seen:
                seen.add(id(p))
                layer.append(p)
        if layer:
            layers.append(layer)
    return layers


def _reason(layer: nn.Module) -> str | None:
    # By name, since nothing else here needs Opacus.
    if type(layer).__module__.startswith("opacus.grad_sample."):
        return (
            "is Opacus' wrapper, whose hooks find gradients of single records: pass the network inside "
            "(to_standard_module()), since they are found here without hooks"
        )
    for p in layer._parameters.values():
        if p is not None and p.is_complex() and p.requires_grad:
            return (
                "has complex parameters, for which there is no bound and no noise here: hold them as real ones (..., 2), "
                "and join these with torch.view_as_complex where they are used"
            )
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        if layer.running_mean is None:
            return (
                "mixes the records of a lot in either mode, since it keeps no running statistics: use nn.GroupNorm or "
                "nn.LayerNorm"
            )
        if layer.training:
            return (
                "mixes the records of a lot, so a record's gradient is not its own: use nn.GroupNorm or nn.LayerNorm. One "
                "whose running statistics are public (a pretrained backbone's) may stay, frozen: call eval() and "
                "requires_grad_(False) on it before training, and again after anything that calls train() on the module"
            )
        return None
    # A module's own lookup of a name that it lacks is slow.
    if vars(layer).get("track_running_stats", getattr(type(layer), "track_running_stats", False)):
        return "keeps exact statistics of the records among its buffers: use track_running_stats=False"
    if layer._backward_hooks or layer._backward_pre_hooks:
        return "has a backward hook, which is never called here: change the loss, or the gradient of the step afterwards"
    return None


@contextmanager
def replaced_parameters(network: nn.Module, instead: Mapping[nn.Parameter, Tensor]) -> Iterator[None]:
    """Put other tensors in the place of some parameters inside this context, wherever the network holds them.

    Two layers may share a parameter. Recurrent layers leave what they are given where it is in memory: on a GPU they would
    lay it out for cuDNN, and hidden or traced tensors have no memory of their own.
    """
    places, recurrent = [], []
    for module in modules_of(network):
        if isinstance(module, nn.RNNBase) and "flatten_parameters" not in vars(module):
            recurrent.append(vars(module))
        for name, p in module._parameters.items():
            if p is not None and p in instead:
                places.append((module._parameters, name, p))
    try:
        for parameters, name, p in places:
            parameters[name] = instead[p]
        for attributes in recurrent:
            attributes["flatten_parameters"] = _leave
        yield
    finally:
        for attributes in recurrent:
            attributes.pop("flatten_parameters", None)
        for parameters, name, p in places:
            parameters[name] = p


def _leave() -> None:
    """Leave parameters where they are."""
