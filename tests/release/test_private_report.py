"""The private report: one page of its own, said to be private, of each kind of records and with any names."""

import html
import re

import numpy as np
import pandas as pd
import pytest
import torch
from marks import but
from markupsafe import Markup
from matplotlib.figure import Figure
from metrics.records import drawn, few_trees
from metrics.test_evaluation import LAYOUTS, evaluated
from metrics.test_table_evaluation import evaluated as evaluated_table

from lightning_dpgen.data.layout import Layout
from lightning_dpgen.data.tables.schema_file import schema_of
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.evaluation import Evaluation, evaluate_encoded, evaluate_table
from lightning_dpgen.metrics.measure import Interval, Listing, Plot, Result, register
from lightning_dpgen.metrics.membership import MEMBERSHIP
from lightning_dpgen.metrics.summaries import Summary
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.release.against_real import evaluate, write_evaluation
from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.release.pages import private_plots, private_report
from lightning_dpgen.release.pages.private_report import write_private_report


@pytest.fixture(scope="module", autouse=True)
def _few_trees():
    with few_trees():
        yield


def page_of(tmp_path, found, **asked):
    path = tmp_path / "report.html"
    write_private_report(path, found, **({"title": "some records"} | asked))
    return path.read_text(encoding="utf-8")


def check_page(page):
    assert page.index("PRIVATE") < page.index("<main>") and "do not publish" in page
    assert "<script" not in page and not re.search(r"(src|href)=\"(?!data:)", page) and "url(" not in page
    assert page.count("<section") == page.count("</section>") and page.count("<figure") == page.count("</figure>")


@pytest.fixture
def undrawn(monkeypatch):
    """Draw no plot, for tests of what is written beside them."""
    monkeypatch.setattr(private_plots, "drawn", lambda *_: Markup("<img>"))


def _interval(found, section, name):
    return found.intervals.get(section, {}).get(name)


@pytest.mark.parametrize("kind", but(("images", "baskets", "series"), "series"))
@pytest.mark.parametrize(("n", "m"), [(60, 50), pytest.param(1, 1, marks=pytest.mark.slow)])
def test_each_kind_has_its_page(tmp_path, kind, n, m):
    found = evaluated(kind, n, m, **({"shape": (2, 3)} if kind == "images" else {}))
    page = page_of(tmp_path, found, facts={"epsilon": 1.5})
    check_page(page)
    assert "epsilon 1.5" in page
    for section, scores in found.scores.items():
        for name in scores:
            tested = f", {interval.tested} records tested" if (interval := _interval(found, section, name)) else ""
            assert f"<td>{name.replace(chr(39), '&#39;')}{tested}</td>" in page
    titles = {"images": "Pictures", "table": "Columns", "baskets": "Items and baskets", "series": "Curves"}
    assert f"<h2>{titles[kind]}</h2>" in page


@register(
    "numbers", section="peaks", place=1, better="lower", says="Difference of the largest numbers.",
    glance={"peaks, difference": "difference of peaks"},
)  # fmt: skip
def compare_peaks(sides):
    """Compare the largest numbers of records, in a kind of this test alone."""
    real, *others = (sides.readings(side).max(axis=1) for side in (sides.real, *sides.compared))
    drawn = {"real": real, "synthetic": others[0], "alt": "peaks", "along": "record", "up": "peak"}
    found = ({"peaks, difference": abs(float(peaks.mean() - real.mean()))} for peaks in others)
    return Result(*found, plots=[Plot("Peaks", "By record", "lines", drawn)], remarks={"peaks": ["all are there"]})


def test_a_measure_is_one_function_that_says_all_that_is_told(tmp_path):
    """A measure of a new kind of records has scores, a picture, words and a place at the head of the page."""
    layout = LAYOUTS["series"]
    found = evaluate_encoded(*(drawn(layout, 40, seed) for seed in (0, 1)), layout, kind="numbers")
    assert next(iter(found.scores)) == "peaks" and found.reference["peaks"].keys() == found.scores["peaks"].keys()
    page = page_of(tmp_path, found)
    check_page(page)
    glance, rest = page.partition("At a glance")[2].split("</section>", 1)
    assert "difference of peaks" in glance and "<b>Peaks:</b> all are there." in glance
    assert "<h2>Peaks</h2>" in rest and "<span>Difference of the largest numbers. Lower is better.</span>" in rest


