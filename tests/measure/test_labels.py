"""The label of a table by noisy gradients: bounds that hold, gradients that are right, and what is learned of a label."""

import functools
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch

from lightning_dpgen.api import schema_of
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.measure import label_gradients, labels, tables
from lightning_dpgen.measure.label_gradients import Agreement, Gradient, whole_features, whole_shares
from lightning_dpgen.measure.labels import LABELS
from lightning_dpgen.measure.tables import TABLES, TableRecipe
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.models.labelled import LEAST, Crossed, added_up, feature_count
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.release.drawing.draws import block_streams
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import load_release

LAYOUT = Layout(0, groups=(3, 2, 3, 4), label=2)
SCALED = Layout(2, groups=(3, 2), label=0)


@pytest.fixture(autouse=True)
def quick_fits(monkeypatch):
    """Make a mixture that is good enough to begin from, with fewer made-up records."""
    monkeypatch.setattr(tables, "fit_forest", functools.partial(tables.fit_forest, steps=60))
    monkeypatch.setattr(labels, "_MADE", 2000)


def some_codes(n, seed=0):
    random = np.random.default_rng(seed)
    return np.stack([random.integers(0, size, n) for size in LAYOUT.groups], axis=1).astype(np.uint8)


def public_numbers(scale=1.0, seed=0, layout=LAYOUT):
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(feature_count(layout), 5, generator=random, dtype=torch.float64)
    return features, scale * torch.randn(5, 3, generator=random, dtype=torch.float64)


def sums(statistic, codes):
    nowhere = torch.zeros(len(codes), dtype=torch.int64)
    multiples = statistic.sums(Encoded(np.zeros((len(codes), 0), np.float32), codes), nowhere)
    assert multiples.dtype == torch.int64
    return multiples.double() * statistic.unit


def test_errors_that_are_too_small_to_be_squared_add_nothing():
    """A label that weights are sure of leaves errors of 1e-162, whose squares are 0; features of 1e180 would show them."""
    layout = Layout(0, groups=(2, 1000), label=1)
    features = torch.zeros(layout.width, 1, dtype=torch.float64)
    features[0] = 1e180
    weights = torch.full((1, 1000), -372.6 / 1e180, dtype=torch.float64)
    weights[0, 0] = 0.0
    assert float(sums(Gradient(Crossed(layout), features, weights, 1.0, 1.0), np.zeros((1, 2), np.int16)).norm()) <= 1.0


def shares_before(scale=1.0, layout=LAYOUT):
    """Return a function that gives shares of labels, above 0, of records, of each by itself."""
    features, weights = public_numbers(scale, seed=1, layout=layout)
    logits = (features @ weights).clamp(-1e6, 1e6)

    def shares(records):
        return (whole_shares(added_up(records, layout, logits)) * 2.0**-26).double().clamp(min=1e-4)

    return shares


@pytest.mark.parametrize("before", [None, shares_before()], ids=["from 0", "from shares"])
def test_a_gradient_is_that_of_the_loss(before):
    features, weights = public_numbers()
    codes = some_codes(40)
    weights.requires_grad_()
    records = Encoded(np.zeros((40, 0)), codes)
    logits = added_up(records, LAYOUT, features) @ weights + (0.0 if before is None else before(records).log())
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(codes[:, 2]).long(), reduction="sum").backward()
    found = sums(Gradient(Crossed(LAYOUT), features, weights.detach(), 20.0, 4.0, before), codes)
    torch.testing.assert_close(found, weights.grad, rtol=0.0, atol=40 * 20.0 * 2.0**-15)


def every_record(layout):
    """Return every possible record: of units, some values, those at the knots among them."""
    values = [np.array([0.0, 0.25, 0.3, 1.0])] * layout.units + [np.arange(choices) for choices in layout.groups]
    rows = np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(-1, len(values))
    return Encoded(rows[:, : layout.units].astype(np.float32), rows[:, layout.units :].astype(np.uint8))


