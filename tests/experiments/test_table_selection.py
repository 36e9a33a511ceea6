"""Selection: distances change by one at most with a record, and the tables that tell are those that are chosen."""

import math

import numpy as np
import pytest
import torch
from contracts.laws import discovery as laws

from experiments.league.table_selection import Distances, SelectedProducts, independent
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema_file import schema_of
from lightning_dpgen.measure.statistics import Marginals
from lightning_dpgen.privacy.access import PURE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import report_noisy_max
from lightning_dpgen.privacy.planning.calibration import make_plan

COLUMNS, TOGETHER = 16, [(0, 1), (2, 3), (4, 5), (6, 7)]
pytestmark = pytest.mark.usefixtures("short_fits")


def some_records(n, label=False, seed=0):
    """Draw columns of three values, four pairs of which hang together."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 3, (n, COLUMNS + label))
    for first, second in TOGETHER:
        same = random.random(n) < 0.6
        codes[same, second] = codes[same, first]
    fields = {f"a{i}": {"type": "category", "values": ["x", "y", "z"]} for i in range(COLUMNS)}
    if label:
        codes[:, -1] %= 2
        fields["l"] = {"type": "boolean"}
    schema = schema_of({"columns": fields, **({"label": "l"} if label else {})}).with_bins(5)
    return Records(schema, Encoded(np.zeros((n, 0), np.float32), codes.astype(np.uint8)))


def chosen(records, epsilon, **settings):
    recipe = SelectedProducts(records.schema, **({"k": 10, "n": len(records), "pairs": 4} | settings))
    account = Account(make_plan(recipe.specs(1.0), epsilon=epsilon, delta=1e-6))
    kept = []
    recipe.measure(records, torch.zeros(len(records), dtype=torch.int64), account, save=kept.append)
    assert account.finished and all(recipe.fits(state) for state in kept)
    label = records.schema.layout.label
    tables = recipe.statistics("tables", kept[-1])["pairs"].tables
    return [tuple(group for group in table if group != label) for table in tables], account, kept


def test_one_record_changes_each_distance_by_one_at_most_and_some_by_one():
    layout, random = Layout(0, groups=(2, 3, 4), label=0), np.random.default_rng(0)
    tables = Marginals(layout, [(0, 1, 2)])
    singles = {group: torch.from_numpy(random.uniform(0, 20, (2, size))) for group, size in ((1, 3), (2, 4))}
    expected = independent(tables, singles, 0, 40.0)
    assert expected[0].shape == (2, 3, 4) and float(expected[0].sum()) == pytest.approx(40.0)
    distances, largest = Distances(tables, expected, [3.0], 1), 0.0
    for n in (0, 1, 40):
        rows = np.stack([random.integers(0, size, n + 1) for size in layout.groups], axis=1)
        encoded = Encoded(np.zeros((n + 1, 0)), rows)
        change = (distances.sums(encoded, None) - distances.sums(encoded[:n], None)) * distances.unit
        largest = max(largest, float(change.abs().max()))
        assert float(change.abs().max()) <= distances.bound + 1e-12
    assert largest > 0.99


@pytest.mark.parametrize("label", [False, True])
@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_the_tables_that_tell_are_chosen(label, epsilon):
    """4 of 120: by chance all four would be found once in eight million."""
    tables, account, _ = chosen(some_records(8000, label), epsilon)
    assert sorted(tables) == TOGETHER
    access = account.plan.stage("choice").access
    assert set(access.kinds.values()) <= {PURE} and len(set(access.multipliers.values())) == 1


def test_distances_from_what_has_another_shape_are_refused():
    tables = Marginals(Layout(0, groups=(2, 3, 4), label=0), [(0, 1, 2)])
    for wrong in (torch.zeros(1000, 2, 3, 4), torch.full((2, 3, 4), torch.nan)):
        with pytest.raises(ValueError, match="expected finite numbers of the tables' "):
            Distances(tables, [wrong], [0.0], 1)
    with pytest.raises(ValueError, match="count=2, 1 allowances: expected an allowance for each of 1 tables"):
        Distances(tables, [torch.zeros(2, 3, 4)], [0.0], 2)


@pytest.mark.parametrize("max_rows", [1, 3])
def test_a_person_costs_a_choice_what_it_is_paid_for_with(max_rows):
    laws.no_person_costs_a_choice_more_than_its_access(max_rows)


def test_the_mechanism_is_told_the_bound_of_a_distance(monkeypatch):
    told = []

    def heard(access, name, multiples, *, unit, sensitivity):
        told.append((unit, sensitivity))
        return report_noisy_max(access, name, multiples, unit=unit, sensitivity=sensitivity)

    monkeypatch.setattr("experiments.league.table_selection.report_noisy_max", heard)
    chosen(some_records(500), 1.0)
    assert told == [(2.0**-10, 1.0)] * 4


def test_noise_decides_where_it_is_all_there_is():
    tables, _, _ = chosen(some_records(400), 0.05)
    assert sorted(tables) != TOGETHER


def test_none_is_chosen_twice_and_all_are_measured_where_all_are_asked_for():
    tables, _, _ = chosen(some_records(500), math.inf, pairs=60)
    assert len(set(tables)) == 60
    _, account, kept = chosen(some_records(500), 1.0, pairs=math.comb(COLUMNS, 2))
    assert set(kept[-1]) == {"tables"} and [stage.name for stage in account.plan.stages] == ["tables"]


def test_a_run_goes_on_after_the_choice():
    records = some_records(3000)
    _, account, kept = chosen(records, 2.0)
    assert [sorted(state) for state in kept] == [["columns"], ["choice", "columns"], ["choice", "columns", "tables"]]
    recipe = SelectedProducts(records.schema, 10, 3000, pairs=4)
    again = recipe.measure(None, None, account, state=kept[-1])
    assert torch.equal(again.network.tilts, recipe.fit(kept[-1]).network.tilts)
    wrong = dict(kept[-1]) | {"choice": kept[-1]["columns"]}
    assert not recipe.fits(wrong)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="pairs=0: expected a whole number, 1 or more"):
        SelectedProducts(some_records(3).schema, 2, 3, pairs=0)
