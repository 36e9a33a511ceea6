"""Rules are a part of the model: hardly any row is left out, none breaks one, and shares are those of the records."""

import itertools

import numpy as np
import pytest
import torch
from data.constraint_kinds import KINDS, rows_that_keep, schema_of

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.measure import first_draw, forest_edges, forest_errors, tables
from lightning_dpgen.measure.first_draw import look_at_first_draw
from lightning_dpgen.measure.tables import TableRecipe
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.models.forests import StackedForests
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.drawing.release import Release

N, NOISE = 10_000, 5.0
QUICK = [
    ["r is missing if and only if t = u", "a <= b", "d = a + b"],
    ["d = a * b - b / 2"],
    KINDS["mapping"],
]
SETS = [[text] for text in itertools.chain(*KINDS.values()) if [text] not in QUICK] + [
    ["b is missing if and only if c = -1", "r > 2 if t = v", "a = 3 if s = x"]
]
ALL = [*QUICK, *(pytest.param(texts, marks=pytest.mark.slow) for texts in SETS)]


def records_of(schema, seed):
    """Draw rows that keep the constraints, some of which are far more likely than others."""
    random, rows = np.random.default_rng(seed), rows_that_keep(schema)
    likely = np.ones(len(rows))
    for group, size in enumerate(schema.layout.groups):
        likely *= (0.1 + random.dirichlet(np.ones(size)))[rows[:, group]]
    codes = rows[random.choice(len(rows), N, p=likely / likely.sum())]
    return Encoded(np.zeros((N, 0), np.float32), codes.astype(np.uint8))


def fitted(schema, encoded):
    recipe = TableRecipe(schema, 16, N)
    generator, found = torch.Generator().manual_seed(1), {}
    for name, statistic in recipe.tables.items():
        sums = statistic.sums(encoded, torch.zeros(N, dtype=torch.int64))
        noise = torch.randn(sums.shape, dtype=torch.float64, generator=generator)
        found[name] = Measured(sums + NOISE * noise, NOISE)
    return recipe.fit({"tables": [found]})


@pytest.mark.parametrize("constraints", ALL, ids=str)
def test_no_kind_of_rule_moves_a_share(constraints, fits_of, monkeypatch):
    """Whatever the columns: plain, missing, relative to another one, computed, with special values.

    Shares differ by chance and noise alone: 5 deviations each, a false alarm in 10,000 of such seeds.
    """
    torch.set_num_threads(1)
    fits_of(150)
    monkeypatch.setattr(first_draw, "_MADE_UP", 10_000)
    schema = schema_of(constraints)
    encoded = records_of(schema, 0)
    mixture = fitted(schema, encoded)
    first = look_at_first_draw(mixture)
    assert first.kept >= 0.95 and first.warning is None
    drawn = Release(mixture).sample_encoded(N, 1)
    rows = {tuple(row) for row in rows_that_keep(schema).tolist()}
    assert {tuple(row) for row in drawn.codes.tolist()} <= rows
    for group, size in enumerate(schema.layout.groups):
        shares = [np.bincount(part.codes[:, group], minlength=size) / N for part in (drawn, encoded)]
        assert np.abs(shares[0] - shares[1]).max() < 5 * np.sqrt(0.25 / N) + 5 * NOISE / N, list(schema.choices)[group]


def test_values_that_are_drawn_again_are_no_part_of_the_first_draw():
    """Two numbers of the same ten break an order in 45 of 100 draws, and in 25 once those of a bin are drawn again."""
    column = "{type: integer, low: 0, high: 9, bins: 2}"
    schema = parse_schema(f"{{columns: {{a: {column}, b: {column}, c: {{type: boolean}}}}, constraints: [a <= b]}}")
    first = look_at_first_draw(Mixture(StackedForests(schema, 1, [-1, -1, -1]), torch.ones(1)))
    # A false alarm in 1,000,000.
    assert abs(first.at_once - 0.55) < 5 * np.sqrt(0.25 / 10_000) and abs(first.kept - 0.75) < 5 * np.sqrt(0.25 / 10_000)
    assert f"{100 * first.at_once:.1f}%" in first.said and f"{100 * first.kept:.1f}% with values drawn again" in first.said


