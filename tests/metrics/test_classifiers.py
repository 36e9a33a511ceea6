"""Classifiers that learn labels, and that tell real from synthetic, where the answer is known."""

import numpy as np
import pytest
import scipy.sparse

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.classifiers import CLASSIFIERS, detection, train_on_synthetic
from lightning_dpgen.metrics.columns import categorical, one_hot, ordinals, varying_units

# A unit and a group that say the label, and one that says nothing.
LAYOUT = Layout(units=2, levels=1, groups=(3, 2, 4), label=1)


def records(n, seed, sparse=False, noise=0.0):
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, n)
    seen = np.where(random.random(n) < noise, random.integers(0, 2, n), label)
    units = np.stack([seen, random.integers(0, 2, n)], axis=1).astype(np.uint8)
    codes = np.stack([2 * seen, label, random.integers(0, 4, n)], axis=1).astype(np.uint8)
    return Encoded(scipy.sparse.csr_array(units) if sparse else units, codes)


@pytest.mark.parametrize("sparse", [False, True])
def test_what_says_the_label_is_learned(sparse):
    found = train_on_synthetic(records(150, 0, sparse), records(100, 1, sparse), LAYOUT)
    for name in CLASSIFIERS:
        assert found[f"{name}, accuracy"] == found[f"{name}, AUC"] == 1.0
    assert found["commonest label, accuracy"] == pytest.approx(0.5, abs=0.2)


def test_the_same_seed_gives_the_same_scores():
    once, again = (train_on_synthetic(records(100, 0, noise=0.5), records(100, 1, noise=0.5), LAYOUT, seed=3) for _ in "ab")
    assert once == again and all(0.0 <= value <= 1.0 for value in once.values())


def test_training_on_one_label_answers_it():
    train = records(60, 0)
    train = train[np.flatnonzero(train.codes[:, 1] == 1)]
    test = records(50, 1)
    found = train_on_synthetic(train, test, LAYOUT)
    share = float((test.codes[:, 1] == 1).mean())
    assert {value for name, value in found.items() if name.endswith("accuracy")} == {share}
    assert {value for name, value in found.items() if name.endswith("AUC")} == {0.5}


def test_tests_of_one_label_have_no_auc():
    test = records(50, 1)
    found = train_on_synthetic(records(60, 0), test[np.flatnonzero(test.codes[:, 1] == 0)], LAYOUT)
    assert [found[f"{name}, accuracy"] for name in CLASSIFIERS] == [1.0] * 3
    assert not any(name.endswith("AUC") for name in found)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_very_few_records(n):
    found = train_on_synthetic(records(n, 0), records(1, 1), LAYOUT)
    assert all(0.0 <= value <= 1.0 for value in found.values())


def test_labels_that_training_lacks_are_not_answered():
    layout = Layout(units=0, groups=(3, 3), label=1)
    codes = np.repeat(np.arange(3, dtype=np.uint8), 30)
    codes = np.stack([codes, codes], axis=1)
    every = Encoded(np.zeros((90, 0), np.uint8), codes)
    found = train_on_synthetic(every[np.arange(0, 90, 1)[codes[:, 1] != 1]], every, layout)
    assert [found[f"{name}, accuracy"] for name in CLASSIFIERS] == pytest.approx([2 / 3] * 3)


def test_a_label_alone_is_guessed():
    layout = Layout(units=0, groups=(2,), label=0)
    side = Encoded(np.zeros((5, 0), np.uint8), np.array([[0], [1], [1], [1], [0]], np.uint8))
    found = train_on_synthetic(side, side, layout)
    assert {value for name, value in found.items() if name.endswith("accuracy")} == {0.6}


def test_what_cannot_be_trained_is_refused():
    side, none = records(5, 0), records(0, 0)
    with pytest.raises(ValueError, match="no label"):
        train_on_synthetic(side, side, Layout(2, 1, (3, 2, 4)))
    for train, test, name in ((none, side, "train"), (side, none, "test")):
        with pytest.raises(ValueError, match=f"{name} holds no record"):
            train_on_synthetic(train, test, LAYOUT)
    with pytest.raises(ValueError, match="nearest"):
        train_on_synthetic(side, side, LAYOUT, classifiers=["nearest"])


def test_records_of_one_law_are_not_told_apart():
    # The AUC of 3,000 a side has a standard deviation of at most 1 / sqrt(6 * 3000) = 0.0075: four of them, so a
    # false alarm in about 1 of 16,000 seeds.
    found = detection(records(3000, 0), records(3000, 1), LAYOUT)
    assert abs(found["AUC"] - 0.5) < 4 * 0.0075


@pytest.mark.parametrize("sparse", [False, True])
def test_detection_where_the_answer_is_known(sparse):
    real = records(300, 0, sparse)
    synthetic = Encoded(real.units, 0 * real.codes)
    # A real record whose codes are all 0 already is not changed.
    unchanged = float((real.codes == 0).all(axis=1).mean())
    assert detection(real, synthetic, LAYOUT)["detected"] >= 1 - 2 * unchanged
    # Copies: each is told to be of the other side, where its twin was; that is no detection.
    assert detection(real, real, LAYOUT)["detected"] == pytest.approx(0.0, abs=0.05)


def test_detection_takes_sides_of_the_same_size_and_few_records():
    found = detection(records(2000, 0), records(3, 1), LAYOUT)
    assert 0.0 <= found["AUC"] <= 1.0 and 0.0 <= found["detected"] <= 1.0
    with pytest.raises(ValueError, match="fewer than 3 synthetic"):
        detection(records(9, 0), records(2, 1), LAYOUT)
    nothing = Encoded(np.zeros((5, 0), np.uint8), np.zeros((5, 0), np.uint8))
    assert detection(nothing, nothing, Layout(0)) == {"AUC": 0.5, "detected": 0.0}


@pytest.mark.parametrize("sparse", [False, True])
def test_features_say_what_the_records_say(sparse):
    side = records(30, 0, sparse)
    units = side.units.toarray() if sparse else side.units
    wide = one_hot(side, LAYOUT, [0, 2])
    wide = wide.toarray() if scipy.sparse.issparse(wide) else wide
    assert (wide[:, :2] == units).all()
    choices = np.stack([wide[:, 2:5].argmax(axis=1), wide[:, 5:].argmax(axis=1)], axis=1)
    assert (choices == side.codes[:, [0, 2]]).all()
    assert (wide[:, 2:].sum(axis=1) == 2).all()
    narrow = ordinals(side, LAYOUT, np.array([1]), [2])
    assert (narrow == np.stack([units[:, 1], units.sum(axis=1), side.codes[:, 2]], axis=1)).all()
    assert categorical(LAYOUT, 3, [2]) == [False, False, True]
    assert varying_units([side], 5).tolist() == [0, 1]
