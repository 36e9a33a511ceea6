"""A classifier beside a measured model: bounds that hold, what is learned, and a run that goes on."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.measure import classifier
from lightning_dpgen.measure.classifier import SPREADS, ClassifierRecipe, DescribedGradient, Directions, Spreads
from lightning_dpgen.measure.gaussians import GaussianRecipe, label_components
from lightning_dpgen.measure.labels import LABELS
from lightning_dpgen.models.bases import Scattering
from lightning_dpgen.models.labelled import ClassifiedNetwork
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import Release, load_release

SERIES = SeriesSchema(12, low=0.0, high=1.0, classes=("slow", "middling", "fast"))
PICTURES = ImageSchema(4, 4, levels=1, classes=2)


@pytest.fixture(autouse=True)
def few_made_up(monkeypatch):
    monkeypatch.setattr(classifier, "_MADE", 600)


def some_series(n, seed=0):
    """Draw waves of three speeds, begun anywhere: no mean of a label differs from those of the others."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, n)
    turns = 2 * np.pi * (labels[:, None] + 1) * np.arange(12) / 12 + random.uniform(0, 2 * np.pi, n)[:, None]
    units = 0.5 + 0.3 * np.sin(turns) + 0.05 * random.normal(size=(n, 12))
    return Records(SERIES, Encoded(np.clip(units, 0, 1).astype(np.float32), labels[:, None].astype(np.uint8)))


def recipe(n, **changed):
    generator = GaussianRecipe(SERIES, 3, n, size=12, radius=3.0, spread=1.5)
    return ClassifierRecipe(generator, SERIES, **{"share": 0.75, "directions": 30, "gradients": 8} | changed)


def measured(records, epsilon, **changed):
    own, kept = recipe(len(records), **changed), []
    account = Account(make_plan(own.specs(1.0), epsilon=epsilon, delta=1e-6), stream=PrivateStream(3))
    component = label_components(records)
    mixture = own.measure(records, component, account, save=kept.append)
    assert account.finished
    account.verify_complete()
    return own, mixture, kept


def right(mixture, records):
    shares = mixture.network.label_shares(records.encoded, mixture.weights)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(len(records), dtype=torch.float64))
    return float((shares.argmax(dim=1).numpy() == records.encoded.codes[:, 0]).mean())


@pytest.fixture(scope="module")
def learned():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifier, "_MADE", 600)
        return measured(some_series(900), 6.0)


def test_real_records_teach_what_the_measured_model_does_not_know(learned):
    own, mixture, kept = learned
    unseen = some_series(600, seed=1)
    begun = own.fit({**kept[-1], LABELS: ()})
    assert right(mixture, unseen) > 0.95
    assert right(mixture, unseen) > right(begun, unseen) and isinstance(begun.network, ClassifiedNetwork)


def extreme_records():
    """Return every picture of 8 free pixels with both labels, twice: as it is, and with the others white."""
    bits = np.array(np.meshgrid(*[[0, 1]] * 8)).reshape(8, -1).T
    units = np.concatenate([np.hstack([bits, np.full_like(bits, white)]) for white in (0, 1)])
    codes = np.repeat([[0], [1]], len(units), axis=0)
    return Encoded(np.tile(units, (2, 1)).astype(np.uint8), codes.astype(np.uint8))


@pytest.mark.parametrize("scale", [0.1, 1e3, 1e306])
def test_no_record_moves_a_sum_by_more_than_its_bound(scale):
    records, random = extreme_records(), torch.Generator().manual_seed(0)
    scattering = Scattering(PICTURES.layout, PICTURES.axes)
    vectors = torch.randn(scattering.count, 5, generator=random, dtype=torch.float64)
    directions = Directions(PICTURES.layout, scattering, torch.zeros(scattering.count, dtype=torch.float64), vectors)
    weights = scale * torch.randn(6, 2, generator=random, dtype=torch.float64)
    one = torch.zeros(1, dtype=torch.int64)
    records = records[np.arange(0, len(records), 41)]
    for bound in (0.3, 50.0):
        gradient = DescribedGradient(directions, torch.ones(5, dtype=torch.float64), weights, bound)
        spreads = Spreads(directions, torch.full((5,), 0.1, dtype=torch.float64), bound)
        for statistic in (gradient, spreads):
            rows = [statistic.sums(records[i : i + 1], one).flatten().tolist() for i in range(len(records))]
            squares = [sum(number**2 for number in row) for row in rows]
            assert max(squares) <= Fraction(statistic.bound / statistic.unit) ** 2
            lengths = [statistic.unit * math.sqrt(square) for square in squares]
            # Some use up the bound, and would exceed it if nothing were shortened.
            assert scale == 0.1 or (max(lengths) > 0.99 * bound if bound < 1.0 else max(lengths) > 0.3)


