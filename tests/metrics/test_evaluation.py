"""A whole evaluation: of each kind of records, of very few of them, within a time, and of what cannot be compared."""

import functools
import json
import math

import numpy as np
import pytest
from metrics.records import drawn, few_trees
from scipy.stats import binomtest, wasserstein_distance

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics import evaluation, marginals
from lightning_dpgen.metrics.classifiers import TRAINING
from lightning_dpgen.metrics.columns import subsample
from lightning_dpgen.metrics.evaluation import compute_section, evaluate_encoded
from lightning_dpgen.metrics.marginals import TRANSPORT
from lightning_dpgen.metrics.measure import measures_of
from lightning_dpgen.metrics.membership import MEMBERSHIP
from lightning_dpgen.metrics.sides import EncodedSides
from lightning_dpgen.sampling.errors import BadRecords

LAYOUTS = {
    "images": Layout(units=6, levels=255, groups=(3,), label=0),
    "baskets": Layout(units=7, levels=1),
    "series": Layout(units=8, groups=(2,), label=0),
}
WITHOUT_LABEL = {"baskets"}


@pytest.fixture(scope="module", autouse=True)
def _few_trees():
    with few_trees():
        yield


@functools.cache
def evaluated(kind, n, m, held=10, **asked):
    layout, sparse = LAYOUTS[kind], kind == "baskets"
    held_out = None if held is None else drawn(layout, held, 2, sparse)
    real, synthetic = drawn(layout, n, 0, sparse), drawn(layout, m, 1, sparse)
    return evaluate_encoded(real, synthetic, layout, kind=kind, held_out=held_out, **asked)


def section(name, layout, real, synthetic, other, kind="series", **given):
    """Return one section of an evaluation."""
    sides = EncodedSides(kind=kind, layout=layout, real=real, synthetic=synthetic, other=other, held_out=other, **given)
    return compute_section(measures_of(kind)[name], sides)


def numbers(found):
    return [value for scores in (*found.scores.values(), *found.reference.values()) for value in scores.values()]


@pytest.mark.parametrize("kind", ("images", "baskets", "series"))
def test_each_kind_has_scores_and_real_ones_beside_them(kind):
    found = evaluated(kind, 60, 50)
    assert set(found.notes) == {MEMBERSHIP, TRAINING} - (set() if kind in WITHOUT_LABEL else {TRAINING})
    assert "of 10 held-out ones" in found.notes[MEMBERSHIP]
    # In the place of synthetic ones, held-out records are no release to be attacked.
    assert {*found.reference, MEMBERSHIP} == set(found.scores) and len(found.scores) >= 4
    for section, scores in found.reference.items():
        assert list(scores) == list(found.scores[section])
    assert all(math.isfinite(value) and value >= 0.0 for value in numbers(found))
    assert found.rows == {"real": (60, 60), "synthetic": (50, 50), "held out": (10, 10)}
    assert json.loads(json.dumps(found.as_json()))["scores"] == found.scores


def test_the_same_seed_gives_the_same_scores():
    assert evaluated.__wrapped__("series", 60, 50).as_json() == evaluated("series", 60, 50).as_json()


@pytest.mark.parametrize("kind", ("images", "baskets", "series"))
@pytest.mark.parametrize(("n", "m", "held"), [(1, 1, None), (1, 9, 1), (3, 3, None)])
def test_very_few_records_are_compared_as_far_as_they_go(kind, n, m, held):
    found = evaluated(kind, n, m, held)
    assert found.scores and all(math.isfinite(value) for value in numbers(found))


def test_a_third_of_the_real_records_stands_for_held_out_ones():
    found = evaluated("images", 60, 60, None)
    assert found.rows["real"] == (40, 40) and found.rows["held out"] == (20, 20)
    assert "has learned from" in found.held_out
    assert "nothing was learned from" in found.notes[MEMBERSHIP] and MEMBERSHIP not in found.scores


def test_many_records_are_subsampled(monkeypatch):
    monkeypatch.setattr(evaluation, "ROWS", 30)
    found = evaluated("images", 100, 50, 40)
    assert found.rows == {"real": (100, 30), "synthetic": (50, 30), "held out": (40, 30)}


