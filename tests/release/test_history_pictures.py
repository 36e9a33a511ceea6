"""Pictures of histories: the private ones beside real histories, and the public ones of synthetic ones alone."""

import base64

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from markupsafe import Markup
from release.released import Page

from lightning_dpgen.data.histories.row_table import PersonRows, RowOrder, RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.histories.values import HistoryValues
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.metrics.evaluation import Evaluation, compute_section
from lightning_dpgen.metrics.history_pictures import group_choices, persons_of, some_rows, steps_of
from lightning_dpgen.metrics.history_sides import HistorySides
from lightning_dpgen.metrics.measure import measures_of
from lightning_dpgen.release.pages import private_plots
from lightning_dpgen.release.pages.distributions import show_histories
from lightning_dpgen.release.pages.private_report import write_private_report

WARD, COST = "ward: {type: category, values: [a, b, <c>]}", "cost: {type: integer, low: 0, high: 99, bins: 20%s}"
ROWS = parse_schema(f"columns: {{{WARD}, {COST % ', missing: true'}}}")
NUMBERS = parse_schema(f"columns: {{{COST % ''}}}")
DAYS = RowOrder.of("day", {"type": "date", "low": "2020-01-01", "high": "2020-04-09", "bins": 5}, {"high": 199, "bins": 4})
VISITS, DRUGS = RowTable("visits", ROWS, 100, DAYS), RowTable("drugs", ROWS, 100)
SCHEMAS = {
    "visits": HistorySchema(None, (VISITS,)),
    "a set": HistorySchema(None, (DRUGS,)),
    "two": HistorySchema(None, (VISITS, DRUGS)),
    "numbers": HistorySchema(None, (RowTable("visits", NUMBERS, 100, DAYS),)),
    "one row": HistorySchema(None, (RowTable("visits", ROWS, 1, DAYS),)),
}


def histories(schema, counts, seed=0):
    """Draw histories of persons with these numbers of rows in each table, by their values."""
    return HistoryValues.of(as_lists(schema, counts, seed), schema)


def as_lists(schema, counts, seed=0):
    """Draw the same, each person with a list of rows for each table."""
    random, parts = np.random.default_rng(seed), []
    for table in schema.tables:
        own = np.minimum(counts, table.max_rows)
        sizes = table.rows.layout.groups
        rows = random.integers(0, sizes, (own.sum(), len(sizes)))
        times = (random.integers(0, 5, len(own)), random.integers(0, 4, own.sum()))
        parts.append(PersonRows(own, *(times if table.order else (None, 0 * times[1])), rows))
    return schema.decode(schema.joined(np.zeros((len(counts), 0), int), parts), random)


def plots_of(schema, real, made):
    return compute_section(measures_of("histories")["rows"], HistorySides(real=real, synthetic=made)).plots


def write_of_histories(path, schema, real, made):
    found = Evaluation("histories", {}, {}, {}, {}, "", {}, plots=plots_of(schema, real, made))
    write_private_report(path, found, title="histories")


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("counts", [[0, 0], [1], [100, 0, 1, 30, 2]], ids=str)
def test_private_pictures_are_made_of_any_histories(name, counts, tmp_path, monkeypatch):
    monkeypatch.setattr(private_plots, "drawn", lambda *_: Markup("<img>"))
    schema, some = SCHEMAS[name], np.array(counts)
    sides = (histories(schema, np.array([3, 0, 1])), histories(schema, some))
    steps = [table for table in schema.tables if table.order is not None and table.max_rows > 1]
    for real, made in (sides, sides[::-1]):
        write_of_histories(tmp_path / "report.html", schema, real, made)
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        page, columns = Page(text), sum(len(table.rows.columns) for table in steps)
        assert page.tags.count("svg") == 2 * len(schema.tables) + 2 * columns and "nan" not in page.text
        # Numbers of rows; and distances and one column's correlations of steps.
        assert page.tags.count("img") == len(schema.tables) + 2 * len(steps)
        assert "<c>" not in text and ("Steps from row to row" in page.text) == bool(steps)


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("counts", [[0, 0], [1], [100, 0, 1, 30, 2]], ids=str)
def test_public_pictures_are_made_of_a_file_of_synthetic_histories(name, counts, tmp_path):
    schema = SCHEMAS[name]
    pq.write_table(pa.Table.from_batches([as_lists(schema, counts)]), tmp_path / "synthetic.parquet")
    shown = show_histories(tmp_path / "synthetic.parquet", schema)
    expected = 0
    for table in schema.tables:
        most = min(max(counts), table.max_rows)
        expected += 1 + (most > 0) + len(table.rows.columns) * (table.order is not None and most > 1)
    assert len(shown.figures) == expected and shown.looked_at == len(counts)
    assert all("<c>" not in figure.chart and "nan" not in Page(figure.chart).text for figure in shown.figures)


