"""The accuracy of clusters against labels, as the DPGM paper counts it."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from experiments.common.kept import Kept
from experiments.dpgm.clustering import EPSILONS, PANELS, WAYS, best_naming

RESULTS = Path(__file__).parents[2] / "experiments/results"


@pytest.mark.parametrize(("clusters", "labels"), [(3, 3), (2, 4), (5, 3)])
def test_clusters_are_named_so_that_most_records_fit(clusters, labels):
    random = np.random.default_rng(0)
    found, true = random.integers(0, clusters, 200), random.integers(0, labels, 200)
    names = [*range(labels), *[-1] * clusters]
    best = max(np.mean(np.array(naming)[found] == true) for naming in set(itertools.permutations(names, clusters)))
    assert best_naming(found, true, (clusters, labels)) == pytest.approx(best)


@pytest.mark.parametrize("name", [name for names in PANELS.values() for name in names])
def test_the_page_shows_the_results_that_are_kept(name):
    kept, page = Kept(RESULTS / "dpgm_clustering.json"), (RESULTS.parent / "dpgm/README.md").read_text(encoding="utf-8")
    cells = [kept.look({"way": WAYS[name][0], "epsilon": str(epsilon)}) for epsilon in EPSILONS]
    means = " | ".join(f"{np.mean(cell):.3f}".lstrip("0") for cell in cells)
    assert f"| {name} | {min(map(len, cells))} | {means} |" in page