def test_a_copy_of_the_records_differs_in_nothing():
    layout = LAYOUTS["series"]
    real = drawn(layout, 30, 0)
    found = evaluate_encoded(real, real, layout, kind="series", held_out=drawn(layout, 9, 1))
    assert set(found.scores["columns"].values()) == set(found.scores["associations"].values()) == {0.0}
    assert found.scores[TRAINING] == found.reference[TRAINING]


def test_sections_that_would_start_too_late_are_skipped_and_said(monkeypatch):
    ticks = iter([0.0, 1.0, 2.0, 11.0, 12.0, 13.0, 14.0])
    monkeypatch.setattr(evaluation.time, "monotonic", lambda: next(ticks))
    told = []
    found = evaluated("baskets", 20, 20, seconds=10, progress=told.append)
    assert told == list(found.scores) == ["items and baskets", "associations"]
    late = ["counting queries", TRAINING, "telling them apart", MEMBERSHIP]
    assert found.notes == dict.fromkeys(late, "skipped: 10 seconds were over")


def test_baskets_that_are_all_empty_are_compared():
    layout, none = Layout(units=3, levels=1), np.zeros((9, 0), np.uint8)
    empty = Encoded(np.zeros((9, 3), np.uint8), none)
    found = evaluate_encoded(empty, empty, layout, kind="baskets")
    assert "all real baskets are empty" in found.notes["counting queries"]
    assert set(found.scores["items and baskets"].values()) == {0.0}


@pytest.mark.parametrize(("n", "m", "held"), [(400, 400, 400), (400, 150, 90)])
def test_records_are_moved_by_as_much_as_they_were_shifted(n, m, held):
    """Sides of other sizes are cut to the smallest; chance moves 90 records by less than .05 on average."""
    layout, random = Layout(units=3), np.random.default_rng(0)
    no_codes = {count: np.zeros((count, 0), np.uint8) for count in (n, m, held)}
    real, other, aside = (
        Encoded((0.5 * random.random((count, 3))).astype(np.float32), no_codes[count]) for count in (n, m, held)
    )
    shifted = Encoded(other.units + np.array([0.4, 0.0, 0.0], np.float32), other.codes)
    found = section(TRANSPORT, layout, real, shifted, aside)
    assert found.scores["one unit, worst"] == pytest.approx(0.4, abs=0.05)
    assert found.scores["one unit, mean"] == pytest.approx(0.4 / 3, abs=0.05)
    # A random direction meets a shift at half of its length on average.
    assert found.scores["whole records, sliced"] == pytest.approx(0.2, abs=0.04)
    assert max(found.reference.values()) < 0.05


def _attacked(real, synthetic, held_out):
    return section(MEMBERSHIP, ATTACKED, real, synthetic, held_out)


@pytest.mark.parametrize("most", [None, 30])
def test_all_records_are_moved_up_to_a_number(monkeypatch, most):
    """The scores are the distances of all records of both sides, or of exactly so many."""
    if most is not None:
        monkeypatch.setattr(marginals, "MOVED", most)
    layout, count = Layout(units=2), 400
    real, other = (drawn(layout, count, seed) for seed in (0, 1))
    found = section(TRANSPORT, layout, real, other, None).scores
    taken = [subsample(side, most or count, seed).units for seed, side in enumerate((real, other))]
    assert [len(units) for units in taken] == [most or count] * 2
    distances = [wasserstein_distance(*(units[:, unit] for units in taken)) for unit in range(2)]
    assert found["one unit, mean"] == pytest.approx(np.mean(distances), rel=1e-5)
    assert found["one unit, worst"] == pytest.approx(np.max(distances), rel=1e-5)