def test_a_table_has_its_page(tmp_path, undrawn):
    found = evaluated_table(240, 120, 120)
    page = page_of(tmp_path, found)
    check_page(page)
    assert all(f"<td>{html.escape(name)}</td>" in page for name in found.scores["columns"])
    glance = page.partition("At a glance")[2].partition("</section>")[0]
    quality = found.scores["quality"]["quality, 1 less the mean of its parts"]
    assert glance.index(f"{quality:.3f}") < glance.index("quality: 1 would be equal")
    name, distance = found.worst_column
    assert (
        distance == max(found.scores["columns"]["one column, worst"], 0) and f"worst column, {html.escape(name)}<" in glance
    )
    assert "no evidence of privacy" in page and found.held_out in page and all(f"<b>{name}</b>" in page for name in NAMES)


def test_numbers_are_summed_up_on_the_page_and_dates_out_of_order_told(tmp_path):
    summaries = [
        Summary("<b>cost</b>", (1134, 2104, 1, 2, 195, 8030, 9000, 9999), (4415, 49580, 2, 3, 151, 17201, 2e4, 3e4))
    ]
    summaries += [Summary("day", ("2021-01-01", "9.5 days", *["2020-01-01"] * 3, *["2022-01-01"] * 3), ()), None]
    columns = [
        {"name": summary.name if summary else "c", "column": place, "distance": 0.5 - place / 9,
         "choices": ["a"], "real": np.ones(1), "synthetic": np.ones(1), "summary": summary}
        for place, summary in enumerate(summaries)
    ]  # fmt: skip
    remarks = {"order of dates": ["a is after b in 42% of the rows"], "rules": ["a <= b is broken"]}
    listing = Listing("worst of <all>", "As <u>told</u>.", ("column", "rows", "share"), [("<i>x</i>\x01", 12345, -0.25)])
    page = page_of(
        tmp_path, Evaluation("table", {}, {}, {}, {}, "", {"columns": columns}, listings=[listing], remarks=remarks)
    )
    check_page(page)
    told = page.partition("<h2>Columns of numbers</h2>")[2].partition("</section>")[0]
    assert told.count('rowspan="2"') == 2 and "&lt;b&gt;cost" in told and told.count("no value") == 8
    assert told.index("2,104") < told.index("49,580") < told.index("2021-01-01")
    assert '<p class="told"><b>Order of dates:</b> a is after b in 42% of the rows.</p>' in page
    assert '<p class="told"><b>Rules:</b> a &lt;= b is broken.</p>' in page
    row = '<td>&lt;i&gt;x&lt;/i&gt;</td><td class="n">12,345</td><td class="n">-0.250</td>'
    assert row in page.partition("<h2>Worst of &lt;all&gt;</h2>")[2].partition("</section>")[0] and "<u>" not in page


NAMES = ("age", "previous", "pay", "job", "y")


def table_of(columns, real, synthetic):
    """Evaluate a table of categories by their codes."""
    schema = schema_of({"strip": False, "columns": columns})
    both = [TableValues(schema, np.zeros((len(codes), 0)), np.asarray(codes, np.int32)) for codes in (real, synthetic)]
    return evaluate_table(*both, seconds=0.5)


def test_any_names_are_shown_as_they_are(tmp_path):
    names = ['<b>bold</b> & "more"', "$x^2$ and $", "名前", "a\x00b\n" * 30]
    choices = [["<i>", "$y$"], ["", "\x01", "長" * 50], list(map(str, range(40))), list(map(str, range(70)))]
    columns = {name: {"type": "category", "values": of} for name, of in zip(names, choices, strict=True)}
    codes = np.random.default_rng(0).integers(0, [len(of) for of in choices], (80, 4))
    page = page_of(tmp_path, table_of(columns, codes[:40], codes[40:]), title="<u>title</u>")
    check_page(page)
    assert "<b>bold" not in page and "&lt;b&gt;bold" in page and "<u>" not in page and "名前" in page


