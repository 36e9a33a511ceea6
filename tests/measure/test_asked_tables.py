"""Counts that are asked for make the tables of one column and of two more exact, by as much as they say."""

import numpy as np
import pytest
import torch
from marks import only

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema_file import schema_of
from lightning_dpgen.measure.pair_tables import NoisyTables
from lightning_dpgen.measure.tables import TableRecipe
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_plan

SIZES = {0: 3, 1: 4, 2: 2, 3: 5}
SINGLE, PAIR, DRAWS = 3.0, 5.0, 1000


def noisy(random, label=None):
    """Noise alone, of tables of four groups, perhaps by one of them."""
    labels = 1 if label is None else SIZES[label]
    groups = [group for group in SIZES if group != label]
    singles = {group: random.normal(0, SINGLE, (labels, SIZES[group])) for group in groups}
    pairs = {
        (one, other): random.normal(0, PAIR, (labels, SIZES[one], SIZES[other]))
        for one in groups for other in groups if one < other
    }  # fmt: skip
    return NoisyTables(singles, pairs, SINGLE, PAIR, 100.0, label)


@pytest.mark.parametrize("label", [None, 2])
@pytest.mark.parametrize("asked", [(0,), (1, 0), (3, 1, 0), (1, 2), (2, 3, 0)], ids=str)
def test_deviations_are_those_of_the_noise_that_is_left(label, asked):
    """Over 1,000 draws a deviation is off by 4.5 of its own errors once in 150,000 times; there are 60 tables."""
    random = np.random.default_rng(1)
    left: dict = {}
    for _ in range(DRAWS):
        tables = noisy(random, label)
        sharper = tables.sharpened(asked, random.normal(0, 2.0, [SIZES[group] for group in asked]), 2.0)
        for groups in [*((group,) for group in tables.singles), *tables.pairs]:
            table = sharper.singles[groups[0]] if len(groups) == 1 else sharper.pairs[groups]
            before = tables.singles[groups[0]] if len(groups) == 1 else tables.pairs[groups]
            assert (set(groups) <= set(asked)) == (groups in sharper.deviations) == (not np.array_equal(table, before))
            # As large cells as there are draws, one of each table.
            left.setdefault(groups, []).append([table[0].flat[0], sharper.deviation_of(*groups)])
    for groups, found in left.items():
        values, deviations = np.array(found).T
        error = deviations[0] * 4.5 / np.sqrt(2 * len(values))
        assert abs(values.std() - deviations[0]) < error, groups
        assert deviations[0] <= (SINGLE if len(groups) == 1 else PAIR)


def test_two_measurements_count_by_their_inverse_variance():
    tables = noisy(np.random.default_rng(2))
    counts = np.arange(12.0).reshape(4, 3)
    sharper = tables.sharpened((1, 0), counts, 2.0)
    weights = np.array([PAIR**-2, 2.0**-2])
    expected = (weights[0] * tables.pairs[0, 1][0] + weights[1] * counts.T) / weights.sum()
    np.testing.assert_allclose(sharper.pairs[0, 1][0], expected)
    assert sharper.deviation_of(0, 1) == pytest.approx(weights.sum() ** -0.5)
    # Their sums are those of four, or of three, numbers.
    assert sharper.deviation_of(0) == pytest.approx((SINGLE**-2 + (4 * 2.0**2) ** -1) ** -0.5)
    assert sharper.deviation_of(2) == SINGLE and sharper.deviation_of(0, 2) == PAIR


@pytest.mark.slow
def test_what_is_asked_for_is_closer_in_the_model():
    """Two columns that go together among twelve others: their noise is that of one table of 91, or of one that is asked."""
    names = [f"c{i}" for i in range(14)]
    schema = schema_of({"columns": {name: {"type": "category", "values": [*"vwxyz"]} for name in names}})
    random = np.random.default_rng(0)
    codes = random.integers(5, size=(2000, 14)).astype(np.uint8)
    codes[:, 1] = np.where(random.random(2000) < 0.5, (codes[:, 0] * 2) % 5, codes[:, 1])
    records = Records(schema, Encoded(np.zeros((2000, 0), np.float32), codes))
    real = np.bincount(codes[:, 0] * 5 + codes[:, 1], minlength=25).reshape(5, 5) / 2000

    def distance(asked, seed):
        recipe = TableRecipe(schema, 2, 2000, asked=asked)
        account = Account(make_plan(recipe.specs(1.0), epsilon=0.3, delta=1e-6), stream=PrivateStream(seed))
        mixture = recipe.measure(records, torch.zeros(2000, dtype=torch.int64), account)
        rows = mixture.sample(20_000, torch.Generator().manual_seed(0)).codes.astype(int)
        made = np.bincount(rows[:, 0] * 5 + rows[:, 1], minlength=25).reshape(5, 5) / len(rows)
        return 0.5 * np.abs(made - real).sum()

    with pytest.warns(UserWarning):
        found = {asked: np.mean([distance(asked, seed) for seed in (1, 2)]) for asked in ((), ((0, 1),))}
    assert found[((0, 1),)] < 0.7 * found[()], found


@pytest.mark.parametrize(
    "asked, least, most", only({"asked": (((4, 1, 0, 2),), 0.9, 1.0), "not asked": ((), 0.0, 0.6)}, "asked")
)
def test_records_have_what_only_the_columns_of_a_list_tell_together(asked, least, most):
    """A column that follows from three others, of which no two tell of it: the parity of coins."""
    torch.set_num_threads(1)
    schema = schema_of({"columns": {f"c{i}": {"type": "boolean"} for i in range(5)}})
    codes = np.random.default_rng(0).integers(2, size=(5000, 5)).astype(np.uint8)
    codes[:, 4] = codes[:, 0] ^ codes[:, 1] ^ codes[:, 2]
    recipe = TableRecipe(schema, 20, 5000, asked=asked)
    account = Account(make_plan(recipe.specs(1.0), epsilon=2.0, delta=1e-6), stream=PrivateStream(0))
    records = Records(schema, Encoded(np.zeros((5000, 0), np.float32), codes))
    mixture = recipe.measure(records, torch.zeros(5000, dtype=torch.int64), account)
    rows = mixture.sample(10_000, torch.Generator().manual_seed(0)).codes
    assert least < np.mean(rows[:, 4] == rows[:, 0] ^ rows[:, 1] ^ rows[:, 2]) < most
    assert (recipe.crossings_line is None) == bool(asked)
