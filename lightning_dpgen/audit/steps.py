"""The private step at its worst neighbours: a lot of one record and an empty one, told apart by what the step releases."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor, nn

from lightning_dpgen.audit.bound import Finding, gaussian_bound
from lightning_dpgen.data.records import Records
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.gaussian_cost import gaussian_epsilon
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import FULL_PASS, Poisson
from lightning_dpgen.sampling.lots import Lot, PoissonLots

TRAINING = "training"
# Records from which lots are drawn, to see how often one of them is there.
_RECORDS = 50


def plan_of_many(access: Access, count: int, like: Plan) -> Plan:
    """Plan so many accesses like this one, to all records, with noise of multiplier 1: so little that one tells much."""
    multipliers = {name: multiplier / access.multiplier for name, multiplier in access.multipliers.items()}
    whole = dataclasses.replace(access, sampler=FULL_PASS, multipliers=multipliers)
    return Plan((Stage(whole, count, 1.0),), math.inf, like.delta, max_rows=like.max_rows)


def audit_lots(sample_rate: float, draws: int, confidence: float) -> Finding:
    """Bound from below how often a lot holds a record, by `draws` lots, against the rate of the plan.

    Args:
        sample_rate: rate of the plan.
    """
    plan = Plan((Stage(Access(TRAINING, {"gradient": 1.0}, Poisson(sample_rate)), draws, 1.0),), math.inf, 0.5)
    lots = PoissonLots(torch.arange(_RECORDS, dtype=torch.float32)[:, None], Account(plan))
    held = sum(int((lots.draw().records == 0.0).sum()) for _ in range(draws))
    bound = float(beta.ppf(1.0 - confidence, held, draws - held + 1)) if held else 0.0
    return Finding("how often a lot holds a record (its rate)", sample_rate, bound, 0.0, f"{draws:,} lots")


def longest_gradient(module: PrivateMixture, canaries: Records) -> tuple[int, float]:
    """Return the place of the canary with the longest gradient, and its length."""
    records = canaries.take(np.arange(len(canaries)))
    norms = canary_gradients(module, records, first_of_all(len(canaries), module.k)).norms()
    place = int(norms.argmax())
    return place, float(norms[place])


def audit_step(
    module: PrivateMixture, canaries: Records, place: int, draws: int, confidence: float, *, what: str
) -> Finding:
    """Bound the epsilon of a step from below, by `draws` steps on one canary and as many on no record.

    The auditor knows what the record draws for itself (a code, a point in between): the proof bounds its contribution for
    any such draw. Without a record it is drawn all the same.

    Args:
        module: a module whose account holds `plan_of_many`, of twice as many steps; its parameters stay as they are.
        canaries: the canaries, one of which takes part.
        place: the place of that one.
    """
    access = module.account.plan.stage(TRAINING).access
    parameters = list(module.trained.parameters())
    record = canaries.take(np.array([place]))
    one, some = first_of_all(1, module.k), parameters[0]
    # The sampler takes all there are: the plan is one of full lots.
    lots = [
        PoissonLots(records, module.account, k=module.k, persons=np.arange(len(records)))
        for records in (record[:0], record)
    ]
    record = record.to(some)
    found = np.empty((2, draws))
    for i in range(draws):
        for present in (False, True):
            gradients = module.gradients(lots[present].draw().to(some.device, some.dtype))
            seen = gradients[0] if present and isinstance(gradients[0], PerSampleGradients) else None
            direction = _direction(canary_gradients(module, record, one) if seen is None else seen, parameters)
            # A new optimizer for each draw: rules that go on from the last bound would carry one draw into the next.
            optimizer = module.private_optimizer(torch.optim.SGD(parameters, lr=0.0))
            optimizer.set_gradients(*gradients)
            optimizer.step()
            released = zip(parameters, direction, strict=True)
            found[int(present), i] = float(sum((p.grad.double() * along).sum() for p, along in released))
    delta = module.account.plan.delta
    claim = gaussian_epsilon(1.0 / access.multiplier, delta)
    bound = gaussian_bound(*found, confidence, delta)
    return Finding(what, claim, bound, delta, f"{draws:,} steps on one record, and on none")


def _direction(gradients: PerSampleGradients, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return the direction of the gradient of one record."""
    unit = {p: torch.zeros_like(p) for p in parameters}
    gradients.weighted_sum(1.0 / gradients.norms().to(parameters[0]).clamp(min=1e-12), unit)
    return [unit[p].double() for p in parameters]


def canary_gradients(
    module: PrivateMixture, records: Tensor, offsets: tuple[int, ...], *, typical: bool = False
) -> PerSampleGradients:
    """Compute the gradient of each canary by itself as the network is now, without clipping and without noise.

    Args:
        module: the module with the network and the private stream.
        records: (m, width).
        offsets: offsets of their components.
        typical: True if a record draws for itself the middle of what it may draw.
    """
    some, term = next(module.trained.parameters()), module.trained.term
    lot = Lot(records.to(some), offsets)
    noise = some.new_zeros(len(lot), term.noise) if typical else None
    return term_gradients(module.trained, term, lot, module.account.stream, noise=noise)


def first_of_all(count: int, k: int) -> tuple[int, ...]:
    """Return offsets of records that all belong to the first component."""
    return (0, *(count,) * k)
