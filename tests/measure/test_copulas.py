"""The copula of tables with very many numbers: its statistics, what it finds, and its release from records to a page."""

import itertools
import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from lightning_dpgen.api import fit, schema_of
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.copulas import ColumnScores, CopulaRecipe, takes_copula
from lightning_dpgen.measure.statistics import SecondMoments
from lightning_dpgen.models.gaussians import StackedCopula, ordered_choices
from lightning_dpgen.models.outputs import draw
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.specs.run import load_settings
from lightning_dpgen.specs.settings import complete_declared_settings
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.verification.verify import verify

NUMBER = {"type": "number", "low": -4, "high": 4, "decimals": 2, "bins": 16}
MIXED = {
    "a": NUMBER | {"special": [99], "missing": True},
    "b": {"type": "boolean", "missing": True},
    "c": {"type": "category", "values": ["x", "y", "z"]},
    "d": NUMBER,
}


def _schema(columns):
    return schema_of({"columns": columns}).with_bins(8)


def _factors(n, d, rank=2, seed=0):
    """Return (n, d) normal numbers that share `rank` others, and the correlations of any two."""
    random = np.random.default_rng(seed)
    loadings = random.uniform(-0.9, 0.9, (d, rank)) / math.sqrt(rank)
    alone = np.sqrt(1.0 - np.square(loadings).sum(axis=1))
    values = random.standard_normal((n, rank)) @ loadings.T + alone * random.standard_normal((n, d))
    return values, loadings @ loadings.T + np.diag(alone**2)


def _fitted(frame, columns, *, epsilon=None):
    schema = _schema(columns)
    recipe = CopulaRecipe(schema, len(frame))
    plan = make_plan(recipe.specs(1.0), epsilon=epsilon or math.inf, delta=1e-6)
    records = Records(schema, schema.encode(pa.RecordBatch.from_pandas(frame, preserve_index=False)))
    account = Account(plan, stream=PrivateStream(seed=1))
    return recipe.measure(records, torch.zeros(len(frame), dtype=torch.int64), account), records, recipe


def test_a_score_is_the_mean_of_a_normal_number_in_its_part():
    shares = np.array([0.2, 0.0, 0.5, 0.3])
    scores = ColumnScores(Layout(0, groups=(5,)), {0: 4}, [shares])
    found = scores.coordinates(Encoded(np.zeros((5, 0)), np.arange(5)[:, None]))[:, 0].numpy()
    drawn = np.sort(np.random.default_rng(0).standard_normal(400_000))
    parts = np.split(drawn, (shares.cumsum()[:-1] * len(drawn)).astype(int))
    assert found[[0, 2, 3]] == pytest.approx([part.mean() for part in (parts[0], parts[2], parts[3])], abs=0.01)
    # A choice without an order tells nothing, and one that no record has lies at its quantile.
    assert found[4] == 0.0 and found[0] < found[1] < found[2]
    assert float(scores.variances[0]) == pytest.approx(shares @ found[:4] ** 2)


@pytest.mark.parametrize("radius", [0.5, 2.0, 50.0])
def test_one_record_moves_moments_by_the_bound_at_most_whatever_is_beside_it(radius):
    """Each record of all choices, alone and behind others: the same whole numbers, none longer than the bound."""
    schema = _schema(MIXED)
    ordered, random = ordered_choices(schema), np.random.default_rng(0)
    assert ordered == {0: 16, 1: 2, 3: 16}
    scores = ColumnScores(schema.layout, ordered, [random.dirichlet(np.full(count, 0.3)) for count in ordered.values()])
    moments = SecondMoments(scores, radius)
    rows = np.array(list(itertools.product(*(range(choices) for choices in schema.layout.groups))), np.uint8)
    rows = rows[random.permutation(len(rows))[:600]]
    longest = 0.0
    for place in range(0, 600, 3):
        own = moments.sums(Encoded(np.zeros((1, 0)), rows[place : place + 1]), None)
        before, after = (moments.sums(Encoded(np.zeros((end, 0)), rows[:end]), None) for end in (place, place + 1))
        assert torch.equal(after - before, own) and own.dtype == torch.int64
        longest = max(longest, float(own.double().norm()) * moments.unit)
    assert longest <= moments.bound * (1 + 1e-12)
    assert radius > 10 or longest >= 0.999 * moments.bound


def test_columns_keep_their_shares_and_their_correlations():
    """Without noise, 60 columns of 4,000 records: correlations to .03 on average, shares as they are."""
    values, true = _factors(4000, 60)
    frame = pd.DataFrame(values.clip(-4, 4).round(2), columns=[f"x{i}" for i in range(60)])
    mixture, records, _ = _fitted(frame, dict.fromkeys(frame.columns, NUMBER))
    network = mixture.network
    assert network.rank == 2
    made = network.loadings.double() @ network.loadings.double().T
    off = ~torch.eye(60, dtype=torch.bool)
    assert float((made - torch.from_numpy(true))[off].abs().mean()) < 0.03
    drawn = network.generate((0, 4000), torch.Generator().manual_seed(0))
    ones = np.zeros((4000, records.schema.layout.width), np.float32)
    codes = records.encoded.codes.astype(int) + np.array([span.start for span in records.schema.layout.spans])
    np.put_along_axis(ones, codes, 1.0, axis=1)
    # Six deviations of a difference of two means of 4,000: a false alarm of 2e-6 for all choices.
    share = ones.mean(axis=0)
    assert (np.abs(drawn.mean(dim=0).numpy() - share) < 6 * np.sqrt(2 * share * (1 - share) / 4000) + 1e-3).all()


