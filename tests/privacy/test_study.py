"""A study adds runs up, refuses runs that pass its total, and loses nothing when many write at once."""

import contextlib
import json
import math
import multiprocessing
import tempfile
from dataclasses import replace
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_epsilon
from lightning_dpgen.privacy.accounting.event_parts import EpsilonDeltaDpEvent
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.accounting.renyi import pure_moments
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_first_plan, make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.studies.study import Study, fingerprint_key, study_entry
from lightning_dpgen.privacy.studies.study_total import _shares

ORDERS = [*range(2, 33), 40, 48, 64, 96, 128, 192, 256, 512, 1024]
GAUSSIAN = dp_accounting.GaussianDpEvent
STEPS = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(0.01, GAUSSIAN(1.0)), 500)


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path / "census.jsonl", epsilon=5.0, delta=1e-6)


def test_a_run_whose_noise_is_repeatable_belongs_to_no_study(study, tmp_path):
    """Its plan costs an epsilon that does not hold, and the totals of other runs would rest on it."""
    plan, path = (
        make_plan([StageSpec("sum", {"x": 1.0}, 1, max_noise=1e6)], epsilon=1.0, delta=1e-7),
        tmp_path / "ledger.jsonl",
    )
    both = r"study='census': .* stream=PrivateStream\(seed="
    with pytest.raises(ValueError, match=both):
        Account(plan, path, PrivateStream(seed=3), study=study)
    assert not path.exists()
    Account(plan, path, PrivateStream(seed=3)).ledger.close()
    written = path.read_bytes()
    with pytest.raises(ValueError, match=both):
        Account.resume(path, PrivateStream(seed=3), study=study)
    assert path.read_bytes() == written and study.total.runs == 0


def test_runs_are_composed_by_renyi_moments(study):
    """The cost lies between dp-accounting's at the best order and at one with a small part of delta; not below exact."""
    study.enter("a", STEPS)
    total = study.enter("b", GAUSSIAN(3.0))
    accountant = RdpAccountant(orders=ORDERS)
    accountant.compose(STEPS)
    accountant.compose(GAUSSIAN(3.0))
    assert accountant.get_epsilon(1e-6) <= total.epsilon <= accountant.get_epsilon(1e-6 / 160) and total.runs == 2
    assert total.epsilon >= gaussian_epsilon(1 / 3.0, 1e-6) and total == study.total


def test_a_run_that_would_pass_the_total_is_refused_and_writes_nothing(study):
    for number in range(40):
        try:
            before = study.enter(f"run {number}", GAUSSIAN(3.0))
        except BudgetTooSmall as refused:
            said = str(refused)
            break
    assert 3 < number < 39 and before.epsilon <= 5.0
    assert f"study census: {number} runs have spent epsilon" in said and "of 5 at delta 1e-06" in said
    assert study.total == before and Study(study.path).total == before
    # A smaller run may still fit.
    assert study.enter("small", GAUSSIAN(60.0)).runs == number + 1


def test_of_a_run_the_last_entry_counts(study):
    study.enter("a", GAUSSIAN(3.0))
    first = study.total
    study.enter("a", dp_accounting.ComposedDpEvent([GAUSSIAN(3.0), GAUSSIAN(3.0)]))
    assert study.total.runs == 1 and study.total.epsilon > first.epsilon
    study.enter("a", GAUSSIAN(3.0))
    assert study.total == first


def test_failures_have_a_half_of_delta(study):
    """Pairs take from it, too; the parts of orders do not shrink with failures, which results might decide."""
    plain = study.enter("a", GAUSSIAN(3.0)).epsilon
    failing = dp_accounting.ComposedDpEvent([GAUSSIAN(3.0), EpsilonDeltaDpEvent(0.0, 3e-7)])
    assert study.enter("a", failing).epsilon == plain
    for refused in ({"event": EpsilonDeltaDpEvent(0.0, 3e-7)}, {"event": GAUSSIAN(3.0), "pair": (0.0, 3e-7)}):
        with pytest.raises(BudgetTooSmall, match="no epsilon holds at that delta"):
            study.enter("b", **refused)
    assert study.enter("b", EpsilonDeltaDpEvent(0.0, 2e-7)).epsilon == plain