def test_of_many_columns_those_that_differ_most_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(private_report, "COLUMNS", 3)
    columns = {f"column {number + 1}": {"type": "category", "values": ["a", "b"]} for number in range(35)}
    synthetic = [[0] * 35, [int(column in (4, 30, 33)) for column in range(35)]]
    page = page_of(tmp_path, table_of(columns, [[0] * 35] * 4, synthetic))
    shown = re.findall(r"<b>(column \d+)</b><span>distance 0.500", page)
    assert shown == ["column 5", "column 31", "column 34"]
    assert page.count("shares of values, real and synthetic") == 3 and "The 3 of 35 columns that differ most" in page


def test_what_was_skipped_is_said(tmp_path):
    found = evaluated("baskets", 20, 20, seconds=1e-9)
    page = page_of(tmp_path, found)
    check_page(page)
    assert not found.scores and page.count("seconds were over") == 6


# Accuracies and AUCs of the nearest record, then of densities; intervals reach .05 below and .04 above an accuracy.
STRONGEST = {
    "both are certain": ((0.9, 0.8), (0.6, 0.99), "nearest record"),
    "one is certain": ((0.6, 0.54), (0.6, 0.7), "nearest record"),
    "one is certain below": ((0.52, 0.4), (0.6, 0.5), "densities"),
    "none is certain": ((0.52, 0.51), (0.55, 0.2), "densities"),
}


@pytest.mark.parametrize("case", STRONGEST)
def test_the_attack_that_is_farthest_from_guessing_is_shown_with_its_interval(tmp_path, case):
    *numbers, strongest = STRONGEST[case]
    accuracies, areas = (dict(zip(("nearest record", "densities"), of, strict=True)) for of in numbers)
    scores = {f"{name}: AUC": area for name, area in areas.items()}
    scores |= {f"{name}: accuracy": value for name, value in accuracies.items()}
    intervals = {f"{name}: accuracy": Interval(value - 0.05, value + 0.04, 4321) for name, value in accuracies.items()}
    found = Evaluation("table", {MEMBERSHIP: scores}, {}, {}, {}, "", {}, {MEMBERSHIP: intervals})
    page = page_of(tmp_path, found)
    value = accuracies[strongest]
    glance = page.partition("At a glance")[2].partition("</section>")[0]
    assert f"<b>{value:.3f}</b><span>{value - 0.05:.3f} to {value + 0.04:.3f}: accuracy" in glance and strongest in glance
    assert glance.count("<b>") == 1 and f"AUC {areas[strongest]:.3f}" in glance
    # One row has the accuracy, its interval and the number of records.
    assert f"{strongest}: accuracy, 4,321 records tested</td>" in page
    assert f"{value:.3f} ({value - 0.05:.3f} to {value + 0.04:.3f})</td>" in page
    assert "Lower is better" not in page and "holds 0.5, the attack finds nothing" in page


def test_axes_of_attacks_are_in_plain_words(monkeypatch):
    ends = np.array([0.0, 1.0])
    axes = _axes(monkeypatch, private_plots.operating_curves, {"densities": (ends, ends)}, "curves")
    assert axes.get_xlabel() == "share of others taken for members" and axes.get_ylabel() == "share of members found"


def test_the_same_evaluation_gives_the_same_page(tmp_path):
    again = evaluated.__wrapped__("baskets", 9, 9, None)
    assert page_of(tmp_path, evaluated("baskets", 9, 9, None)) == page_of(tmp_path, again)


TABLE = {
    "age": {"type": "integer", "low": 17, "high": 97, "encoding": "scaled", "missing": True},
    "sex": {"type": "category", "values": ["F", "M"]},
    "height": {"type": "number", "low": 0.5, "high": 2.5, "encoding": "scaled"},
}


