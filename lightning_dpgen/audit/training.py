"""Attacks on a training: a private step at its worst neighbours, and many canaries in one run.

`audit_step` attacks one step: it compares what a step on one record and a step on none release. `audit_run` attacks one run
(Steinke, Nasr and Jagielski 2023): a coin decides for each canary, and the auditor guesses. It sees what a training
releases on its way, every noisy gradient, as the proof of its privacy allows, and nothing that is computed before noise.
The contribution of a canary is known, so its score is the amount of it that explains the released numbers best, beside all
other canaries and the noise (ridge regression).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor, nn

from lightning_dpgen.audit.bound import Finding, gaussian_bound, one_run_epsilon
from lightning_dpgen.data.records import Records
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_epsilon
from lightning_dpgen.privacy.plan import TRAINING, Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import FULL_PASS, Poisson
from lightning_dpgen.sampling.lots import Lot, PoissonLots

# Records from which lots are drawn, to see how often one of them is there.
_RECORDS = 50
# Shares of canaries that are guessed upon: half of each with the highest scores, half with the lowest.
_SHARES = (0.1, 0.3, 1.0)
# Iterations of the regression in each step.
_ITERATIONS = 20


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
    present = sum(int((lots.draw().records == 0.0).sum()) for _ in range(draws))
    bound = float(beta.ppf(1.0 - confidence, present, draws - present + 1)) if present else 0.0
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
    parameters = list(module.trained_network.parameters())
    record = canaries.take(np.array([place]))
    one, some = first_of_all(1, module.k), parameters[0]
    # The sampler takes all there are: the plan is one of full lots.
    lots = [
        PoissonLots(records, module.account, k=module.k, persons=np.arange(len(records)))
        for records in (record[:0], record)
    ]
    record = record.to(some)
    outputs = np.empty((2, draws))
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
            outputs[int(present), i] = float(sum((p.grad.double() * along).sum() for p, along in released))
    delta = module.account.plan.delta
    claim = gaussian_epsilon(1.0 / access.multiplier, delta)
    bound = gaussian_bound(*outputs, confidence, delta)
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
    some, term = next(module.trained_network.parameters()), module.trained_network.term
    lot = Lot(records.to(some), offsets)
    noise = some.new_zeros(len(lot), term.noise) if typical else None
    return term_gradients(module.trained_network, term, lot, module.account.stream, noise=noise)


def first_of_all(count: int, k: int) -> tuple[int, ...]:
    """Return offsets of records that all belong to the first component."""
    return (0, *(count,) * k)


class StepScores:
    """The scores of canaries from the steps of a training; all records belong to the first component.

    Args:
        module: the module before its fit.
    """

    def __init__(self, module: PrivateMixture, canaries: Records) -> None:
        self.scores = np.zeros(len(canaries))
        self._module, self._records = module, canaries.take(np.arange(len(canaries)))
        begin = module.on_train_start

        @functools.wraps(begin)
        def watched() -> None:
            begin()
            for optimizer in module.trainer.optimizers:
                if isinstance(optimizer, PrivateOptimizer):
                    # Opacus' own hook: p.grad then holds what the step releases.
                    optimizer.attach_step_hook(self._look)

        module.on_train_start = watched

    def _look(self, optimizer: PrivateOptimizer) -> None:
        offsets = first_of_all(len(self._records), self._module.k)
        gradients = canary_gradients(self._module, self._records, offsets, typical=True)
        access = self._module.account.plan.stage(TRAINING).access
        inverse = 1.0 / gradients.norms().clamp(min=1e-12)
        # In these units a clipped canary that takes part adds a vector of length 1.
        scale = optimizer.expected_batch_size / _largest(optimizer.last_bound)
        released = {p: p.grad.detach() * scale for p in optimizer.params}
        chance = 0.5 * access.sample_rate

        def added(weights: Tensor) -> dict[nn.Parameter, Tensor]:
            total = {p: torch.zeros_like(p) for p in released}
            gradients.weighted_sum((weights * inverse).to(next(iter(released.values()))), total)
            return total

        def along(vectors: Mapping[nn.Parameter, Tensor]) -> Tensor:
            return gradients.products(vectors) * inverse

        expected = added(torch.full_like(inverse, chance))
        target = along({p: released[p] - expected[p] for p in released})
        ridge = access.multipliers["gradient"] ** 2 / (chance * (1.0 - chance))
        amounts = _conjugate_gradients(lambda weights: along(added(weights)) + ridge * weights, target)
        self.scores += amounts.cpu().numpy()


def _largest(bound: float | tuple) -> float:
    return max(map(_largest, bound)) if isinstance(bound, tuple) else bound


def _conjugate_gradients(product: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """Solve ``product(x) = target`` nearly, by conjugate gradients; the product is symmetric and positive."""
    x, residual = torch.zeros_like(target), target.clone()
    direction, square = residual, residual @ residual
    for _ in range(_ITERATIONS):
        if not square > 0.0:
            break
        applied = product(direction)
        step = square / (direction @ applied)
        x, residual = x + step * direction, residual - step * applied
        before, square = square, residual @ residual
        direction = residual + (square / before) * direction
    return x


def audit_run(
    run_and_score: Callable[[np.ndarray], np.ndarray],
    is_member: np.ndarray,
    *,
    epsilon_at: Callable[[float], float],
    delta: float,
    confidence: float,
    what: str,
) -> Finding:
    """Bound the epsilon of one run from below.

    A few guesses may all be right, and many tell more about a run without noise, so several numbers of guesses are fixed
    beforehand, and share the allowed error.

    Args:
        run_and_score: makes the run with some of the canaries and returns the scores of all.
        is_member: (m,) True for canaries that take part.
        epsilon_at: returns the epsilon of the run at a delta.
        delta: delta of its certificate; if the bound would drown in it, a smaller one is used.
    """
    scores, count = run_and_score(is_member), len(is_member)
    order = np.argsort(scores, kind="stable")
    error = (1.0 - confidence) / len(_SHARES)
    delta = min(delta, 0.01 * error / count)
    best, how = 0.0, ""
    for share in _SHARES:
        half = max(1, math.floor(0.5 * share * count))
        right = int(is_member[order[count - half :]].sum() + (~is_member[order[:half]]).sum())
        bound = one_run_epsilon(count, 2 * half, right, delta, 1.0 - error)
        if bound > best or not how:
            best, how = bound, f"one run, {count:,} canaries, {right:,} of {2 * half:,} guesses right"
    return Finding(what, epsilon_at(delta), best, delta, how)
