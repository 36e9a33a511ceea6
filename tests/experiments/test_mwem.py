"""MWEM: it agrees with the textbook's over a whole domain, costs what its account says, and improves the worst answers."""

import doctest
import functools
import itertools
import math

import numpy as np
import pytest
import scipy.sparse
from contracts.door import given_the_answers, overspent
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters

from experiments.dpgm import mwem as mwem_module
from experiments.dpgm.baselines import Budget, Strata
from experiments.dpgm.mwem import mwem, over_baskets, over_visits, rounds_spec
from lightning_dpgen.data.simulated.baskets import draw_baskets
from lightning_dpgen.metrics.baskets import QueryCounts, uniform_queries
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import report_noisy_max, rounded_laplace
from lightning_dpgen.privacy.noise.stream import PrivateStream

FORMS = [over_visits, over_baskets]
SMALL, N, LARGEST = 12, 20_000, 57
# All baskets of a few items.
DOMAIN = np.array(list(itertools.product((0, 1), repeat=SMALL)), np.uint8)


@pytest.fixture(scope="module")
def baskets():
    return draw_baskets("transit", N)


@pytest.fixture(scope="module")
def few_items(baskets):
    """Return baskets of the twelve most frequent items."""
    top = np.sort(np.argsort(-baskets.sum(axis=0))[:SMALL])
    return scipy.sparse.csr_array(baskets[:, top])


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(mwem_module, "ROUNDS", 6)
    monkeypatch.setattr(mwem_module, "CANDIDATES", 1 << 10)


@pytest.fixture
def heard(monkeypatch):
    """Return lists of what the mechanisms answer from now on: places among those left, and noisy answers."""
    places, answers = [], []

    def choose(access, name, scores, **given):
        places.append(report_noisy_max(access, name, scores, **given))
        return places[-1]

    def measure(access, name, exact, **given):
        noisy = rounded_laplace(access, name, exact, **given)
        answers.append(float(noisy))
        return noisy

    monkeypatch.setattr(mwem_module, "report_noisy_max", choose)
    monkeypatch.setattr(mwem_module, "rounded_laplace", measure)
    return places, answers


def _budget(epsilon, seed=0):
    return Budget(epsilon, 1e-5, seed)


def _textbook(asked, weights, total, measured, passes):
    """Return the weights by Figure 1 of Hardt and others, whose step is half of the error, over all measurements."""
    for _ in range(passes):
        for place, answer in measured:
            held = asked[place]
            weights = weights * np.exp(held * (answer - total * (held @ weights)) / (2 * total))
            weights = weights / weights.sum()
    return weights


def _all_and_any(queries, baskets):
    """Return whether each of all baskets is counted by each query, one by one."""
    named = [set(np.flatnonzero(query)) for query in queries.toarray()]
    held = [set(np.flatnonzero(basket)) for basket in baskets]
    both = [[items <= basket for basket in held] for items in named]
    return np.array(both + [[bool(items & basket) for basket in held] for items in named], float)


@pytest.mark.parametrize("sweeps, tolerance", [(3, 0.02), (100, 0.001)])
@pytest.mark.parametrize("epsilon", [math.inf, 1.0])
def test_over_a_whole_domain_it_is_the_textbook_s(few_items, heard, epsilon, sweeps, tolerance, monkeypatch):
    """Answers differ by a part of all baskets that is the smaller the more often a round goes over all measurements."""
    monkeypatch.setattr(mwem_module, "ROUNDS", 8)
    monkeypatch.setattr(mwem_module, "SWEEPS", sweeps)
    queries = uniform_queries(SMALL, 6, np.random.default_rng(1), count=40)
    asked, start = _all_and_any(queries, DOMAIN), np.full(len(DOMAIN), 1.0 / len(DOMAIN))
    cells = few_items.toarray() @ (1 << np.arange(SMALL)[::-1])
    exact = np.rint(asked @ np.bincount(cells, minlength=len(DOMAIN)))
    np.testing.assert_array_equal(np.concatenate(QueryCounts(queries).of(few_items)), exact)
    account = _budget(epsilon).account_of(rounds_spec(N))
    exponents = mwem([asked], exact, start, N, account, sensitivity=1.0)
    made = start * np.exp(np.fromiter(exponents.values(), float) @ asked[list(exponents)])
    made /= made.sum()
    weights, measured, left = start, [], np.arange(len(exact))
    for place, answer in zip(*heard, strict=True):
        errors = np.abs(exact - N * asked @ weights)[left]
        assert epsilon < math.inf or errors[place] >= errors.max() - 2 * tolerance * N
        measured.append((left[place], answer))
        left = np.delete(left, place)
        weights = _textbook(asked, weights, N, measured, passes=400)
    assert [place for place, _ in measured] == list(exponents)
    assert np.abs(asked @ (made - weights)).max() < tolerance
    assert np.abs(asked @ made - exact / N).max() < 0.1 < 0.4 < np.abs(asked @ start - exact / N).max()


