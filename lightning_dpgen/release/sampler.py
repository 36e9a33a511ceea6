"""Reading a released model, and drawing as many synthetic records from it as one likes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from lightning_dpgen.data.image_schema import ImageSchema
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.models.wgan import StackedGenerator
from lightning_dpgen.release.certificate import MODEL, WEIGHTS, NotARelease
from lightning_dpgen.release.projected import KIND, ProjectedRows, load_projected
from lightning_dpgen.release.strict_json import read_json

_CHUNK = 10_000
_NETWORKS = {network.kind: network for network in (StackedVAE, StackedRBM, StackedGenerator)}
# Sizes beyond it are of no use to anybody.
_LARGEST = 2**24


class Release:
    """A released model: needs nothing but its folder.

    Args:
        mixture: the model.

    Example:
        >>> release = load_release(folder)                       # doctest: +SKIP
        >>> pictures = release.sample(100, seed=1)               # doctest: +SKIP
    """

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture

    @property
    def schema(self) -> ImageSchema:
        return self._mixture.network.schema

    @property
    def components(self) -> int:
        return self._mixture.network.k

    def sample(self, n: int, seed: int | None = None) -> np.ndarray:
        """n synthetic pictures (n, height, width), whole numbers from 0 to ``schema.out_levels``.

        Args:
            n: how many, 0 or more.
            seed: makes the draw repeatable; None draws anew each time.
        """
        rows = np.concatenate([np.zeros((0, len(self.schema.columns)), np.int64), *self.chunks(n, seed)])
        return rows[:, : self.schema.pixels].reshape(n, self.schema.height, self.schema.width)

    def chunks(self, n: int, seed: int | None = None) -> Iterator[np.ndarray]:
        """The same records as rows of ``schema.columns`` (pixels in row order, then the label), a chunk at a time."""
        if n < 0:
            raise ValueError(f"n={n}: expected 0 or more records")
        generator = torch.Generator()
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        for start in range(0, n, _CHUNK):
            yield self._mixture.sample(min(_CHUNK, n - start), generator).numpy()

    def sample_component(self, component: int, n: int, seed: int) -> np.ndarray:
        """n pictures of one component of the mixture, as `sample`."""
        generator = torch.Generator().manual_seed(seed)
        rows = self._mixture.sample_components(torch.full((n,), component), generator).numpy()
        return rows[:, : self.schema.pixels].reshape(n, self.schema.height, self.schema.width)


def write_model(folder: Path, mixture: Mixture) -> None:
    """Write weights and description: all that sampling needs, and no pickle."""
    network = mixture.network
    description = {
        "model": network.kind,
        "schema": network.schema.as_json(),
        "k": network.k,
        **network.settings,
        "mixture_weights": mixture.weights.tolist(),
    }
    (folder / MODEL).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    safetensors.torch.save_file(tensors, folder / WEIGHTS)
    (folder / WEIGHTS).chmod(0o644)  # safetensors writes for the owner alone, and this file is meant for others


def load_release(path: str | Path) -> Release | ProjectedRows:
    """What a release holds, from its folder: a model to sample from, or projected rows.

    Raises:
        NotARelease: if the folder does not hold a readable model.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise NotARelease(f"{folder} is not a folder: expected a release")
    for name in (MODEL, WEIGHTS):
        if not (folder / name).is_file():
            raise NotARelease(f"{folder} holds no {name}: expected a release made by dpgen")
    try:
        description = read_json(folder / MODEL)
        if description["model"] == KIND:
            return load_projected(folder)
        return Release(_build(description, safetensors.torch.load_file(folder / WEIGHTS)))
    except NotARelease:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise NotARelease(f"the model in {folder} cannot be read: {' '.join(str(error).split())[:300]}") from None


def _build(description: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Mixture:
    description = dict(description)
    kind = description.pop("model")
    if kind not in _NETWORKS:
        raise ValueError(f"model={kind!r}: expected one of {', '.join(sorted(_NETWORKS))}")
    schema = ImageSchema.from_json(description.pop("schema"))
    mixture_weights = description.pop("mixture_weights")
    for name, value in description.items():
        sensible = value in ("dense", "conv") if name == "network" else type(value) is bool or 1 <= value <= _LARGEST
        if not sensible or (type(value) is float):
            raise ValueError(f"{name}={value!r}: expected a whole number from 1 to {_LARGEST:,}")
    # Without memory of its own, so that sizes which the tensors do not have cost nothing.
    with torch.device("meta"):
        network = _NETWORKS[kind](schema, **description)
    network.load_state_dict(tensors, assign=True)
    for name, tensor in network.state_dict().items():
        if tensor.dtype != torch.float32 or not torch.isfinite(tensor).all():
            raise ValueError(f"{name}: expected finite float32 numbers")
    weights = torch.tensor(mixture_weights, dtype=torch.float32)
    if weights.shape != (network.k,) or not torch.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError(f"mixture_weights must be {network.k} numbers, 0 or more, and not all 0")
    return Mixture(network.eval(), weights)