@pytest.mark.parametrize("layout", [LAYOUT, SCALED], ids=["choices", "units too"])
@pytest.mark.parametrize("scale", [0.1, 1e3, 1e308])
@pytest.mark.parametrize("begins", [False, True], ids=["from 0", "from shares"])
def test_no_record_moves_a_sum_by_more_than_its_bound(scale, layout, begins):
    """Every possible record; some use up the bound."""
    features, weights = public_numbers(scale, layout=layout)
    before = shares_before(scale, layout) if begins else None
    every, nowhere = every_record(layout), torch.zeros(1, dtype=torch.int64)

    def lengths(statistic):
        """Return the lengths in whole numbers, so that only the roots are rounded."""
        rows = (statistic.sums(every[i : i + 1], nowhere).flatten().tolist() for i in range(len(every)))
        squares = [sum(number**2 for number in row) for row in rows]
        assert max(squares) <= Fraction(statistic.bound / statistic.unit) ** 2
        return [statistic.unit * math.sqrt(square) for square in squares]

    for statistic in (
        Gradient(Crossed(layout), features, weights, 0.7, 4.0, before),
        Agreement(Gradient(Crossed(layout), features, weights, 1.0, 4.0, before)),
    ):
        longest = max(lengths(statistic))
        assert longest <= statistic.bound and (scale != 1e3 or longest > 0.99 * statistic.bound)
    # A gradient that is not shortened would be noticed.
    assert scale != 1e3 or max(lengths(Gradient(Crossed(layout), features, weights, 20.0, 4.0, before))) > 0.7


def test_a_gradient_that_is_too_long_nevertheless_becomes_zero(monkeypatch):
    """Roots that are too small make factors too large, which the squared lengths in whole numbers notice."""
    features, weights = public_numbers(1e3)
    statistic, every, root = Gradient(Crossed(LAYOUT), features, weights, 0.7, 4.0), every_record(LAYOUT), torch.Tensor.sqrt
    monkeypatch.setattr(torch.Tensor, "sqrt", lambda x: 0.95 * root(x))
    rows = [statistic.sums(every[i : i + 1], torch.zeros(1).long()).flatten().tolist() for i in range(len(every))]
    squares = [sum(number**2 for number in row) for row in rows]
    assert 0 in squares and max(squares) <= Fraction(statistic.bound / statistic.unit) ** 2


def test_shares_that_the_gradient_has_computed_are_those_of_the_agreement_alone():
    """Bit for bit, for parts of records that are asked for again, and for others of as many records."""
    features, weights = public_numbers()
    both, nowhere = Gradient(Crossed(LAYOUT), features, weights, 1.0, 4.0), torch.zeros(40).long()
    agreement = Agreement(both)
    for part in (some_codes(80)[:40], some_codes(80)[40:]):
        records = Encoded(np.zeros((40, 0), np.float32), part)
        both.sums(records, nowhere)
        alone = Agreement(Gradient(Crossed(LAYOUT), features, weights, 1.0, 4.0))
        assert torch.equal(agreement.sums(records, nowhere), alone.sums(records, nowhere))


@pytest.mark.parametrize("scale", [0.1, 30.0, 1e9, 1e308])
def test_sums_by_choices_are_those_of_features(scale):
    """Bit for bit: errors that are added up by choices first give what each record's own product gives."""
    features, weights = public_numbers(scale)
    statistic, codes = Gradient(Crossed(LAYOUT), features, weights, 0.7, 4.0), some_codes(300)
    records = Encoded(np.zeros((300, 0), np.float32), codes)
    u = added_up(records, LAYOUT, statistic._choices._rows.double()).to(torch.int32)
    shares = whole_shares(added_up(records, LAYOUT, statistic._logits))
    told = torch.from_numpy(codes[:, 2].astype(np.int64))
    expected = label_gradients.summed_gradients(u, shares, told, 0.7, 4.0)
    assert torch.equal(statistic.sums(records, torch.zeros(300).long()), expected) and expected.any()


def test_features_that_are_too_long_are_cut_on_both_sides():
    u = torch.tensor([[3e3, 1e300], [0.5, -1e9], [torch.inf, torch.nan]], dtype=torch.float64)
    whole = whole_features(u, 1.0)
    assert torch.equal(whole_features(-u, 1.0), -whole) and max(math.hypot(*row) for row in whole.tolist()) <= 2.0**30


