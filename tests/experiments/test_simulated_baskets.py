"""Simulated baskets have the size that is asked for, Table 2's largest one, and are the same each time."""

import numpy as np
import pytest

from experiments.common import simulated_baskets
from lightning_dpgen.data.baskets.schema import read_items


@pytest.mark.parametrize("name", ["transit", "cdr"])
def test_moments_are_those_of_table_2(name):
    printed, n = simulated_baskets.PRINTED[name], 20_000
    baskets = simulated_baskets.simulate(name, n)
    sizes = np.diff(baskets.indptr)
    assert baskets.shape == (n, printed.items) and sizes.max() == printed.largest and sizes.min() >= 1
    # The seed is fixed; sizes have standard deviations of 5 and 14, so a mean of 20,000 is within 0.1 at most.
    assert sizes.mean() == pytest.approx(printed.mean, abs=0.25)
    if printed.share_sd:
        assert (np.bincount(baskets.indices, minlength=printed.items) / n).std() == pytest.approx(printed.share_sd, rel=0.1)
    again = simulated_baskets.simulate(name, n)
    assert np.array_equal(again.indptr, baskets.indptr) and np.array_equal(again.indices, baskets.indices)
    assert np.quantile(simulated_baskets.correlations(baskets[:4000]), 0.99) > 0.03


def test_few_baskets_are_written_under_their_number(tmp_path):
    baskets = simulated_baskets.simulate("transit", 3)
    assert baskets.has_canonical_format and np.diff(baskets.indptr).max() == 57
    path = simulated_baskets.written("transit", baskets, tmp_path)
    assert path.name == "transit_3.npz" and len(read_items(tmp_path / "transit_3.items.txt")) == 342
    assert "simulated            3" in simulated_baskets.described("transit", baskets)


def test_correlations_are_those_of_numpy():
    baskets = simulated_baskets.simulate("transit", 2000)
    expected = np.corrcoef(baskets.toarray().T)[np.triu_indices(342, 1)]
    assert np.allclose(simulated_baskets.correlations(baskets), np.nan_to_num(expected))