def test_a_record_adds_the_same_beside_any_others_however_many_are_kept(learned, monkeypatch):
    own, _, kept = learned
    records = some_series(70)
    nowhere = torch.zeros(70, dtype=torch.int64)
    for stage, state in ((SPREADS, kept[1]), (LABELS, kept[4])):
        (statistic,) = own.statistics(stage, state).values()
        alone = sum(statistic.sums(records.encoded[i : i + 1], nowhere[:1]) for i in range(70))
        for most in (1 << 27, 0):
            monkeypatch.setattr(classifier, "_MOST_KEPT", most)
            monkeypatch.setattr(classifier, "_AT_ONCE", 20)
            for _ in range(2):
                assert alone.dtype == torch.int64 and torch.equal(statistic.of_all(records, nowhere), alone)
        # Other records are not taken for those that were kept.
        others = some_series(70, seed=5)
        assert not torch.equal(statistic.of_all(others, nowhere), alone)


def test_nothing_of_the_records_is_kept_after_the_last_access(learned):
    kept, again = learned[2], recipe(900)
    again.measure(None, None, None, state=kept[-1])
    assert not again._last


def test_noise_is_that_of_the_plan(learned):
    own, _, kept = learned
    plan = make_plan(own.specs(1.0), epsilon=6.0, delta=1e-6)
    inverse = {stage.name: stage.count * sum(m**-2 for m in stage.access.multipliers.values()) for stage in plan.stages}
    assert inverse[LABELS] + inverse[SPREADS] == pytest.approx(0.75 * sum(inverse.values()))
    for stage, before in ((SPREADS, 1), (LABELS, 4)):
        ((name, statistic),) = own.statistics(stage, kept[before]).items()
        found = kept[before + 1][stage][-1][name]
        assert found.deviation == pytest.approx(plan.stage(stage).access.multipliers[name] * statistic.bound)


def test_a_run_goes_on_between_accesses_and_ends_where_it_would_have(learned, monkeypatch):
    own, mixture, kept = learned
    assert [[len(state.get(stage, ())) for stage in (SPREADS, LABELS)] for state in kept[1:4]] == [[0, 0], [1, 0], [1, 1]]
    assert len(kept[-1][LABELS]) == 8 and all(own.fits(state) for state in kept[::4])
    assert not own.fits({**kept[-1], LABELS: kept[-1][LABELS] * 2}) and not own.fits({LABELS: kept[-1][LABELS]})
    # Directions may have other signs then: gradients that were paid for must still point there.
    eigh, features = torch.linalg.eigh, Scattering(SERIES.layout, SERIES.axes).count

    def turned(matrix):
        values, vectors = eigh(matrix)
        signs = torch.where(torch.arange(values.shape[-1]) % 2 == 0, -1.0, 1.0)
        return values, vectors * signs if len(values) == features else vectors

    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "eigh", turned)
        again = recipe(900).measure(None, None, None, state=kept[-1])
    for name in ("label_weights", "label_level"):
        one, other = (found.network.state_dict()[name] for found in (mixture, again))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_an_audit_may_measure_each_stage_on_an_account_of_its_own(learned):
    """Its statistics follow from the measurements alone; a mixture of several runs is refused all the same."""
    own, _, kept = learned
    rounds = [{name: replace(found, run="another") for name, found in kept[1]["squares"][0].items()}]
    state = {**kept[1], "squares": rounds}
    assert set(own.statistics(SPREADS, state)) == {"squares"}
    with pytest.raises(ValueError, match="another run than that of the account"):
        own.fit({**kept[-1], "squares": rounds})


def test_a_release_is_read_back_with_its_classifier(learned, tmp_path):
    _, mixture, _ = learned
    write_model(tmp_path, mixture)
    release, records = load_release(tmp_path), some_series(50, seed=2)
    told = release.predict(records)
    assert list(told) == ["label", "p_slow", "p_middling", "p_fast"] and len(told) == 50
    assert (told.label == [("slow", "middling", "fast")[i] for i in told.iloc[:, 1:].to_numpy().argmax(axis=1)]).all()
    assert Release(mixture).predict(records.encoded.units).equals(told)
    assert len(release.sample(5, seed=0)) == 5 and release.component(1).predict(records).equals(told)


def test_what_makes_no_recipe_is_refused():
    for changed, said in (
        ({"share": 1.0}, "share=1.0: expected a number above 0, below 1"),
        ({"directions": 0}, "directions=0"),
        ({"gradients": 0}, "gradients=0"),
        ({"seed": -1}, "seed=-1"),
    ):
        with pytest.raises(ValueError, match=said):
            recipe(100, **changed)
    plain = SeriesSchema(12, low=0.0, high=1.0)
    with pytest.raises(ValueError, match="records without a label"):
        ClassifierRecipe(GaussianRecipe(plain, 1, 100, size=3, radius=1.0, spread=1.0), plain, 0.5, 10, 5)
    assert math.isclose(sum(workload.share for workload in recipe(100).workloads), 1.0)
