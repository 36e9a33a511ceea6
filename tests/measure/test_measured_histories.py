"""Histories that are measured: what one person moves, what a fit without noise gives back, and a run end to end."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_dpgen.cli.main import main
from lightning_dpgen.data.histories.schema import HistorySchema, RowOrder
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.measure import history_steps
from lightning_dpgen.measure.histories import STEPS, HistoryRecipe
from lightning_dpgen.measure.history_steps import fit_steps, slow_waves, step_tables
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.models.histories import PersonLevel, StackedHistories, Steps
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import load_release

PERSONS = parse_schema("columns: {sex: {type: category, values: [F, M]}}")
ROWS = parse_schema(
    "columns: {ward: {type: category, values: [a, b, c]}, cost: {type: integer, low: 0, high: 99, bins: 5, missing: true}}"
)
DAYS = RowOrder.of("day", {"type": "integer", "low": 0, "high": 99, "bins": 6}, {"high": 60, "bins": 5})
SCHEMAS = {
    "whole": HistorySchema(PERSONS, ROWS, 5, DAYS),
    "keys": HistorySchema(None, ROWS, 5, DAYS),
    "sets": HistorySchema(PERSONS, ROWS, 5),
    "one row": HistorySchema(PERSONS, ROWS, 1, DAYS),
}


def _panel(schema, n=3000, seed=0):
    """Make histories up whose ward stays with a probability of 0.8, and whose cost moves by one bin at most."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, schema.max_rows + 1, n)
    total = int(counts.sum())
    place = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.stack([random.integers(0, 3, total), random.integers(0, 5, total)], axis=1)
    for number in range(1, schema.max_rows):
        own = np.flatnonzero(place == number)
        rows[own, 0] = np.where(random.random(len(own)) < 0.8, rows[own - 1, 0], rows[own, 0])
        rows[own, 1] = np.clip(rows[own - 1, 1] + random.integers(-1, 2, len(own)), 0, 4)
    attributes = random.integers(0, 2, (n, 1 if schema.persons else 0))
    starts, gaps = random.integers(0, 6, n), random.integers(0, 5, total)
    return schema.joined(attributes, counts, starts if schema.order else None, gaps if schema.order else 0 * gaps, rows)


@pytest.mark.parametrize("name", SCHEMAS)
def test_one_person_moves_no_table_by_more_than_its_bound(name):
    """With any history, however extreme; sums are whole, and do not follow from how histories are divided."""
    schema, recipe = SCHEMAS[name], HistoryRecipe(SCHEMAS[name], 3, 100)
    encoded = _panel(schema, 300)
    extreme = np.concatenate([encoded.codes, np.tile(encoded.codes[:1], (3, 1))])
    for i, choices in enumerate((0, -1, 1), start=len(encoded)):
        history = schema.joined(
            np.zeros((1, schema.attributes), int), np.array([schema.max_rows]), np.array([0]) if schema.order else None,
            np.zeros(schema.max_rows, int), np.full((schema.max_rows, 2), choices % 3),
        )  # fmt: skip
        extreme[i] = history.codes[0]
    encoded = Encoded(np.zeros((len(extreme), 0), np.float32), extreme)
    none, checked = torch.zeros(len(extreme), dtype=torch.int64), 0
    for workload in recipe.workloads:
        for statistic in recipe.statistics(workload.stage, {}).values():
            whole = statistic.sums(encoded, none)
            halves = statistic.sums(encoded[:100], none[:100]) + statistic.sums(encoded[100:], none[100:])
            assert whole.dtype == torch.int64 and torch.equal(whole, halves)
            some = np.array([*range(40), *range(len(extreme) - 3, len(extreme))])
            left = statistic.sums(encoded[some], none[: len(some)])
            for i in some:
                own = statistic.sums(encoded[i : i + 1], none[:1])
                left, moved = left - own, own.double() * statistic.unit
                assert float(moved.norm()) <= statistic.bound * (1.0 + 1e-12)
                checked += 1
            # The part of a person is the same beside others.
            assert not left.any()
    assert checked > 80