def test_candidates_stand_for_all_baskets(few_items, heard, monkeypatch):
    """Answers of the baskets drawn are those of the textbook over all 4096 from the same measurements."""
    monkeypatch.setattr(mwem_module, "ROUNDS", 8)
    measured_start = []
    measure = Strata.measure.__func__
    monkeypatch.setattr(
        Strata, "measure", classmethod(lambda *given: measured_start.append(measure(*given)) or measured_start[-1])
    )
    queries = uniform_queries(SMALL, 6, np.random.default_rng(1), count=40)
    made = over_baskets(few_items, SMALL, queries, _budget(2.0))
    (start,) = measured_start
    chances = np.where(DOMAIN[:, None], start.shares, 1.0 - start.shares).prod(axis=-1) @ start.weights
    every = scipy.sparse.vstack([queries, scipy.sparse.eye_array(SMALL)], format="csr")
    asked = _all_and_any(every, DOMAIN)
    np.testing.assert_allclose(mwem_module.start_answers(start, every), asked @ chances, atol=1e-12)
    singles = range(len(queries.toarray()), every.shape[0])
    measured = [(place, N * asked[place] @ chances) for place in singles]
    left = np.setdiff1d(np.arange(len(asked)), singles)
    for place, answer in zip(*heard, strict=True):
        measured.append((left[place], answer))
        left = np.delete(left, place)
    weights = _textbook(asked, chances, N, measured, passes=1000)
    found = np.concatenate(QueryCounts(queries).of(made)) / N
    expected = (asked @ weights)[np.r_[: queries.shape[0], every.shape[0] : every.shape[0] + queries.shape[0]]]
    before = (asked @ chances)[np.r_[: queries.shape[0], every.shape[0] : every.shape[0] + queries.shape[0]]]
    # 5.5 deviations of a share among 20,000: 80 of them are beyond by chance once in three hundred thousand.
    assert np.abs(found - expected).max() < 5.5 * 0.5 / math.sqrt(N)
    assert np.abs(before - expected).max() > 2 * 5.5 * 0.5 / math.sqrt(N)


# Items in the order in which baskets are filled: the first ones are those that are measured where the door chooses.
ORDER = np.argsort(np.arange(342) % 6 != 3, kind="stable")


def _of(items):
    return scipy.sparse.csr_array(np.isin(np.arange(342), items)[None].astype(np.int32))


def _spent(form, baskets, size):
    """Return what a basket of so many items, in place of an empty one, costs each access, over what was paid for."""
    queries = uniform_queries(342, LARGEST, np.random.default_rng(1), count=59)
    queries = scipy.sparse.csr_array(scipy.sparse.vstack([queries, _of(ORDER[:LARGEST])]))
    empty, full = (
        scipy.sparse.csr_array(scipy.sparse.vstack([_of(ORDER[:held]).astype(np.uint8), baskets[1:400]]))
        for held in (0, size)
    )
    _, *rounds = spent = overspent(lambda data: form(data, LARGEST, queries, _budget(2.0)), empty, full)
    # The start counts sizes, and an empty basket has one: see the test of the baselines.
    return rounds if form is over_baskets else spent


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 12, 57])
def test_no_basket_costs_more_than_its_access(baskets, short, form, size):
    spent = _spent(form, baskets, size)
    assert len(spent) == (7 if form is over_visits else 6) and max(spent) <= 1.0 + 1e-9
    # A basket of all that counts costs all that was paid for.
    assert size < 57 or max(spent) > 0.999


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["report_noisy_max", "rounded_laplace"])
def test_a_sensitivity_that_is_too_small_is_found(baskets, short, monkeypatch, form, name):
    """With a third of the sensitivity the same basket costs more than its access."""
    right = getattr(mwem_module, name)

    def wrong(*given, sensitivity, **more):
        return right(*given, sensitivity=sensitivity / 3.0, **more)

    monkeypatch.setattr(mwem_module, name, wrong)
    assert max(_spent(form, baskets, 57)) > 1.1


@pytest.mark.parametrize("form", FORMS)
def test_given_the_answers_it_is_the_same_for_any_baskets(baskets, short, form):
    queries = uniform_queries(baskets.shape[1], LARGEST, np.random.default_rng(1), count=60)
    run = functools.partial(form, largest=LARGEST, queries=queries, budget=_budget(2.0))
    first, second = given_the_answers(run, baskets[:400], baskets[400:800])
    assert (first != second).nnz == 0 and first.nnz > 0


