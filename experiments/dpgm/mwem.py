"""MWEM, DPGM's only rival for counting queries, on baskets of hundreds of items (Hardt, Ligett and McSherry, NIPS 2012).

    python -m experiments.dpgm.mwem          prints the noise of a round under three compositions, in seconds

A round chooses the query whose answer is farthest off by the exponential mechanism, measures it with Laplace noise, and
multiplies the weights of the cells of the domain that the query counts, for all measurements so far. MWEM is told the
queries that it will be asked: they are public. A domain of 2^342 or 2^1303 baskets cannot be held. There are two forms:

* `over_visits` is the one reading in which the paper's footnote makes sense. Baskets are cut to 12 items, and the cells are
  the items: a basket is up to 12 visits. A query counts the visits to its items, so that its sensitivity is 12; 50 rounds
  from equal weights. Baskets are drawn item by item.
* `over_baskets` has baskets as cells. A part of the budget pays for the start, independent items by size, in place of equal
  weights, and its shares of items count as measurements. Candidates that are drawn from the start stand for all baskets:
  their weights are those of MWEM over all baskets, but for the chance of the draw. Queries are read as ALL and as ANY.

Both are private under add or remove one, with epsilon from the account of all rounds together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.sparse
import torch

from experiments.dpgm.baselines import CUT, Budget, Strata, independent
from lightning_dpgen.data.baskets.reading import chosen
from lightning_dpgen.metrics.baskets import QueryCounts
from lightning_dpgen.privacy.access import LAPLACE, PURE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import report_noisy_max, rounded_laplace
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec

# The paper's number of rounds, and how often a round goes over all measurements so far.
ROUNDS, SWEEPS = 50, 3
# Parts of mu^2: of the start of `over_baskets`, and of the two numbers of visits.
START_SHARE, VISITS_SHARE = 0.6, 0.02
CANDIDATES = 1 << 15
# Queries, and baskets, that are taken at a time.
_QUERIES, _BASKETS = 500, 1 << 17

# Answers (queries, cells): 1 where a query counts a cell, else 0, in blocks of queries.
Answers = Sequence[np.ndarray | scipy.sparse.csr_array]


def rounds_spec(n: int) -> StageSpec:
    """Return the stage of `mwem`: each round pays for a choice and an answer, of one epsilon each."""
    kinds = {"choice": PURE, "answer": LAPLACE}
    return StageSpec("rounds", dict.fromkeys(kinds, 1.0), ROUNDS, max_noise=n, kinds=kinds)


def mwem(
    answers: Answers,
    real: np.ndarray,
    weights: np.ndarray,
    total: float,
    account: Account,
    *,
    sensitivity: float,
    measured: Mapping[int, float] | None = None,
    known: np.ndarray | None = None,
) -> dict[int, float]:
    """Run the rounds of an account, and return the exponent of each query that was measured, by its place.

    The final weight of a cell is proportional to that of the start, times exp of the exponents of queries that count it.

    Args:
        answers: (queries, cells) whether a query counts a cell, in blocks of queries.
        real: (queries,) exact answers, whole numbers; private.
        weights: (cells,) the start, adding up to 1; public, as are all other arguments.
        total: what the weights stand for: the number of records, or of visits.
        account: its stage "rounds", as `rounds_spec` has it, is next.
        sensitivity: the largest change of any answer by one record.
        measured: answers by place that were measured before.
        known: (queries,) shares that the start is known to answer, where cells are drawn from it.

    Guarantee:
        Each choice and each answer is 1 / multiplier-private (`report_noisy_max`, `rounded_laplace`).
    """
    found = dict(measured or {})
    rows, exponents = [_row_of(answers, place) for place in found], [0.0] * len(found)
    drawn = _shares_of(answers, weights)
    missed = np.zeros_like(drawn) if known is None else known - drawn
    for _ in range(account.plan.stage("rounds").count):
        errors = np.abs(real - np.rint(total * (_shares_of(answers, weights) + missed))).astype(np.int64)
        left = np.setdiff1d(np.arange(len(real)), list(found))
        with account.open("rounds") as access:
            at = int(left[report_noisy_max(access, "choice", torch.from_numpy(errors[left]), sensitivity=sensitivity)])
            exact = torch.tensor([int(real[at])])
            found[at] = float(rounded_laplace(access, "answer", exact, sensitivity=sensitivity))
        rows.append(_row_of(answers, at))
        exponents.append(0.0)
        wanted = np.fromiter(found.values(), float) / total - missed[list(found)]
        weights = _multiplied(rows, wanted, weights, exponents)
    return dict(zip(found, exponents, strict=True))


def _multiplied(rows: list[np.ndarray], wanted: np.ndarray, weights: np.ndarray, exponents: list[float]) -> np.ndarray:
    """Return the weights after each measurement has multiplied them `SWEEPS` times; exponents change in place.

    A step makes one answer right, where that of the textbook, half of the error, is repeated until it is. No step moves an
    answer more than halfway to 0 or 1, since noise may have put it beyond.
    """
    for _ in range(SWEEPS):
        for i, (row, answer) in enumerate(zip(rows, wanted, strict=True)):
            counted = row * weights
            share = counted.sum()
            if 0.0 < share < 1.0:
                answer = min(max(answer, share / 2.0), (1.0 + share) / 2.0)
                step = math.log(answer * (1.0 - share) / (share * (1.0 - answer)))
                exponents[i] += step
                weights = weights + math.expm1(step) * counted
                weights /= weights.sum()
    return weights


def _shares_of(answers: Answers, weights: np.ndarray) -> np.ndarray:
    single = weights.astype(np.float32)
    return np.concatenate([block @ (single if block.dtype == np.float32 else weights) for block in answers]).astype(float)


def _row_of(answers: Answers, place: int) -> np.ndarray:
    ends = np.cumsum([block.shape[0] for block in answers])
    at = int(np.searchsorted(ends, place, side="right"))
    row = answers[at][[place - (ends[at - 1] if at else 0)]]
    return (row.toarray() if scipy.sparse.issparse(row) else row)[0].astype(np.float64)


def over_visits(
    real: scipy.sparse.csr_array, largest: int, queries: scipy.sparse.csr_array, budget: Budget
) -> scipy.sparse.csr_array:
    """Draw each item by itself, with its share by MWEM over the visits of baskets that are cut to 12 items.

    Two noisy numbers of visits, before and after the cut, bring the shares to the size of whole baskets: a basket moves the
    first by its size, the second by 12.
    """
    n, items = real.shape
    kept = real.indices[chosen(real.indptr, real.indices, CUT)]
    sums = dict.fromkeys(("all", "cut"), LAPLACE)
    visits = StageSpec("visits", dict.fromkeys(sums, 1.0), 1, max_noise=n, share=VISITS_SHARE, kinds=sums)
    account = budget.account_of(visits, rounds_spec(n))
    with account.open("visits") as access:
        every = float(rounded_laplace(access, "all", torch.tensor([real.nnz]), sensitivity=largest))
        total = max(1.0, float(rounded_laplace(access, "cut", torch.tensor([len(kept)]), sensitivity=CUT)))
    answers, start = queries.toarray().astype(np.float64), np.full(items, 1.0 / items)
    exponents = mwem([answers], queries @ np.bincount(kept, minlength=items), start, total, account, sensitivity=CUT)
    account.verify_complete()
    weights = np.exp(np.fromiter(exponents.values(), float) @ answers[list(exponents)])
    return independent(n, np.clip(weights / weights.sum() * every / n, 0.0, 1.0), budget.random)


def over_baskets(
    real: scipy.sparse.csr_array, largest: int, queries: scipy.sparse.csr_array, budget: Budget
) -> scipy.sparse.csr_array:
    """Draw baskets in proportion to MWEM's weights over independent items by size.

    What candidates answer before any update is put right by what the start is known to answer, and so the chance of their
    draw is in the updates alone.
    """
    n, items = real.shape
    account = budget.account_of(Strata.spec(n, START_SHARE), rounds_spec(n))
    start, random = Strata.measure(real, largest, account), budget.random
    # Queries of one item, which the start has measured, stand behind the queries.
    asked = scipy.sparse.csr_array(scipy.sparse.vstack([queries, scipy.sparse.eye_array(items, dtype=np.int32)]))
    exact, known = np.concatenate(QueryCounts(asked).of(real)), start_answers(start, asked)
    measured = {int(place): n * known[place] for place in np.arange(queries.shape[0], asked.shape[0])}
    answers, weights = answers_to(asked, start.draw(CANDIDATES, random)), np.full(CANDIDATES, 1.0 / CANDIDATES)
    exponents = mwem(answers, exact, weights, n, account, sensitivity=1.0, measured=measured, known=known)
    account.verify_complete()
    made = start.draw(n, random)
    return made[_resample(_log_weights(made, asked, exponents), random)]


def answers_to(queries: scipy.sparse.csr_array, baskets: scipy.sparse.csr_array) -> Answers:
    """Return whether each basket holds ALL of each query's items, then whether it holds ANY: (Q, baskets) each."""
    lengths, cells = np.diff(queries.indptr), baskets.T.tocsr().astype(np.float32)
    all_of, any_of = [], np.empty((len(lengths), cells.shape[1]), np.float32)
    for first in range(0, len(lengths), _QUERIES):
        held = scipy.sparse.csr_array(queries[first : first + _QUERIES].astype(np.float32) @ cells)
        any_of[first : first + _QUERIES] = held.toarray() > 0
        held.data = (held.data == np.repeat(lengths[first : first + _QUERIES], np.diff(held.indptr))).astype(np.float32)
        held.eliminate_zeros()
        all_of.append(held)
    return [*all_of, any_of]