def test_numbers_of_rows_and_distances_are_drawn_with_the_names_of_sides():
    schema = SCHEMAS["visits"]
    plots = plots_of(schema, *(histories(schema, np.array([100, 3, 0]), seed) for seed in (0, 1)))
    for plot in plots[:2]:
        picture = getattr(private_plots, plot.draw)(**plot.content)
        drawn = base64.b64decode(picture.partition("base64,")[2].partition('"')[0]).decode()
        assert ">real<" in drawn and ">synthetic<" in drawn and "real and synthetic" in picture


def test_marks_are_the_rows_of_persons_at_their_times():
    first = (np.datetime64("2020-01-01") - np.datetime64("1970-01-01")).astype(int)
    counts, times, wards = np.array([2, 0, 1]), first + np.array([9, 84, 90]), np.array([2, 0, 1])
    sides = [(counts, times, wards), (counts[2:], times[2:], wards[2:])]
    drawn, alone = persons_of(VISITS, ("ward", ["a", "b", "<c>"], 0), sides, 0)
    assert drawn["names"] == ["a", "b", "<c>"] and drawn["ends"] == ("2020-01-10", "2020-03-31") and not drawn["shades"]
    assert [(places.tolist(), groups.tolist()) for places, groups in drawn["persons"]] == [
        ([1.0], [1]), ([0.0, pytest.approx(75 / 81)], [2, 0])
    ]  # fmt: skip
    assert [places.tolist() for places, _ in alone["persons"]] == [[1.0]]


def test_a_dozen_persons_stand_for_all_numbers_of_rows():
    counts = np.random.default_rng(0).permutation(np.repeat([0, 1, 100], [300, 500, 100]))
    assert [len(rows) for rows in some_rows(counts, seed=1)] == [1] * 10 + [100] * 2


def test_steps_are_shares_of_what_comes_next():
    (real, made) = steps_of(
        ["a", "b", "c"], 0, [(np.array([0, 0, 0, 1]), np.array([0, 0, 2, 1])), (np.array([2]), np.array([3]))]
    )
    assert np.array_equal(real["shares"], [[2 / 3, 0, 1 / 3], [0, 1, 0], [np.nan] * 3], equal_nan=True)
    assert real["before"].tolist() == [0.75, 0.25, 0] and np.isnan(made["shares"]).all() and not made["before"].any()


def test_many_choices_are_gathered_by_how_often_they_are():
    names = [f"{low} to {low + 4}" for low in range(0, 100, 5)] + ["missing"]
    groups, texts, in_order = group_choices(np.repeat(np.arange(20), 5), names, ordered=20)
    assert texts[:2] == ["0 to 14", "15 to 29"] and texts[-2:] == ["85 to 99", "missing"] and in_order == 7
    assert groups[20] == 7 and groups[21] == 8
    groups, texts, _ = group_choices(np.array([9, 9, 4]), [str(number) for number in range(900)], ordered=0)
    assert texts == [*"0123459", "other"] and groups[9] == 6 and groups[800] == 7 and groups[900] == 8
