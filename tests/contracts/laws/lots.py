"""Laws of Poisson lots."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from contracts.laws.accounts import account_of

from lightning_dpgen.privacy.noise import coins
from lightning_dpgen.sampling.lots import PoissonLots
from lightning_dpgen.sampling.stores import Store


@dataclass(frozen=True, eq=False)
class Owned(Store):
    """Records of persons."""

    store: Store
    persons: np.ndarray

    def __len__(self) -> int:
        return len(self.store)

    def take(self, positions):
        return self.store.take(positions)


def lots_of(rate, clusters, k=5, seed=0, kept=lambda records: records):
    """Return lots of records (N, 1) that hold their own number; `kept` puts the records where they are to be kept."""
    records = torch.arange(len(clusters), dtype=torch.float32)[:, None]
    return PoissonLots(kept(records), account_of({"gradient": 1.0}, rate=rate, seed=seed), clusters=clusters, k=k)


def numbers_in(lot) -> torch.Tensor:
    """Return the numbers of a lot's records, from the first column where there are several."""
    return lot.tensors[0][:, 0].long()


CLUSTERS = torch.tensor([2, 0, 2, 2, 4, 0, 4, 4, 4, 2])  # components 1 and 3 have no record


def inclusion_is_independent_with_the_public_rate(stream=None, kept=lambda records: records, draws=10_000) -> None:
    """Check 10 records and 45 pairs over 10,000 lots, each within 5.5 standard deviations: a false alarm of 2e-6."""
    rate, lots = 0.3, lots_of(0.3, CLUSTERS, seed=8, kept=kept)
    lots._account.stream = stream or lots._account.stream
    taken = np.zeros((draws, 10))
    for row in taken:
        row[numbers_in(lots.draw()).numpy()] = 1

    def off(share, expected):
        return np.abs(share - expected) > 5.5 * math.sqrt(expected * (1 - expected) / draws)

    pairs = (taken.T @ taken)[np.triu_indices(10, 1)] / draws
    assert not off(taken.mean(axis=0), rate).any() and not off(pairs, rate**2).any()
    assert off(taken.mean(axis=0), rate * math.sqrt(2)).all()
    # Lots of exactly three records have the same inclusion but other pairs: 3 * 2 / (10 * 9) = 0.0667.
    assert off(np.full(45, 6 / 90), rate**2).all()


# The persons whom the ten records belong to.
PERSONS = np.array([3, 1, 3, 1, 7, 8, 3, 8, 9, 9])


def a_person_is_in_a_lot_with_all_records_or_none(draws=4_000, looked_at=500) -> None:
    """Check 500 lots, and five persons and their ten pairs in 4,000, each within 5.5 deviations: a false alarm of 4e-7."""
    rate, records = 0.3, torch.arange(10, dtype=torch.float32)[:, None]
    account = account_of({"gradient": 1.0}, rate=rate, max_rows=3)
    lots = PoissonLots(records, account, clusters=CLUSTERS, k=5, persons=PERSONS)
    names, taken = np.unique(PERSONS), np.zeros((draws, 5))
    for place, row in enumerate(taken):
        lot = lots.draw()
        numbers = numbers_in(lot).numpy()
        whose = PERSONS[numbers]
        row[np.searchsorted(names, whose)] = 1
        if place >= looked_at:
            continue
        there = np.unique(whose)
        assert lot.persons is not None, "it is not known whose the records of the lot are"
        assert lot.persons.tolist() == lot.draw.persons.tolist() and lot.units == lot.draw.units == len(there)
        assert ((lot.persons[:, None] == lot.persons).numpy() == (whose[:, None] == whose)).all()
        assert len(numbers) == lot.draw.size == np.isin(PERSONS, there).sum()
        for c in range(5):
            assert (CLUSTERS[numbers[lot.offsets[c] : lot.offsets[c + 1]]] == c).all()
    shares, pairs = taken.mean(axis=0), (taken.T @ taken)[np.triu_indices(5, 1)] / draws
    for share, expected in ((shares, rate), (pairs, rate**2)):
        assert (np.abs(share - expected) < 5.5 * math.sqrt(expected * (1 - expected) / draws)).all()


def the_rate_is_the_plans_however_many_records_there_are() -> None:
    """Check each lot's stated size, and the total of 300 lots, a binomial number, within 5.5 standard deviations."""
    rate, draws = 0.2, 300
    for n in (2, 40, 700):
        lots = lots_of(rate, torch.zeros(n, dtype=torch.long), k=1, seed=n)
        sizes = [(len(lot), lot.draw.size) for lot in (lots.draw() for _ in range(draws))]
        assert all(own == said for own, said in sizes)
        total = sum(own for own, _ in sizes)
        assert abs(total - draws * n * rate) < 5.5 * math.sqrt(draws * n * rate * (1 - rate))


def a_sample_has_each_record_at_its_own_place(rate=0.5) -> None:
    """Check it at a rate of one digit, where a coin takes one byte: heads are the bytes below it, for any blocks."""
    (digit,) = coins.digits(Fraction(rate))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coins, "_AT_ONCE", 7)
        for population in range(41):
            random, given = np.random.default_rng(population), [np.empty(0, np.uint8)]

            def octets(size, random=random, given=given):
                given.append(random.integers(0, 256, size, np.uint8))
                return given[-1]

            found = coins.poisson_sample(octets, population, rate)
            below = np.concatenate(given) < digit
            assert len(below) == population and found.tolist() == np.flatnonzero(below).tolist()