def test_pairs_alone_share_delta(study):
    study.enter("a", GAUSSIAN(3.0), pair=(0.5, 6e-7))
    with pytest.raises(BudgetTooSmall):
        study.enter("b", GAUSSIAN(3.0), pair=(0.5, 6e-7))
    assert study.enter("c", GAUSSIAN(3.0), pair=(0.5, 4e-7)).epsilon == pytest.approx(1.0)


def test_near_its_total_a_study_pays_little_for_being_a_filter(tmp_path):
    """A run that uses nearly all costs within a tenth of its best order, although the best order was not known."""
    study = Study(tmp_path / "s.jsonl", epsilon=5.0, delta=1e-6)
    alone = _rdp(GAUSSIAN(1.2), 1e-6)
    assert 4.0 < alone <= study.enter("a", GAUSSIAN(1.2)).epsilon < 1.1 * alone


def test_the_first_run_fixes_the_relation(study, tmp_path):
    """A guarantee is under one relation whatever the results are: results may not choose between two."""
    study.enter("a", GAUSSIAN(8.0))
    rows = {"event": dp_accounting.LaplaceDpEvent(1.0), "relation": REPLACE_ONE, "pair": (1.0, 0.0)}
    with pytest.raises(LedgerError, match="begin another study with a run about a record replaced"):
        study.enter("rows", **rows)
    assert study.total.runs == 1 and study.total.relation == ADD_OR_REMOVE_ONE
    other = Study(tmp_path / "rows.jsonl", epsilon=5.0, delta=1e-5)
    assert other.enter("rows", **rows).relation == REPLACE_ONE
    total = other.enter("a", GAUSSIAN(8.0), pair=(0.5, 1e-6), moments=True)
    assert total.relation == REPLACE_ONE and total.epsilon == pytest.approx(1.0 + 2 * 0.5)
    # Deltas are (1 + exp 0.5) times as large, unless a better account is known.
    with pytest.raises(BudgetTooSmall):
        other.enter("b", GAUSSIAN(8.0), pair=(0.5, 3e-6), moments=True)
    assert other.enter("b", GAUSSIAN(8.0), pair=(0.5, 3e-6), replaced=(0.9, 3e-6)).epsilon == pytest.approx(2.9)
    with pytest.raises(LedgerError, match="expected a pair"):
        other.enter("c", GAUSSIAN(8.0))


@pytest.mark.parametrize("relation", [ADD_OR_REMOVE_ONE, REPLACE_ONE])
@pytest.mark.parametrize("multiplier", [0.8, 3.0, 40.0])
def test_no_study_states_less_than_its_runs_cost_under_its_relation(tmp_path, relation, multiplier):
    """This holds in whatever way runs enter: the cost of two Gaussians together is known exactly."""
    delta, shift = 1e-6, 2.0 if relation == REPLACE_ONE else 1.0
    plan = make_plan([StageSpec("a", {"x": 1.0}, 1, max_noise=1e9, noise=multiplier)], epsilon=None, delta=delta / 4)
    study = Study(tmp_path / "s.jsonl", epsilon=900.0, delta=delta)
    if relation == REPLACE_ONE:
        study.enter("rows", GAUSSIAN(1e9), relation=REPLACE_ONE, pair=(0.0, 0.0))
    for run in ("a", "b"):
        total = study.enter(run, plan.event, **study_entry(plan))
    assert total.relation == relation
    assert total.epsilon >= gaussian_epsilon(shift * math.sqrt(2.0) / multiplier, delta)


