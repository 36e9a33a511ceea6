"""Columns that tell of the label together are found, bought where there are any, and the same after an interruption."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema_file import parse_schema, schema_of
from lightning_dpgen.measure.crossings import (
    CROSSINGS,
    EFFECT,
    EVIDENCE_STAGE,
    MOST_CHOSEN_CROSSINGS,
    CrossingCounts,
    buys_crossings,
    count_crossings,
    explained_by_chance,
    possible_crossings,
)
from lightning_dpgen.measure.labels import LABELS
from lightning_dpgen.measure.tables import TABLES, TableRecipe
from lightning_dpgen.models.labelled import Crossing
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.calibration import make_plan

N = 3000


def _parity(others, of, seed=0):
    """Return a recipe of columns of which some tell of the label by their parity alone, and records of it."""
    torch.set_num_threads(1)
    names = [f"c{place}" for place in range(others)]
    schema = parse_schema(f"label: y\ncolumns: {{{', '.join(f'{name}: {{type: boolean}}' for name in [*names, 'y'])}}}")
    codes = np.random.default_rng(seed).integers(0, 2, (N, others + 1))
    codes[:, -1] = codes[:, of].sum(axis=1) % 2
    recipe = TableRecipe(schema, 1, N, label_share=0.3, crossed=True)
    return recipe, Records(schema, Encoded(np.zeros((N, 0), np.float32), codes.astype(np.uint8)))


@pytest.mark.parametrize(
    ("others", "of", "stopped"),
    [(5, [0, 2, 3], CROSSINGS), pytest.param(2, [0, 1], EVIDENCE_STAGE, marks=pytest.mark.slow)],
)
def test_a_label_that_columns_tell_together_is_learned(others, of, stopped):
    """A run that stops in between goes on, and where there are no more crossings than are chosen, it buys no choice."""
    recipe, records = _parity(others, of)
    stages = [TABLES, CROSSINGS, EVIDENCE_STAGE, LABELS] if others > 2 else [TABLES, EVIDENCE_STAGE, LABELS]
    assert [workload.stage for workload in recipe.workloads] == stages
    assert sum(workload.share for workload in recipe.workloads) == pytest.approx(1.0)
    account, states = Account(make_plan(recipe.specs(1.0), epsilon=6.0, delta=1e-6)), []

    def stop(state):
        states.append(state)
        if len(state.get(stopped, ())) == (2 if stopped == CROSSINGS else 1):
            raise KeyboardInterrupt

    component = torch.zeros(N, dtype=torch.int64)
    with pytest.raises(KeyboardInterrupt):
        recipe.measure(records, component, account, save=stop)
    mixture = recipe.measure(records, component, account, state=states[-1])
    account.verify_complete()
    found = [crossing.groups for crossing in mixture.network.crossed.crossings]
    assert any({*of} <= {*groups} for groups in found) and len({*found}) == len(found) <= MOST_CHOSEN_CROSSINGS
    made = mixture.sample(4000, torch.Generator().manual_seed(1)).codes
    assert (made[:, -1] == made[:, of].sum(axis=1) % 2).mean() > 0.8
    assert all(recipe.fits(state) for state in states)


@pytest.mark.parametrize("groups", [(2,), (1, 2), (1, 1, 2), (5, 1, 2), (2, 2)])
def test_where_there_is_nothing_to_cross_nothing_is_bought(groups):
    assert not buys_crossings(Layout(0, groups=groups, label=len(groups) - 1), 10**6, 1e9)
    assert not buys_crossings(Layout(0, groups=groups), 10**6, 1e9)


@pytest.mark.parametrize("labels", [2, 14, 300])
def test_the_memory_of_crossings_is_known_and_bounded(labels):
    """Fewer columns are crossed where labels are many, and a GiB holds all counts, which are there five times at once."""
    columns = {f"c{place}": {"type": "integer", "low": 0, "high": 5} for place in range(60)}
    values = [f"v{place}" for place in range(labels)]
    schema = schema_of({"label": "y", "columns": columns | {"y": {"type": "category", "values": values}}}).with_bins(6)
    made = Encoded(np.zeros((6, 0)), np.tile(np.arange(6)[:, None], (1, 61)) % [*[6] * 60, labels])
    crossings = possible_crossings(schema, made)
    held = 5 * 8 * labels * sum(crossing.cells for crossing in crossings)
    recipe = TableRecipe(schema, 1, N, label_share=0.3)
    counted = replace(recipe, crossed=True).fit_bytes - recipe.fit_bytes
    assert len(crossings) == count_crossings(schema.layout) and held <= counted < 2**30


@pytest.mark.parametrize(("n", "labels"), [(500, 2), (500, 60), (20_000, 2), (20_000, 60)])
def test_what_crossings_explain_by_chance_is_known(n, labels):
    """Labels that follow from no column seem to follow from cells, and most where a cell has few records of a label."""
    random = np.random.default_rng(n + labels)
    codes, shares = random.integers(0, 4, (n, 4)), random.dirichlet([1.0] * labels)
    codes[:, 3] = random.choice(labels, n, p=shares)
    records, layout = Encoded(np.zeros((n, 0)), codes), Layout(0, groups=(4, 4, 4, labels), label=3)
    crossing = Crossing((0, 1, 2), (tuple(range(4)),) * 3)
    known = torch.from_numpy(shares).repeat(crossing.cells, 1)
    counts = CrossingCounts(layout, [crossing], [known])
    score = float(counts.scores(counts.sums(records, torch.zeros(n, dtype=torch.int64)))) * counts.unit / n
    expected = explained_by_chance(crossing, records, known, n)
    assert score == pytest.approx(expected, rel=0.15) and (expected > EFFECT) == (labels == 60)
