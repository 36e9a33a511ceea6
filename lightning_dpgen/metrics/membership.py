"""Membership inference, and the distance of synthetic records to their nearest real one. Private.

An attacker tells the records of a training from others, by a score of each, which is higher for likely members. Held-out
records that are copies of others would hide what an attack finds, so they are counted.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy.stats import binom, binomtest
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.metrics.columns import blocks, subsample, varying_units, written_out
from lightning_dpgen.metrics.measure import (
    ENCODED,
    TABLE,
    UNSEEN,
    Glance,
    Interval,
    Need,
    Plot,
    Result,
    format_score,
    register,
)
from lightning_dpgen.metrics.sides import ROWS, Collected, Sides, TableSides, check_records, check_scores
from lightning_dpgen.sampling.csr import mark_entries

# Numbers that are held at a time, and the real records among which the nearest is found exactly.
_AT_ONCE, _CANDIDATES = 1 << 24, 4
# Records of a side whose closest real one is searched for, real ones among which it is, and those that an interval needs.
CLOSEST, AMONG, _FEW = 2_000, 10_000, 30


class NearestNeighbourDistance(Collected):
    """The Euclidean distance of each synthetic record to the nearest real one, beside that of other real records.

    Synthetic records at distance 0 are copies. A model that learned the data, and not its records, is about as far from
    them as held-out real records are; one that is much farther makes what the data do not have.

    Args:
        width: number of numbers of a record.

    Example:
        >>> metric = NearestNeighbourDistance(2)
        >>> metric.update(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), real=True)
        >>> metric.update(torch.tensor([[0.0, 0.0], [4.0, 5.0]]), real=False)
        >>> {name: float(value) for name, value in metric.compute().items()}
        {'mean': 2.5, 'median': 2.5, 'copies': 0.5}
    """

    higher_is_better = None

    def __init__(self, width: int, **kwargs) -> None:
        super().__init__(width, torch.float32, **kwargs)

    def distances(self) -> Tensor:
        """Return the distance (n,) of each synthetic record.

        Raises:
            ValueError: where one side has no record.
        """
        real, synthetic = self._sides()
        return nearest_distances(synthetic, real)

    def compute(self) -> dict[str, Tensor]:
        """Return ``mean`` and ``median`` of the distances, and the share of ``copies``, at distance 0."""
        found = self.distances()
        median = torch.from_numpy(np.median(found.cpu().numpy(), keepdims=True))[0]
        return {"mean": found.mean(), "median": median, "copies": (found == 0).float().mean()}


def nearest_distances(records: Tensor, among: Tensor) -> Tensor:
    """Return the distance (n,) of each record (n, width) to the nearest of others (m, width), float32, m above 0."""
    records, among = records.to(torch.float32), among.to(torch.float32)
    # Squares of lengths cancel, less so about the mean and in 64 bits; the differences decide among the few that look
    # nearest.
    centre = among.mean(dim=0, dtype=torch.float64)
    about = among - centre
    lengths, distances = about.square().sum(dim=1), []
    for part in records.split(max(1, _AT_ONCE // max(len(among), _CANDIDATES * among.shape[1]))):
        apart = torch.addmm(lengths, part - centre, about.T, alpha=-2.0)
        near = apart.topk(min(_CANDIDATES, len(among)), largest=False).indices
        distances.append((part[:, None] - among[near]).norm(dim=2).min(dim=1).values)
    return torch.cat(distances)


@register(
    TABLE, section="distance to the closest record", place=90, better="target",
    says="A diagnostic of copying, and no evidence of privacy: the distance of a record to the closest one that was "
    "learned from. A number counts as its place in the declared range, and another category as the root of 2. Where "
    "synthetic records are much closer than the real ones beside them, they may be copies, or no two real rows are alike. "
    "Held-out records decide: where nothing is copied, half of the synthetic ones are closer to a record that was learned "
    "from than to a held-out one (ties are left out).",
    needs=(Need(lambda sides: sides.test is not None and sides.layout.width > 0, "there are too few real records"),),
)  # fmt: skip
def _closest(sides: TableSides) -> Result:
    """Find the closest record that was learned from, of synthetic records and of others in their place."""
    unseen, parts = sides.held_out is not None, sides.encoded
    pools = (*((parts.learned, parts.held_out) if unseen else (parts.real, parts.other)), parts.first_synthetic)
    random = np.random.default_rng(sides.seed)
    pools = [pool[random.permutation(len(pool))] for pool in pools]
    most = max(_FEW, _AT_ONCE // parts.layout.width)
    among = written_out(pools[0][: min(AMONG, most)], parts.layout)
    others, synthetic = (written_out(pool[: min(CLOSEST, most)], parts.layout) for pool in pools[1:])
    results = []
    for asked in (synthetic, others):
        far = nearest_distances(asked, among).numpy()
        results.append(
            {"median": float(np.median(far)), "closest twentieth": float(np.quantile(far, 0.05)),
             "share at distance 0": float((far == 0).mean())}
        )  # fmt: skip
    intervals = {}
    size = min(AMONG, most, len(pools[0]), len(pools[1]))
    if unseen and size >= _FEW:
        to = [nearest_distances(synthetic, written_out(pool[:size], parts.layout)).numpy() for pool in pools[:2]]
        near, ties = int((to[0] < to[1]).sum()), int((to[0] == to[1]).sum())
        if decided := len(to[0]) - ties:
            name = "closer to a record learned from than to a held-out one"
            results[0][name] = near / decided
            interval = binomtest(near, decided).proportion_ci(0.95, method="exact")
            intervals[name] = Interval(float(interval.low), float(interval.high), decided)
    return Result(*results, intervals=intervals, note=None if unseen else _NO_HELD_OUT)


_NO_HELD_OUT = (
    "the real records in the place of synthetic ones were learned from, too; held-out records (--held-out FILE) also show "
    "whether synthetic ones are closer to those that were learned from"
)


MEMBERSHIP = "membership inference"
# The most records of each kind that are attacked, and the units by which an attacker knows them; numbers
# that are held at a time.
ATTACKED, _KNOWN_UNITS, _NUMBERS = 4_000, 1_000, 1 << 24
# Records of each kind that an attack needs, and the chance that an interval of any of them misses.
FEW_ATTACKED, _MISSED = 4, 0.05
# The share of the held-out records that would be new, at least so much of which is found where they are copies; and the
# chance that as many are found where they are none.
_COPIED, _BY_CHANCE = 0.5, 1e-3
COPIES = "WARNING: these look like copies of records that were learned from, so that attacks find nothing"


class MembershipInference(Metric):
    """Accuracy and AUC of a membership inference attack that gives a score to each record, higher for likely members.

    Members and others are taken in equal numbers, so guessing is right half of the time. The threshold is chosen on every
    second record and tested on the rest, so that chance does not count as success. The interval is that of Clopper and
    Pearson (1934) for all tested records together: with unequal chances of the two kinds the number of right answers varies
    less than that of equal ones (Hoeffding 1956), so it covers as often or more.

    Scores may be those of a critic (dp-GAN, section 5), the negative distance to the nearest synthetic record, or the
    likelihood ratio of models that were trained with and without a record.

    Args:
        confidence: that of the interval.

    Example:
        >>> metric = MembershipInference()
        >>> metric.update(torch.arange(100.0) + 200.0, member=True)
        >>> metric.update(torch.arange(100.0), member=False)
        >>> {name: round(float(value), 3) for name, value in metric.compute().items()}
        {'accuracy': 1.0, 'low': 0.964, 'high': 1.0, 'auc': 1.0, 'tested': 100.0}
    """

    full_state_update = False
    higher_is_better = False

    def __init__(self, confidence: float = 0.95, **kwargs) -> None:
        super().__init__(**kwargs)
        if not isinstance(confidence, float) or not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence={confidence!r}: expected a number between 0 and 1")
        self.confidence = confidence
        for side in ("members", "others"):
            self.add_state(side, [], dist_reduce_fx="cat")

    def update(self, scores: Tensor, *, member: bool) -> None:
        """Take in the scores (n,) of records of one kind.

        Raises:
            ValueError: for no tensor of finite numbers, or another shape.
        """
        check_scores("scores", scores)
        (self.members if member else self.others).append(scores.to(torch.float64))

    def _scores(self) -> tuple[np.ndarray, np.ndarray]:
        return tuple(dim_zero_cat(side).cpu().numpy() if len(side) else np.zeros(0) for side in (self.members, self.others))

    def compute(self) -> dict[str, Tensor]:
        """Return ``accuracy``, its interval (``low``, ``high``), the ``auc`` of all, and the number of records ``tested``.

        Raises:
            ValueError: for fewer than four records of either kind.
        """
        found = rate_attack(*self._scores(), self.confidence)
        return {name: torch.tensor(float(value)) for name, value in found.items()}

    def roc(self) -> tuple[np.ndarray, np.ndarray]:
        """Return false and true positive rates of all thresholds.

        Raises:
            ValueError: as `compute`.
        """
        return operating_curve(*self._scores())


def rate_attack(members: np.ndarray, others: np.ndarray, confidence: float = 0.95) -> dict[str, float]:
    """Return what `MembershipInference` computes, of the scores of members (n,) and of others (m,).

    Raises:
        ValueError: for fewer than four records of either kind.

    Example:
        >>> rate_attack(np.arange(100.0) + 200.0, np.arange(100.0))["accuracy"]
        1.0
    """
    members, others = _as_many(members, others)
    chosen, tested = ((members[i::2], others[i::2]) for i in (0, 1))
    false, true, thresholds = roc_curve(np.repeat([1, 0], list(map(len, chosen))), np.concatenate(chosen))
    threshold = thresholds[np.argmax(true - false)]
    count = min(map(len, tested))
    right = int((tested[0][:count] >= threshold).sum() + (tested[1][:count] < threshold).sum())
    interval = binomtest(right, 2 * count).proportion_ci(confidence, method="exact")
    auc = roc_auc_score(np.repeat([1, 0], len(members)), np.concatenate([members, others]))
    return {
        "accuracy": right / (2 * count), "low": interval.low, "high": interval.high, "auc": auc, "tested": 2.0 * count
    }  # fmt: skip


def operating_curve(members: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return false and true positive rates of all thresholds (ROC) of scores of members (n,) and of others (m,)."""
    members, others = _as_many(members, others)
    return roc_curve(np.repeat([1, 0], len(members)), np.concatenate([members, others]))[:2]


