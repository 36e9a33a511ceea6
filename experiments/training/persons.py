"""Is the sum of a person's gradients better clipped once, or the gradient of each record by itself?

    python -m experiments.training.persons [--epsilon 1] [--runs 3]

A network of one hidden layer learns to tell ten classes, by private steps, for persons with up to four records each:
pictures of MNIST, pooled to 14 x 14, and simulated records. A person's records are any four, four of one class, one record
four times, or one to four (2.5 on average). All records have length 1, so that bounds mean alike. Each way of clipping has
the best of three bounds, chosen on simulated records that nothing else is measured on. Both ways draw the same noise in
units of their sensitivity: C for a person clipped once, 4 C for four records clipped each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from experiments.common.arguments import read_count, read_positive
from lightning_dpgen import (
    Account,
    Fixed,
    PerRecord,
    PoissonLots,
    PrivateOptimizer,
    make_plan,
    term_gradients,
    training_stage,
)
from lightning_dpgen.clipping import PerPerson
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.privacy.noise.stream import PrivateStream

N, MOST, CLASSES, RATE, STEPS, DELTA = 20_000, 4, 10, 0.05, 150, 1e-5
# The bounds of a record, and those of a person, whose gradient is the sum of up to four.
WAYS: dict[str, tuple[Callable[[float], ClippingRule], tuple[float, ...]]] = {
    "each record": (Fixed, (0.3, 1.0, 3.0)),
    "the person": (lambda c: PerPerson(Fixed(c)), (0.3, 1.0, 3.0)),
}
Labelled = tuple[Tensor, Tensor]


def simulated(seed: int, count: int) -> Labelled:
    """Draw records of ten classes, whose centres do not depend on the seed, in 60 dimensions."""
    centres = torch.randn(CLASSES, 60, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return 0.5 * centres[labels] + torch.randn(count, 60, generator=generator), labels


def pictures(held_out: bool) -> Labelled:
    """Return MNIST's pictures at 14 x 14."""
    encoded = load_public_set("mnist", public_set("mnist").schema, held_out=held_out).encoded
    pixels = torch.from_numpy(encoded.units.astype(np.float32)).view(-1, 1, 28, 28)
    return nn.functional.avg_pool2d(pixels, 2).flatten(1), torch.from_numpy(encoded.codes[:, 0].astype(np.int64))


# Ways in which persons have records: each returns the place of each record that takes part, and its person.
def _any_four(labels: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return random.permutation(len(labels))[:N], np.arange(N) // MOST


def _of_one_class(labels: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    order = random.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")][random.permutation(len(labels) // MOST)[: N // MOST, None] * MOST
        + np.arange(MOST)].ravel(), np.arange(N) // MOST  # fmt: skip


def _copies(labels: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(random.permutation(len(labels))[: N // MOST], MOST), np.arange(N) // MOST


def _one_to_four(labels: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    persons = np.repeat(np.arange(N), random.integers(1, MOST + 1, N))[:N]
    return random.permutation(len(labels))[:N], persons


PERSONS = {
    "any four": _any_four,
    "four of one class": _of_one_class,
    "one, four times": _copies,
    "one to four": _one_to_four,
}


def accuracy(real: Labelled, held_out: Labelled, kind: str, rule: ClippingRule, epsilon: float, seed: int) -> float:
    """Train on persons of that kind, and return the share of held-out records that are told right."""
    places, persons = PERSONS[kind](real[1].numpy(), np.random.default_rng(seed))
    x, y = (part[places] for part in real)
    stage = training_stage(rule, n=N, sample_rate=RATE, steps=STEPS)
    account = Account(make_plan([stage], epsilon=epsilon, delta=DELTA, max_rows=MOST), stream=PrivateStream(seed=seed))
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = PrivateOptimizer(torch.optim.Adam(network.parameters(), lr=0.01), account=account, clipping=rule)
    lots = PoissonLots((nn.functional.normalize(x, dim=1), y), account, persons=persons)
    term = PerRecord(lambda lot, _: nn.functional.cross_entropy(network(lot.records[0]), lot.records[1], reduction="none"))
    for _ in range(STEPS):
        optimizer.set_gradients(term_gradients(network, term, lots.draw(), account.stream))
        optimizer.step()
    account.verify_complete()
    with torch.no_grad():
        guesses = network(nn.functional.normalize(held_out[0], dim=1)).argmax(dim=1)
    return float((guesses == held_out[1]).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=read_positive, default=1.0)
    parser.add_argument("--runs", type=read_count, default=3)
    given = parser.parse_args()
    mnist, tests = pictures(held_out=False), pictures(held_out=True)
    for kind in PERSONS:
        for way, (rule_of, bounds) in WAYS.items():
            own = {
                c: accuracy(simulated(1, 60_000), simulated(2, 10_000), kind, rule_of(c), given.epsilon, 9) for c in bounds
            }
            best = max(own, key=own.__getitem__)
            found = {"simulated": [], "mnist": []}
            for run in range(given.runs):
                fresh = simulated(10 + run, 60_000), simulated(3, 10_000)
                found["simulated"].append(accuracy(*fresh, kind, rule_of(best), given.epsilon, run))
                found["mnist"].append(accuracy(mnist, tests, kind, rule_of(best), given.epsilon, run))
            said = ", ".join(f"{name} {np.mean(each):.3f} ({np.std(each, ddof=1):.3f})" for name, each in found.items())
            tried = ", ".join(f"{c:g}: {share:.3f}" for c, share in own.items())
            print(f"{kind:>18}, {way:>11} clipped to {best:g}: {said}   [tried {tried}]", flush=True)


if __name__ == "__main__":
    main()
