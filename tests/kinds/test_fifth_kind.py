"""A kind of records that is made up here: single numbers. Nothing but this module knows of it.

It trains a network, is measured, released, verified, sampled and evaluated, by the program that all other kinds have.
"""

import inspect
import json
import sys
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

from lightning_dpgen import evaluate, load_release
from lightning_dpgen.cli.main import main
from lightning_dpgen.data import schema as registry
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import ENTRY_POINTS, KindMissing, Schema, kind_named, kinds, register_kind
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.kinds.kind import Kind
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.statistics import Marginals
from lightning_dpgen.measure.workload import Workload
from lightning_dpgen.metrics.measure import Result, register
from lightning_dpgen.models.forests import StackedProducts
from lightning_dpgen.models.mixture import Mixture

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True)
class NumberSchema(Schema):
    """A number from low to high, as one of so many bins of equal width."""

    kind: ClassVar[str] = "single numbers"

    low: float
    high: float
    bins: int

    @cached_property
    def layout(self) -> Layout:
        return Layout(0, groups=(self.bins,))

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([("number", pa.float64())])

    def encode(self, numbers: np.ndarray) -> Encoded:
        bins = np.floor((numbers - self.low) / (self.high - self.low) * self.bins).astype(np.int64)
        return Encoded(np.zeros((len(bins), 0), np.float32), np.clip(bins, 0, self.bins - 1)[:, None])

    def decode(self, encoded, random, before=0) -> pa.RecordBatch:
        within = encoded.codes[:, 0] + random.random(len(encoded))
        return pa.record_batch([self.low + within * (self.high - self.low) / self.bins], schema=self.arrow)

    def as_json(self):
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def from_json(cls, fields):
        if set(fields) != {"kind", "low", "high", "bins"}:
            raise ValueError("the schema does not describe a number")
        return cls(fields["low"], fields["high"], fields["bins"])


@dataclass(frozen=True)
class NumberRecipe(Recipe):
    """One histogram, which is the model."""

    schema: NumberSchema
    n: int
    k: int = 1

    @property
    def workloads(self):
        return (Workload("histogram", {"counts": 1.0}, self.n),)

    def statistics(self, stage, state):
        return {"counts": self._counts}

    def warnings(self, plan):
        return []

    def _mixture(self, state) -> Mixture:
        counts = state["histogram"][0]["counts"].sums.clamp(min=0.0)
        network = StackedProducts(self.schema, 1)
        network.means[0] = counts / counts.sum()
        return Mixture(network, counts.new_ones(1))

    @cached_property
    def _counts(self):
        return Marginals(self.schema.layout, [(0,)])


class Numbers(Kind):
    name, schema, word = NumberSchema.kind, NumberSchema, "number"
    measured_networks = ("product_mixture",)

    def complete_measured(self, spec, schema, defaults):
        return {"components": 1}

    def recipe(self, spec, schema, *, n, seed, strength, sets=()):
        return NumberRecipe(schema, n)

    def encode(self, records, schema):
        return schema.encode(np.asarray(records))


KIND = Numbers()
register_kind(KIND)


@register(NumberSchema.kind, section="mean bin", place=1, better="lower", says="Difference of the mean bins.")
def compare_means(sides):
    real, *others = (side.codes.mean() for side in (sides.real, *sides.compared))
    return Result(*({"mean bin": float(abs(mean - real))} for mean in others))


SCHEMA = NumberSchema(0.0, 50.0, bins=10)


def numbers(n=3000, seed=0):
    """Return the records of a run: numbers about 12."""
    drawn = np.random.default_rng(seed).normal(12.0, 4.0, n).clip(0.0, 49.9)
    return SCHEMA, SCHEMA.encode(drawn)


WORDS = ["data=own", f"data.target={__name__}.numbers", "data.n=3000", "privacy.epsilon=2", "trainer.accelerator=cpu"]
MODELS = {
    "measured": ["model=measured"],
    "vae": ["model=vae", "model.steps=60", "model.rate=0.1", "model.hidden=16", "model.latent=2", "split.k=1"],
}


@pytest.fixture(scope="module", params=MODELS)
def release(request, tmp_path_factory):
    """Return the folder of a release by each model."""
    folder = tmp_path_factory.mktemp("numbers") / request.param
    assert main(["train", *WORDS, *MODELS[request.param], f"run_dir={folder}"]) == 0
    return folder / "release"


def test_its_release_verifies_and_a_changed_one_does_not(release, tmp_path, capsys):
    assert main(["verify", str(release)]) == 0
    certificate = json.loads((release / "privacy.json").read_text())
    assert certificate["declared"]["schema"] == SCHEMA.as_json() and 1.9 < certificate["epsilon"] <= 2.0
    assert "number" in (release / "report.html").read_text()


