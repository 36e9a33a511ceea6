"""Pairs of columns that noise hides: what is said beforehand is what noisy tables show."""

import numpy as np
import pytest

from lightning_dpgen.measure.pair_tables import _CERTAIN, evidence, records_to_show


@pytest.mark.parametrize("choices", [(2, 2), (5, 5), (2, 40), (40, 7)], ids=str)
@pytest.mark.parametrize("deviation", [5.0, 60.0])
def test_a_column_that_follows_from_another_is_shown_by_so_many_records(choices, deviation):
    """40 draws: of half of the records fewer than a quarter show it, and of twice as many nearly all."""
    random, groups = np.random.default_rng(0), choices if choices[0] <= choices[1] else choices[::-1]
    needed = 1000.0
    for _ in range(20):
        needed = records_to_show(choices, deviation, needed)

    def shown(total):
        low, high = groups
        exact = np.zeros(groups)
        exact[np.arange(high) % low, np.arange(high)] = total / high
        rows, columns = exact.sum(axis=1) / total, exact.sum(axis=0) / total
        drawn = (exact + deviation * random.standard_normal(groups) for _ in range(40))
        return np.mean([evidence(noisy, deviation, rows, columns, total) > _CERTAIN for noisy in drawn])

    assert shown(needed / 2) < 0.25 and shown(2 * needed) > 0.9