@pytest.mark.parametrize("replaceable", [True, False])
def test_a_reference_says_what_a_replaced_record_costs_only_where_it_covers_one(tmp_path, replaceable):
    """Elsewhere the run enters as its pair, once for the record that is removed and once for the one that is added."""
    plan = make_first_plan(StageSpec("n", {"n": 1.0}, 1, max_noise=1e9, share=0.1, noise=20.0), epsilon=1.0, delta=1e-6)
    plan = replace(plan, reference=replace(plan.reference, replaceable=replaceable))
    study = Study(tmp_path / "rows.jsonl", epsilon=9.0, delta=1e-4)
    study.enter("rows", dp_accounting.LaplaceDpEvent(10.0), relation=REPLACE_ONE, pair=(0.1, 0.0))
    total = study.enter("a", plan.event, **study_entry(plan))
    # Two Gaussians and what may fail beside them, each twice as far.
    shift = 2.0 * math.hypot(1.0 / plan.reference.multiplier, 1.0 / plan.stages[0].access.multiplier)
    known = gaussian_epsilon(shift, plan.delta - 2.0 * plan.reference.failure)
    assert total.epsilon == pytest.approx(0.1 + (known if replaceable else 2.0 * plan.epsilon), rel=1e-3)
    assert abs(known - 2.0 * plan.epsilon) > 0.05


def test_pairs_enter_a_study_of_moments_by_randomised_response(study):
    """Its moments are those of a two-by-two table, which is summed here; beside moments a pair costs little more."""
    for epsilon in (0.1, 1.0, 5.0):
        true, false = 1.0 / (1.0 + math.exp(-epsilon)), 1.0 / (1.0 + math.exp(epsilon))
        for order in (2, 5, 32):
            power = true**order * false ** (1 - order) + false**order * true ** (1 - order)
            assert pure_moments(epsilon, [order])[0] == pytest.approx(math.log(power) / (order - 1), rel=1e-9)
    for epsilon in (0.0, 1e-9, 1e-3, 3.0, 800.0):
        assert (pure_moments(epsilon, ORDERS) <= epsilon * (1 + 1e-12)).all()
    before = study.enter("a", GAUSSIAN(1e6)).epsilon
    assert study.enter("b", GAUSSIAN(1.0), pair=(2.0, 1e-7)).epsilon <= 2.0 + before + 0.02


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-9), (0.5, 1e-5), (3.0, 1e-6), (40.0, 1e-3)])
def test_parts_of_delta_add_up_to_the_whole_at_most(epsilon, delta):
    """Orders, failures and pairs are tried out: no more than what orders leave is ever taken."""
    shares = _shares(epsilon, delta)
    assert shares.keys() == set(ORDERS) and all(share > 0.0 for share in shares.values())
    with tempfile.TemporaryDirectory() as folder:
        study = Study(Path(folder) / "s.jsonl", epsilon=epsilon, delta=delta)
        study.enter("a", GAUSSIAN(1e9))
        taken, part = 0.0, delta / 8.001
        for run in range(20):
            with contextlib.suppress(BudgetTooSmall):
                study.enter(f"run {run}", GAUSSIAN(1e9), pair=(0.0, part))
                taken += part
    assert taken > 0.0 and math.fsum(shares.values()) + taken / delta <= 1.0 + 1e-12


