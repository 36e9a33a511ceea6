"""Mixtures fitted to noisy tables: what they give back without noise, how noise counts, and what they refuse."""

import itertools
import math

import numpy as np
import pytest
import torch

from lightning_dpgen.api import schema_of
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.measure import forest_edges, forest_fit
from lightning_dpgen.measure.tables import TableRecipe
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.release.drawing.draws import block_streams, draw_all
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import load_release

SIZES = {"a": 3, "b": 2, "c": 4, "d": 3}


def schema(label=None):
    columns = {name: {"type": "category", "values": [f"{name}{i}" for i in range(size)]} for name, size in SIZES.items()}
    return schema_of({"columns": columns} | ({} if label is None else {"label": label})).with_bins(5)


def some_records(n, label=None, seed=0):
    """Draw a mixture of three kinds of rows."""
    random = np.random.default_rng(seed)
    kind = random.choice(3, n, p=[0.5, 0.3, 0.2])
    columns = []
    for size in SIZES.values():
        shares = random.dirichlet(np.full(size, 0.3), 3)
        columns.append((shares[kind].cumsum(axis=1) < random.random((n, 1))).sum(axis=1).clip(max=size - 1))
    own = schema(label)
    return Records(own, Encoded(np.zeros((n, 0), np.float32), np.stack(columns, axis=1).astype(np.uint8)))


def measured(records, epsilon, **settings):
    recipe = TableRecipe(records.schema, n=len(records), **({"k": 6} | settings))
    # The noise is always the same, so that what is found is.
    account = Account(make_plan(recipe.specs(1.0), epsilon=epsilon, delta=1e-6), stream=PrivateStream(3))
    component = torch.zeros(len(records), dtype=torch.int64)
    kept = []
    mixture = recipe.measure(records, component, account, save=kept.append)
    assert account.finished and recipe.fits(kept[0])
    return recipe, mixture, kept[0]


def distance(mixture, records, groups):
    """Total variation between a table of the mixture, in expectation, and that of the records."""
    sizes = [records.schema.layout.groups[group] for group in groups]
    made = exact_shares(mixture)
    made = made.sum(axis=tuple(group for group in range(made.ndim) if group not in groups))
    made = np.moveaxis(made, np.argsort(np.argsort(groups)), range(len(groups)))
    cells = np.ravel_multi_index([records.encoded.codes[:, g] for g in groups], sizes)
    real = np.bincount(cells, minlength=made.size).reshape(made.shape) / len(records)
    return 0.5 * np.abs(made - real).sum()


def exact_shares(mixture):
    """Return the probability of every record, by enumeration."""
    network, layout = mixture.network, mixture.network.schema.layout
    every = np.zeros(layout.groups)
    for weight, tilts in zip(mixture.weights.tolist(), network.tilts.double().numpy(), strict=True):
        own = np.full(layout.groups, weight)
        for group, (parent, table) in enumerate(zip(network.parents, network.tables, strict=True)):
            shares = table.double().numpy() * tilts[layout.spans[group]]
            shares /= shares.sum(axis=1, keepdims=True)
            axes = [1] * len(layout.groups)
            axes[group] = layout.groups[group]
            if parent >= 0:
                axes[parent] = layout.groups[parent]
                shares = shares if parent < group else shares.T
            own = own * shares.reshape(axes)
        every += own
    return every


@pytest.mark.parametrize("label", [pytest.param(None, marks=pytest.mark.slow), "b"])
def test_without_noise_the_tables_come_back(label, fits_of):
    fits_of(200)
    records = some_records(20_000, label)
    recipe, mixture, _ = measured(records, math.inf, k=12, by_label=label is not None)
    crossed = 4 + 6 if label is None else 3 + 3
    assert sum(len(tables.tables) for tables in recipe.statistics("tables").values()) == crossed
    for pair in itertools.combinations(range(4), 2):
        assert distance(mixture, records, pair) < 0.01
    if label is not None:
        # Tables by label are three-way.
        assert distance(mixture, records, (0, 1, 2)) < 0.01
    drawn = Records(records.schema, mixture.sample(20_000, torch.Generator().manual_seed(0)))
    assert distance(mixture, drawn, (0, 3)) < 0.02