def test_its_records_are_drawn_in_their_own_form(release, tmp_path, capsys):
    drawn = load_release(release).sample(2000, seed=1)["number"]
    assert drawn.between(0.0, 50.0).all()
    file = tmp_path / "numbers.csv"
    assert main(["sample", str(release), "-n", "20", "-o", str(file)]) == 0
    assert len(file.read_text().splitlines()) == 21 and file.read_text().startswith("number\n")
    if "measured" in str(release):
        # Bins of width 5 move the mean of 12 by less than 1, and the noise of 3,000 records by far less.
        assert abs(drawn.mean() - 12.0) < 1.0


def test_it_is_compared_with_real_records_by_the_measures_of_its_kind(release):
    schema, encoded = numbers()
    found = evaluate(release, Records(schema, encoded), held_out=numbers(1000, seed=5)[1])
    assert list(found.scores["mean bin"]) == ["mean bin"] and "membership inference" in found.scores


def test_what_it_does_not_have_is_refused_in_one_line(release, capsys):
    for words in (["--given", "x.csv"], ["--form", "wide"]):
        assert main(["sample", str(release), *words]) == 2
        assert f"this release is of kind {NumberSchema.kind}" in capsys.readouterr().err
    assert main(["train", *WORDS, "model=measured", "model.waves=5", "run_dir=/nowhere"]) == 2
    assert "model.waves=5: model=measured has no such setting" in capsys.readouterr().err


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs packages by the lines of their entry points; the kind itself is not registered."""
    monkeypatch.setattr(registry, "_others", {})
    # Tests keep what they have found of installed packages.
    monkeypatch.setattr(registry, "entry_points", inspect.unwrap(registry.entry_points))
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(*lines):
        for number, line in enumerate(lines):
            package = tmp_path / f"numbers_of_{number}-1.0.dist-info"
            package.mkdir()
            (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: numbers-of-{number}\nVersion: 1.0\n")
            (package / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{line}\n")
        for cached in (registry._entries, registry._load_all):
            cached.cache_clear()

    yield install
    for cached in (registry._entries, registry._load_all):
        cached.cache_clear()


def test_an_installed_package_brings_its_kind(installed):
    installed()
    assert NumberSchema.kind not in kinds()
    installed(f"{NumberSchema.kind} = {__name__}:KIND")
    assert kinds()[NumberSchema.kind] is KIND and kind_named(NumberSchema.kind) is KIND


BROKEN = {
    "raises": "raise RuntimeError('boom')",
    "ends": "raise SystemExit(3)",
    "no kind": "KIND = 3",
    "a class": f"from {__name__} import Numbers as KIND",
    "another name": "from lightning_dpgen.kinds.series import KIND",
    "nothing": "",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_package_that_is_broken_breaks_nothing_but_its_kind(installed, tmp_path, monkeypatch, text):
    (tmp_path / "of_others.py").write_text(text)
    monkeypatch.delitem(sys.modules, "of_others", raising=False)
    installed(f"{NumberSchema.kind} = of_others:KIND")
    assert set(kinds()) == {"table", "baskets", "series", "images", "histories"} and kind_named("series").word == "series"
    with pytest.raises(
        KindMissing, match=r"the package numbers-of-0, .* cannot be used \(.*\): install it again, or remove it"
    ):
        kind_named(NumberSchema.kind)


def test_a_release_whose_package_is_gone_is_not_accused(installed, capsys, release):
    installed()
    assert main(["verify", str(release)]) == 2
    out = capsys.readouterr().out
    assert "verdict: NOT CHECKED. " in out and "install the package that brings it" in out and "BAD" not in out
    assert main(["sample", str(release)]) == 2
    assert "install the package that brings it" in capsys.readouterr().err
    assert main(["train", *WORDS, *MODELS["vae"], "run_dir=/nowhere"]) == 2
    assert "by an entry point of its package, or by register_kind" in capsys.readouterr().err
    model = release.parent / "release" / "model.json"
    text = model.read_text()
    try:
        model.write_text(text.replace("single numbers", "double numbers"))
        assert main(["verify", str(release)]) == 2 and "NOT TO BE TRUSTED" in capsys.readouterr().out
    finally:
        model.write_text(text)


def test_a_kind_of_two_packages_is_of_neither(installed):
    installed(*[f"{NumberSchema.kind} = {__name__}:KIND"] * 2)
    with pytest.raises(KindMissing, match=r"by several packages \(numbers-of-0 and numbers-of-1\): remove all but one"):
        kind_named(NumberSchema.kind)


@pytest.mark.parametrize("wrong", [None, 3, NumberSchema, Kind])
def test_what_is_no_kind_is_not_registered(wrong):
    with pytest.raises(ValueError, match="expected an object of a class that derives from Kind"):
        register_kind(wrong)


def test_a_kind_is_called_as_its_schemas_are():
    class Unnamed(Kind):
        name, schema = 7, NumberSchema

    with pytest.raises(ValueError, match="Unnamed: name=7: expected text, the `kind` of its class of schemas"):
        register_kind(Unnamed())


def test_a_name_that_another_kind_has_is_refused():
    class Other(Kind):
        name, schema = "series", SeriesSchema

    with pytest.raises(ValueError, match="kind 'series': is there already, as Series"):
        register_kind(Other())
    assert kind_named("series").word == "series"
