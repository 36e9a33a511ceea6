"""The baselines have the shares that they should and their stated sensitivity; the table is made once and goes on."""

import doctest
import json
import sys

import numpy as np
import pytest
import scipy.sparse
import torch

from experiments.dpgm import baselines as basket_baselines
from experiments.dpgm import mwem
from experiments.dpgm import queries as counting_queries
from experiments.dpgm.baselines import Budget, independent, rivals
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.simulated.baskets import draw_baskets
from lightning_dpgen.metrics.baskets import CountingQueryError
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.release.drawing.model_files import write_model

N = 3000


@pytest.fixture(scope="module")
def baskets():
    return draw_baskets("transit", N)


def test_examples():
    assert doctest.testmod(basket_baselines).failed == 0


@pytest.mark.parametrize("name", rivals(57, 1.0))
def test_rivals_are_baskets_of_ones_and_as_seeded(baskets, name):
    rival = rivals(57, 1.0)[name]
    made, again, other = (rival(baskets, 57, Budget(1.0, 1e-5, seed)) for seed in (0, 0, 1))
    assert made.shape == (N // 2 if "half" in name else N, 342) and made.format == "csr"
    assert made.nnz == 0 or set(made.data) == {1}
    assert np.array_equal(made.indices, again.indices) and np.array_equal(made.indptr, again.indptr)
    assert name == "constant 0" or not np.array_equal(made.indices, other.indices)


@pytest.mark.parametrize("name", [name for name in rivals(57, 1000.0) if "independent" in name and "cut to 12" not in name])
def test_without_noise_shares_of_items_are_right(baskets, name):
    made = rivals(57, 1000.0)[name](baskets, 57, Budget(1000.0, 1e-5, 0))
    real, found = (np.bincount(side.indices, minlength=342) / N for side in (baskets, made))
    # Six deviations of a binomial share, and a little for the noise that is left: 342 fail by chance once in a million.
    assert (np.abs(found - real) < 6 * np.sqrt(real * (1 - real) / N) + 0.004).all()
    if "by size" in name:
        spread = [np.diff(side.indptr).std() for side in (baskets, made)]
        assert spread[1] == pytest.approx(spread[0], rel=0.2)


@pytest.mark.parametrize("name", [name for name in rivals(57, 1.0) if "epsilon" in name])
@pytest.mark.parametrize("size", [0, 1, 12, 13, 57])
def test_a_basket_more_moves_what_is_measured_by_the_sensitivity_at_most(baskets, monkeypatch, name, size):
    few = baskets[:50]
    added = scipy.sparse.csr_array((np.arange(342) < size).astype(np.uint8)[None])
    measured = []

    def seen(access, noise, values, sensitivity=1.0, **_):
        measured.append((values.numpy().copy(), sensitivity))
        access.consume(noise)
        return values

    def counted(access, noise, places, bins):
        return seen(access, noise, torch.bincount(places, minlength=bins).double())

    monkeypatch.setattr(basket_baselines, "gaussian", seen)
    monkeypatch.setattr(basket_baselines, "noisy_histogram", counted)
    for side in (few, scipy.sparse.vstack([few, added], format="csr")):
        rivals(57, 1.0)[name](side, 57, Budget(1.0, 1e-5, 0))
    half = len(measured) // 2
    assert half == (2 if "by size" in name else 1)
    for (before, sensitivity), (after, again) in zip(measured[:half], measured[half:], strict=True):
        assert sensitivity == again and np.linalg.norm(after - before) <= sensitivity * (1 + 1e-12)


def test_coins_fall_as_they_should():
    shares = np.array([0.0, 1e-4, 0.02, 0.5, 0.97, 1.0])
    n = 40_000
    made = independent(n, shares, np.random.default_rng(0))
    found = made.mean(axis=0)
    assert (np.abs(found - shares) <= 5 * np.sqrt(shares * (1 - shares) / n) + 1e-9).all()
    assert made.has_sorted_indices and made.indptr[-1] == made.nnz
    # Neighbouring coins are independent of each other, and so are the items of one basket.
    dense = made.toarray().astype(float)[:, 2:5]
    assert np.abs(np.corrcoef(np.concatenate([dense[:-1], dense[1:]], axis=1).T) - np.eye(6)).max() < 5 / np.sqrt(n)


def _release(folder, items):
    folder.mkdir()
    torch.manual_seed(0)
    network = StackedVAE(BasketSchema(items, max_items=5), k=1, hidden=2, latent=1)
    write_model(folder, Mixture(network, torch.ones(1)))
    certificate = {"private": True, "epsilon": 0.5, "digest": "d"}
    (folder / "privacy.json").write_text(json.dumps(certificate))
    return folder


def _run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["counting_queries.py", *map(str, arguments)])
    counting_queries.main()
    return capsys.readouterr().out


