"""Table 2 of DPGM is printed beside the simulated baskets."""

import numpy as np

from experiments.dpgm import table2
from lightning_dpgen.data.simulated.baskets import draw_baskets


def test_correlations_are_those_of_numpy():
    baskets = draw_baskets("transit", 2000)
    expected = np.corrcoef(baskets.toarray().T)[np.triu_indices(342, 1)]
    found = table2.correlations(baskets)
    assert np.allclose(found, np.nan_to_num(expected)) and np.quantile(found, 0.99) > 0.03


def test_a_row_is_beside_the_printed_one():
    assert "simulated            3" in table2.described("transit", draw_baskets("transit", 3))