@pytest.mark.parametrize("form", FORMS)
def test_epsilon_is_that_of_all_rounds_and_the_start(baskets, short, form, monkeypatch):
    """The ledger's epsilon is the budget's, and no less than what its noises cost by another composition."""
    accounts = []
    make = Budget.account_of
    monkeypatch.setattr(Budget, "account_of", lambda *given: accounts.append(make(*given)) or accounts[-1])
    form(baskets, LARGEST, uniform_queries(342, LARGEST, np.random.default_rng(1), count=60), _budget(1.0))
    (account,) = accounts
    _, spent = account.certify()
    assert 0.99 < spent.epsilon <= 1.0 and account.finished
    losses = None
    for access, count in account.accesses:
        for name, multiplier in access.multipliers.items():
            match access.kind(name):
                case "gaussian":
                    loss = pld.from_gaussian_mechanism(multiplier)
                case "laplace":
                    loss = pld.from_laplace_mechanism(multiplier)
                case "pure":
                    loss = pld.from_privacy_parameters(DifferentialPrivacyParameters(1.0 / multiplier, 0.0))
            loss = loss.self_compose(count)
            losses = loss if losses is None else losses.compose(loss)
    # Laplace noise that stands for any private choice costs a little more than randomised response, the worst of them.
    assert 0.85 < losses.get_epsilon_for_delta(1e-5) <= spent.epsilon
    access = account.plan.stage("rounds").access
    assert access.multipliers["choice"] == access.multipliers["answer"]


@pytest.mark.parametrize("form", FORMS)
def test_baskets_are_of_ones_as_many_and_as_seeded(baskets, short, form):
    queries = uniform_queries(342, LARGEST, np.random.default_rng(1), count=60)
    made, again, other = (form(baskets, LARGEST, queries, _budget(1.0, seed)) for seed in (0, 0, 1))
    assert made.shape == baskets.shape and made.format == "csr" and set(made.data) == {1}
    assert (made != again).nnz == 0 and (made != other).nnz > 0


def test_choices_and_answers_have_the_law_of_their_epsilon(monkeypatch):
    """The farther of two queries, by 12, is chosen in exp(12 e / 2 Delta) : 1, and noise has its scale.

    2,000 draws; each check fails by chance once in twenty-five million.
    """
    monkeypatch.setattr(mwem_module, "ROUNDS", 1)
    epsilon, sensitivity, draws = 1.0, 6.0, 2000
    plan = Account(_plan(epsilon)).plan
    multiplier = plan.stage("rounds").access.multipliers["answer"]
    assert 2.0 / epsilon <= multiplier < 2.2 / epsilon
    first, noise = 0, []
    asked, start = np.eye(3)[:2], np.array([0.2, 0.2, 0.6])
    for seed in range(draws):
        account = Account(plan, stream=PrivateStream(seed))
        answers = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mwem_module, "rounded_laplace", lambda *a, into=answers, **g: into.append(rounded_laplace(*a, **g)) or into[-1])  # fmt: skip # noqa: E501
            (place,) = mwem([asked], np.array([232, 220]), start, 1000.0, account, sensitivity=sensitivity)
        first += place == 0
        noise.append(float(answers[0]) - (232, 220)[place])
    chance = 1.0 / (1.0 + math.exp(-12.0 / multiplier / (2.0 * sensitivity)))
    assert abs(first - draws * chance) < 5.5 * math.sqrt(draws * chance * (1 - chance))
    assert abs(np.abs(noise).mean() / (multiplier * sensitivity) - 1.0) < 5.5 / math.sqrt(draws)


def _plan(epsilon):
    return Budget(epsilon, 1e-12, 0).account_of(rounds_spec(10**6)).plan


def test_worst_answers_become_better(baskets, monkeypatch):
    """Errors of 200 queries read as ANY, against independent items by size with the same noise for the start."""
    monkeypatch.setattr(mwem_module, "ROUNDS", 20)
    monkeypatch.setattr(mwem_module, "CANDIDATES", 1 << 13)
    queries = uniform_queries(342, LARGEST, np.random.default_rng(5), count=200)
    made = over_baskets(baskets, LARGEST, queries, _budget(20.0))
    account = _budget(20.0).account_of(Strata.spec(N, mwem_module.START_SHARE), rounds_spec(N))
    start = Strata.measure(baskets, LARGEST, account).draw(N, np.random.default_rng(0))
    real, before, after = (QueryCounts(queries).of(side)[1] / N for side in (baskets, start, made))
    assert np.abs(after - real).max() < 0.75 * np.abs(before - real).max()


def test_examples():
    assert doctest.testmod(mwem_module).failed == 0


def test_the_command_prints_three_compositions(capsys):
    mwem_module.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and "pure 100.0, zCDP 61.5, PLD 49.9" in lines[0]