def _figure(monkeypatch, plot, *arguments, **keywords):
    """Draw a plot of two halves and return the axes of both, laid out."""
    figure = Figure(figsize=(4.6, 3.0), layout="constrained")
    monkeypatch.setattr(private_plots, "drawn", lambda draw, *_: draw(figure.add_subplot()))
    plot(*arguments, **keywords)
    figure.draw_without_rendering()
    return figure.axes


@pytest.mark.parametrize("fields", [
    {"type": "integer", "low": 0, "high": 500, "bins": 4, "unit": "1 kg"},
    {"type": "date", "low": "2020-01-01", "high": "2021-12-31", "bins": 4},
    {"type": "number", "low": 0, "high": 9, "decimals": 2, "bins": 4},
    {"type": "number", "low": 0, "high": 9, "encoding": "scaled"},
], ids=lambda fields: fields["type"])  # fmt: skip
def test_numbers_are_drawn_on_their_own_axes(monkeypatch, fields):
    """A histogram holds the shares of all but a hundredth of the values, and quantiles are those of numpy."""
    column, random = schema_of({"columns": {"c": fields}}).recorded[0], np.random.default_rng(0)
    low, high = column.limits
    sides = [low + (high - low) * random.random(n) ** 2 for n in (900, 300)]
    sides = [side.round() if column.scale.whole else side for side in sides]
    left, right = _figure(monkeypatch, private_plots.numbers, *sides, "c", column=column)
    for patch, side in zip(left.patches, sides, strict=True):
        shares, edges, _ = patch.get_data()
        np.testing.assert_allclose(shares, np.histogram(side, edges)[0] / len(side))
        assert 0.97 <= shares.sum() < 1.001 and len(shares) <= 42
    made = right.lines[1].get_xydata()
    np.testing.assert_array_equal(made[[0, 50, 100], 0], np.quantile(sides[0], (0, 0.5, 1), method="inverted_cdf"))
    np.testing.assert_array_equal(made[[0, 50, 100], 1], np.quantile(sides[1], (0, 0.5, 1), method="inverted_cdf"))
    shown = [text.get_text() for text in right.get_xticklabels()]
    assert (shown[1][:2] == "20" and "-" in shown[1]) if fields["type"] == "date" else float(shown[1]) >= 0
    assert left.get_xlabel() == ("kg" if "unit" in fields else "value")


def test_pairs_are_drawn_side_by_side_without_values_that_none_has(monkeypatch):
    real, made = np.array([[0.5, 0.0, 0.2], [0.0, 0.0, 0.3]]), np.array([[0.2, 0.0, 0.2], [0.3, 0.0, 0.3]])
    names = {"names": (["a", "b"], ["x", "y", "z"]), "axes": ("one", "other")}
    left, right = _figure(monkeypatch, private_plots.two_maps, real, made, "a pair", **names)
    for axes, shares in ((left, real), (right, made)):
        np.testing.assert_array_equal(axes.images[0].get_array(), shares[:, [0, 2]])
        assert [text.get_text() for text in axes.get_xticklabels()] == ["x", "z"] and axes.get_xlabel() == "other"
    assert left.images[0].get_clim() == right.images[0].get_clim() == (0.0, 0.5) and left.get_ylabel() == "one"


def test_numbers_are_drawn_in_the_order_of_their_values(tmp_path, monkeypatch):
    """A value of many has a bar of its own among the others, and missing ones the last."""
    schema, random = schema_of({"columns": TABLE}), np.random.default_rng(0)
    labels = {}
    monkeypatch.setattr(private_plots, "bars", lambda real, made, choices, said: labels.update({said: choices}) or "")
    ages = [None, *[40] * 10, *random.permutation(np.arange(20, 60)).tolist()] * 2
    frame = pd.DataFrame({"age": ages, "sex": "F", "height": random.uniform(0.5, 2.5, len(ages))})
    network = StackedVAE(schema, k=1, hidden=2, latent=1)
    found = evaluate(Release(Mixture(network, torch.ones(1))), frame, seconds=0.5)
    write_evaluation(tmp_path, found, data="people", facts={})
    assert {column["name"] for column in found.figures["columns"]} == set(TABLE)
    of = {said.partition(":")[0]: choices for said, choices in labels.items()}
    place = of["age"].index("40")
    assert (of["age"][-1] == "missing" and of["age"][place - 1].endswith("39")) or "39" in of["age"][place - 1]
    assert of["age"][0].startswith("up to ") and of["sex"] == ["F", "M", "missing"][:2]
    assert of["height"][-1].endswith(" or more")