def start_answers(start: Strata, queries: scipy.sparse.csr_array) -> np.ndarray:
    """Return (2 Q,) the shares of baskets that hold ALL, then ANY, of each query's items where items are independent."""
    with np.errstate(divide="ignore"):
        held, missed = (np.exp(queries @ logs.T) for logs in (np.log(start.shares), np.log1p(-start.shares)))
    return np.concatenate([held @ start.weights, 1.0 - missed @ start.weights])


def _log_weights(
    baskets: scipy.sparse.csr_array, queries: scipy.sparse.csr_array, exponents: Mapping[int, float]
) -> np.ndarray:
    """Return (N,) the logarithms of the factors of baskets; queries read as ALL stand before those read as ANY."""
    places, powers = np.array(list(exponents)), np.array(list(exponents.values()))
    asked = queries[places % queries.shape[0]]
    least = np.where(places < queries.shape[0], np.diff(asked.indptr), 1)
    # Most queries have one item, and their exponents add up over a basket.
    single = np.diff(asked.indptr) == 1
    columns, found = asked[~single].toarray().T.astype(np.float32), []
    sums = asked[single].T @ powers[single]
    for first in range(0, baskets.shape[0], _BASKETS):
        some = baskets[first : first + _BASKETS].astype(np.float32)
        found.append(some @ sums + (some @ columns >= least[~single]) @ powers[~single])
    return np.concatenate(found)