def test_what_no_model_of_pairs_keeps_is_warned_of():
    """Rows of independent columns break an order in nearly half of all draws; the message names it and what to do."""
    columns = "a: {type: integer, low: 0, high: 9, bins: 10}, b: {type: integer, low: 0, high: 9, bins: 10}"
    schema = parse_schema(f"{{columns: {{{columns}, c: {{type: boolean}}}}, constraints: [a <= b, b >= 1 if c = true]}}")
    first = look_at_first_draw(Mixture(StackedForests(schema, 1, [-1, -1, -1]), torch.ones(1)))
    kept = sum(1 + (b > 0) for a in range(10) for b in range(a, 10)) / 200
    # Rows are drawn evenly: a false alarm in 1,000,000.
    assert abs(first.kept - kept) < 5 * np.sqrt(0.25 / 10_000)
    # Each value has a bin of its own, so none within it is drawn again.
    assert first.at_once == first.kept
    assert "a <= b leaves out most" in first.warning and f"{100 * first.kept:.1f}%" in first.said
    assert (
        look_at_first_draw(Mixture(StackedForests(schema.with_values(constraints=()), 1, [-1] * 3), torch.ones(1))) is None
    )


def test_putting_shares_right_never_leaves_many_more_rows_out(fits_of, monkeypatch):
    """Where no edge holds a rule, what it leaves out most would become ever more likely: 48 % were kept of such a table."""
    torch.set_num_threads(1)
    fits_of(40)
    monkeypatch.setattr(forest_edges, "_MOST_GROUPS", 1)
    monkeypatch.setattr(forest_errors, "_IMPOSSIBLE", 0.0)
    monkeypatch.setattr(first_draw, "_MADE_UP", 5000)
    schema, put_right = schema_of(["b is missing if and only if c = -1"]), tables.put_shares_right
    encoded, kept = records_of(schema, 0), []
    for put in (lambda *_: None, put_right):
        monkeypatch.setattr(tables, "put_shares_right", put)
        kept.append(look_at_first_draw(fitted(schema, encoded)).kept)
    assert kept[0] < 0.99 and kept[1] > kept[0] - 0.05


def test_few_records_that_rules_bind_keep_their_share_where_no_edge_holds_them(fits_of, monkeypatch):
    """Four columns are missing together in 12 of 1,000 records: these begin with a component of their own.

    Without it nearly all of them break a rule, are left out and get lost. Chance and noise of a share are .0012.
    """
    torch.set_num_threads(1)
    fits_of(60)
    monkeypatch.setattr(forest_edges, "_MOST_GROUPS", 1)
    monkeypatch.setattr(first_draw, "_MADE_UP", 5000)
    names, random = "abcd", np.random.default_rng(0)
    columns = ", ".join(f"{name}: {{type: integer, low: 0, high: 4, bins: 5, missing: true}}" for name in names)
    rules = ", ".join(f"{other} is missing if and only if {name} is missing" for name, other in itertools.pairwise(names))
    schema = parse_schema(f"{{columns: {{{columns}}}, constraints: [{rules}]}}")
    codes = random.integers(0, 5, (N, 4))
    codes[random.random(N) < 0.012] = 5
    encoded = Encoded(np.zeros((N, 0), np.float32), codes.astype(np.uint8))
    shares, kept = [], []
    for lost in (forest_edges._LOST, 1.0):
        monkeypatch.setattr(forest_edges, "_LOST", lost)
        mixture = fitted(schema, encoded)
        kept.append(look_at_first_draw(mixture).kept)
        shares.append((Release(mixture).sample_encoded(N, 1).codes[:, 0] == 5).mean())
    assert kept[0] > 0.995 and abs(shares[0] - (codes[:, 0] == 5).mean()) < 0.004
    assert shares[1] < 0.004


def test_putting_shares_right_learns_no_chance(monkeypatch):
    """A model whose shares are right stays as it is: made-up rows differ from them by chance alone.

    One of some 30 shares is 4 deviations away in one of 500 such seeds.
    """
    monkeypatch.setattr(first_draw, "_MADE_UP", 2000)
    monkeypatch.setattr(first_draw, "draw_kept_values", lambda _, encoded, random: (None, np.ones(len(encoded), bool)))
    schema = schema_of(["b is missing if and only if c = -1"])
    network, shares = StackedForests(schema, 1, [-1] * len(schema.layout.groups)), []
    for group, table in enumerate(network.tables):
        shares.append(np.bincount(records_of(schema, 0).codes[:, group], minlength=schema.layout.groups[group]) / N)
        table.copy_(torch.from_numpy(shares[group]))
    before = {name: own.clone() for name, own in network.state_dict().items()}
    first_draw.put_shares_right(Mixture(network, torch.ones(1)), shares)
    assert all(torch.allclose(own, before[name], atol=1e-6) for name, own in network.state_dict().items())
    # Others are put right.
    for table in network.tables:
        table.copy_(torch.full_like(table, 1.0 / table.shape[1]))
    first_draw.put_shares_right(Mixture(network, torch.ones(1)), shares)
    for table, own in zip(network.tables, shares, strict=True):
        assert np.abs(table[0].numpy() - own).max() < 0.05