def test_curves_are_drawn_between_the_declared_bounds(tmp_path, monkeypatch):
    layout, low, high = Layout(units=6), np.array([-5.0, 0.0] * 3), np.array([5.0, 100.0] * 3)
    real, made, held_out = (drawn(layout, 30, seed) for seed in range(3))
    asked = {"kind": "series", "held_out": held_out, "channels": 2}
    found = evaluate_encoded(real, made, layout, **asked, bounds=(low, high))
    seen = []
    for name in ("lines", "samples"):
        monkeypatch.setattr(private_plots, name, lambda **given: seen.append(given) or "")
    page_of(tmp_path, found)
    of = {given["alt"]: given for given in seen}
    values = low + (high - low) * real.units.astype(np.float64)
    np.testing.assert_allclose(of["mean curves"]["real"], values.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(of["mean curves"]["spread"][0], values.std(axis=0), atol=1e-5)
    np.testing.assert_allclose(of["synthetic series"]["curves"], low + (high - low) * made.units[:8], atol=1e-5)
    # The first channel of the last one that is drawn, and of the real series that is nearest.
    nearest = evaluate_encoded(real, made, layout, **asked).plots
    *_, last = (plot.content for plot in nearest if plot.heading == "Nearest real series")
    for side in ("real", "synthetic"):
        np.testing.assert_allclose(of["a series and the nearest"][side], -5.0 + 10.0 * last[side], atol=1e-6)


def _axes(monkeypatch, plot, *arguments, **keywords):
    """Draw a plot and return its axes, laid out."""
    figure = Figure(figsize=(4.6, 3.0), layout="constrained")
    axes = figure.add_subplot()
    monkeypatch.setattr(private_plots, "drawn", lambda draw, *_: draw(axes))
    plot(*arguments, **keywords)
    figure.draw_without_rendering()
    return axes


def _labelled(axis):
    low, high = axis.get_view_interval()
    return [place for place, text in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
            if low <= place <= high and text.get_text()]  # fmt: skip


@pytest.mark.parametrize("factor", [pytest.param(1.0, marks=pytest.mark.slow), 0.01])
@pytest.mark.parametrize(
    "spread", [1.01, pytest.param(1.3, marks=pytest.mark.slow), 4.0, pytest.param(30.0, marks=pytest.mark.slow), 1e4]
)
def test_axes_of_shares_are_labelled_however_near_they_are(monkeypatch, factor, spread):
    shares = factor * np.geomspace(0.15 / spread, 0.15, 28)
    axes = _axes(monkeypatch, private_plots.scatter, shares, shares[::-1], "items", of="share")
    log = {"along": "rank", "up": "share", "scales": ("log", "log")}
    other = _axes(monkeypatch, private_plots.lines, shares, shares, "ranks", **log)
    for axis in (axes.xaxis, axes.yaxis, other.xaxis):
        assert len(_labelled(axis)) >= 2
    # Points that both sides have fill the plot, but for a margin.
    low, high = axes.get_xlim()
    assert high / low <= 1.5 * spread


def test_sizes_of_small_baskets_are_told_one_by_one(tmp_path, monkeypatch):
    plotted = []
    monkeypatch.setattr(private_plots, "lines", lambda *_, **keywords: plotted.append(keywords) or "")
    page_of(tmp_path, evaluated("baskets", 60, 50))
    assert [keywords["scales"][0] for keywords in plotted if keywords["alt"] == "basket sizes"] == ["linear"]
