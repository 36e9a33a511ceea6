"""Seconds and memory of a release of a million rows, d = 100 to k = 20, on one core, beside sklearn's random projection.

    python benchmarks/projection.py

One thread is timed by its processor time; rounds are interleaved with the peer, and medians are compared.
"""

from __future__ import annotations

import resource
import time

import numpy as np
import torch
from sklearn.random_projection import GaussianRandomProjection

from lightning_dpgen.privacy.account import Account
from lightning_dpgen.projection.matrices import make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection

ROWS, D, K, ROUNDS = 1_000_000, 100, 20, 3


def main() -> None:
    torch.set_num_threads(1)
    rows = np.random.default_rng(0).standard_normal((ROWS, D))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cases = {
        f"{matrix}, {noise}, {unit}, {how}": Projection(
            make_matrix(matrix, D, K, 0), Neighbourhood(unit, **{how: 12.0 if unit == "row" else 4.0}), noise
        )
        for matrix, noise, unit, how in [
            ("hashed", "laplace", "row", "radius"),
            ("hashed", "laplace", "element", "radius"),
            ("orthonormal", "spherical", "row", "radius"),
            ("gaussian", "spherical", "row", "distance"),
        ]
    }
    for projection in cases.values():
        _ = projection.sensitivity  # by enumeration, once for a matrix
    times = {name: [] for name in cases} | {"sklearn, no noise": []}
    peer = GaussianRandomProjection(K, random_state=0).fit(rows[:10])
    for _ in range(ROUNDS):
        for name, projection in cases.items():
            account = Account(projection.plan(4.0))
            start = time.process_time()
            projection.release(rows, account)
            times[name].append(time.process_time() - start)
        start = time.process_time()
        peer.transform(rows)
        times["sklearn, no noise"].append(time.process_time() - start)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    for name, seconds in times.items():
        ratio = np.median(seconds) / np.median(times["sklearn, no noise"])
        print(f"{name:<40}{np.median(seconds):6.2f} s   {ratio:5.1f} x")
    print(f"memory beyond the rows themselves: {more:.2f} GiB at most")


if __name__ == "__main__":
    main()