def _resample(logs: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return as many places as there are, each as often as its weight says, but for one (systematic resampling)."""
    ends = np.cumsum(np.exp(logs - logs.max()))
    return np.searchsorted(ends, (np.arange(len(ends)) + random.random()) * ends[-1] / len(ends), side="right")


def noises(epsilon: float, delta: float) -> dict[str, float]:
    """Return the noise multiplier of a choice or an answer under three compositions of a whole budget.

    Example:
        >>> found = noises(1.0, 1e-8)
        >>> round(found["pure"]), found["pure"] > found["zCDP"] > found["PLD"]
        (100, True)
    """
    rho = (math.sqrt(epsilon + math.log(1.0 / delta)) - math.sqrt(math.log(1.0 / delta))) ** 2
    plan = make_plan([rounds_spec(10**9)], epsilon=epsilon, delta=delta)
    multiplier = plan.stage("rounds").access.multipliers["answer"]
    # An e-private mechanism is e^2 / 2 zCDP.
    return {"pure": 2.0 * ROUNDS / epsilon, "zCDP": math.sqrt(ROUNDS / rho), "PLD": multiplier}


def main() -> None:
    for epsilon in (1.0, 2.0):
        for delta in (1e-8, 1e-7):
            found = ", ".join(f"{name} {value:.1f}" for name, value in noises(epsilon, delta).items())
            print(
                f"epsilon {epsilon:g}, delta {delta:g}, {ROUNDS} rounds: noise multiplier of a choice or an answer: {found}"
            )


if __name__ == "__main__":
    main()