def test_independent_columns_would_be_noticed(monkeypatch, fits_of):
    """One component has no way to say what goes together without edges."""
    fits_of(50)
    monkeypatch.setattr(forest_edges, "_STRONG", 9.0)
    records = some_records(20_000)
    _, alone, _ = measured(records, math.inf, k=1)
    assert max(distance(alone, records, pair) for pair in itertools.combinations(range(4), 2)) > 0.1


@pytest.mark.slow
def test_noise_is_weighed_and_not_fitted(fits_of):
    """More components than noise lets anybody tell apart do no harm."""
    fits_of(400)
    records = some_records(3000, "b")
    _, mixture, _ = measured(records, 0.5, k=50)
    far = np.mean([distance(mixture, records, pair) for pair in itertools.combinations(range(4), 2)])
    assert far < 0.08
    assert np.mean([distance(mixture, records, (group,)) for group in range(4)]) < 0.04


def test_columns_that_follow_from_each_other_hang_on_trees_and_others_do_not(fits_of):
    """A mixture of few components could not say this: two columns of forty values, each of which follows from the other."""
    fits_of(150)
    random = np.random.default_rng(0)
    a, kind = random.integers(0, 40, 8000), random.permutation(40)
    b = np.where(random.random(8000) < 0.9, kind[a], random.integers(0, 40, 8000))
    codes = np.stack([a, b, *random.integers(0, 6, (3, 8000))], axis=1).astype(np.uint8)
    sizes = {"a": 40, "b": 40, "c": 6, "d": 6, "e": 6}
    columns = {n: {"type": "category", "values": [f"{n}{i}" for i in range(size)]} for n, size in sizes.items()}
    records = Records(schema_of({"columns": columns}), Encoded(np.zeros((8000, 0), np.float32), codes))
    _, mixture, _ = measured(records, 3.0, k=5)
    assert sorted(mixture.network.parents) == [-1, -1, -1, -1, 0] or sorted(mixture.network.parents) == [-1, -1, -1, -1, 1]
    drawn = mixture.sample(8000, torch.Generator().manual_seed(0)).codes
    assert (kind[drawn[:, 0]] == drawn[:, 1]).mean() == pytest.approx((kind[a] == b).mean(), abs=0.05)


def test_more_records_than_noise_hold_components_together(monkeypatch, fits_of):
    """Kinds that chance alone makes are not repeated where hardly any noise hides them: all rows are as likely as any."""
    random = np.random.default_rng(0)
    drawn, every = random.integers(0, 4, (4000, 6)), np.array(list(itertools.product(range(4), repeat=6)))
    # Three columns have a kind in common, so there is something that components tell.
    drawn[:, :3] = np.where(random.random((4000, 3)) < 0.6, random.integers(0, 4, (4000, 1)), drawn[:, :3])
    drawn, every = (Encoded(np.zeros((len(own), 0), np.float32), own.astype(np.uint8)) for own in (drawn, every))
    columns = {name: {"type": "category", "values": [f"{name}{i}" for i in range(4)]} for name in "abcdef"}
    schema, pairs = schema_of({"columns": columns}), [pair for pair in itertools.combinations(range(6), 2) if pair[1] > 2]
    fits_of(200)
    far = {}
    for weights in (forest_fit._TOGETHER, (forest_fit._USUAL, 3.0)):
        monkeypatch.setattr(forest_fit, "_TOGETHER", weights)
        _, mixture, _ = measured(Records(schema, drawn), 16.0, k=30)
        far[len(weights)] = np.mean([distance(mixture, Records(schema, every), pair) for pair in pairs])
    assert far[max(far)] < 0.85 * far[2]


def test_a_fit_is_a_function_of_noisy_numbers_and_the_seed(short_fits):
    records = some_records(500)
    _, mixture, kept = measured(records, 1.0)
    again, other = (
        TableRecipe(records.schema, n=len(records), k=6, seed=seed).measure(None, None, None, state=kept) for seed in (0, 1)
    )
    assert torch.equal(again.network.tilts, mixture.network.tilts) and torch.equal(again.weights, mixture.weights)
    assert not torch.equal(other.network.tilts, mixture.network.tilts)


def test_a_release_is_read_back_as_it_was_written(tmp_path, short_fits):
    _, mixture, _ = measured(some_records(500, "d"), 2.0)
    write_model(tmp_path, mixture)
    # One draw of the noise in fifty makes columns follow from each other, and rows keep to that.
    mine, theirs = draw_all(mixture, 40, *block_streams(5, 0)).encoded, load_release(tmp_path).sample_encoded(40, 5)
    assert np.array_equal(mine.codes, theirs.codes)


