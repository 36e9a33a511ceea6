"""The public figure: what it measures without noise, and what one record can change of what is noised."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from contracts.door import overspent
from metrics.test_table_evaluation import SCHEMA as TABLE
from metrics.test_table_evaluation import frame, values
from slices import Slices

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics import fidelity
from lightning_dpgen.metrics.classifiers import label_classifier, train_on_synthetic
from lightning_dpgen.metrics.fidelity import fidelity_stage, measure_fidelity, measure_table_fidelity
from lightning_dpgen.metrics.summaries import quantile_bins
from lightning_dpgen.passes.reduce import InBlocks
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import Plan, Stage

LAYOUT = Layout(units=0, groups=(3, 2), label=1, norm=2**0.5)
SCHEMA = SimpleNamespace(layout=LAYOUT)


def _records(codes):
    return Records(SCHEMA, Encoded(np.zeros((len(codes), 0), np.float32), np.array(codes, np.uint8).reshape(-1, 2)))


def _account(multiplier, max_rows=1):
    spec = fidelity_stage(LAYOUT, 100, 0.1)
    return Account(Plan((Stage(spec.access(multiplier), 1, 0.1),), 1.0, 1e-5, max_rows=max_rows))


def test_without_noise_it_is_the_distance_and_the_accuracy():
    real = _records([[0, 0]] * 50 + [[2, 1]] * 50)
    synthetic = _records([[0, 0]] * 60 + [[2, 1]] * 40).encoded
    found = measure_fidelity(_account(0.0), real, synthetic, radius=2**0.5)
    assert found["distance of a column, mean"] == pytest.approx(0.1, abs=1e-4)
    assert found["accuracy on real records, trained on synthetic"] == 1.0
    assert found["distance of a column that noise alone makes"] == 0.0


@pytest.mark.parametrize("levels", [255, 1000, None])
@pytest.mark.parametrize("choices", [2, 3])
def test_labels_are_told_as_by_a_logistic_regression(levels, choices):
    """But for a record that lies at the border of two labels."""
    random, layout = np.random.default_rng(0), Layout(units=12, groups=(4, choices), levels=levels, label=1)
    labels = random.integers(0, choices, 600)
    units = np.clip(0.2 * labels[:, None] + random.random((600, 12)), 0.0, 1.0)
    kind = np.float32 if levels is None else np.uint8 if levels < 256 else np.int32
    units = (units if levels is None else np.rint(levels * units)).astype(kind)
    codes = np.stack([random.integers(0, 4, 600), labels], axis=1).astype(np.uint8)
    synthetic, real = Encoded(units[:200], codes[:200]), Encoded(units[200:], codes[200:])
    asked = train_on_synthetic(synthetic, real, layout, classifiers=["logistic regression"])
    right = fidelity._right_answers(
        Records(SimpleNamespace(layout=layout), real), label_classifier(synthetic, layout), layout
    )
    assert 200 < float(right) < 400
    assert abs(float(right) - 400 * asked["logistic regression, accuracy"]) < 1.5


def test_a_record_costs_what_the_access_pays():
    """All of it, where its numbers are as long as the radius and its label is told: less noise would not do."""
    synthetic = _records([[0, 0]] * 6 + [[2, 1]] * 4).encoded

    def run(codes):
        return measure_fidelity(_account(3.0), _records(codes), synthetic, radius=1.0)

    first = [[0, 0], [1, 1], [2, 1]]
    (spent,) = overspent(run, first, [*first, [2, 1]])
    assert 0.999 < spent <= 1.0 + 1e-9


def test_nothing_is_spent_before_all_that_takes_long_is_done(monkeypatch):
    account = _account(2.0)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fidelity, "_right_answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure_fidelity(account, _records([[0, 0]]), _records([[1, 0]]).encoded, radius=1.0)
    assert not account.ledger.accesses


def test_noise_of_a_person_is_said():
    noise = []
    for max_rows in (1, 4):
        account = _account(2.0, max_rows)
        figure = measure_fidelity(account, _records([[0, 0]] * 9000), _records([[0, 0]]).encoded, radius=1.0)
        noise.append(figure["standard deviation of that accuracy by noise"])
    assert noise[1] == pytest.approx(4 * noise[0], rel=0.05)


def test_no_record_and_no_label():
    assert set(fidelity_stage(Layout(units=3), 10, 0.1).noise_shares) == {"records", "means"}
    figure = measure_fidelity(_account(2.0), _records([]), _records([[1, 0]]).encoded, radius=1.0)
    assert all(torch.isfinite(torch.tensor(list(figure.values()))))


DISTANCE, ACCURACY = "distance of a column, mean", "accuracy on real records, trained on synthetic"


def _by_values(values):
    """Return records of a table of which only the values are looked at."""
    layout, n = values.schema.layout, len(values)
    encoded = Encoded(np.zeros((n, layout.units), np.float32), np.zeros((n, len(layout.groups)), np.uint8))
    return Records(values.schema, encoded, values=values)


def _table_figure(real, synthetic, multiplier=0.0, rows=None):
    spec = fidelity_stage(TABLE.layout, 100, 0.1)
    account = Account(Plan((Stage(spec.access(multiplier), 1, 0.1),), 1.0, 1e-5))
    records = _by_values(values(real))
    records = records if rows is None else InBlocks(Slices(records, rows))
    return measure_table_fidelity(account, records, values(synthetic))


def test_a_table_is_measured_by_values_and_not_by_the_bins_of_the_model():
    """Only within the first of 29 bins are the numbers others, so the model's own bins see no difference."""
    real, random = frame(1000, 0), np.random.default_rng(1)
    poor = real.assign(previous=np.where(real["previous"] < 10, random.integers(0, 10, 1000), real["previous"]))
    codes = [TABLE.encode(pa.RecordBatch.from_pandas(part)).codes for part in (real, poor)]
    assert np.array_equal(*codes)
    same, found = _table_figure(real, real), _table_figure(real, poor)
    assert same[DISTANCE] < 1e-5 and found[DISTANCE] > 0.12 and 0.6 < found[ACCURACY] <= 1.0


