"""TRANSIT and CDR, simulated: baskets with the moments of DPGM's Table 2, since the data are not public."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from lightning_dpgen.data.baskets.reading import as_sets, chosen, read_baskets
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.public_sets import PublicSet

SEED = 20180601
# People drawn at a time: their visits with repetitions stay well below a hundred megabytes.
_AT_ONCE = 1 << 17

Visits = Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def _transit(random: np.random.Generator) -> Visits:
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


def _cdr(random: np.random.Generator) -> Visits:
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


@dataclass(frozen=True)
class World:
    """Places that people visit, and what Table 2 says of them.

    Args:
        make: draws the places, and returns what draws the visits of so many people.
        place: a place in a word.
        records, items, largest: numbers of records and items, and the size of the largest basket.
        mean: mean size of a basket.
        share_sd: standard deviation over items of the share of baskets that hold one (section 6.1); None where it is not
            printed.
    """

    make: Callable[[np.random.Generator], Visits]
    place: str
    records: int
    items: int
    largest: int
    mean: float
    share_sd: float | None = None


WORLDS = {
    "transit": World(_transit, "station", 1_200_000, 342, 57, 5.26),
    "cdr": World(_cdr, "tower", 4_427_486, 1303, 422, 11.42, 50_911 / 4_427_486),
}


def draw_baskets(name: str, n: int, draw: int = 0, *, seed: int = SEED) -> scipy.sparse.csr_array:
    """Draw baskets (n, items) of uint8 ones, canonical CSR; the largest has exactly the size of Table 2.

    Larger ones are cut to that, and the largest is filled up to it where none is as large. Draws are of other people in the
    world of the seed.

    Example:
        >>> draw_baskets("transit", 5).shape
        (5, 342)
    """
    known = WORLDS[name]
    world, people = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(key,))) for key in (0, 1 + draw))
    visits = known.make(world)
    sizes, items = [], []
    for start in range(0, n, _AT_ONCE):
        count = min(_AT_ONCE, n - start)
        indptr, held = as_sets(*visits(count, people), count, known.items)
        sizes.append(np.minimum(np.diff(indptr), known.largest))
        items.append(held[chosen(indptr, held, known.largest)])
    sizes, items = np.concatenate(sizes), np.concatenate(items)
    largest = int(sizes.argmax())
    begin = int(sizes[:largest].sum())
    held = items[begin : begin + sizes[largest]]
    added = people.permutation(np.setdiff1d(np.arange(known.items, dtype=np.int32), held))[: known.largest - len(held)]
    if len(added):
        items = np.concatenate([items[:begin], np.sort(np.concatenate([held, added])), items[begin + len(held) :]])
        sizes[largest] = known.largest
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    found = scipy.sparse.csr_array((np.ones(len(items), np.uint8), items, indptr), shape=(n, known.items))
    found.has_canonical_format = True
    return found


def make_transit() -> PublicSet:
    return _set("transit")


def make_cdr() -> PublicSet:
    return _set("cdr")


def _set(name: str) -> PublicSet:
    world = WORLDS[name]
    width = len(str(world.items))
    names = tuple(f"{world.place}_{number:0{width}d}" for number in range(1, world.items + 1))
    return PublicSet(
        BasketSchema(names, max_items=world.largest),
        world.records,
        lambda baskets, schema, _: read_baskets(baskets, schema),
        draw=lambda n, draw: draw_baskets(name, n, draw),
    )
