"""When is correlated noise better than independent noise of the same privacy?

    python -m experiments.training.correlated_noise [--epsilons 0.5 2 8] [--passes 1 4 16] [--runs 3]

Softmax regression on 20,000 pictures of MNIST, pooled to 14 x 14 and of length 1, by plain SGD in lots of 100 (200 steps
a pass), or as said. Ways are independent noise with Poisson sampling, and banded noise with cyclic sampling. Each way has
the best of some learning rates, chosen in one run on 5,000 other pictures; all then have the same test pictures. Beside
each accuracy stands the error of the sums of gradients that the plan predicts.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import torch
from torch import Tensor, nn

from experiments.common.arguments import read_count, read_positive
from lightning_dpgen import Account, Fixed, PoissonLots, make_plan, training_stage
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.sampling.sampler_choice import make_sampler, prefix_error
from lightning_dpgen.privacy.sampling.samplers import POISSON
from lightning_dpgen.privacy.sampling.strategy import CYCLIC

N, CLASSES, DELTA, C = 20_000, 10, 1e-5, 1.0
RATES = (0.3, 1.0, 3.0, 10.0, 30.0)
# A norm in float32 carries rounding, which must not lengthen a clipped gradient.
SHAVED = 1.0 - 1e-5
WAYS = {"Poisson, independent": POISSON, "cyclic, banded": CYCLIC}
Labelled = tuple[Tensor, Tensor]


def pictures(held_out: bool) -> Labelled:
    """Return MNIST's pictures at 14 x 14, each of length 1."""
    encoded = load_public_set("mnist", public_set("mnist").schema, held_out=held_out).encoded
    pixels = torch.from_numpy(encoded.units.astype(np.float32)).view(-1, 1, 28, 28)
    rows = nn.functional.normalize(nn.functional.avg_pool2d(pixels, 2).flatten(1))
    return rows, torch.from_numpy(encoded.codes[:, 0].astype(np.int64))


def plan_of(way: str, lot: int, steps: int, epsilon: float) -> Plan:
    """Return the plan of a way of training, which is solved for its noise."""
    sampler = make_sampler(WAYS[way], lot / N, steps=steps, epsilon=epsilon, delta=DELTA)
    stage = training_stage(Fixed(C), n=N, sampler=sampler, steps=steps)
    return make_plan([stage], epsilon=epsilon, delta=DELTA)


def predicted(plan: Plan, lot: int) -> float:
    """Return the root mean squared error of the prefix sums of the mean gradients, in each number."""
    access, steps = plan.stages[0].access, plan.stages[0].count
    strategy = access.sampler.noise_strategy
    unit = math.sqrt((steps + 1) / 2) if strategy is None else prefix_error(strategy)
    return access.multiplier * unit * C / lot


def accuracy(plan: Plan, rows: Labelled, other: Labelled, rate: float, seed: int) -> float:
    """Train once, and return the share of other pictures that is told right."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    account = Account(plan)
    lots = PoissonLots((rows[0][order], rows[1][order]), account)
    divisor = plan.stages[0].access.sample_rate * N
    weights = torch.zeros(rows[0].shape[1], CLASSES)
    for lot in lots.draws(plan.stages[0].count):
        pixels, labels = lot.records
        # The gradient of a record is the outer product of its pixels and these.
        wrong = torch.softmax(pixels @ weights, dim=1) - nn.functional.one_hot(labels, CLASSES)
        norms = pixels.norm(dim=1) * wrong.norm(dim=1)
        total = pixels.T @ (wrong * (SHAVED * C / norms).clamp(max=1.0)[:, None]) / divisor
        with account.open("training", draw=lot.draw) as access:
            weights -= rate * gaussian(access, "gradient", total.contiguous(), sensitivity=C / divisor)
    account.verify_complete()
    return float(((other[0] @ weights).argmax(dim=1) == other[1]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilons", type=read_positive, nargs="+", default=[0.5, 2.0, 8.0])
    parser.add_argument("--passes", type=read_count, nargs="+", default=[1, 4, 16])
    parser.add_argument("--lot", type=read_count, default=100)
    parser.add_argument("--runs", type=read_count, default=3)
    arguments = parser.parse_args()
    known, test = pictures(held_out=False), pictures(held_out=True)
    rows, choosing = (known[0][:N], known[1][:N]), (known[0][N : N + 5000], known[1][N : N + 5000])
    for epsilon in arguments.epsilons:
        for passes in arguments.passes:
            steps = passes * N // arguments.lot
            for way in WAYS:
                plan = plan_of(way, arguments.lot, steps, epsilon)
                rate = max(RATES, key=lambda rate, plan=plan: accuracy(plan, rows, choosing, rate, seed=0))
                found = [accuracy(plan, rows, test, rate, seed) for seed in range(1, arguments.runs + 1)]
                strategy = plan.stages[0].access.sampler.noise_strategy
                bands = 1 if strategy is None else len(strategy.coefficients)
                print(
                    f"epsilon {epsilon:g}, {passes:>2} passes, lots of {arguments.lot}, {way:<24}: error of sums "
                    f"{predicted(plan, arguments.lot):.3f}, bands {bands:>2}, rate {rate:g}, told right "
                    f"{np.mean(found):.3f} ({np.std(found, ddof=1) if len(found) > 1 else 0.0:.3f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