@pytest.mark.filterwarnings("ignore::lightning_dpgen.measure.recipe.MostlyNoise")
def test_what_is_missing_special_or_without_order_is_drawn_by_itself():
    random = np.random.default_rng(0)
    x = random.standard_normal(5000)
    frame = pd.DataFrame({
        "a": np.where(random.random(5000) < 0.2, 99.0, x.clip(-4, 4)).round(2), "b": x > 0.5,
        "c": random.choice(list("xyz"), 5000, p=[0.6, 0.3, 0.1]), "d": (-x).clip(-4, 4).round(2),
    })  # fmt: skip
    frame["b"] = frame["b"].astype(object).where(random.random(5000) < 0.9, None)
    mixture, _, _ = _fitted(frame, MIXED)
    drawn = mixture.network.schema.decode(_drawn(mixture, 5000), np.random.default_rng(0)).to_pandas()
    for made in (frame, drawn):
        assert (made.a == 99).mean() == pytest.approx(0.2, abs=0.02) and made.b.isna().mean() == pytest.approx(
            0.1, abs=0.02
        )
        assert (made.c == "x").mean() == pytest.approx(0.6, abs=0.04)
        inside = made[made.a != 99]
        assert np.corrcoef(inside.a.astype(float), inside.d.astype(float))[0, 1] < -0.8
        known = made[made.b.notna()]
        assert known.d[known.b.astype(bool)].mean() < -0.6


def _drawn(mixture, rows):
    generator = torch.Generator().manual_seed(0)
    return draw(mixture.network.generate((0, rows), generator), mixture.network.schema.layout, generator)


def test_correlations_are_found_through_noise_and_it_is_said_where_they_are_not():
    """Correlations of 200 columns of 20,000 records at epsilon 3 are found; of 200 records it is said that none is."""
    values, true = _factors(20_000, 200)
    frame = pd.DataFrame(values.clip(-4, 4).round(2), columns=[f"x{i}" for i in range(200)])
    mixture, _, recipe = _fitted(frame, dict.fromkeys(frame.columns, NUMBER), epsilon=3.0)
    made, off = (mixture.network.loadings @ mixture.network.loadings.T).numpy(), ~np.eye(200, dtype=bool)
    assert np.corrcoef(made[off], true[off])[0, 1] > 0.95
    assert not recipe.warnings(make_plan(recipe.specs(1.0), epsilon=3.0, delta=1e-6))
    few = CopulaRecipe(recipe.schema, 200)
    told = few.warnings(make_plan(few.specs(1.0), epsilon=1.0, delta=1e-4))
    assert "correlations cannot be found with 200 records, 200 columns and epsilon 1" in told[0]
    assert "200 columns would be nothing but noise" in told[1]


@pytest.mark.parametrize("rank", [0, 3])
def test_a_network_of_another_shape_is_refused(rank):
    schema = _schema({"a": NUMBER, "b": NUMBER})
    for sizes in ({"k": 1, "rank": rank}, {"k": 2, "rank": 1}):
        with pytest.raises(ValueError, match=r"rank|k="):
            StackedCopula(schema, **sizes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_wide_table_is_released_and_verified(tmp_path):
    values, _ = _factors(3000, 110, rank=1)
    frame = pd.DataFrame(values.clip(-4, 4).round(2), columns=[f"x{i}" for i in range(110)])
    frame["sex"] = np.where(values[:, 0] > 0, "F", "M")
    columns = dict.fromkeys(frame.columns[:-1], NUMBER | {"bins": 12}) | {"sex": {"type": "category", "values": ["F", "M"]}}
    words = {"epsilon": 3.0, "n": 3000, "run_dir": tmp_path / "run", "overrides": ["debug.private_seed=1", "rows=500"]}
    folder = fit(frame, {"columns": columns}, **words).folder / "release"
    found = load_release(folder)
    assert isinstance(found.mixture.network, StackedCopula) and found.schema.label is None
    made = found.sample(2000, seed=0)
    real, drawn = (np.corrcoef(one[frame.columns[:-1]].astype(float).T) for one in (frame, made))
    off = ~np.eye(110, dtype=bool)
    assert np.corrcoef(real[off], drawn[off])[0, 1] > 0.9
    assert set(found.sample(20, seed=0, where="sex = F").sex) == {"F"}
    (problem,) = verify(folder).problems
    assert "seed" in problem


def test_pairs_are_counted_where_they_can_be(tmp_path):
    """The choice follows from sizes alone; what such a table cannot have is refused."""
    narrow = _schema({f"x{i}": NUMBER for i in range(99)})
    assert not takes_copula(narrow, 1000, 100.0)
    (tmp_path / "s.yaml").write_text(json.dumps({"columns": {f"x{i}": NUMBER for i in range(120)}}))
    words = ["data=table", f"data.schema={tmp_path / 's.yaml'}", "data.n=2000", "privacy.epsilon=1", "model=measured"]
    assert isinstance(complete_declared_settings(load_settings(words)).recipe, CopulaRecipe)
    for more, told in (
        ("model.components=5", "setting for a table of 120 columns"),
        ("data.workload=[[x0,x1]]", "data.workload"),
    ):
        with pytest.raises(UsageError, match=told):
            complete_declared_settings(load_settings([*words, more])).plan()
    assert not isinstance(
        complete_declared_settings(load_settings([*words[:2], "data.n=1000000", *words[3:]])).recipe, CopulaRecipe
    )
