"""TRANSIT and CDR, simulated: baskets with the moments of DPGM's Table 2, since the data are not public.

    python -m experiments.common.simulated_baskets transit FOLDER               342 stations, 1,200,000 riders
    python -m experiments.common.simulated_baskets cdr FOLDER                   1,303 towers, 4,427,486 customers
    python -m experiments.common.simulated_baskets transit FOLDER --records N   fewer, and named after how many

The command writes FOLDER/transit.npz, a canonical scipy CSR matrix of uint8 ones, and FOLDER/transit.items.txt, one name a
line, which `dpgen train data=baskets` reads. It prints Table 2's row beside the simulated one, the spread of the sizes of
items, and the correlations of pairs of items. Everything is drawn from a fixed seed and is public.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse

from lightning_dpgen.data.baskets.reading import as_sets, chosen

SEED = 20180601
# People drawn at a time: their visits with repetitions stay well below a hundred megabytes.
_AT_ONCE = 1 << 17

Visits = Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Printed:
    """A row of Table 2, and section 6.1's figure on the shares of baskets that hold an item.

    Args:
        records, items, largest: numbers of records and items, and the size of the largest basket.
        mean: mean size of a basket.
        share_sd: standard deviation over items of the share of baskets that hold one; None where it is not printed.
    """

    records: int
    items: int
    largest: int
    mean: float
    share_sd: float | None = None


PRINTED = {
    "transit": Printed(1_200_000, 342, 57, 5.26),
    "cdr": Printed(4_427_486, 1303, 422, 11.42, 50_911 / 4_427_486),
}
NAMES = {"transit": "station", "cdr": "tower"}


def transit(random: np.random.Generator) -> Visits:
    """Draw riders of twelve lines that share the 30 largest of 342 stations, with home, work, and trips along lines."""
    stations, hubs, lines, hubs_a_line = 342, 30, 12, 6
    popularity = np.sort(random.lognormal(sigma=1.1, size=stations))[::-1]
    popularity /= popularity.sum()
    # Each line has 26 stations of its own and six hubs, in random order; a hub is on two or three lines.
    own = random.permutation(np.arange(hubs, stations)).reshape(lines, -1)
    dealt = _dealt(hubs, lines, hubs_a_line, random)
    stops = random.permuted(np.concatenate([own, dealt], axis=1), axis=1)
    length = stops.shape[1]
    # The places of each station: up to so many (line, place), the first ones repeated where it is on fewer.
    where = [np.flatnonzero(stops.ravel() == station) for station in range(stations)]
    places = np.array([np.resize(found, 6) for found in where])

    def along(start: np.ndarray, steps: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Move so many stops from a station on one of its lines, either way, and back again at the ends."""
        line, place = np.divmod(places[start, random.integers(0, 6, len(start))], length)
        place = place + np.where(random.random(len(start)) < 0.5, steps, -steps)
        place = np.abs(place) % (2 * length - 2)
        return stops[line, np.minimum(place, 2 * length - 2 - place)]

    def visits(n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        home = random.choice(stations, n, p=popularity)
        work = random.choice(stations, n, p=popularity)
        near = random.random(n) < 0.7
        work[near] = along(home[near], random.geometric(0.12, near.sum()), random)
        # Repeated visits count once, so that more are drawn than the mean basket holds.
        more = random.negative_binomial(0.9, 0.9 / (0.9 + 5.045), n)
        rider = np.repeat(np.arange(n), more)
        kind = random.random(len(rider))
        items = random.choice(stations, len(rider), p=popularity)
        hub = kind < 0.2
        items[hub] = random.choice(hubs, hub.sum(), p=popularity[:hubs] / popularity[:hubs].sum())
        local = kind >= 0.5
        anchor = np.where(random.random(local.sum()) < 0.5, home[rider[local]], work[rider[local]])
        items[local] = along(anchor, random.geometric(0.25, local.sum()) - 1, random)
        return np.concatenate([np.arange(n), rider]), np.concatenate([home, items])

    return visits


def _dealt(hubs: int, lines: int, each: int, random: np.random.Generator) -> np.ndarray:
    """Deal (lines, each) hubs as evenly as possible, none twice on a line."""
    used, dealt = np.zeros(hubs), []
    for _ in range(lines):
        dealt.append(np.argsort(used + 0.5 * random.random(hubs))[:each])
        used[dealt[-1]] += 1
    return np.array(dealt)


def cdr(random: np.random.Generator) -> Visits:
    """Draw customers of 1,303 towers in a city of 128 square kilometres, who call near home, near work, and on trips."""
    towers, side = 1303, np.sqrt(128.1)
    centres = side * (0.5 + 0.22 * random.normal(size=(9, 2)))
    spots = centres[random.integers(0, len(centres), towers)] + 0.9 * random.normal(size=(towers, 2))
    scattered = random.random(towers) < 0.45
    spots[scattered] = side * random.random((scattered.sum(), 2))
    popularity = random.lognormal(sigma=1.181, size=towers)
    squares = ((spots[:, None] - spots[None]) ** 2).sum(axis=2)
    near, far = (_choices(popularity * np.exp(-squares / (2 * km**2))) for km in (0.55, 2.2))
    overall = _choices(popularity[None])

    def visits(n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        home = overall(np.zeros(n, np.int64), random)
        work = np.where(random.random(n) < 0.6, far(home, random), overall(np.zeros(n, np.int64), random))
        # Heavy callers are few and everywhere: repeated towers count once.
        more = (random.lognormal(1.71, 1.1, n) * 1.253).astype(np.int64)
        person = np.repeat(np.arange(n), more)
        anchor = np.where(random.random(len(person)) < 0.6, home[person], work[person])
        kind = random.random(len(person))
        items = np.empty(len(person), np.int64)
        for part, go in ((kind < 0.4, near), ((kind >= 0.4) & (kind < 0.8), far), (kind >= 0.8, None)):
            items[part] = go(anchor[part], random) if go else overall(np.zeros(part.sum(), np.int64), random)
        return np.concatenate([np.arange(n), person]), np.concatenate([home, items])

    return visits


def _choices(weights: np.ndarray) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    """Draw one column for each of some rows, in proportion to the weights of that row."""
    rows, columns = weights.shape
    # One ascending list: the shares of row i add up from i to i + 1.
    ends = (np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1) + np.arange(rows)[:, None]).ravel()

    def draw(row: np.ndarray, random: np.random.Generator) -> np.ndarray:
        found = np.searchsorted(ends, row + random.random(len(row)), side="right")
        return np.minimum(found - row * columns, columns - 1)

    return draw


WORLDS = {"transit": transit, "cdr": cdr}


def simulate(name: str, records: int, seed: int = SEED) -> scipy.sparse.csr_array:
    """Draw baskets (records, items) of uint8 ones, canonical CSR; the largest has exactly the size of Table 2.

    Larger ones are cut to that, and the largest is filled up to it where none is as large.
    """
    printed = PRINTED[name]
    world, people = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    visits = WORLDS[name](world)
    sizes, items = [], []
    for start in range(0, records, _AT_ONCE):
        n = min(_AT_ONCE, records - start)
        indptr, held = as_sets(*visits(n, people), n, printed.items)
        kept = chosen(indptr, held, printed.largest)
        sizes.append(np.minimum(np.diff(indptr), printed.largest))
        items.append(held[kept])
    sizes, items = np.concatenate(sizes), np.concatenate(items)
    largest = int(sizes.argmax())
    begin = int(sizes[:largest].sum())
    held = items[begin : begin + sizes[largest]]
    added = people.permutation(np.setdiff1d(np.arange(printed.items, dtype=np.int32), held))[: printed.largest - len(held)]
    if len(added):
        items = np.concatenate([items[:begin], np.sort(np.concatenate([held, added])), items[begin + len(held) :]])
        sizes[largest] = printed.largest
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    found = scipy.sparse.csr_array((np.ones(len(items), np.uint8), items, indptr), shape=(records, printed.items))
    found.has_canonical_format = True
    return found


def correlations(baskets: scipy.sparse.csr_array) -> np.ndarray:
    """Return (items (items - 1) / 2,) correlations, of each pair of items over all baskets."""
    n, items = baskets.shape
    both = np.zeros((items, items))
    for start in range(0, n, _AT_ONCE):
        part = baskets[start : start + _AT_ONCE].astype(np.int32)
        both += (part.T @ part).toarray()
    shares = both.diagonal() / n
    spread = np.sqrt(shares * (1.0 - shares))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (both / n - np.outer(shares, shares)) / np.outer(spread, spread)
    # An item that no basket holds, or every basket, correlates with none.
    return np.nan_to_num(found[np.triu_indices(items, 1)])


def described(name: str, baskets: scipy.sparse.csr_array) -> str:
    """Write Table 2's row beside the simulated one, and the other figures that the recipe was adjusted to."""
    printed, (n, items) = PRINTED[name], baskets.shape
    sizes = np.diff(baskets.indptr)
    shares = np.bincount(baskets.indices, minlength=items) / n
    pairs = correlations(baskets)
    lines = [
        f"{name:<10}{'records':>12}{'items':>8}{'largest':>9}{'mean':>8}",
        f"{'Table 2':<10}{printed.records:>12,}{printed.items:>8,}{printed.largest:>9}{printed.mean:>8.2f}",
        f"{'simulated':<10}{n:>12,}{items:>8,}{sizes.max():>9}{sizes.mean():>8.2f}",
        f"sizes of baskets: median {np.median(sizes):.0f}, 90th percentile {np.percentile(sizes, 90):.0f}, 99th "
        f"{np.percentile(sizes, 99):.0f}",
        f"shares of items: mean {shares.mean():.2%}, sd {shares.std():.2%}"
        + (f" (printed: {printed.mean / printed.items:.2%}, {printed.share_sd:.2%})" if printed.share_sd else "")
        + f", least {shares.min():.3%}, most {shares.max():.1%}",
        f"correlations of pairs: 99th percentile {np.percentile(pairs, 99):.3f}, largest {pairs.max():.3f}",
    ]
    return "\n".join(lines)


def written(name: str, baskets: scipy.sparse.csr_array, folder: Path) -> Path:
    """Write the matrix into the folder, uncompressed, since it is mostly read and rarely sent, and its items beside it."""
    n, items = baskets.shape
    stem = name if n == PRINTED[name].records else f"{name}_{n}"
    folder.mkdir(parents=True, exist_ok=True)
    scipy.sparse.save_npz(folder / f"{stem}.npz", baskets, compressed=False)
    width = len(str(items))
    names = [f"{NAMES[name]}_{number:0{width}d}" for number in range(1, items + 1)]
    (folder / f"{stem}.items.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    return folder / f"{stem}.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(PRINTED))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, help="number of records, in place of Table 2's")
    arguments = parser.parse_args()
    records = PRINTED[arguments.name].records if arguments.records is None else arguments.records
    if records < 1:
        parser.error(f"--records {records}: expected 1 or more")
    start = time.perf_counter()
    baskets = simulate(arguments.name, records)
    path = written(arguments.name, baskets, arguments.folder)
    print(f"{path}: {time.perf_counter() - start:.0f} s, {path.stat().st_size / 2**20:.0f} MiB")
    print(described(arguments.name, baskets))
    print(
        f"dpgen train data=baskets data.path={path} data.items={path.with_suffix('.items.txt')} "
        f"data.max_items={PRINTED[arguments.name].largest} data.n={records}"
    )


if __name__ == "__main__":
    main()
