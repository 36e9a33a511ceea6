"""Many canaries in one run (Steinke, Nasr and Jagielski 2023): a coin decides for each, and the auditor guesses.

The auditor sees what a training releases on its way, every noisy gradient, as the proof of its privacy allows, and
nothing that is computed before noise. The contribution of a canary is known, so its score is the amount of it
that explains the released numbers best, beside all other canaries and the noise (ridge regression).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from lightning_dpgen.audit.bound import Finding, one_run_epsilon
from lightning_dpgen.audit.steps import TRAINING, canary_gradients, first_of_all
from lightning_dpgen.data.records import Records
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.plugins.mixture import PrivateMixture

# Shares of canaries that are guessed upon: half of each with the highest scores, half with the lowest.
_SHARES = (0.1, 0.3, 1.0)
# Iterations of the regression in each step.
_ITERATIONS = 20


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
        found = _solved(lambda weights: along(added(weights)) + ridge * weights, target)
        self.scores += found.cpu().numpy()


def _largest(bound: float | tuple) -> float:
    return max(map(_largest, bound)) if isinstance(bound, tuple) else bound


def _solved(product: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
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
    scored: Callable[[np.ndarray], np.ndarray],
    part: np.ndarray,
    *,
    claims: Callable[[float], float],
    delta: float,
    confidence: float,
    what: str,
) -> Finding:
    """Bound the epsilon of one run from below.

    A few guesses may all be right, and many tell more about a run without noise, so several numbers of guesses are fixed
    beforehand, and share the allowed error.

    Args:
        scored: function that makes the run with some of the canaries and returns the scores of all.
        part: (m,) True for canaries that take part.
        claims: the epsilon of the run at a delta.
        delta: delta of its certificate; if the bound would drown in it, a smaller one is used.
    """
    scores, count = scored(part), len(part)
    order = np.argsort(scores, kind="stable")
    error = (1.0 - confidence) / len(_SHARES)
    delta = min(delta, 0.01 * error / count)
    best, how = 0.0, ""
    for share in _SHARES:
        half = max(1, math.floor(0.5 * share * count))
        right = int(part[order[count - half :]].sum() + (~part[order[:half]]).sum())
        bound = one_run_epsilon(count, 2 * half, right, delta, 1.0 - error)
        if bound > best or not how:
            best, how = bound, f"one run, {count:,} canaries, {right:,} of {2 * half:,} guesses right"
    return Finding(what, claims(delta), best, delta, how)
