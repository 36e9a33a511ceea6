"""Held-out records that are identical to others: counted as plain loops count, and called copies where they are."""

import re

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics.records import dense, drawn, layouts

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics import evaluation
from lightning_dpgen.metrics.evaluation import evaluate_encoded
from lightning_dpgen.metrics.membership import COPIES, MEMBERSHIP, describe_twins


def told(held_out, real, synthetic=None):
    """Return the numbers of the line."""
    line = describe_twins(held_out, real, real[:1] if synthetic is None else synthetic)
    pattern = (
        r"as the model sees records, ([\d,]+) of ([\d,]+) held-out ones \((\S+) %\) are identical to one that "
        r"was learned from; of those learned from (\S+) % are to another; ([\d,]+) held-out ones \((\S+) %\) are to a "
        r"synthetic one; of those learned from (\S+) % are(; .*)?"
    )
    *numbers, warning = re.fullmatch(pattern, line).groups()
    assert warning in (None, f"; {COPIES}")
    return [float(number.replace(",", "")) for number in numbers], warning is not None


def rows(encoded):
    return [tuple(row) for row in np.concatenate([dense(encoded), encoded.codes], axis=1).tolist()]


@settings(max_examples=40, deadline=None)
@given(layouts(), st.integers(1, 30), st.integers(1, 9), st.integers(0, 99))
def test_twins_are_counted_as_by_plain_loops(layout, n, m, seed):
    real, held_out, made = (drawn(layout, count, seed + part) for part, count in enumerate((n, m, n)))
    if layout.levels is None:
        # Readings coincide where they are rounded.
        real, held_out, made = (Encoded(side.units.round(), side.codes) for side in (real, held_out, made))
    found, _ = told(held_out, real, made)
    own, learned, drawn_rows = map(rows, (held_out, real, made))
    among = sum(row in learned for row in own)
    expected = [
        among, m, 100 * among / m, 100 * sum(learned.count(row) > 1 for row in learned) / n,
        sum(row in drawn_rows for row in own), 100 * sum(row in drawn_rows for row in own) / m,
        100 * sum(row in drawn_rows for row in learned) / n,
    ]  # fmt: skip
    assert found == pytest.approx(expected, rel=0.06, abs=0.01)


def test_records_are_the_same_in_any_type_and_order_of_places():
    units = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]], np.uint8)
    none = np.zeros((3, 0), np.uint8)
    sparse = scipy.sparse.csr_array(units)
    untidy = scipy.sparse.csr_array(
        (np.array([1, 1, 0, 1, 1], np.uint8), np.array([2, 0, 1, 2, 1]), np.array([0, 3, 3, 5])), shape=(3, 3)
    )
    assert told(Encoded(untidy, none), Encoded(sparse, none))[0][0] == 3
    wide = Encoded(units.astype(np.int32), none.astype(np.int16))
    assert told(wide, Encoded(units, none))[0][0] == 3
    zeros = Encoded(np.array([[-0.0]], np.float32), none[:1])
    assert told(zeros, Encoded(np.zeros((5, 1)), np.zeros((5, 0), np.uint8)))[0][0] == 1


# Tables in which hardly any, about a half and nearly all records have a twin.
TABLES = {"many values": (100,) * 6, "some values": (6,) * 4, "few values": (3,) * 3}


def some(groups, n, seed):
    return Encoded(
        np.zeros((n, 0), np.uint8), np.random.default_rng(seed).integers(0, groups, (n, len(groups))).astype(np.uint8)
    )


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("held", [4, 30, 300])
def test_records_of_the_same_population_are_no_copies(name, held):
    """By chance one in a thousand is called so at most: of 40, none."""
    for seed in range(40):
        _, warned = told(some(TABLES[name], held, 1000 + seed), some(TABLES[name], 600, seed))
        assert not warned


@pytest.mark.parametrize(("copied", "expected"), [(1.0, True), (0.9, True), (0.65, True), (0.35, False)])
@pytest.mark.parametrize("name", ["many values", "some values"])
def test_copies_are_called_so_where_they_are_most(name, copied, expected):
    """Copies in another order; where nearly all records have a twin anyway, nothing can be told."""
    real = some(TABLES[name], 600, 0)
    count = round(200 * copied)
    held_out = Encoded.joined([real[np.random.default_rng(1).permutation(600)[:count]], some(TABLES[name], 200 - count, 2)])
    found, warned = told(held_out, real)
    assert warned == expected and found[0] >= count


def test_all_records_that_were_learned_from_are_looked_at(monkeypatch):
    """A sample of them would have few of the records of which there are copies."""
    monkeypatch.setattr(evaluation, "ROWS", 60)
    layout = Layout(units=6, levels=255)
    real, synthetic, others = (drawn(layout, n, seed) for seed, n in enumerate((600, 50, 60)))
    for held_out, warned in ((real[300:360], True), (others, False)):
        note = evaluate_encoded(real, synthetic, layout, kind="images", held_out=held_out).notes[MEMBERSHIP]
        assert ("60 of 60 " if warned else " 0 of 60 ") in note and (COPIES in note) == warned