def test_a_record_adds_the_same_beside_any_others():
    """Bit for bit: products, powers and sums of floats round a row by how many there are, and by its place."""
    (features, weights), before = public_numbers(), shares_before()
    codes = some_codes(60)
    for statistic in (
        Gradient(Crossed(LAYOUT), features, weights, 1.0, 4.0, before),
        Agreement(Gradient(Crossed(LAYOUT), features, weights, 1.0, 4.0, before)),
    ):
        alone = sum(sums(statistic, codes[i : i + 1]) for i in range(60))
        assert torch.equal(sums(statistic, codes), alone)
        for cut in (1, 7, 59):
            assert torch.equal(sums(statistic, codes[:cut]) + sums(statistic, codes[cut:]), alone)


def schema(choices=3):
    columns = {name: {"type": "category", "values": [f"{name}{i}" for i in range(4)]} for name in "abcd"}
    columns["y"] = {"type": "integer", "low": 1, "high": choices}
    return schema_of({"label": "y", "columns": columns}).with_bins(5)


def some_records(n, choices=3, seed=0):
    """Draw columns that go together, and a label that follows their logits."""
    random = np.random.default_rng(seed)
    first = random.integers(0, 4, n)
    others = [np.where(random.random(n) < 0.4, first, random.integers(0, 4, n)) for _ in range(3)]
    codes = np.stack([first, *others], axis=1)
    weights = 1.2 * np.random.default_rng(7).normal(size=(4, 4, choices))
    logits = sum(weights[j][codes[:, j]] for j in range(4))
    y = (logits + random.gumbel(size=(n, choices))).argmax(axis=1)
    own = Encoded(np.zeros((n, 0), np.float32), np.concatenate([codes, y[:, None]], axis=1).astype(np.uint8))
    return Records(schema(choices), own), np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def recipe(records, **settings):
    # At these strengths the program tells labels apart in each table (`pays_by_label`).
    return TableRecipe(records.schema, n=len(records), **({"k": 8, "label_share": 0.3, "by_label": True} | settings))


def measured(records, epsilon, **settings):
    own, kept = recipe(records, **settings), []
    # The noise is always the same, so that what is found is.
    account = Account(make_plan(own.specs(1.0), epsilon=epsilon, delta=1e-6), stream=PrivateStream(3))
    mixture = own.measure(records, torch.zeros(len(records), dtype=torch.int64), account, save=kept.append)
    assert account.finished and all(own.fits(state) for state in kept)
    return own, mixture, kept


def shares_of_labels(network):
    """Return the logarithms (k, labels) of the shares of labels in components."""
    return network.network.label_table[0].clamp(min=LEAST).log()


def given(mixture, records):
    """Return the shares (B, labels) that the regression gives to labels, without components."""
    network, layout = mixture.network, records.schema.layout
    logits = added_up(records.encoded, layout, network.label_weights.double()) + network.label_level
    own = mixture.weights.double() @ shares_of_labels(network)
    return torch.softmax(logits + network.label_closeness * own, dim=1).numpy()


