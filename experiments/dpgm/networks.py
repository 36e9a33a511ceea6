"""Figures 5, 6 and 8 of DPGM (TKDE) from the start: networks trained on TRANSIT or CDR as in the paper, then queries.

    python -m experiments.dpgm.networks transit FOLDER [NAME=VALUE ...]     k = 1, 5, 10; q = 1e-4; 2 epochs of 1/q steps
    python -m experiments.dpgm.networks cdr FOLDER [NAME=VALUE ...]         k = 1; q = 2.2e-5; 1 epoch

For epsilon 1 and 2, and for one and two hidden layers of 200 units with 2 latent dimensions, `dpgen train` runs in
FOLDER/transit.networks. Settings that the paper leaves open have their defaults, except for the learning rate (3e-4, of
1e-4 to 3e-3 on TRANSIT at k = 1: lots are small). Then `queries.py` runs for each epsilon. Delta is 1e-7 and 1e-8: those
of the paper (1e-6, 4.4e-6), as large as 1/N and larger, are refused by `dpgen`; the cost of a release at them is printed.
More settings are handed to all trainings, which are then not the paper's. An interrupted training goes on, a finished one
is not repeated.
"""

from __future__ import annotations

import argparse
import math
from itertools import product
from pathlib import Path

from experiments.common.training import train
from experiments.dpgm import queries as counting_queries
from lightning_dpgen.common.strict_json import read_json
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.events import decode
from lightning_dpgen.release.files import CERTIFICATE, release_folder

EPSILONS, LAYERS = (1, 2), (1, 2)
RUNS = {
    "transit": {"k": (1, 5, 10), "q": 1e-4, "epochs": 2, "delta": 1e-7, "paper_delta": 1e-6},
    "cdr": {"k": (1,), "q": 2.2e-5, "epochs": 1, "delta": 1e-8, "paper_delta": 4.4e-6},
}


def settings(name: str, k: int, layers: int, epsilon: float) -> list[str]:
    run = RUNS[name]
    return [
        f"data={name}", f"privacy.epsilon={epsilon}", f"privacy.delta={run['delta']}", f"split.k={k}",
        f"model.rate={run['q']}", f"model.steps={run['epochs'] * math.ceil(1 / run['q'])}",
        "model.hidden=200", "model.latent=2", f"model.layers={layers}", "model.lr=0.0003",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(RUNS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE")
    asked = parser.parse_args()
    run, releases = RUNS[asked.name], {}
    for epsilon, layers, k in product(EPSILONS, LAYERS, RUNS[asked.name]["k"]):
        folder = asked.folder / f"{asked.name}.networks" / f"k{k}_layers{layers}_epsilon{epsilon}"
        train(folder, [*settings(asked.name, k, layers, epsilon), *asked.settings])
        releases.setdefault(epsilon, []).append(folder)
    for epsilon, folders in releases.items():
        for folder in folders:
            event = decode(read_json(release_folder(folder) / CERTIFICATE)["event"])
            there = compute_epsilon(event, run["paper_delta"]).epsilon
            print(f"{folder.name}: at the paper's delta of {run['paper_delta']:g} its epsilon is {there:.3f}")
        counting_queries.main([asked.name, str(asked.folder), f"--epsilon={epsilon}", *map(str, folders)])


if __name__ == "__main__":
    main()