def test_a_weight_that_is_too_large_is_found_out(monkeypatch):
    monkeypatch.setattr(history_steps, "_BITS", 22)
    with pytest.raises(AssertionError):
        test_one_person_moves_no_table_by_more_than_its_bound("whole")


def _exact(schema, encoded):
    none = torch.zeros(len(encoded), dtype=torch.int64)
    return {name: Measured(own.sums(encoded, none).double() * own.unit, 0.0) for name, own in step_tables(schema).items()}


def _transitions(schema, encoded, column):
    _, _, codes = Steps(schema).of_histories(encoded)
    size = schema.rows.layout.groups[column]
    table = np.zeros((size, size))
    np.add.at(table, (codes[f"before: column {column}"], codes[f"now: column {column}"]), 1.0)
    return table / table.sum()


@pytest.mark.parametrize("name", ["whole", "keys", "sets"])
def test_a_measured_panel_without_noise_comes_back(name):
    schema, n = SCHEMAS[name], 4000
    encoded = _panel(schema, n)
    recipe = HistoryRecipe(schema, 4, n)
    account = Account(make_plan(recipe.specs(1.0), epsilon=math.inf, delta=1e-5))
    none = torch.zeros(n, dtype=torch.int64)
    kept = []
    mixture = recipe.measure(Records(schema, encoded), none, account, save=kept.append)
    assert account.finished and all(recipe.fits(state) for state in kept) and STEPS in kept[-1]
    drawn = mixture.sample(n, torch.Generator().manual_seed(1))
    for column in range(2):
        own, expected = (_transitions(schema, x, column) for x in (drawn, encoded))
        shuffled = expected.sum(axis=1, keepdims=True) * expected.sum(axis=0)
        assert 0.5 * np.abs(own - expected).sum() < 0.06 < 0.3 < 0.5 * np.abs(shuffled - expected).sum()
    counts = [np.bincount(x.codes[:, schema.attributes], minlength=6) / n for x in (drawn, encoded)]
    assert 0.5 * np.abs(counts[0] - counts[1]).sum() < 0.03
    assert schema.decode(drawn, np.random.default_rng(0)).num_rows == n


def test_with_noise_ordered_columns_have_slow_waves_alone():
    projection = slow_waves(9, 8, 0.1)
    torch.testing.assert_close(projection @ projection, projection)
    assert round(float(projection.trace())) == 3 + 1 and slow_waves(9, 8, 1.0) is None
    # Constants and slopes stay; the last choice is by itself.
    line = torch.cat([torch.arange(8.0), torch.zeros(1)]).double()
    assert float((projection @ line - line).norm()) < 0.1 * float(line.norm())


def test_a_release_is_what_was_fitted(tmp_path):
    schema = SCHEMAS["whole"]
    network = StackedHistories(schema, 2, [-1] * len(PersonLevel(schema).layout.groups))
    generator = torch.Generator().manual_seed(0)
    for tensor in network.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
    network.persons.get_buffer("table_1")[:, 0] = 0.0
    for group in range(2, 5):
        network.persons.get_buffer(f"table_{group}")[:, -1] = 0.0
    mixture = Mixture(network, torch.tensor([0.3, 0.7]))
    write_model(tmp_path, mixture)
    release = load_release(tmp_path)
    assert release.schema == schema
    table = release.drawn_table(50, 3)
    assert table.schema == schema.arrow and table.num_rows == 50
    own, other = (mixture.sample(20, torch.Generator().manual_seed(5)).codes for _ in range(2))
    assert (own == other).all()