@pytest.mark.parametrize("choices", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_without_noise_the_label_follows_its_logits(choices):
    records, true = some_records(20_000, choices)
    _, mixture, _ = measured(records, math.inf)
    assert np.abs(given(mixture, records) - true).mean() < 0.02
    drawn = mixture.sample(20_000, torch.Generator().manual_seed(0)).codes
    shares = [np.bincount(codes[:, 4], minlength=choices) / 20_000 for codes in (drawn, records.encoded.codes)]
    np.testing.assert_allclose(*shares, atol=0.02)


def test_real_records_correct_what_a_poor_mixture_says():
    """One component knows nothing of what goes together: gradients do."""
    records, true = some_records(10_000)
    own, mixture, kept = measured(records, 5.0, k=1)
    start = own.fit({**kept[-1], LABELS: ()})
    errors = [np.abs(given(found, records) - true).mean() for found in (start, mixture)]
    assert errors[1] < 0.1 and errors[1] < 0.5 * errors[0]


def test_the_label_begins_with_what_the_tables_say_of_it():
    """The ridge is a few thousandths for noise of .4 % of the records; a hundred times that would forget half of it."""
    records, true = some_records(2000)
    own, _, kept = measured(records, 3.0)
    start = own.fit({**kept[-1], LABELS: ()})
    assert np.abs(given(start, records) - true).mean() < 0.1
    assert np.abs(true.mean(axis=0) - true).mean() > 0.2


@pytest.mark.slow
def test_labels_follow_components_as_far_as_real_ones_can_be_told():
    """Not at all where real records agree with no weights; as closely as helps where they always do; between, no closer."""
    records, _ = some_records(2000)
    own, mixture, kept = measured(records, 5.0)
    regression = own._regression(kept[-1], [])
    weights = regression._corrected(kept[-1][LABELS])
    made = regression._shares(weights)

    def closeness(gap):
        """Return it where real records agree by so much more with weights than made-up ones, as is found without noise."""
        rounds = []
        for i, found in enumerate(kept[-1][LABELS]):
            drawn = regression._shares(regression._corrected(kept[-1][LABELS][:i])).square().sum(dim=1).mean()
            agreed = torch.tensor([2000.0 * (drawn + gap)], dtype=torch.float64)
            rounds.append({**found, "agreement": Measured(agreed, 0.0, found["agreement"].run)})
        return float(own.fit({**kept[-1], LABELS: rounds}).network.label_closeness)

    def agreement(closeness):
        return float((regression._levelled(weights, closeness)[0] * made).sum(dim=1).mean())

    tried = np.geomspace(1e-3, 8.0, 100)
    peak = max(tried, key=agreement)
    gain = agreement(peak) - agreement(0.0)
    assert closeness(-0.5) == 0.0
    assert agreement(closeness(0.5)) > agreement(peak) - 0.02 * gain
    # Beyond the peak it would be as large again, and labels would follow components alone.
    between = closeness(gain / 2)
    wanted = float(made.square().sum(dim=1).mean()) + gain / 2
    # A difference of a thousandth counts as none, and a closeness of 4 as a deviation.
    assert 0.0 < between < peak and agreement(between) == pytest.approx(wanted, abs=0.002)
    assert gain > 0.01
    drawn = Records(records.schema, mixture.sample(20_000, torch.Generator().manual_seed(0)))
    weights, layout = mixture.network.label_weights.double(), records.schema.layout
    told, real = (
        np.take_along_axis(
            torch.softmax(added_up(part.encoded, layout, weights), dim=1).numpy(), part.encoded.codes[:, 4:].astype(int), 1
        ).mean()
        for part in (drawn, records)
    )
    assert told == pytest.approx(real, abs=0.03)


def test_a_label_that_columns_determine_is_left_to_the_mixture(monkeypatch):
    """No regression on single columns tells whether two of them are alike: it is right in half of all cases."""
    monkeypatch.setattr(tables, "fit_forest", functools.partial(tables.fit_forest, steps=200))
    random = np.random.default_rng(0)
    a, b = random.integers(0, 2, (2, 4000))
    codes = np.stack([a, b, *random.integers(0, 4, (2, 4000)), a ^ b], axis=1).astype(np.uint8)
    records = Records(schema(2), Encoded(np.zeros((4000, 0), np.float32), codes))
    own, mixture, kept = measured(records, 5.0)
    told = mixture.network.label_shares(records.encoded, mixture.weights).argmax(dim=1).numpy()
    assert (told == a ^ b).mean() > 0.95
    drawn = mixture.sample(4000, torch.Generator().manual_seed(0)).codes
    assert (drawn[:, 4] == drawn[:, 0] ^ drawn[:, 1]).mean() > 0.9
    # It begins with what the mixture says: a regression would know nothing.
    start = own.fit({**kept[-1], LABELS: ()}).network
    assert float(start.label_weights.abs().max()) == 0.0 and float(start.label_closeness) == 1.0
    # Statistics go to other processes, and give the same bits there.
    for statistic in own.statistics(LABELS, kept[0]).values():
        copy = pickle.loads(pickle.dumps(statistic))
        assert torch.equal(sums(copy, codes[:50]), sums(statistic, codes[:50]))
    monkeypatch.setattr(labels, "_DOUBT", 0.0)
    start = recipe(records).fit({**kept[-1], LABELS: ()}).network
    assert float(start.label_closeness) != 1.0


@pytest.mark.filterwarnings("ignore::lightning_dpgen.measure.recipe.MostlyNoise")
def test_noise_alone_moves_nothing_much(short_fits):
    """Gradients of a budget that buys nothing: their mean is drawn to the start by what noise explains."""
    records, _ = some_records(2000)
    own, mixture, kept = measured(records, 0.02)
    start = own.fit({**kept[-1], LABELS: ()})
    noise = kept[-1][LABELS][0]["gradient"].deviation / 2000
    moved = mixture.network.label_weights - start.network.label_weights
    assert float(moved.norm()) < noise * math.sqrt(moved.numel())


def test_noise_is_that_of_the_plan(short_fits):
    records, _ = some_records(2000)
    own, _, kept = measured(records, 2.0, k=2)
    plan = make_plan(own.specs(1.0), epsilon=2.0, delta=1e-6)
    access = plan.stage(LABELS).access
    statistics = own.statistics(LABELS, kept[0])
    for name, found in kept[1][LABELS][0].items():
        assert found.deviation == pytest.approx(access.multipliers[name] * statistics[name].bound)
    inverse = {stage.name: stage.count * sum(m**-2 for m in stage.access.multipliers.values()) for stage in plan.stages}
    assert inverse[LABELS] / sum(inverse.values()) == pytest.approx(0.3)


def test_a_run_goes_on_between_accesses_and_ends_where_it_would_have(short_fits):
    records, _ = some_records(1000)
    few = functools.partial(recipe, records, k=2)
    own, mixture, kept = measured(records, 3.0, k=2)
    assert [len(state.get(LABELS, ())) for state in kept] == [0, 1, 2, 3, 4]
    # A finished state needs no record.
    again = few().measure(None, None, None, state=kept[-1])
    for name, tensor in mixture.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name])
    # The next statistics follow from the past measurements.
    one, other = (each.statistics(LABELS, kept[2])["gradient"] for each in (own, few()))
    codes = records.encoded.codes
    assert torch.equal(sums(one, codes), sums(other, codes))
    assert not torch.equal(sums(one, codes), sums(own.statistics(LABELS, kept[1])["gradient"], codes))
    assert not own.fits({LABELS: kept[-1][LABELS]}) and not own.fits({**kept[-1], LABELS: kept[-1][LABELS] * 2})
    assert not few(label_share=0.0).fits(kept[1])


