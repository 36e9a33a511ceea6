"""Cost of a Poisson lot: its positions beside Opacus' sampler, and its records beside a plain batch of fixed size.

    python benchmarks/lots.py              microseconds of each, and ratios to the first of its family
    python benchmarks/lots.py --quick      to see that it runs

Positions come from the standard private stream and from the secure one, which throws a coin for every record. Whole lots
come from `PoissonLots.draw`, as a training draws them, with the records in ten components; plain batches are fetched at
positions drawn with replacement, from a dense float32 copy of the same records where that fits in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from interleaved import Line, parser, ratios, start, table
from peers import PIXELS, RECORDS_4M, draw, opacus_draw, pictures
from torch.utils.data import Dataset

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.samplers import Poisson
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.contents import check_finite
from lightning_dpgen.sampling.lots import PoissonLots

# The size of a universe of places, and the mean number of them in a record.
PLACES, VISITED = 1303, 11.6

Family = dict[str, Callable[[], object]]


def lots(records: object, n: int, lot: int, k: int = 10) -> Callable[[], object]:
    """Return a draw of one Poisson lot of records in k components, of `lot` records on average."""
    stage = Stage(Access("training", {"gradient": 1.0}, Poisson(lot / n)), 1, 1.0)
    account = Account(Plan((stage,), 1.0, 1e-5))
    return PoissonLots(records, account, clusters=torch.randint(k, (n,)), k=k).draw


def positions(n: int, lot: int) -> Family:
    """Return draws of positions alone, as many as the peer's sampler draws."""
    standard, secure = PrivateStream(), PrivateStream(secure=True)
    return {
        "Opacus sampler": opacus_draw(n, lot),
        "standard": lambda: standard.poisson_sample(n, lot / n),
        "secure": lambda: secure.poisson_sample(n, lot / n),
    }


class Items(Dataset):
    """Pictures one by one, as a Dataset of torchvision gives them."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.rows[i]


def of_pictures(n: int, lot: int, folder: Path) -> Family:
    """Return draws of lots of (n, 784) pictures."""
    dense = pictures(n)
    octets = dense.mul(255).to(torch.uint8)
    np.save(folder / "dense.npy", dense.numpy())
    np.save(folder / "octets.npy", octets.numpy())
    kept = {
        "float32": dense,
        "uint8": store_of(octets, scale=255),
        "float32, mapped": np.load(folder / "dense.npy", mmap_mode="r"),
        "uint8, mapped": store_of(np.load(folder / "octets.npy", mmap_mode="r"), scale=255),
        "float32 and labels": (dense, torch.randint(10, (n,))),
        "Dataset": Items(dense),
    }
    return {"plain batch": lambda: draw(dense, lot)} | {name: lots(records, n, lot) for name, records in kept.items()}


def places(n: int) -> scipy.sparse.csr_array:
    """Draw (n, 1303) visited places, a one for each."""
    random = np.random.default_rng(0)
    ends = np.concatenate([[0], np.cumsum(random.poisson(VISITED, n))])
    visited = random.integers(0, PLACES, ends[-1], dtype=np.int32)
    return scipy.sparse.csr_array((np.ones(ends[-1], np.float32), visited, ends), shape=(n, PLACES))


def of_places(n: int, lot: int, folder: Path) -> Family:
    """Return draws of lots of visited places, beside batches that scipy fetches."""
    sparse, random = places(n), np.random.default_rng(0)
    parts = []
    for part in ("data", "indices", "indptr"):
        np.save(folder / f"{part}.npy", getattr(sparse, part))
        parts.append(np.load(folder / f"{part}.npy", mmap_mode="r"))
    return {
        "scipy batch": lambda: torch.from_numpy(sparse[random.integers(0, n, lot)].toarray()),
        "CSR": lots(sparse, n, lot),
        "CSR, mapped": lots(scipy.sparse.csr_array(tuple(parts), shape=sparse.shape), n, lot),
    }


def main() -> None:
    arguments = parser(__doc__.splitlines()[0]).parse_args()
    size = start(arguments)
    less = 100 if arguments.quick else 1
    n_pictures, n_places, n_positions = 60_000 // less, 1_000_000 // less, RECORDS_4M // less
    with tempfile.TemporaryDirectory() as folder:
        families = {f"positions, N = {n_positions:,}": positions(n_positions, 100)}
        for lot in (10, 100) if arguments.quick else (100, 1024):
            families[f"lot of {lot}, {n_pictures:,} x {PIXELS}"] = of_pictures(n_pictures, lot, Path(folder))
            families[f"lot of {lot}, {n_places:,} x {PLACES}"] = of_places(n_places, lot, Path(folder))
        lines = []
        print(f"{'':<52}{'microseconds':>14}{'wall':>10}")
        for family, contenders in families.items():
            result = ratios(contenders, size.rounds, size.warmup, size.steps)
            base = next(iter(contenders))
            for name in contenders:
                mine, wall = (1e3 * result.milliseconds(name, clock) for clock in ("processor", "wall"))
                print(f"{f'{family}: {name}':<52}{mine:>14.1f}{wall:>10.1f}")
                if name != base:
                    asked = {"must": 0.01, "aim": 0.001} if name == "standard" else {}
                    lines.append(Line.of(f"{family}: {name} / {base}", result.ratio(name, base), **asked))
        print(table(lines))
    dense = store_of(pictures(n_pictures))
    result = ratios({"sum": lambda: dense.values.sum(), "check": lambda: check_finite(dense)}, size.rounds, size.warmup)
    print(f"check_finite of {n_pictures:,} x {PIXELS}: {result.milliseconds('check'):.1f} ms", end=", ")
    print(f"{result.ratio('check', 'sum').median:.2f} of their sum")


if __name__ == "__main__":
    main()