def test_a_table_of_one_column_or_of_a_label_alone(short_fits):
    for fields in ({"columns": {"a": {"type": "boolean"}}}, {"columns": {"a": {"type": "boolean"}}, "label": "a"}):
        own = schema_of(fields).with_bins(5)
        codes = np.array([[0], [1], [1], [1]] * 100, np.uint8)
        recipe, mixture, _ = measured(Records(own, Encoded(np.zeros((400, 0), np.float32), codes)), math.inf)
        assert set(recipe.statistics("tables")) == {"singles"}
        assert exact_shares(mixture)[1] == pytest.approx(0.75, abs=0.02)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="records of 4 numbers and 0 choices: expected choices alone"):
        TableRecipe(ImageSchema(2, 2, levels=1), 3, 100)
    with pytest.raises(ValueError, match="by_label=True: expected False where there is no label"):
        TableRecipe(schema(), 3, 100, by_label=True)
    with pytest.raises(ValueError, match="pairs_share=0: expected"):
        TableRecipe(schema(), 3, 100, pairs_share=0)
    for seed in ("x", None, -1, 2**70):
        with pytest.raises(ValueError, match=r"seed=.*: expected a whole number, 0 or more"):
            TableRecipe(schema(), 3, 100, seed=seed)
    for sharpness in ("2", float("nan"), 0.0, -1.0):
        with pytest.raises(ValueError, match=r"label_sharpness=.*: expected a number from 0\.1 to 100"):
            TableRecipe(schema(), 3, 100, label_sharpness=sharpness)


@pytest.mark.filterwarnings("ignore::lightning_dpgen.measure.recipe.MostlyNoise")
@pytest.mark.parametrize("epsilon", [1.5, 4.5, 8.0])
def test_few_records_keep_the_shares_that_are_measured(epsilon):
    """Where noise hides what goes together, components have no way to pull columns from what their counts say."""
    schema = parse_schema(
        "columns: {sex: {type: category, values: [F, M]}, bmi: {type: integer, low: 0, high: 49, bins: 5}, "
        "day: {type: integer, low: 0, high: 99, bins: 17}, ward: {type: category, values: [a, b, c]}}"
    )
    random, n = np.random.default_rng(0), 120
    shares = [np.array([0.45, 0.55]), np.array([0.06, 0.68, 0.22, 0.03, 0.01]), np.full(17, 1 / 17), np.full(3, 1 / 3)]
    codes = np.stack([random.choice(len(own), n, p=own) for own in shares], axis=1)
    recipe = TableRecipe(schema, 10, n)
    account = Account(make_plan(recipe.specs(1.0), epsilon=epsilon, delta=1e-5))
    records = Records(schema, Encoded(np.zeros((n, 0), np.float32), codes))
    state = recipe.measure_state(records, torch.zeros(n, dtype=torch.int64), account)
    drawn = recipe.fit(state).sample(20_000, torch.Generator().manual_seed(1)).codes
    for column, measured in zip(drawn.T, recipe.shares(state), strict=True):
        assert np.abs(np.bincount(column, minlength=len(measured)) / len(drawn) - measured).max() < 0.06


@pytest.mark.parametrize("label", [None, "d"])
def test_the_noise_of_counts_is_what_was_told_before(short_fits, label):
    """A deviation is off by 4.5 of its own errors once in 150,000 draws; one of half the sensitivity is, for pairs."""
    records = some_records(600, label)
    recipe, _, state = measured(records, 3.0, by_label=label is not None)
    told = recipe.errors_of_counts(make_plan(recipe.specs(1.0), epsilon=3.0, delta=1e-6))
    assert all(cells == math.prod(SIZES[name] for name in columns) for columns, cells, _ in told)
    tables, found = recipe._measured(state)
    for name, columns in (("singles", 1), ("pairs", 2)):
        (deviation,) = {deviation for own, _, deviation in told if len(own) == columns}
        noise = found[name].sums - tables[name].sums(records.encoded, torch.zeros(600, dtype=torch.int64))
        together = math.sqrt(1 if label is None else SIZES[label])
        error = 4.5 / math.sqrt(2 * noise.numel())
        assert float(noise.square().mean().sqrt()) * together == pytest.approx(deviation, rel=error)
