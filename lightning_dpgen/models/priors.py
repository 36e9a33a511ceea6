"""Priors of codes: the distribution that an autoencoder draws codes from, and that codes of records are compared with."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

PRIORS = ("normal", "sparse", "mixture")
# A narrower part would make the rounding of codes, which depends on the size of a lot, visible in its score.
LEAST_SCALE = 0.01
# The most numbers of the centres of a mixture, each of which stands in the description of a release.
_MOST_CENTRES = 1 << 14
_LOG_TWO_PI = math.log(2.0 * math.pi)


class Prior(nn.Module, ABC):
    """A distribution of codes z (latent,), common to all components of a mixture of autoencoders.

    Attributes:
        latent: d, the dimensions of a code.
        noise: the standard normal numbers of which one draw is a function.
        width: the standard deviation of the part that a code begins in: the narrow one, where there are two.
    """

    kind: str
    latent: int
    noise: int
    width: float = 1.0

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The arguments of `make_prior` beside the dimensions, as they stand in ``model.json``."""

    @abstractmethod
    def draw(self, noise: Tensor) -> Tensor:
        """Map standard normal numbers (B, noise) to codes (B, latent)."""

    @abstractmethod
    def log_density(self, z: Tensor) -> Tensor:
        """Return the log density (B,) of codes (B, latent)."""

    @abstractmethod
    def score(self, z: Tensor) -> Tensor:
        """Return the gradient (B, latent) of `log_density` with respect to codes (B, latent)."""

    def gradients(self, z: Tensor) -> dict[nn.Parameter, Tensor]:
        """Return the gradient (B, ...) of `log_density` with respect to each parameter, for codes (B, latent)."""
        return {}

    @abstractmethod
    def characteristic(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means (f,) of the cosines and of the sines of ``z . w``, for each column w of (latent, f)."""


class NormalPrior(Prior):
    """The standard normal distribution (Kingma and Welling 2014).

    Example:
        >>> prior = NormalPrior(2)
        >>> round(float(prior.log_density(torch.zeros(1, 2))), 4)
        -1.8379
    """

    kind = "normal"

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.latent = self.noise = latent

    @property
    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def draw(self, noise: Tensor) -> Tensor:
        return noise

    def log_density(self, z: Tensor) -> Tensor:
        return -0.5 * (z.square() + _LOG_TWO_PI).sum(dim=1)

    def score(self, z: Tensor) -> Tensor:
        return -z

    def characteristic(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        cosines = torch.exp(-0.5 * frequencies.square().sum(dim=0))
        return cosines, torch.zeros_like(cosines)


class SparsePrior(Prior):
    """Each dimension is off, near 0, with a probability, and standard normal else (PriVAE, section 5.1).

    Args:
        latent: d.
        off: the probability gamma that a dimension is off.
        scale: the standard deviation of one that is off. PriVAE prints .05 for its variance; the code that it cites has a
            deviation of .05.

    Raises:
        ValueError: for a probability or a scale outside of 0 to 1.

    Example:
        >>> prior = SparsePrior(3, off=0.8, scale=0.05)
        >>> prior.draw(torch.randn(5, prior.noise)).shape
        torch.Size([5, 3])
    """

    kind = "sparse"

    def __init__(self, latent: int, *, off: float = 0.8, scale: float = 0.05) -> None:
        super().__init__()
        self.off, self.scale = _between("off", 1e-4, off), _between("scale", LEAST_SCALE, scale)
        self.latent, self.noise = latent, 2 * latent
        self.width = self.scale

    @property
    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "off": self.off, "scale": self.scale}

    def draw(self, noise: Tensor) -> Tensor:
        z, place = noise.chunk(2, dim=1)
        # The distribution function turns a normal number into a uniform one.
        return torch.where(torch.special.ndtr(place) < self.off, self.scale * z, z)

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithms of both parts of the density of each dimension: off and on."""
        off = math.log(self.off / self.scale) - 0.5 * (z / self.scale).square()
        return off, math.log1p(-self.off) - 0.5 * z.square()

    def log_density(self, z: Tensor) -> Tensor:
        return (torch.logaddexp(*self._parts(z)) - 0.5 * _LOG_TWO_PI).sum(dim=1)

    def score(self, z: Tensor) -> Tensor:
        off, on = self._parts(z)
        share = torch.sigmoid(off - on)
        return -z * (share / self.scale**2 + 1.0 - share)

    def characteristic(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        squares = frequencies.square()
        each = self.off * torch.exp(-0.5 * self.scale**2 * squares) + (1.0 - self.off) * torch.exp(-0.5 * squares)
        cosines = each.prod(dim=0)
        return cosines, torch.zeros_like(cosines)


class MixturePrior(Prior):
    """Equal parts of normal distributions about K centres (PriVAE, section 5.2).

    Args:
        centres: K centres, d numbers each; public.
        scale: the standard deviation of a part in each dimension.
        learned: whether the centres are trained, beginning at these.

    Raises:
        ValueError: for centres that are no K lists of d finite numbers, or a scale that is not above 0.

    Example:
        >>> prior = MixturePrior([[1.0, 0.0], [-1.0, 0.0]], scale=0.1)
        >>> prior.nearest(torch.tensor([[0.8, 0.1], [-3.0, 0.0]])).tolist()
        [0, 1]
    """

    kind = "mixture"

    def __init__(self, centres: Sequence[Sequence[float]], *, scale: float = 0.1, learned: bool = False) -> None:
        super().__init__()
        first = _centres(centres)
        if not isinstance(scale, numbers.Real) or isinstance(scale, bool) or not LEAST_SCALE <= scale <= 100.0:
            raise ValueError(f"scale={scale!r}: expected a number from {LEAST_SCALE:g} to 100")
        if type(learned) is not bool:
            raise ValueError(f"learned={learned!r}: expected True or False")
        self._first, self.scale, self.learned = centres, float(scale), learned
        self.width = self.scale
        self.latent, self.noise = first.shape[1], first.shape[1] + 1
        if learned:
            self.centres = nn.Parameter(first)
        else:
            self.register_buffer("centres", first)

    @property
    def settings(self) -> dict[str, Any]:
        centres = self.centres.tolist() if self.learned else [[float(number) for number in own] for own in self._first]
        return {"kind": self.kind, "centres": centres, "scale": self.scale, "learned": self.learned}

    def draw(self, noise: Tensor) -> Tensor:
        count = len(self.centres)
        part = (torch.special.ndtr(noise[:, -1]) * count).long().clamp(max=count - 1)
        return self.centres[part] + self.scale * noise[:, :-1]

    def _parts(self, z: Tensor) -> Tensor:
        """Return -|z - centre|^2 / (2 scale^2), (B, K)."""
        return -0.5 * (z[:, None] - self.centres).square().sum(dim=2) / self.scale**2

    def log_density(self, z: Tensor) -> Tensor:
        level = math.log(len(self.centres)) + self.latent * (math.log(self.scale) + 0.5 * _LOG_TWO_PI)
        return torch.logsumexp(self._parts(z), dim=1) - level

    def shares(self, z: Tensor) -> Tensor:
        """Return the probabilities (B, K) that codes (B, latent) are of each part."""
        return torch.softmax(self._parts(z), dim=1)

    def nearest(self, z: Tensor) -> Tensor:
        """Return the part (B,) whose centre is nearest to each code."""
        return self._parts(z).argmax(dim=1)

    def score(self, z: Tensor) -> Tensor:
        return (self.shares(z) @ self.centres - z) / self.scale**2

    def gradients(self, z: Tensor) -> dict[nn.Parameter, Tensor]:
        if not self.learned:
            return {}
        return {self.centres: self.shares(z)[:, :, None] * (z[:, None] - self.centres) / self.scale**2}

    def characteristic(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        phase = self.centres @ frequencies
        spread = torch.exp(-0.5 * self.scale**2 * frequencies.square().sum(dim=0))
        return spread * phase.cos().mean(dim=0), spread * phase.sin().mean(dim=0)


def make_prior(latent: int, settings: Mapping[str, Any]) -> Prior:
    """Make the prior that settings describe, as `Prior.settings` returns them.

    Raises:
        ValueError: for another kind or other settings, centres of another dimension than the codes, or no dimension.

    Example:
        >>> make_prior(3, {"kind": "sparse", "off": 0.5}).settings
        {'kind': 'sparse', 'off': 0.5, 'scale': 0.05}
    """
    if not isinstance(settings, Mapping):
        raise ValueError(f"prior: {settings!r}: expected a dictionary, as in {{'kind': 'sparse', 'off': 0.5}}")
    if type(latent) is not int or latent < 1:
        raise ValueError(f"latent={latent!r}: expected a whole number, 1 or more")
    given = dict(settings)
    kind = given.pop("kind", None)
    takes = {"normal": (), "sparse": ("off", "scale"), "mixture": ("centres", "scale", "learned")}
    if kind not in PRIORS:
        raise ValueError(f"prior: kind={kind!r}: expected one of {', '.join(PRIORS)}")
    if foreign := sorted(map(str, given.keys() - set(takes[kind]))):
        raise ValueError(f"prior: {foreign[0]}: a {kind} prior has no such setting")
    if kind == "normal":
        return NormalPrior(latent)
    if kind == "sparse":
        return SparsePrior(latent, **given)
    prior = MixturePrior(given.pop("centres", None), **given)
    if prior.latent != latent:
        raise ValueError(f"prior: centres of {prior.latent} numbers: expected {latent}, as many as a code has")
    return prior


def _between(name: str, least: float, value: float) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not least <= value < 1.0:
        raise ValueError(f"{name}={value!r}: expected a number from {least:g}, below 1")
    return float(value)


def _centres(centres: Sequence[Sequence[float]]) -> Tensor:
    expected = f"expected K lists of as many finite numbers each, {_MOST_CENTRES:,} in all at most"
    rows = list(centres) if isinstance(centres, list | tuple) else []
    sizes = {len(row) if isinstance(row, list | tuple) else 0 for row in rows}
    if len(sizes) != 1 or not 0 < len(rows) * (size := sizes.pop()) <= _MOST_CENTRES:
        raise ValueError(f"centres={str(centres)[:60]}: {expected}")
    if not all(type(number) in (int, float) and abs(number) <= 1e6 for row in rows for number in row):
        raise ValueError(f"centres={str(centres)[:60]}: {expected}, from -1e6 to 1e6")
    return torch.tensor([[float(number) for number in row] for row in rows]).view(len(rows), size)
