"""The accuracy of clusters against labels, as the DPGM paper counts it."""

import itertools

import numpy as np
import pytest

from experiments.dpgm.clustering import best_naming


@pytest.mark.parametrize(("clusters", "labels"), [(3, 3), (2, 4), (5, 3)])
def test_clusters_are_named_so_that_most_records_fit(clusters, labels):
    random = np.random.default_rng(0)
    found, true = random.integers(0, clusters, 200), random.integers(0, labels, 200)
    names = [*range(labels), *[-1] * clusters]
    best = max(np.mean(np.array(naming)[found] == true) for naming in set(itertools.permutations(names, clusters)))
    assert best_naming(found, true, (clusters, labels)) == pytest.approx(best)