ATTACKED = Layout(units=0, groups=(9,) * 12)
ATTACKS = ["nearest record", "densities"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_release_that_holds_copies_is_attacked_and_an_independent_one_is_not(attack):
    """The intervals of the independent one miss a half with a chance of 5 %, for this seed they do not."""
    real, held_out, synthetic = (drawn(ATTACKED, 1000, seed) for seed in (0, 2, 1))
    of_copies = _attacked(real, Encoded.joined([synthetic, real]), held_out)
    of_others = _attacked(real, synthetic, held_out)
    accuracy = f"{attack}: accuracy"
    assert of_copies.intervals[accuracy].low > 0.9 and of_copies.scores[f"{attack}: AUC"] > 0.95
    assert of_others.intervals[accuracy].low < 0.5 < of_others.intervals[accuracy].high
    assert of_others.intervals[accuracy].low < of_others.scores[accuracy] < of_others.intervals[accuracy].high


@pytest.mark.parametrize(("real", "held", "tested"), [(400, 300, (300, 150)), (60, 300, (60, 60)), (400, 7, (6,))])
def test_an_attack_is_tested_on_all_held_out_records_that_it_does_not_need(real, held, tested):
    """Half of them are the reference of the ratio of densities; every second of both kinds chooses the threshold."""
    found = _attacked(drawn(ATTACKED, real, 0), drawn(ATTACKED, 200, 1), drawn(ATTACKED, held, 2))
    names = [f"{attack}: accuracy" for attack in ATTACKS[: len(tested)]]
    assert {name: interval.tested for name, interval in found.intervals.items()} == dict(zip(names, tested, strict=True))


def test_intervals_hold_for_all_attacks_together():
    """A part of 2.5 % of each may miss, and a single attack has all of 5 %."""
    together, alone = (
        _attacked(drawn(ATTACKED, 400, 0), drawn(ATTACKED, 200, 1), drawn(ATTACKED, held, 2)) for held in (400, 7)
    )
    for found, confidence in ((together, 0.975), (alone, 0.95)):
        interval, accuracy = found.intervals["nearest record: accuracy"], found.scores["nearest record: accuracy"]
        right = round(accuracy * interval.tested)
        exact = binomtest(right, interval.tested).proportion_ci(confidence, method="exact")
        assert (interval.low, interval.high) == pytest.approx((exact.low, exact.high), abs=1e-6)


def test_records_are_taken_at_random_where_one_kind_has_more():
    """Held-out records that stand first differ from all others: if they stood for all, they would be told apart."""
    codes = drawn(ATTACKED, 2000, 3).codes.copy()
    codes[:60], others = 8, Encoded(np.zeros((2000, 0), np.float32), codes)
    found = _attacked(drawn(ATTACKED, 60, 0), drawn(ATTACKED, 300, 1), others)
    for attack in ATTACKS:
        assert found.intervals[f"{attack}: accuracy"].low < 0.5 and abs(found.scores[f"{attack}: AUC"] - 0.5) < 0.2


BAD = {
    "an unknown kind": ({"kind": "sounds"}, "expected one of baskets, images, series"),
    "too many names": ({"names": ["a", "b"]}, "2 names: expected 1, one for each group"),
    "no time": ({"seconds": 0.0}, "expected a positive number"),
    "time that is no number": ({"seconds": math.nan}, "expected a positive number"),
    "records of no numbers": ({"layout": Layout(units=0)}, "a layout of no numbers"),
    "no real record": ({"real": drawn(LAYOUTS["images"], 0, 0)}, "there is no real record"),
    "no synthetic record": ({"synthetic": drawn(LAYOUTS["images"], 0, 0)}, "there is no synthetic record"),
    "no held-out record": ({"held_out": drawn(LAYOUTS["images"], 0, 0)}, "there is no held out record"),
    "other records": ({"real": drawn(LAYOUTS["series"], 5, 0)}, "expected 6 units"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_compared_is_refused_in_one_line(case):
    layout = LAYOUTS["images"]
    asked, said = BAD[case]
    arguments = {"real": drawn(layout, 5, 0), "synthetic": drawn(layout, 5, 1), "layout": layout, "kind": "images"} | asked
    with pytest.raises(ValueError, match=said) as caught:
        evaluate_encoded(**arguments)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, BadRecords) == (case == "other records")


def test_baskets_are_of_items_that_are_bought_or_not():
    layout = Layout(units=3, levels=4)
    with pytest.raises(ValueError, match="levels=1"):
        evaluate_encoded(drawn(layout, 5, 0), drawn(layout, 5, 0), layout, kind="baskets")
