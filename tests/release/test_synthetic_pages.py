"""The page, the card and the Croissant description of a release, of each kind of records and with any names."""

import functools
import json
import re
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from release.released import Page, account, other_problems, released

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.schema import kind_of
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.models.gaussians import StackedGaussians
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.drawing.release import Release, load_release
from lightning_dpgen.release.pages.distributions import CHARTS
from lightning_dpgen.release.publishing.licenses import License
from lightning_dpgen.release.rows.pictures import sheet
from lightning_dpgen.release.weights import release_weights
from lightning_dpgen.verification.verify import verify


def table(label=None, **columns):
    return TableSchema(tuple(column_of(name, fields) for name, fields in columns.items()), label=label, strip=False)


PEOPLE = table(
    label="income",
    age={"type": "integer", "low": 17, "high": 90, "bins": 5, "missing": True, "description": "in years"},
    wage={"type": "number", "low": 0, "high": 9, "decimals": 2, "bins": 70, "special": [0, 9.5], "transform": "log"},
    share={"type": "number", "low": 0, "high": 1, "encoding": "scaled", "missing": True},
    born={"type": "date", "low": "1900-01-01", "high": "2020-12-31", "bins": 4},
    seen={"type": "datetime", "low": "2020-01-01T00:00", "high": "2020-12-31T00:00", "resolution": "hour", "bins": 4},
    at={"type": "time", "resolution": "minute", "bins": 4},
    member={"type": "boolean"},
    city={"type": "category", "values": [f"city {i}" for i in range(14)], "missing": True},
    income={"type": "category", "values": ["<=50K", ">50K"]},
    one={"type": "category", "values": ["always"]},
    id={"type": "fake", "fake": "uuid"},
    name={"type": "drop"},
)
SCHEMAS = {
    "table": (PEOPLE, ["How they are distributed", "17 to 90", "in years", "left out", "the label", "finer near 0 (log)",
                       "income=>50K", "rows of 11 columns", "missing"]),
    "grey pictures": (ImageSchema(3, 4, levels=16, classes=3), ["Samples", "grey pictures of 3 by 4", "label=2"]),
    "colour pictures": (ImageSchema(4, 3, levels=255, channels=3), ["Samples", "colour pictures", "3 channels"]),
    "named pictures": (ImageSchema(2, 2, levels=9, threshold=3, classes=2, names=("cat", "dog")), ["label=dog", "above 3"]),
    "baskets": (BasketSchema(tuple(f"item {i}" for i in range(50)), max_items=5), ["Items", "and the next", "Basket sizes",
                                                                                 "at most 5 of 50 items", "item 11"]),
    "few items": (BasketSchema((7, 8), max_items=1, classes=(1, 2)), ["label=2", "7, 8"]),
    "series": (SeriesSchema(5, 0.0, 9.5, classes=("day", "night"), decimals=1), ["Curves", "5 readings", "label=night"]),
    "channels": (SeriesSchema(3, (0.0, -1.0), (1.0, 1.0), channels=("$x$", "y"), steps=("a", "b", "c")), ["a to c", "$x$"]),
    "one reading": (SeriesSchema(1, 0.0, 1.0), ["Curves", "1 readings"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a release of a kind once, with its certificate."""

    @functools.cache
    def make(kind):
        folder = tmp_path_factory.mktemp("made") / "r"
        return folder, released(folder, SCHEMAS[kind][0])

    return make


def page_of(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not set(page.tags) & {"script", "iframe", "object", "embed", "link", "form", "a", "base"}
    assert all(link.startswith("data:image/png;base64,") for link in page.links) and "url(" not in text
    assert "http" not in text.replace("http-equiv", "") and "default-src 'none'" in text
    return page


def card_of(folder):
    """Return the front matter and the rest."""
    _, front, rest = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front), rest


@pytest.mark.parametrize("kind", SCHEMAS)
def test_each_kind_has_its_page_and_is_consistent(made, kind):
    (schema, words), (folder, certificate) = SCHEMAS[kind], made(kind)
    assert verify(folder).problems == []
    page = page_of(folder)
    for word in [
        certificate["statement"],
        "What epsilon means here",
        "What the budget bought",
        "All of this description was declared",
        *words,
    ]:
        assert word in page.text, word
    front, card = card_of(folder)
    assert front["library_name"] == "lightning_dpgen" and front["size_categories"] == ["n<1K"] and "license" not in front
    assert front["configs"][0]["data_files"] == [{"split": "train", "path": "synthetic.parquet"}]
    titles = [line[3:] for line in card.splitlines() if line.startswith("## ")]
    assert titles == ["Files", "Use", "Privacy", "Limits", "Assumed to be public"]
    assert all(f"`{name}`" in card for name in certificate["released"])
    assert not any(mark in card for mark in certificate["files"].values()), "a hash that the certificate takes of the card"
    pictured = isinstance(schema, ImageSchema | SeriesSchema)
    assert ("samples.png" in certificate["released"]) == pictured == any(page.links)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_croissant_has_a_field_for_each_column(made, kind):
    folder, certificate = made(kind)
    described = json.loads((folder / "croissant.json").read_text(encoding="utf-8"))
    assert described["description"] == certificate["statement"]
    (file,), (records,) = described["distribution"], described["recordSet"]
    assert file["sha256"] == certificate["files"]["synthetic.parquet"]
    columns = pq.read_schema(folder / "synthetic.parquet")
    assert [field["source"]["extract"]["column"] for field in records["field"]] == columns.names
    assert [field.get("repeated", False) for field in records["field"]] == [name == "items" for name in columns.names]
    assert len({field["@id"] for field in records["field"]}) == len(columns)


def test_a_licence_stands_in_certificate_card_page_and_croissant(tmp_path):
    pages = set()
    for word in get_args(License):
        folder = tmp_path / word
        certificate = released(folder, SCHEMAS["few items"][0], license=word)
        assert certificate["declared"]["license"] == word and verify(folder).problems == []
        front, card = card_of(folder)
        assert front["license"] == word and f"under the licence `{word}`" in card and "- license:" not in card
        assert f"under the licence {word}" in page_of(folder).text
        pages.add(json.loads((folder / "croissant.json").read_text(encoding="utf-8"))["license"])
    names = {page.removeprefix("https://spdx.org/licenses/").removesuffix(".html").lower() for page in pages}
    # The Hub leaves out the version of three.
    assert names == {{"odc-by": "odc-by-1.0", "odbl": "odbl-1.0", "pddl": "pddl-1.0"}.get(w, w) for w in get_args(License)}


@pytest.mark.parametrize("word", ["CC-BY-4.0", "other", "", None, 4, ["mit"]])
def test_a_licence_that_the_hub_does_not_know_is_refused_before_anything_is_written(tmp_path, word):
    network = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"declared\['license'\]=.*expected one of cc0-1.0, .*, mit"):
        release_weights(network, account(), tmp_path / "r", data="rows", n=90, declared={"license": word})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["table", "few items", "series"])
def test_croissant_is_read_by_others(made, kind):
    mlcroissant = pytest.importorskip("mlcroissant")
    found = mlcroissant.Dataset(jsonld=made(kind)[0] / "croissant.json")
    assert not found.metadata.issues.errors
    assert len(list(found.records("records"))) == 40


HOSTILE = [
    "<script>alert(1)</script>", "\"><img src=x onerror=y>", "a|b`c*_[d](http://e)", "</style><b>", "{{ 7 * 7 }}", "&lt;",
    "$(rm -rf)'\"", "名前", "-",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["table", "baskets", "series", "pictures"])
def test_any_names_are_shown_as_they_are(tmp_path, kind):
    names = tuple(HOSTILE)
    columns = {name: {"type": "category", "values": [*HOSTILE, "a\nb\x00"], "description": name} for name in HOSTILE}
    schema = {
        "table": table(label=HOSTILE[6], **columns, **{"a\nb\t\x01": {"type": "boolean"}}),
        "baskets": BasketSchema(names, max_items=9, classes=names),
        "series": SeriesSchema(2, 0.0, 1.0, channels=names, classes=names, steps=names[:2]),
        "pictures": ImageSchema(1, 2, levels=1, classes=9, names=names),
    }[kind]
    folder = tmp_path / "r"
    released(folder, schema, data="<i>|x|", unit="one <u>person</u>", discovered=[f"keys of {name}" for name in HOSTILE])
    assert other_problems(folder) == []
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not set(page.tags) & {"script", "i", "u", "a"} and all(link.startswith("data:") for link in page.links)
    assert HOSTILE[0] in page.text and HOSTILE[3] in page.text and HOSTILE[4] in page.text
    front, card = card_of(folder)
    inside = "".join(card.split("```")[::2])
    assert front["library_name"] and "<script>" not in inside and "<img" not in inside
    rows = [line for line in inside.splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") in (3, 5) for line in rows)


def test_a_wide_table_and_one_of_many_categories_make_small_pages(tmp_path):
    many = {"type": "category", "values": [f"{i:07d}" * 5 for i in range(10_000)]}
    released(tmp_path / "many", table(label=None, many=many, few={"type": "boolean"}), k=1)
    wide = table(**{f"column {i}": {"type": "integer", "low": 0, "high": 99, "bins": 10} for i in range(300)})
    released(tmp_path / "wide", wide, k=1)
    released(tmp_path / "items", BasketSchema(tuple(f"item {i}" for i in range(16_470)), max_items=30), k=1)
    for name in ("many", "wide", "items"):
        folder = tmp_path / name
        assert verify(folder).problems == []
        assert (folder / "report.html").stat().st_size < 200_000 and (folder / "README.md").stat().st_size < 30_000
    page = page_of(tmp_path / "wide")
    assert page.tags.count("figure") == CHARTS and "276 more are in the file" in page.text and "And 240 more" in page.text
    assert "9,988 more" in page_of(tmp_path / "many").text and "16,458 more" in page_of(tmp_path / "items").text


def test_examples_of_a_table_are_not_held_in_one_line(tmp_path):
    """Where there is no room for that, they would end in the middle of a column."""
    folder = tmp_path / "r"
    released(folder, TableSchema((column_of("a", {"type": "boolean"}),)))
    page = (folder / "report.html").read_text()
    assert 'class="wide examples"' in page
    assert not re.search(r"\.examples [^{}]*{[^}]*nowrap", page) and re.search(r"\.wide {[^}]*overflow-x: auto", page)


def test_pages_have_the_words_of_the_schema_and_a_frame_has_true_and_false(tmp_path):
    schema = table("ok", ok={"type": "boolean", "words": ["nein", "ja"]}, a={"type": "category", "values": ["x", "y"]})
    released(tmp_path / "r", schema, rows=60)
    text, front = page_of(tmp_path / "r").text, card_of(tmp_path / "r")[1]
    assert "nein, ja" in text and "ok=ja" in text and "ok=ja" in front
    assert not re.search(r"\b(true|false)\b", text.replace("true or false", ""))
    release = load_release(tmp_path / "r")
    assert str(release.sample(5, 0).dtypes["ok"]) == "bool"
    assert release.sample(5, 0, where=["ok = ja"])["ok"].all() and release.sample(5, 0, where={"ok": True})["ok"].all()
    assert schema.choices["ok"] == ["nein", "ja"] and schema.condition_text("ok", [0]) == "ok = nein"


@pytest.mark.parametrize("kind", ["table", "named pictures", "baskets", "few items", "series"])
@pytest.mark.parametrize("rows", [0, 1])
def test_few_synthetic_records_or_none_have_a_page(tmp_path, kind, rows):
    released(tmp_path / "r", SCHEMAS[kind][0], rows=rows, k=1)
    assert verify(tmp_path / "r").problems == [] and page_of(tmp_path / "r")


def test_charts_show_the_synthetic_records(tmp_path):
    """Shares on the page against those counted in the file by other means."""
    released(tmp_path / "r", PEOPLE, rows=300)
    path = tmp_path / "r" / "synthetic.parquet"
    frame = pq.read_table(path).to_pandas()
    drawn = {figure.name: figure for figure in kind_of(PEOPLE).show(path, PEOPLE).figures}
    assert next(iter(drawn)) == "income" and "one" not in drawn and "id" not in drawn
    for value, count in frame["income"].value_counts().items():
        assert f">{count / 300:.0%}</text>" in drawn["income"].chart, value
    assert f"missing {frame['age'].isna().mean():.0%}" in drawn["age"].note
    # Ages 17 to 90 in five bins begin at 17, 32, 47, 61 and 76.
    bins = np.histogram(frame["age"].dropna(), [17, 32, 47, 61, 76, 91])[0]
    heights = [float(height) for height in re.findall(r'height="([0-9.]+)"/>', drawn["age"].chart)]
    assert np.allclose(np.array(heights) / max(heights), bins / bins.max(), atol=0.01)
    assert drawn["wage"].chart.count("<rect") <= 48 and "9.5 " in drawn["wage"].note


@pytest.mark.parametrize("kind", ["baskets", "series", "table", "colour pictures"])
def test_the_same_release_has_the_same_files(made, tmp_path, kind):
    folder, certificate = made(kind)
    released(tmp_path / "again", SCHEMAS[kind][0])
    assert {path.name for path in folder.iterdir()} == {*certificate["files"], "privacy.json"}
    for name in certificate["files"]:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_a_column_cut_by_its_density_is_drawn_by_its_values(tmp_path):
    """Bins that hold equally many records would be bars of one height; a value of most records is told in words."""
    density = [[0, 800], [1, 1], [2, 150], [60, 0]]
    fields = {"type": "integer", "low": 0, "high": 300, "density": density, "special": [999], "missing": True}
    column = column_of("visits", fields).with_bins(20)
    schema, random = TableSchema((column,)), np.random.default_rng(0)
    visits = np.where(random.random(4000) < 0.8, 0, random.integers(2, 60, 4000))
    values = pa.array(np.concatenate([visits, [999] * 80]), pa.int64())
    values = pa.concat_arrays([values, pa.nulls(120, pa.int64())])
    pq.write_table(pa.table({"visits": values}), tmp_path / "s.parquet")
    (figure,) = kind_of(schema).show(tmp_path / "s.parquet", schema).figures
    assert figure.note == "0 76%, 999 2%, missing 3%"
    assert figure.chart.count("<rect") == 29 and "from 2 to 59 in 29 bars of equal width" in figure.chart


@pytest.mark.parametrize("values", [[None] * 9, [999] * 9, [7] * 9], ids=["missing", "special", "one value"])
def test_a_column_cut_by_its_density_may_have_no_other_values(tmp_path, values):
    fields = {"type": "integer", "low": 0, "high": 300, "density": [[0, 1]], "special": [999], "missing": True}
    schema = TableSchema((column_of("visits", fields).with_bins(20),))
    pq.write_table(pa.table({"visits": pa.array(values, pa.int64())}), tmp_path / "s.parquet")
    (figure,) = kind_of(schema).show(tmp_path / "s.parquet", schema).figures
    assert figure.chart.count(">100%</text>") == 1


def drawn(folder, values, **fields):
    """Draw one column whose bins follow a density, of these synthetic values."""
    schema = TableSchema((column_of("a", {"density": [[fields["low"], 1]]} | fields).with_bins(20),))
    pq.write_table(pa.table({"a": pa.array(values, schema.arrow.field("a").type)}), folder / "s.parquet")
    return kind_of(schema).show(folder / "s.parquet", schema).figures[0]


def test_few_values_have_a_bar_each(tmp_path):
    """No value is left out, however rare, and bars are in the order of the values."""
    grades = [3] * 30 + [2] * 26 + [4] * 20 + [5] * 10 + [1] * 8 + [6] * 4 + [99] * 2
    figure = drawn(tmp_path, grades, type="integer", low=1, high=6, special=[99])
    found = re.findall(r'class="name"[^>]*>([^<]+)</text>.*?>([^<]+%)</text>', figure.chart)
    assert found == [("1", "8%"), ("2", "26%"), ("3", "30%"), ("4", "20%"), ("5", "10%"), ("6", "4%"), ("99", "2%")]


def test_values_that_find_no_room_in_words_are_counted(tmp_path):
    values = [*np.repeat(range(7), 13), *range(50, 59)]
    figure = drawn(tmp_path, values, type="integer", low=0, high=300)
    assert figure.note == "0 13%, 1 13%, 2 13%, 3 13%, 3 other values 39%"


@pytest.mark.parametrize("sign", [1, -1])
def test_the_axis_of_a_long_tail_leaves_the_tail_out_and_says_so(tmp_path, sign):
    """All but 1.5 % of the values lie within a thousandth of the range of the rest."""
    random = np.random.default_rng(0)
    costs = np.round(random.uniform(1, 1000, 4000), 2)
    costs[:60] = 900_000.0
    figure = drawn(tmp_path, sign * costs, type="number", decimals=2, low=-1_000_000, high=1_000_000)
    assert figure.note == ("2% above, up to 900000" if sign > 0 else "2% below, down to -900000")
    heights = [float(height) for height in re.findall(r'height="([0-9.]+)"/>', figure.chart)]
    assert len(heights) == 30 and min(heights) > 0.5 * max(heights)
    # Where no smaller part would show more, the usual one is drawn.
    assert drawn(tmp_path, costs[60:], type="number", decimals=2, low=0, high=1_000_000).note == ""


def test_bins_of_which_one_holds_most_records_are_drawn_by_value(tmp_path):
    values = np.random.default_rng(0).integers(0, 40, 500)
    schema = table(a={"type": "integer", "low": 0, "high": 10_000, "bins": 20})
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), tmp_path / "s.parquet")
    (figure,) = kind_of(schema).show(tmp_path / "s.parquet", schema).figures
    assert "from 0 to 39 in 20 bars of equal width" in figure.chart


def test_distances_have_a_title_without_quotes_and_days_stand_in_one_line(tmp_path):
    day = {"type": "date", "low": "2020-01-01", "high": "2020-12-31", "bins": 4}
    schema = table(**{"Start date": day, "End date": day | {"relative_to": "Start date", "distance": [0, 90]}})
    released(tmp_path / "r", schema)
    page = page_of(tmp_path / "r")
    assert "End date, days after Start date" in page.text and "of 0 to 90 days after Start date" in page.text
    assert (tmp_path / "r" / "report.html").read_text().count('<td class="day">') == 12


def test_a_sheet_has_a_row_a_component_or_twenty_of_all():
    """Components of one grey each; a heavy one has as much of the sheet as it has of the records."""
    for k, rows in ((3, 3), (20, 20), (40, 20)):
        network = StackedGaussians(ImageSchema(2, 2, levels=255), k, size=4, rank=1)
        greys = torch.linspace(0.1, 0.9, k)
        network.centres[:, 0] = 2.0 * greys
        weights = torch.ones(k)
        weights[-1] = k - 1.0
        drawn = 1.0 - sheet(Release(Mixture(network, weights / weights.sum())), 12)[1::4, 1::4] / 255.0
        assert drawn.shape == (rows, 12)
        if k <= rows:
            np.testing.assert_allclose(drawn, greys[:, None].expand(k, 12), atol=0.01)
        else:
            assert (np.diff(drawn.ravel()) >= 0.0).all()
            assert (drawn > greys[-1].item() - 0.01).mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("noise", [None, 0.001, 0.03])
def test_a_figure_is_told_in_words_and_is_offered_where_none_was_bought(tmp_path, noise):
    """A distance below twice what noise alone makes of it may well be smaller."""
    figure = {"distance of a column, mean": 0.042, "distance of a column that noise alone makes": noise}
    figure |= {"accuracy on real records, trained on synthetic": 0.857, "records, with noise": 90}
    bought = {} if noise is None else {"figure": figure, "fidelity_share": 0.05}
    released(tmp_path / "release", PEOPLE, **bought)
    page = Page((tmp_path / "release/report.html").read_text()).text
    assert ("privacy.fidelity_share=0.05" in page) is (noise is None) and "How close they are" in page
    assert ("off by 4.2 % on average. Noise of this figure alone makes" in page) is (noise is not None)
    assert ("so the records may well be closer" in page) is (noise == 0.03)
    assert ("right for 85.7 % of the real ones" in page) is (noise is not None)