def test_a_release_is_read_back_with_its_label(tmp_path, short_fits):
    records, _ = some_records(1000)
    _, mixture, _ = measured(records, 3.0)
    write_model(tmp_path, mixture)
    release = load_release(tmp_path)
    mine = mixture.sample(40, block_streams(5, 0)[0])
    assert np.array_equal(mine.codes, release.sample_encoded(40, 5).codes)
    assert set(release.sample(30, 0, where={"y": 2}).y) == {2} and len(release.component(3).sample(10, 0)) == 10


def test_without_a_label_there_is_nothing_to_tell():
    plain = schema_of({"columns": {"a": {"type": "boolean"}, "b": {"type": "boolean"}}}).with_bins(5)
    with pytest.raises(ValueError, match=r"label_share=0\.3: expected 0 where there is no label"):
        TableRecipe(plain, 3, 100, label_share=0.3)
    for share in (1.0, "much", True):
        with pytest.raises(ValueError, match=rf"label_share={share!r}: expected a number from 0, below 1"):
            TableRecipe(schema(), 3, 100, label_share=share)
    with pytest.raises(ValueError, match=r"bound=0\.0: expected"):
        Gradient(Crossed(LAYOUT), *public_numbers(), 0.0, 4.0)
    assert TABLES in TableRecipe(schema(), 3, 100).workloads[0].stage
