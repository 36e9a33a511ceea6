"""The files of a model: its description and its weights, written and read, with no pickle and no import by name."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.models.forests import StackedForests, StackedProducts
from lightning_dpgen.models.gaussians import SeriesGaussians, StackedCopula, StackedGaussians
from lightning_dpgen.models.histories import StackedHistories
from lightning_dpgen.models.initial import TRAINED
from lightning_dpgen.models.labelled import LabelledNetwork, described_crossings, read_crossings, with_label, without_label
from lightning_dpgen.models.mixture import Diverged, GenerativeNetwork, Mixture
from lightning_dpgen.release.bounds import check_finite, check_numbers, check_tensors
from lightning_dpgen.release.drawing.description import CROSSINGS, KEPT, LABELLED, described_schema
from lightning_dpgen.release.files import MODEL, WEIGHTS, NotARelease

_MEASURED = (StackedCopula, StackedForests, StackedGaussians, SeriesGaussians, StackedProducts, StackedHistories)


NETWORKS = {network.kind: network for network in (*TRAINED.values(), *_MEASURED)}


_LARGEST = 2**24


# Settings of networks that are neither sizes nor true or false, and the types that they have.
_NO_SIZES: dict[str, tuple[type, ...]] = {
    "network": (str,),
    "symmetries": (dict,),
    "sampling": (str,),
    "likelihood": (str,),
    "scale": (float, type(None)),
    "floor": (float,),
    "prior": (dict,),
    "parents": (list,),
}


class ReadMixture(Mixture):
    """A mixture with weights from an untrusted file: finite, but maybe so large that generated numbers are not."""

    def sample_components(self, component: torch.Tensor, generator: torch.Generator) -> Encoded:
        try:
            return super().sample_components(component, generator)
        except Diverged as error:
            raise NotARelease(f"{error}, so its weights are not those of a trained model") from None

    def _generated(self, offsets: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        numbers = super()._generated(offsets, generator)
        if not torch.isfinite(numbers).all():
            raise NotARelease(
                "the model gives numbers that are not finite, so its weights are not those of a trained model"
            )
        return numbers


def weights_digest(network: GenerativeNetwork) -> str:
    """Return the sha256 of the weights of a network as `write_model` writes them, in hexadecimal.

    Of a release that this software has written it is the hash of ``model.safetensors`` in its certificate.
    """
    return hashlib.sha256(safetensors.torch.save(_tensors(network))).hexdigest()


def write_model(folder: Path, mixture: Mixture, *, private: bool = True, kept: float | None = None) -> None:
    """Write weights and description: all that sampling needs, and no pickle.

    Args:
        kept: the share of rows that keep all constraints as they are first drawn, for readers of the description.
    """
    network = mixture.network
    check_numbers(network)
    description = _described(network) | {"mixture_weights": mixture.weights.tolist()}
    description |= {} if private else {"private": False}
    description |= {} if kept is None else {KEPT: kept}
    (folder / MODEL).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    # A full disk is an OSError here, and another error where safetensors writes the file itself.
    (folder / WEIGHTS).write_bytes(safetensors.torch.save(_tensors(network)))
    (folder / WEIGHTS).chmod(0o644)


def _tensors(network: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.contiguous() for name, tensor in network.state_dict().items()}


def rebuilt(network: GenerativeNetwork) -> GenerativeNetwork:
    """Rebuild the network as a reader of its release has it.

    Raises:
        ValueError: if it cannot be released, or is not made again by ``type(network)(schema, k, **settings)``.
    """
    described = json.loads(json.dumps(_described(network), allow_nan=False))
    tensors = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    weights = {"mixture_weights": [1.0] * network.k}
    again = _filled(_described_network(described | weights, {network.kind: type(without_label(network))})[0], tensors)
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name}: expected finite float32 numbers")
    return again


def _described(network: GenerativeNetwork) -> dict[str, Any]:
    description = {"model": network.kind, "schema": network.schema.as_json(), "k": network.k}
    if taken := sorted({*description, "mixture_weights", "private", KEPT, LABELLED, CROSSINGS} & set(network.settings)):
        raise ValueError(f"the settings of the network name {taken[0]!r}, which a release holds already")
    if not isinstance(network, LabelledNetwork):
        return description | network.settings
    crossings = described_crossings(network.crossed.crossings)
    return description | network.settings | {LABELLED: True} | ({CROSSINGS: crossings} if crossings else {})


def _foreign(kind: Any, networks: Mapping[str, Any]) -> str:
    module, colon, name = kind.partition(":") if isinstance(kind, str) else ("", "", "")
    if colon and name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        return (
            f"it is a {kind}, custom code, which is never imported by a name in a file: if you trust it, from {module} "
            f"import {name}, and load_release(path, networks=[{name}])"
        )
    return f"model={kind!r}: expected one of {', '.join(sorted(networks))}"


def _described_network(
    description: dict[str, Any], networks: Mapping[str, type[GenerativeNetwork]]
) -> tuple[GenerativeNetwork, list[float]]:
    """Make the network that a description names, without memory of its own, and return its mixture weights too."""
    description = dict(description)
    kind = description.pop("model")
    if not isinstance(kind, str) or kind not in networks:
        raise ValueError(_foreign(kind, networks))
    if lacking := [name for name in ("schema", "k", "mixture_weights") if name not in description]:
        raise ValueError(f"{lacking[0]} is missing")
    schema = described_schema(description.pop("schema"))
    mixture_weights, labelled = description.pop("mixture_weights"), description.pop(LABELLED, False)
    if type(labelled) is not bool:
        raise ValueError(f"{LABELLED}={labelled!r}: expected true or false")
    crossings = read_crossings(description.pop(CROSSINGS, []))
    if crossings and not labelled:
        raise ValueError(f"{CROSSINGS}: expected none without a label that is drawn last")
    # The class of a custom network knows which settings make sense; those of this package check words and objects.
    for name, value in description.items() if kind in NETWORKS else ():
        kinds = _NO_SIZES.get(name)
        if kinds is None and not (type(value) is bool or (type(value) is int and 1 <= value <= _LARGEST)):
            raise ValueError(f"{name}={value!r}: expected a whole number from 1 to {_LARGEST:,}")
        if kinds is not None and type(value) not in kinds:
            raise ValueError(f"{name}={value!r}: expected another kind of value")
    if kind in NETWORKS:
        asked = [x for x in inspect.signature(networks[kind]).parameters.values() if x.name != "schema"]
        if lacking := [x.name for x in asked if x.default is x.empty and x.name not in description]:
            raise ValueError(f"{lacking[0]} is missing")
        if foreign := sorted(description.keys() - {x.name for x in asked}):
            raise ValueError(f"{foreign[0]}: a {kind} has no such setting")
    # Sizes that the tensors do not have cost nothing on this device.
    with torch.device("meta"):
        network = networks[kind](schema, **description)
        return with_label(network, crossings) if labelled else network, mixture_weights


def _filled(network: GenerativeNetwork, tensors: dict[str, torch.Tensor]) -> GenerativeNetwork:
    """Put these tensors in the place of the network's own."""
    network.load_state_dict(tensors, assign=True)
    for name, tensor in network.state_dict().items():
        if tensor.dtype != torch.float32:
            raise ValueError(f"{name}: expected float32 numbers")
    return network.eval()


def read_mixture(description: dict[str, Any], path: Path, networks: Mapping[str, type[GenerativeNetwork]]) -> Mixture:
    """Read a described mixture, its tensors from a file that holds these and nothing else."""
    network, mixture_weights = _described_network(description, networks)
    numbers = isinstance(mixture_weights, list) and all(type(weight) in (int, float) for weight in mixture_weights)
    weights = torch.tensor(mixture_weights if numbers else [], dtype=torch.float32)
    if weights.shape != (network.k,) or not torch.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError(f"mixture_weights must be {network.k} numbers, 0 or more, and not all 0")
    check_tensors(path, {name: tensor.shape for name, tensor in network.state_dict().items()}, "F32")
    check_finite(path)
    return ReadMixture(_filled(network, safetensors.torch.load_file(path)), weights)