def test_a_table_is_made_and_goes_on(tmp_path, baskets, monkeypatch, capsys, figures, curves):
    monkeypatch.setattr(mwem, "ROUNDS", 2)
    monkeypatch.setattr(mwem, "CANDIDATES", 256)
    monkeypatch.setattr(counting_queries, "QUERIES", 30)
    monkeypatch.setattr(counting_queries, "uniform_queries", lambda *a: uniform(*a, count=30))
    monkeypatch.setattr(counting_queries, "queries_together", lambda *a: together(*a, count=30))
    arguments = ["transit", tmp_path, "--records", N]
    first = _run(monkeypatch, capsys, *arguments, "--seeds", 1)
    assert first.count("seed 0") == 8 and "paper, DPGM" in first and "+-" not in first
    assert (tmp_path / f"dpgm_queries_transit_{N}_epsilon1.png").is_file()
    items = tuple(f"station_{i:03d}" for i in range(1, 343))
    release = _release(tmp_path / "model", items)
    more = _run(monkeypatch, capsys, *arguments, release, "--seeds", 2)
    assert more.count("seed 0") == 1 and more.count("seed 1") == 9 and "model, epsilon 0.5" in more and "+-" in more
    # Kept results are drawn again without the baskets, and without the folder of the release.
    monkeypatch.setattr(counting_queries, "load_public_set", None)
    again = _run(monkeypatch, capsys, *arguments, "--seeds", 2)
    assert again.splitlines() == more.splitlines()[10:]
    # The numbers kept are those of the metric itself.
    metric = CountingQueryError(_queries(baskets))
    metric.update(baskets, real=True)
    made = rivals(57, 1.0)["random half of the data, not private"](baskets, 57, Budget(1.0, 1e-5, 0))
    metric.update(made, real=False)
    expected = metric.errors()
    data = counting_queries.Data.simulated("transit", N)
    kept = counting_queries.Kept(tmp_path / f"dpgm_queries_transit_{N}.json")
    rows = counting_queries.baseline_rows(data, 1.0)
    (found,) = counting_queries.errors(data, [row for row in rows if row.name.startswith("random half")], 0, kept)
    assert found[:5] == pytest.approx(expected["all"].reshape(6, 30).mean(dim=1)[:5].tolist())
    assert found[5:10] == pytest.approx(expected["any"].reshape(6, 30).mean(dim=1)[:5].tolist())
    assert found[15] == pytest.approx(float(expected["all"][150:].mean()))
    # A visit is an item of a basket.
    synthetic, real = ([side.toarray()[:, query > 0].sum() / side.shape[0] for query in _queries(baskets).toarray()[:30]]
                       for side in (made, baskets))  # fmt: skip
    off = [abs(one - other) / max(other, 0.001) for one, other in zip(synthetic, real, strict=True)]
    assert found[10] == pytest.approx(np.mean(off))
    # The picture has the errors of ALL queries, then of ANY, then of VISITS, over the lengths of the sets.
    shown = figures[0].axes
    for number, errors in enumerate(counting_queries.errors(data, rows, 0, kept)):
        for axes, first in zip(shown, (0, 5, 10), strict=True):
            x, y, _ = curves(axes)[rows[number].name]
            assert x == [i * data.schema.max_items // 5 for i in range(1, 6)]
            assert y == pytest.approx(errors[first : first + 5])


def test_a_release_is_kept_for_the_figure_that_it_was_given_for(tmp_path):
    kept, known = counting_queries.Kept(tmp_path / "kept.json"), {"release": "a, epsilon 1", "digest": "d", "beside": 1.0}
    for seed in (0, 1):
        kept.get({"seed": seed, "queries": counting_queries.QUERIES} | known, lambda: [0.0])
    kept.get({"seed": 0, "queries": counting_queries.QUERIES} | known | {"digest": "e"}, lambda: [0.0])
    (row,) = counting_queries.kept_releases(kept, 1.0, 2, [])
    assert row.about == known and row.name == "a, epsilon 1"
    assert counting_queries.kept_releases(kept, 2.0, 2, []) == counting_queries.kept_releases(kept, 1.0, 2, [row]) == []


def _queries(baskets):
    random = np.random.default_rng([0, 2])
    sets = [uniform(342, i * 57 // 5, random, count=30) for i in range(1, 6)]
    return scipy.sparse.vstack([*sets, together(baskets, random, count=30)], format="csr")


uniform, together = counting_queries.uniform_queries, counting_queries.queries_together


def test_other_releases_and_missing_files_get_one_clear_line(tmp_path, monkeypatch, capsys):
    other = _release(tmp_path / "other", ("a", "b", "c", "d", "e"))
    for arguments, words in (
        (["transit", tmp_path, other, "--records", N], "not a release of baskets over the items"),
        (["transit", tmp_path, tmp_path, "--records", N], "expected a release"),
        (["transit", tmp_path, "--seeds", "0"], "argument --seeds: '0'"),
    ):
        with pytest.raises(SystemExit):
            _run(monkeypatch, capsys, *arguments)
        assert words in capsys.readouterr().err
