"""A training that starts from a network that was trained before, in place of random weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from lightning_dpgen.data.schema import first_difference
from lightning_dpgen.models.generators import StackedGenerator
from lightning_dpgen.models.history_network import HistoryNetwork
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.models.vae import StackedVAE

TRAINED = {"vae": StackedVAE, "rbm": StackedRBM, "wgan": StackedGenerator, "autoregressive": HistoryNetwork}


# Settings that say how a network is trained, and not which parameters it has.
_OF_TRAINING = {"fixed_bias", "sampling"}
# Records of each component by which a network is tried out.
_TRIED = 16
# Records over which a component is averaged.
_RECORDS = 256
# Parameters of recurrent cells: each component has a cell of its own, and no dimension of components.
_CELL = re.compile(r"(.*\bcells\.)(\d+)(\..*)")


def check_initial(network: Any, initial: Any) -> None:
    """Refuse a network from which another one cannot start.

    Raises:
        ValueError: for a class that is not of this package, whose components cannot be told apart; for another kind, other
            records, other sizes, or components that are neither one nor as many; for one that generates no finite records.
    """
    if type(network) not in TRAINED.values():
        names = ", ".join(known.__name__ for known in TRAINED.values())
        raise ValueError(f"network: a {type(network).__name__}: expected one of {names}, to start from another one")
    if initial.kind != network.kind:
        raise ValueError(f"initial: a network of kind {initial.kind!r}: expected {network.kind!r}")
    if (difference := first_difference(network.schema, initial.schema)) is not None:
        raise ValueError(f"initial: a network of other records ({difference}): expected the same description of a record")
    if initial.k not in (1, network.k):
        expected = f"{network.k}" if network.k == 1 else f"1 or {network.k}"
        raise ValueError(f"initial: a network of {initial.k} components: expected {expected}")
    ours, theirs = (
        {name: value for name, value in own.settings.items() if name not in _OF_TRAINING} for own in (network, initial)
    )
    for name in ours | theirs:
        if ours.get(name) != theirs.get(name):
            raise ValueError(f"initial: a network of {name}={theirs.get(name)!r}: expected {ours.get(name)!r}")
    made = initial.generate([_TRIED * c for c in range(initial.k + 1)], torch.Generator().manual_seed(0))
    if not made.isfinite().all():
        raise ValueError("initial: a network that generates numbers that are not finite: expected trained weights")


def match_components(initial: Any, means: Tensor) -> list[int]:
    """Return for each cluster the component of a network that generates records like it, each component once.

    The sum of squared distances between the average records of components and the means of their clusters is the least
    there is (`scipy.optimize.linear_sum_assignment`). It is a function of its arguments alone, so nothing is spent.

    Args:
        initial: a network of k components, or of one, which all clusters have then.
        means: (k, width) already released means of the records of each cluster. Noise of one deviation in all numbers of a
            mean moves its distances to all components alike.

    Returns:
        k numbers of components.
    """
    k = len(means)
    if initial.k == 1:
        return [0] * k
    generator = torch.Generator().manual_seed(0)
    averages = torch.stack(
        [initial.generate([0] * (c + 1) + [_RECORDS] * (k - c), generator).double().mean(dim=0) for c in range(k)]
    )
    distances = torch.cdist(means.double(), averages).square()
    return linear_sum_assignment(distances.numpy())[1].tolist()


@torch.no_grad()
def copy_components(network: Any, initial: Any, order: Sequence[int]) -> None:
    """Set each component of a network to that component of another one which `order` names; see `check_initial`.

    Layers that the components share are taken as they are.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> one, three = (StackedRBM(ImageSchema(1, 2, levels=1), k, hidden=2) for k in (1, 3))
        >>> copy_components(three, one, [0, 0, 0])
        >>> bool((three.weight == one.weight).all())
        True
    """
    theirs: Mapping[str, Tensor] = initial.state_dict()
    if network.k == initial.k == 1:
        # A single component may have no dimension of its own.
        network.load_state_dict(theirs)
        return
    for name, ours in network.state_dict().items():
        if (cell := _CELL.fullmatch(name)) is not None:
            ours.copy_(theirs[f"{cell[1]}{order[int(cell[2])]}{cell[3]}"])
        else:
            ours.copy_(theirs[name] if len(ours) == 1 else theirs[name][list(order)])