@pytest.mark.parametrize("rows", [1, 7, 500])
def test_blocks_give_the_figure_of_all_records(rows):
    assert _table_figure(frame(200, 0), frame(200, 1), rows=rows) == _table_figure(frame(200, 0), frame(200, 1))


def test_blocks_of_another_unit_are_refused():
    account, codes = _account(2.0), [[0, 0], [2, 1]]
    layout = Layout(units=1, groups=(3, 2), levels=5, label=1, norm=3**0.5)

    def records(kind):
        return Records(SimpleNamespace(layout=layout), Encoded(np.ones((2, 1), kind), np.array(codes, np.uint8)))

    with pytest.raises(ValueError, match="as of all others"):
        measure_fidelity(account, InBlocks(Slices(records(np.uint8), 1)), records(np.int32).encoded, radius=1.0)
    assert not account.ledger.accesses


@pytest.mark.parametrize("added", [0, 1, 2])
def test_a_row_costs_what_the_access_pays_wherever_its_values_lie(added):
    """A value at either bound, or missing, costs no more than any other, and moves no bin."""
    rows = {"age": [18, 95, 50], "previous": [300, 0, 7], "pay": [np.nan, -999.0, 1000.0]}
    rows |= {"job": ["c", None, "a"], "y": ["no", "yes", "yes"]}
    one = pd.DataFrame(rows).iloc[[added]]
    synthetic = frame(60, 1)

    def run(real):
        return _table_figure(real, synthetic, 3.0)

    first = frame(40, 0)
    (spent,) = overspent(run, first, pd.concat([first, one], ignore_index=True))
    assert 0.999 < spent <= 1.0 + 1e-9


def test_bins_of_real_records_would_be_noticed(monkeypatch):
    """One more row moves their quantiles, and with them many others."""
    real = frame(40, 0)
    monkeypatch.setattr(fidelity, "quantile_bins", lambda _: quantile_bins(values(seen[-1])))
    seen = []

    def run(records):
        seen.append(records)
        return _table_figure(records, frame(60, 1), 3.0)

    (spent,) = overspent(run, real, pd.concat([real, real[:1]], ignore_index=True))
    assert spent > 1.5


def test_a_label_of_whole_numbers_keeps_a_choice_for_each():
    schema = parse_schema("{label: a, columns: {a: {type: integer, low: 0, high: 30, bins: 31}, b: {type: boolean}}}")
    labels = np.arange(62.0)[:, None] % 31
    both = TableValues(schema, labels, np.zeros((62, 1), int))
    spec = fidelity_stage(schema.layout, 100, 0.1)
    figure = measure_table_fidelity(Account(Plan((Stage(spec.access(0.0), 1, 0.1),), 1.0, 1e-5)), _by_values(both), both)
    assert figure[ACCURACY] == pytest.approx(1 / 31, abs=1e-4)
