"""Scores by which an attacker guesses that a record was learned from: higher for likely members."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from lightning_dpgen.metrics.neighbours import NearestNeighbourDistance
from lightning_dpgen.metrics.tensors import check_records, check_scores
from lightning_dpgen.models.critics import StackedCritic

# Numbers that are held at a time.
_AT_ONCE = 1 << 24


def nearness(records: Tensor, synthetic: Tensor) -> Tensor:
    """Score records (n, width) by a release alone: the negative distance (n,) to the nearest synthetic record (m, width).

    Raises:
        ValueError: for no tensors of finite numbers, other widths, or no record on one side.

    Example:
        >>> nearness(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.zeros(1, 2))
        tensor([-0., -5.])
    """
    _check_widths(records=records, synthetic=synthetic)
    metric = NearestNeighbourDistance(records.shape[1])
    metric.update(synthetic, real=True)
    metric.update(records, real=False)
    return -metric.distances()


def density_ratio(records: Tensor, synthetic: Tensor, reference: Tensor, scale: float = 1.5) -> Tensor:
    """Score records (n, width) by how much denser synthetic records (m, width) are there than other real ones (DOMIAS).

    The attacker has real records of the same population that were not learned from. Where a release is denser than the
    population, it has learned single records (van Breugel et al. 2023). Densities are means of ``exp(-scale distance^2)``;
    of records written as one-hot, each choice that differs has the weight ``exp(-2 scale)``.

    Returns:
        (n,) the logarithms of the ratios.

    Raises:
        ValueError: for no tensors of finite numbers, other widths, no synthetic or reference record, or a scale that is
            not positive.

    Example:
        >>> density_ratio(torch.zeros(1, 1), synthetic=torch.zeros(2, 1), reference=torch.ones(2, 1))
        tensor([1.5000])
    """
    _check_widths(records=records, synthetic=synthetic, reference=reference)
    if not len(synthetic) or not len(reference):
        raise ValueError(f"{len(synthetic)} synthetic and {len(reference)} reference records: expected at least one each")
    if not isinstance(scale, int | float) or not 0.0 < scale < math.inf:
        raise ValueError(f"scale={scale!r}: expected a positive number")
    # Whole numbers and halves are counted with as many digits as torch's default has.
    kind = functools.reduce(torch.promote_types, (part.dtype for part in (synthetic, reference)), records.dtype)
    kind = torch.promote_types(kind, torch.float32)
    records, synthetic, reference = (part.to(kind) for part in (records, synthetic, reference))
    return _log_density(records, synthetic, scale) - _log_density(records, reference, scale)


def _log_density(records: Tensor, others: Tensor, scale: float) -> Tensor:
    step = max(1, _AT_ONCE // len(others))
    sums = [torch.logsumexp(-scale * torch.cdist(part, others).square(), dim=1) for part in records.split(step)]
    return torch.cat(sums) - math.log(len(others))


@torch.no_grad()
def critic_scores(critic: StackedCritic, records: Tensor, component: Tensor | None = None) -> Tensor:
    """Score records (n, width) by a critic (n,), whose release never is (dp-GAN, section 2.4): real ones get more.

    Args:
        critic: the critics, one for each component.
        records: written out in numbers, as the critic has met them.
        component: (n,) the component of each record; None where there is one.

    Returns:
        (n,) on the device of the records, which is that of the critics.

    Raises:
        ValueError: for no critics, no tensor of finite numbers, another width or device, or components that are not there;
            or where there are several, and none is given.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> from lightning_dpgen.models.generators import StackedGenerator
        >>> critic = StackedCritic(StackedGenerator(ImageSchema(2, 2, levels=1), k=2, hidden=4, latent=2), hidden=4)
        >>> critic_scores(critic, torch.zeros(3, 4), torch.tensor([1, 0, 1])).shape
        torch.Size([3])
    """
    if not isinstance(critic, StackedCritic):
        raise ValueError(f"critic: found {type(critic).__name__}, expected critics, as an adversarial module has")
    weight = next(critic.parameters())
    check_records("records", records, critic.width, weight.device)
    if component is None:
        if critic.k > 1:
            raise ValueError(f"critics of {critic.k} components: expected component=(n,), that of each record")
        component = torch.zeros(len(records), dtype=torch.int64, device=records.device)
    _check_component(component, len(records), critic.k)
    component = component.to(records.device)
    order = component.argsort(stable=True)
    ends = component.bincount(minlength=critic.k).cumsum(0).tolist()
    scores = critic(records[order].to(weight.dtype), (0, *ends))
    return torch.empty_like(scores).index_copy(0, order, scores)


def _check_component(component: Tensor, n: int, k: int) -> None:
    check_scores("component", component, n)
    if component.is_floating_point() or component.dtype == torch.bool:
        raise ValueError(f"component of {component.dtype}: expected whole numbers")
    if n and not 0 <= int(component.min()) <= int(component.max()) < k:
        raise ValueError(f"component from {int(component.min())} to {int(component.max())}: expected 0 to {k - 1}")


def _check_widths(*, records: Tensor, **others: Tensor) -> None:
    """Check records, and that others have their width and their device."""
    check_records("records", records)
    for name, other in others.items():
        check_records(name, other, records.shape[1], records.device)