def _as_many(members: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    count = min(len(members), len(others))
    if count < 4:
        raise ValueError(f"{len(members)} members and {len(others)} others: expected 4 or more of each")
    return members[:count], others[:count]


def nearness(records: Tensor, synthetic: Tensor) -> Tensor:
    """Score records (n, width) by a release alone: the negative distance (n,) to the nearest synthetic record (m, width).

    Raises:
        ValueError: for no tensors of finite numbers, other widths, or no record on one side.

    Example:
        >>> nearness(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.zeros(1, 2))
        tensor([-0., -5.])
    """
    _check_widths(records=records, synthetic=synthetic)
    if not len(records) or not len(synthetic):
        raise ValueError(f"{len(records)} records and {len(synthetic)} synthetic ones: expected at least one on each side")
    return -nearest_distances(records, synthetic)


def density_ratio(records: Tensor, synthetic: Tensor, reference: Tensor, scale: float = 1.5) -> Tensor:
    """Score records (n, width) by how much denser synthetic records (m, width) are there than other real ones (DOMIAS).

    The attacker has real records of the same population that were not learned from. Where a release is denser than the
    population, it has learned single records (van Breugel et al. 2023). Densities are means of ``exp(-scale distance^2)``;
    of records written as one-hot, each choice that differs has the weight ``exp(-2 scale)``.

    Returns:
        (n,) the logarithms of the ratios.

    Raises:
        ValueError: for no tensors of finite numbers, other widths, no synthetic or reference record, or a scale that is
            not positive.

    Example:
        >>> density_ratio(torch.zeros(1, 1), synthetic=torch.zeros(2, 1), reference=torch.ones(2, 1))
        tensor([1.5000])
    """
    _check_widths(records=records, synthetic=synthetic, reference=reference)
    if not len(synthetic) or not len(reference):
        raise ValueError(f"{len(synthetic)} synthetic and {len(reference)} reference records: expected at least one each")
    if not isinstance(scale, int | float) or not 0.0 < scale < math.inf:
        raise ValueError(f"scale={scale!r}: expected a positive number")
    # Whole numbers and halves are counted with as many digits as torch's default has.
    kind = functools.reduce(torch.promote_types, (part.dtype for part in (synthetic, reference)), records.dtype)
    kind = torch.promote_types(kind, torch.float32)
    records, synthetic, reference = (part.to(kind) for part in (records, synthetic, reference))
    return _log_density(records, synthetic, scale) - _log_density(records, reference, scale)


def _log_density(records: Tensor, others: Tensor, scale: float) -> Tensor:
    step = max(1, _NUMBERS // len(others))
    sums = [torch.logsumexp(-scale * torch.cdist(part, others).square(), dim=1) for part in records.split(step)]
    return torch.cat(sums) - math.log(len(others))


def _check_widths(*, records: Tensor, **others: Tensor) -> None:
    """Check records, and that others have their width and their device."""
    check_records("records", records)
    for name, other in others.items():
        check_records(name, other, records.shape[1], records.device)


def describe_twins(held_out: Encoded, real: Encoded, synthetic: Encoded, seen: str = "as the model sees records") -> str:
    """Tell in one line how many held-out records are identical to others, and warn where they seem to be copies.

    Records of few columns coincide. The share of real records that are identical to another one estimates the share that
    does so without any copy (Good 1953). Where at least half of the held-out records that should be new are not, and more
    than by chance, they are called copies.

    Args:
        real: all records that were learned from.
        seen: the way in which records are compared, in words.

    Example:
        >>> codes = np.arange(40, dtype=np.uint8)[:, None]
        >>> records = Encoded(np.zeros((40, 0), np.uint8), codes)
        >>> found, *_ = describe_twins(records[:10], records[10:], records[9:11]).split("; ")
        >>> found
        'as the model sees records, 0 of 10 held-out ones (0 %) are identical to one that was learned from'
        >>> COPIES in describe_twins(records[:10], records, records[9:11])
        True
    """
    asked, learned, generated = (_digests(part) for part in (held_out, real, synthetic))
    _, counts = np.unique(learned, return_counts=True)
    doubled = int(counts[counts > 1].sum())
    copies, drawn = (int(np.isin(asked, others).sum()) for others in (learned, generated))
    shares = copies / len(asked), doubled / len(learned), drawn / len(asked), float(np.isin(learned, generated).mean())
    copied, twins, like_made, learned_like_made = (f"{100 * x:.2g} %" if x < 0.995 else f"{100 * x:.0f} %" for x in shares)
    line = (
        f"{seen}, {copies:,} of {len(asked):,} held-out ones ({copied}) are identical to one that "
        f"was learned from; of those learned from {twins} are to another; {drawn:,} held-out ones ({like_made}) are to a "
        f"synthetic one; of those learned from {learned_like_made} are"
    )
    expected = (doubled + 1) / (len(learned) + 2)
    new = copies / len(asked) >= expected + _COPIED * (1.0 - expected)
    return f"{line}; {COPIES}" if new and binom.sf(copies - 1, len(asked), expected) < _BY_CHANCE else line


def _digests(encoded: Encoded) -> np.ndarray:
    """Return a number (N,) for each record, equal for identical ones; others share one with a chance of 2^-64."""
    digests = []
    for block in blocks(encoded, encoded.units.shape[1]):
        codes, units = block.codes.astype(np.int32), block.units
        if scipy.sparse.issparse(units):
            rows = [places.tobytes() for places in _places(units)]
        else:
            # Types of other readers are brought together; adding 0 makes a negative zero positive.
            kind = np.float32 if units.dtype.kind == "f" else np.int32
            rows = [row.tobytes() for row in np.ascontiguousarray(units.astype(kind) + kind(0))]
        digests += [
            hashlib.blake2b(row + own.tobytes(), digest_size=8).digest() for row, own in zip(rows, codes, strict=True)
        ]
    return np.frombuffer(b"".join(digests), np.uint64)


def _places(units: scipy.sparse.csr_array) -> list[np.ndarray]:
    """Return the places of the ones of each record, in order."""
    tidy = mark_entries(units)
    return np.split(tidy.indices.astype(np.int32), tidy.indptr[1:-1])


def _strongest(evaluation: Any) -> list[Glance]:
    """Pick the attack that is surely farthest from guessing. Where no interval leaves 0.5 out, AUCs decide."""
    attacks, scores = [], evaluation.scores.get(MEMBERSHIP, {})
    for name, interval in evaluation.intervals.get(MEMBERSHIP, {}).items():
        attack = name.partition(": ")[0]
        attacks.append((scores[f"{attack}: AUC"], attack, scores[name], interval))
    if not attacks:
        return []
    area, attack, accuracy, interval = max(
        attacks, key=lambda one: (max(one[3].low - 0.5, 0.5 - one[3].high, 0.0), abs(one[0] - 0.5))
    )
    words = f"{format_score(interval.low)} to {format_score(interval.high)}: accuracy of the strongest membership attack "
    words += f"({attack}, AUC {format_score(area)})"
    return [Glance(accuracy, words, below="0.5 is guessing, which finds nothing")]


ATTACKS = {
    "better": "target", "glance": _strongest,
    "says": "An attacker who sees the synthetic records guesses which real ones were learned from: those near to a "
    "synthetic one, or where synthetic records are denser than other real ones. 0.5 is guessing, and the distance from it "
    "is what counts: an AUC far below it says that held-out records are more like the synthetic ones than those that were "
    "learned from. Where the interval of an accuracy (95 % for all attacks together) holds 0.5, the attack finds nothing. "
    "Held-out records of another time or place are told from the others without any leak.",
}  # fmt: skip


@register(ENCODED, TABLE, section=MEMBERSHIP, place=80, needs=(UNSEEN,), **ATTACKS)
def _attack(sides: Sides) -> Result | str:
    """Attack the release; the note says how many held-out records are identical to others."""
    encoded = sides.encoded
    if min(len(encoded.learned), len(encoded.held_out)) < FEW_ATTACKED or not encoded.layout.width:
        return f"it needs {FEW_ATTACKED} records that were learned from, and as many held-out ones"
    seen = "as the model sees records" if encoded.alike else "by their values"
    twins = describe_twins(encoded.held_out, encoded.learned, encoded.first_synthetic, seen)
    random = np.random.default_rng(encoded.seed)
    # In random order the first ones are a fair choice.
    members, others = (part[random.permutation(len(part))[:ROWS]] for part in (encoded.learned, encoded.held_out))
    if encoded.layout.units > _KNOWN_UNITS:
        # Those of the real records could be told by which units vary.
        encoded = replace(encoded, real=members, learned=members, other=others, held_out=others)
        encoded = encoded.of_units(varying_units([encoded.first_synthetic], _KNOWN_UNITS))
        members, others = encoded.learned, encoded.held_out
    most = max(FEW_ATTACKED, _NUMBERS // encoded.layout.width)
    attacked = min(ATTACKED, most)
    # The attacker of the ratio knows as many as it attacks.
    members, others = (written_out(part[: 2 * attacked], encoded.layout) for part in (members, others))
    synthetic = written_out(subsample(encoded.first_synthetic, most, encoded.seed), encoded.layout)
    return attack(members, others, synthetic, twins, attacked)


def attack(members: Tensor, others: Tensor, synthetic: Tensor, twins: str, attacked: int = ATTACKED) -> Result:
    """Guess which records were learned from, by the nearest synthetic one and by a ratio of densities.

    Each attack is tested on as many members as others, all held-out records that it does not need itself: the attacker of
    the ratio has half of them for comparison. Intervals hold for all attacks together, so the strongest may be picked.

    Args:
        members, others: points (n, width) of records that were learned from, and of held-out ones, in random order.
        synthetic: those of synthetic records.
        twins: says how many records are identical to others.
        attacked: the most records of each kind that are attacked.
    """
    note = f"{twins}; held-out records of another time or place than those learned from are told apart by that, too"
    half = len(others) // 2
    asked, known, members, others = (
        part[:attacked] for part in (others[:half], others[half:], members, others)
    )  # fmt: skip
    attacks = {"nearest record": (others, lambda records: nearness(records, synthetic))}
    if half >= FEW_ATTACKED:
        attacks["densities"] = (asked, lambda records: density_ratio(records, synthetic, known))
    scores, intervals, curves = {}, {}, {}
    for name, (tested, score) in attacks.items():
        sided = [score(part).double().numpy() for part in (members[: len(tested)], tested[: len(members)])]
        found = rate_attack(*sided, 1.0 - _MISSED / len(attacks))
        scores |= {f"{name}: accuracy": found["accuracy"], f"{name}: AUC": float(found["auc"])}
        intervals[f"{name}: accuracy"] = Interval(float(found["low"]), float(found["high"]), int(found["tested"]))
        curves[name] = operating_curve(*sided)
    content = {"rates": curves, "alt": "ROC curves of attacks"}
    drawn = Plot("Membership inference", "", "operating_curves", content, (_ROC, f"{note}."))
    return Result(scores, note=note, intervals=intervals, plots=[drawn])


_ROC = (
    "Each point is a threshold of an attack: the share of the members that it finds, and the share of the others that it "
    "takes for members (ROC). An attack that finds nothing follows the line of guessing."
)