def test_tables_of_steps_are_fitted_to_what_they_are(monkeypatch):
    """A network whose tables are zeros makes other tables; after the fit it makes those that were measured."""
    monkeypatch.setattr(history_steps, "_MADE_UP", 3000)
    schema = SCHEMAS["sets"]
    encoded = _panel(schema, 4000)
    recipe = HistoryRecipe(schema, 1, 4000)
    account = Account(make_plan(recipe.specs(1.0), epsilon=math.inf, delta=1e-5))
    mixture = recipe.measure(Records(schema, encoded), torch.zeros(4000, dtype=torch.int64), account)
    network, measured = mixture.network, _exact(schema, encoded)
    for name, tensor in network.state_dict().items():
        if not name.startswith("persons"):
            tensor.zero_()
    before = 0.5 * np.abs(_transitions(schema, mixture.sample(4000, torch.Generator()), 0)
                          - _transitions(schema, encoded, 0)).sum()  # fmt: skip
    fit_steps(network, mixture.weights, measured, seed=0)
    after = 0.5 * np.abs(_transitions(schema, mixture.sample(4000, torch.Generator()), 0)
                         - _transitions(schema, encoded, 0)).sum()  # fmt: skip
    assert after < 0.05 < 0.3 < before


def test_two_files_become_a_release(tmp_path, capsys):
    """From the description of two tables to records whose tables belong together."""
    text = (Path(__file__).parents[1] / "data/visits.yaml").read_text()
    (tmp_path / "visits.yaml").write_text(text)
    random = np.random.default_rng(0)
    sexes, who = random.choice(["F", "M"], 300), random.integers(0, 300, 900)
    patients = pd.DataFrame({"patient": range(300), "sex": sexes, "died": random.random(300) < 0.2})
    days = pd.Timestamp("2020-03-01") + pd.to_timedelta(random.integers(0, 80, 900), "D")
    wards, costs = random.choice(list("abc"), 900), random.integers(0, 99, 900)
    visits = pd.DataFrame({"patient": who, "day": days, "ward": wards, "cost": costs})
    patients.to_csv(tmp_path / "patients.csv", index=False)
    visits.to_csv(tmp_path / "visits.csv", index=False)
    run = tmp_path / "run"
    settings = [f"data.path={tmp_path / 'visits.yaml'}", "data.n=300", "privacy.epsilon=8", "rows=50", "model.components=2"]
    assert main(["train", "data=histories", "model=measured", *settings, f"run_dir={run}"]) == 0
    assert main(["verify", str(run / "release")]) == 0
    certificate = json.loads((run / "release/privacy.json").read_text())
    assert certificate["epsilon"] <= 8.0
    for form in ("persons", "rows"):
        given = ["-n", "40", "--seed", "3", "--form", form, "-o", str(tmp_path / f"{form}.csv")]
        assert main(["sample", str(run / "release"), *given]) == 0
    persons, rows = (pd.read_csv(tmp_path / f"{form}.csv") for form in ("persons", "rows"))
    assert list(persons) == ["patient", "sex", "died"] and persons.patient.tolist() == list(range(1, 41))
    assert list(rows) == ["patient", "day", "ward", "cost"] and set(rows.patient) <= set(persons.patient)
    assert rows.groupby("patient").size().max() <= 4 and rows.groupby("patient").day.is_monotonic_increasing.all()
    capsys.readouterr()
    where = ["-n", "9", "--form", "persons", "-o", str(tmp_path / "w.csv"), "--where"]
    assert main(["sample", str(run / "release"), *where, "sex=F"]) == 0
    assert set(pd.read_csv(tmp_path / "w.csv").sex) == {"F"}
    assert "All rows of a person are one record." in (run / "release/README.md").read_text()


@pytest.mark.parametrize("model", ["vae", "rbm", "wgan", "classifier"])
def test_networks_are_refused_before_a_run(tmp_path, capsys, model):
    text = (Path(__file__).parents[1] / "data/visits.yaml").read_text()
    (tmp_path / "visits.yaml").write_text(text)
    (tmp_path / "visits.csv").write_text("patient,day,ward,cost\n")
    (tmp_path / "patients.csv").write_text("patient,sex,died\n")
    given = ["data=histories", f"data.path={tmp_path / 'visits.yaml'}", "data.n=300", "privacy.epsilon=8", f"model={model}"]
    assert main(["train", *given, f"run_dir={tmp_path / 'run'}"]) == 2
    assert "take model=measured" in capsys.readouterr().err and not (tmp_path / "run").exists()