@pytest.mark.parametrize("part", [0.3, 0.5])
def test_what_follows_from_results_stays_within_the_total(tmp_path, part):
    """After a Gaussian run a pair or a second Gaussian enters, whichever harms more at the observed loss: the true delta
    at the study's epsilon is an integral. With one account for both ends it was 1.04 times the stated one."""
    epsilon, delta = 3.0, 1e-5

    def fits(*runs):
        study = Study(tmp_path / f"{len(list(tmp_path.glob('*.jsonl')))}.jsonl", epsilon=epsilon, delta=delta)
        try:
            for number, (event, pair) in enumerate(runs):
                study.enter(str(number), event, pair=pair)
        except BudgetTooSmall:
            return False
        return True

    def most(fits, high):
        low = 0.0
        for _ in range(16):
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    whole = most(lambda squared: squared > 0 and fits((GAUSSIAN(squared**-0.5), None)), 2.0)
    first = GAUSSIAN((part * whole) ** -0.5)
    rest = most(lambda squared: squared > 0 and fits((first, None), (GAUSSIAN(squared**-0.5), None)), 2.0)
    failing = most(lambda d: d > 0 and fits((first, None), (first, (0.0, d))), delta)
    assert rest > 0.0 and failing > 0.0
    x = np.linspace(-9.0, 9.0, 6001)
    mu = math.sqrt(part * whole)
    loss, weight = mu * x + mu * mu / 2, norm.pdf(x) * (x[1] - x[0])
    stop = failing + (1 - failing) * np.maximum(0.0, -np.expm1(np.minimum(epsilon - loss, 0.0)))
    left, on = epsilon - loss, math.sqrt(rest)
    go = norm.cdf(on / 2 - left / on) - np.exp(np.minimum(left + norm.logcdf(-on / 2 - left / on), 0.0))
    assert float(weight @ np.maximum(stop, go)) <= delta


@pytest.mark.parametrize(
    ("pair", "relation"),
    [
        ((math.nan, 1e-7), ADD_OR_REMOVE_ONE), ((-5.0, 1e-7), ADD_OR_REMOVE_ONE), ((1.0, -1.0), REPLACE_ONE),
        ((math.inf, 0.0), REPLACE_ONE), ((1.0, math.nan), REPLACE_ONE), ((1.0, 1.0), REPLACE_ONE), ((1.0,), REPLACE_ONE),
        ((1.0, 1e-7), "foo"),
    ],
    ids=str,
)  # fmt: skip
def test_a_pair_or_a_relation_that_is_none_is_refused(study, pair, relation):
    with pytest.raises(ValueError, match="expected"):
        study.enter("a", GAUSSIAN(3.0), relation=relation, pair=pair)
    assert study.total.runs == 0


def test_two_names_of_one_study_are_one(tmp_path):
    """A holder of the file by one name makes a holder by the other wait."""
    (tmp_path / "other").mkdir()
    one = Study(tmp_path / "a.jsonl", epsilon=5.0, delta=1e-6)
    (tmp_path / "other" / "b.jsonl").symlink_to(tmp_path / "a.jsonl")
    two = Study(tmp_path / "other" / "b.jsonl")
    assert Path(one._lock.lock_file) == Path(two._lock.lock_file)
    two.enter("a", GAUSSIAN(3.0))
    assert one.total.runs == 1


