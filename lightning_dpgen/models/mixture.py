"""A mixture as it is released: components, weights, and the way records are drawn from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, smallest_integer
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.models.outputs import draw


class GenerativeNetwork(Protocol):
    """A stack of k generative networks.

    Attributes:
        kind: the name of its class in a release.
        schema, k: the description of its records, and the number of components.
        settings: the other arguments of `__init__`, public.
    """

    kind: str
    schema: Schema
    k: int

    @property
    def settings(self) -> dict[str, Any]: ...

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate means of units and shares of choices (n, width), for records sorted by component."""
        ...


class Diverged(ValueError):
    """Parameters hold numbers that are not finite: the training has diverged, and there is nothing to release."""


@dataclass(frozen=True)
class Margins:
    """Noisy shares of single choices among all records, which were released before a model learned. Public.

    Args:
        shares: (width,) of a layout; only those of groups are looked at.
        deviation: the standard deviation of the noise in each.
    """

    shares: Tensor
    deviation: float


class Mixture:
    """Mixture weights and a stacked network, which sample synthetic records.

    Args:
        network: a stack of generative networks, one a component.
        weights: (k,) probabilities, public.
        run: the run whose ledger holds what it was learned by (`Ledger.run`); empty where that is not known.
        init: the declaration of the public network that its training started from, for the certificate; None for none.
        margins: what was released of single columns, beside which its records are looked at; None where nothing was.

    Raises:
        ValueError: for weights of another number, negative ones, or none above 0.
    """

    def __init__(
        self,
        network: GenerativeNetwork,
        weights: Tensor,
        run: str = "",
        init: Mapping[str, str] | None = None,
        margins: Margins | None = None,
    ) -> None:
        # Networks that have diverged are reported where they are released.
        if weights.shape != (network.k,) or (weights < 0.0).any() or weights.sum() <= 0.0:
            raise ValueError(
                f"weights: {tuple(weights.shape)} numbers that sum to {float(weights.sum()):g}, expected ({network.k},), "
                "one for each component, 0 or more, and one above 0"
            )
        self.network, self.weights, self.run, self.init, self.margins = network, weights, run, init, margins

    def check_finite(self) -> None:
        """Raise Diverged for weights, or a network that is a module, with numbers that are not finite."""
        if not all(tensor.isfinite().all() for tensor in (self.weights, *self.network.state_dict().values())):
            raise Diverged(
                "mixture: holds numbers that are not finite: its training has diverged, and there is nothing to release"
            )

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator) -> Encoded:
        """Draw n synthetic records: a component by its weight, then its network's means, then units and choices (`draw`).

        Every component has as many records as its weight says, give or take one.
        """
        return self.sample_components(self._components(n, generator), generator)

    def sample_independent(self, n: int, generator: torch.Generator) -> Encoded:
        """Draw n synthetic records independently, for code that picks some of them.

        Only then do the first records that fit a condition have exactly the conditional distribution.
        """
        component = torch.multinomial(self.weights.double(), max(n, 1), replacement=True, generator=generator)[:n]
        return self.sample_components(component, generator)

    def _components(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw components (n,) in random order, each as often as its weight says, give or take one (systematic sampling).

        A record is of a component with a probability equal to its weight. Since every component has its share, anything
        that is counted in the records varies less.
        """
        edges = self.weights.double().cumsum(dim=0)
        places = (torch.arange(n) + torch.rand(1, generator=generator, dtype=torch.float64)) / max(n, 1)
        # The last place may be rounded up to 1, where no component is; to the right of any other edge there is weight.
        component = torch.searchsorted(edges / edges[-1], places.clamp(max=1.0 - 2.0**-53), right=True)
        return component[torch.randperm(n, generator=generator)]

    @torch.no_grad()
    def sample_components(self, component: Tensor, generator: torch.Generator) -> Encoded:
        """Draw one record for each entry of `component` (n,), in that order.

        Networks that can draw choices by themselves (`draw`) need no means for that.
        """
        if (own := getattr(self.network, "draw", None)) is not None:
            codes = own(component, generator).numpy().astype(smallest_integer(max(self.network.schema.layout.groups)))
            return Encoded(np.zeros((len(codes), 0), np.float32), codes)
        _, drawn, places = self._sorted(component, generator)
        return drawn[places]

    @torch.no_grad()
    def generate_components(self, component: Tensor, generator: torch.Generator) -> tuple[Tensor, Encoded]:
        """Draw the same records, and return the means and shares (n, width) that they were drawn from, too."""
        made, drawn, places = self._sorted(component, generator)
        return made[torch.from_numpy(places)], drawn[places]

    def _sorted(self, component: Tensor, generator: torch.Generator) -> tuple[Tensor, Encoded, np.ndarray]:
        """Return means and shares, and records, sorted by component, and the place of each entry of `component`."""
        order = torch.argsort(component, stable=True)
        counts = torch.bincount(component, minlength=self.network.k)
        made = self._generated((0, *counts.cumsum(0).tolist()), generator)
        return made, draw(made, self.network.schema.layout, generator), np.argsort(order.numpy())

    def _generated(self, offsets: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Let the network generate the means and shares of records, sorted by component."""
        return self.network.generate(offsets, generator)