def test_a_key_that_could_not_be_written_is_none(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("lightning_dpgen.privacy.durable.os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            fingerprint_key(tmp_path)
    key = fingerprint_key(tmp_path)
    assert len(key) == 32 and fingerprint_key(tmp_path) == key
    (tmp_path / "fingerprint.key").write_text("")
    with pytest.raises(LedgerError, match="only a part of one"):
        fingerprint_key(tmp_path)


def _rdp(event, delta):
    accountant = RdpAccountant(orders=ORDERS)
    accountant.compose(event)
    return accountant.get_epsilon(delta)


def test_what_is_not_private_is_refused(study):
    with pytest.raises(BudgetTooSmall, match="no epsilon holds at that delta"):
        study.enter("twin", dp_accounting.NonPrivateDpEvent())


def _enter(path, number, start):
    start.wait()
    Study(path).enter(f"run {number}", GAUSSIAN(200.0))


def test_ten_at_once_lose_nothing(tmp_path):
    _at_once(tmp_path / "census.jsonl", rounds=1)


@pytest.mark.slow
def test_ten_at_once_lose_nothing_a_hundred_times(tmp_path):
    _at_once(tmp_path / "census.jsonl", rounds=100)


def _at_once(path, rounds):
    Study(path, epsilon=50.0, delta=1e-6)
    context = multiprocessing.get_context("fork")
    for done in range(rounds):
        start = context.Barrier(10)
        processes = [context.Process(target=_enter, args=(path, f"{done}-{i}", start)) for i in range(10)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert all(process.exitcode == 0 for process in processes)
        assert Study(path).total.runs == 10 * (done + 1)


@pytest.mark.parametrize("damage", ["edited", "removed", "empty", "another version"])
def test_a_damaged_study_is_refused_and_left_alone(study, damage):
    for number in range(3):
        study.enter(f"run {number}", GAUSSIAN(9.0))
    lines = study.path.read_bytes().splitlines(keepends=True)
    if damage == "edited":
        lines[2] = lines[2].replace(b"9.0", b"90.")
    elif damage == "removed":
        del lines[2]
    elif damage == "empty":
        lines = []
    else:
        lines = [json.dumps({"study": 99, "check": "x"}).encode() + b"\n"]
    study.path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError):
        Study(study.path)
    with pytest.raises(LedgerError):
        study.enter("more", GAUSSIAN(9.0))
    assert study.path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("lines", [1, 2, 3])
def test_entries_that_are_lost_at_the_end_are_noticed(study, lines):
    """The lines that are left follow from each other, and would let more runs in."""
    for number in range(3):
        study.enter(f"run {number}", GAUSSIAN(9.0))
    whole = study.path.read_bytes().splitlines(keepends=True)
    study.path.write_bytes(b"".join(whole[:-lines]))
    for ask in (lambda: study.total, lambda: study.enter("more", GAUSSIAN(9.0)), lambda: Study(study.path)):
        with pytest.raises(LedgerError, match="missing at its end"):
            ask()
    assert study.path.read_bytes() == b"".join(whole[:-lines])


def test_a_study_that_is_lost_is_not_begun_anew(study):
    study.enter("a", GAUSSIAN(9.0))
    study.path.unlink()
    with pytest.raises(LedgerError, match=r"is missing, and .*heads names lines"):
        Study(study.path, epsilon=5.0, delta=1e-6)


def test_without_its_heads_nobody_can_tell(study):
    Path(f"{study.path}.heads").unlink()
    with pytest.raises(LedgerError, match="heads: is missing"):
        study.enter("a", GAUSSIAN(9.0))


def test_a_whole_last_line_counts_though_its_end_is_missing(study):
    """It is not known whether a run has drawn on it: to count it is safe."""
    study.enter("a", GAUSSIAN(9.0))
    study.path.write_bytes(study.path.read_bytes()[:-1])
    assert study.total.runs == 1 and study.enter("b", GAUSSIAN(9.0)).runs == 2 and Study(study.path).total.runs == 2


def test_a_line_that_a_crash_cut_short_was_never_entered(study):
    for number in range(3):
        study.enter(f"run {number}", GAUSSIAN(9.0))
    study.path.write_bytes(study.path.read_bytes()[:-20])
    # The line was cut while it was written; its head would have been written after it.
    heads = Path(f"{study.path}.heads")
    heads.write_bytes(heads.read_bytes()[:-18])
    assert study.total.runs == 2
    assert study.enter("more", GAUSSIAN(9.0)).runs == 3 and study.total.runs == 3
    assert study.check(GAUSSIAN(9.0)).runs == 4 and study.total.runs == 3


def test_totals_are_declared_first_and_stay(tmp_path, study):
    with pytest.raises(LedgerError, match="give its total"):
        Study(tmp_path / "new.jsonl")
    assert Study(study.path, epsilon=5.0, delta=1e-6).epsilon == 5.0
    with pytest.raises(LedgerError, match="which is fixed"):
        Study(study.path, epsilon=6.0, delta=1e-6)
    with pytest.raises(LedgerError, match="there is no folder"):
        Study(tmp_path / "nowhere" / "x.jsonl", epsilon=1.0, delta=1e-6)
    for wrong in ({"epsilon": 1.0}, {"epsilon": -1.0, "delta": 1e-6}, {"epsilon": 1.0, "delta": 2.0}):
        with pytest.raises(ValueError, match="expected"):
            Study(tmp_path / "new.jsonl", **wrong)
    assert not (tmp_path / "new.jsonl").exists()
