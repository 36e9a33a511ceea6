"""The private split: its releases are in range and enough to find clear groups, and it costs what was planned."""

import math
from dataclasses import fields, replace

import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_dpgen.clustering.block_sums import shrunk_means
from lightning_dpgen.clustering.kmeans import private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.sampling.errors import BadRecords


def _split(records, settings, *, multiplier, n, centres=None):
    """Run a split whose every access has one merged noise multiplier; 0 is a run without privacy."""
    settings = settings.for_layout(Layout(units=records.shape[1]))
    stages = tuple(Stage(d.access(multiplier), d.count, d.share) for d in settings.specs(n))
    account = Account(Plan(stages, target_epsilon=1.0, delta=1e-5), stream=PrivateStream(seed=0))
    scale = torch.ones(records.shape[1])
    public = torch.Generator().manual_seed(0)
    return private_split(records, scale, settings, n, account, public, centres=centres), account


def _blobs():
    """Four groups of 500 records, each with its own quarter of 16 columns near 0.9 and the rest near 0.1."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(2000) % 4
    centres = torch.where(torch.arange(16)[None] // 4 == torch.arange(4)[:, None], 0.9, 0.1)
    return (centres[labels] + 0.05 * torch.randn(2000, 16, generator=generator)).clamp(0, 1), labels, centres


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("multiplier", [0.0, 0.3, 100.0])
@pytest.mark.parametrize("size", [0, 1, 60])
@pytest.mark.parametrize("dimensions", [None, 2, 6])
def test_every_release_is_in_range_and_every_access_is_made(size, multiplier, k, dimensions):
    settings = SplitSettings(k=k, iterations=2, features=6, dimensions=dimensions, label_weight=1.0)
    records = torch.rand(size, 5, generator=torch.Generator().manual_seed(0))
    split, account = _split(records, settings, multiplier=multiplier, n=5000)
    assert split.clusters.shape == (size,) and split.counts.shape == (k,) and split.means.shape == (k, 5)
    assert torch.isfinite(split.means).all() and (split.means >= 0).all() and (split.means <= 1).all()
    assert (split.counts >= 1).all() and split.weights.sum() == pytest.approx(1.0, abs=1e-5)
    account.verify_complete()


def test_clear_groups_are_found_and_their_means_released():
    """Seeded; noise of multiplier 0.5 is far below the 500 records of a group."""
    records, labels, centres = _blobs()
    split, _ = _split(records, SplitSettings(k=4, iterations=6, features=60), multiplier=0.5, n=2000)
    pure = [torch.bincount(labels[split.clusters == c], minlength=4) for c in range(4)]
    assert all(counts.max() >= 0.95 * counts.sum() for counts in pure if counts.sum())
    largest = int(split.counts.argmax())
    distances = (split.means[largest] - centres).abs().amax(dim=1)
    assert distances.min() < 0.1
    # The means follow the records: those of a wrong group are far away.
    assert distances.max() > 0.5


def test_a_start_that_halves_a_group_and_joins_two_others_is_put_right():
    """Three centres start in one group and one beside the other three, from which plain iterations never come back."""
    records, labels, centres = _blobs()
    public = centres[[0, 0, 0, 1]] + torch.tensor([0.02, 0.0, -0.02, 0.0])[:, None]
    settings = SplitSettings(k=4, iterations=10, features=60, start="public")
    split, _ = _split(records, settings, multiplier=0.5, n=2000, centres=public.clamp(0, 1))
    assert sorted(labels[split.clusters == c].unique().tolist() for c in range(4)) == [[0], [1], [2], [3]]


VARIANTS = {
    "laplacian": {"kernel": "laplacian", "features": 100},
    "single cosines": {"paired": False, "features": 101},
    "identity": {"kernel": "identity"},
    "random": {"start": "random", "features": 60},
    "public": {"start": "public", "features": 60},
    "few dimensions": {"features": 60, "dimensions": 5},
    "few dimensions of the records": {"kernel": "identity", "dimensions": 3, "start": "public"},
    "random in few dimensions": {"start": "random", "features": 60, "dimensions": 5},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_map_and_start_finds_clear_groups(variant):
    records, labels, centres = _blobs()
    settings = SplitSettings(k=4, iterations=6, **variant)
    # Public records of the four groups, none of them in the data.
    public = (centres - 0.05).clamp(0, 1) if settings.start == "public" else None
    split, account = _split(records, settings, multiplier=0.5, n=2000, centres=public)
    account.verify_complete()
    assert len({a.access.stage for a in account.plan.stages}) == (3 if settings.start == "mean" or settings.projects else 2)
    pure = [torch.bincount(labels[split.clusters == c], minlength=4) for c in range(4)]
    assert sum(int(counts.max()) for counts in pure) >= 0.7 * len(records)


@pytest.mark.parametrize(
    ("start", "centres"),
    [
        ("public", None),
        ("public", torch.zeros(3, 16)),
        ("public", torch.full((4, 16), math.nan)),
        ("mean", torch.zeros(4, 16)),
    ],
    ids=["none", "too few", "nan", "not asked for"],
)
def test_centres_that_do_not_fit_cost_nothing(start, centres):
    records, *_ = _blobs()
    with pytest.raises(ValueError, match="centres"):
        _split(records, SplitSettings(k=4, start=start), multiplier=1.0, n=2000, centres=centres)


def _account_of(settings, n=60):
    stages = tuple(Stage(d.access(2.0), d.count, d.share) for d in settings.for_layout(Layout(units=5)).specs(n))
    return Account(Plan(stages, target_epsilon=1.0, delta=1e-5), stream=PrivateStream(seed=0))


PLANNED = SplitSettings(k=3, iterations=3, features=8, dimensions=2)
ROWS = torch.rand(60, 5, generator=torch.Generator().manual_seed(6))
BAD = torch.tensor([[torch.nan] * 5])
REFUSED = {
    "more iterations": ({"settings": replace(PLANNED, iterations=5)}, LedgerError, "accesses 'clustering'.* need 5"),
    "fewer iterations": ({"settings": replace(PLANNED, iterations=2)}, LedgerError, "accesses 'clustering'.* need 2"),
    "all features": ({"settings": replace(PLANNED, dimensions=None)}, LedgerError, "noise for moments, sum.*need sum"),
    "no first access": ({"settings": replace(PLANNED, dimensions=None, start="random")}, LedgerError, "'feature moments'"),
    "one cluster": ({"settings": replace(PLANNED, k=1)}, LedgerError, "need 0"),
    "no records declared": ({"n": 0}, ValueError, "n=0: expected the declared number of records"),
    "n that is no number": ({"n": math.nan}, ValueError, "n=nan"),
    "a weight that is no number": ({"scale": torch.full((5,), math.nan)}, ValueError, "scale: expected finite"),
    "a record that is no number": ({"records": torch.cat([ROWS, BAD])}, BadRecords, "NaN or infinite"),
    "a sparse one": ({"records": scipy.sparse.csr_array(torch.cat([ROWS, BAD]).numpy())}, BadRecords, "NaN or infinite"),
    "other columns": ({"records": ROWS[:, :4]}, BadRecords, r"of shape \(N, 4\): a split of 5 columns"),
    "pictures": ({"records": ROWS.view(60, 5, 1)}, BadRecords, r"of shape \(N, 5, 1\)"),
    "columns apart": ({"records": (ROWS, ROWS)}, BadRecords, "in several columns"),
}


@pytest.mark.parametrize(("wrong", "error", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_split_costs_nothing(wrong, error, words):
    account, given = _account_of(PLANNED), {"records": ROWS, "scale": torch.ones(5), "settings": PLANNED, "n": 60} | wrong
    with pytest.raises(error, match=words):
        private_split(*given.values(), account, torch.Generator().manual_seed(0))
    assert not account.ledger.accesses


@pytest.mark.parametrize("kernel", ["rbf", "identity"])
@pytest.mark.parametrize("k", [1, 3])
def test_records_of_any_type_are_split_alike(kernel, k):
    """The default type of new tensors may also have 64 bits."""
    settings, records = replace(PLANNED, kernel=kernel, k=k), (ROWS > 0.5).to(torch.float32)
    found = []
    others = (torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int64, torch.bool, "default")
    for kind in (torch.float32, *others):
        account = _account_of(settings)
        torch.set_default_dtype(torch.float64 if kind == "default" else torch.float32)
        try:
            given = records if kind == "default" else records.to(kind)
            split = private_split(given, torch.ones(5), settings, 60, account, torch.Generator().manual_seed(0))
        finally:
            torch.set_default_dtype(torch.float32)
        found.append(split)
    for split in found[1:]:
        assert torch.equal(split.clusters, found[0].clusters) and torch.equal(split.means.float(), found[0].means)


def test_shares_of_one_access_add_up():
    for spec in SplitSettings(k=3).specs(1000):
        assert sum(spec.noise_shares.values()) == pytest.approx(1.0) and 0 < spec.share < 1


def test_the_noise_of_a_centre_is_as_long_as_it_is_said_to_be():
    """4,000 draws in 64 of 70: the length is off by 1 part in 600 by chance (one deviation), and never by 5 of those."""
    settings, n = SplitSettings(k=5, features=70, dimensions=64), 900
    spec = settings.specs(n)[1]
    plan = Plan((Stage(spec.access(3.0), spec.count, 0.5),), 1.0, 1e-5, max_rows=2)
    deviation = 2 * plan.stages[0].access.multipliers["sums"]
    noise = deviation * torch.randn(4000, 64, generator=torch.Generator().manual_seed(0)) / (n / 5)
    assert settings.centre_noise(plan, n) == pytest.approx(float(noise.norm(dim=1).square().mean().sqrt()), rel=5 / 600)
    assert SplitSettings(k=1).centre_noise(plan, n) == 0.0


def test_without_a_kernel_accesses_need_the_number_of_columns():
    with pytest.raises(ValueError, match=r"^kernel=identity: expected settings\.for_layout"):
        SplitSettings(kernel="identity").specs(100)


def test_the_default_radius_keeps_a_record_with_a_fifth_of_its_columns_at_one():
    assert all(math.sqrt(m / 5) <= SplitSettings().for_layout(Layout(m)).radius for m in (1, 10, 784, 10_000))


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": 0}, {"iterations": 0}, {"label_weight": -0.1}, {"kernel": "poly"}, {"start": "records"},
        {"features": 7}, {"dimensions": 0}, {"moments_share": 0.0},
        *({name: bad} for name in ("gamma", "radius") for bad in (0.0, -1.0, math.inf, math.nan)),
    ],
)  # fmt: skip
def test_impossible_settings_are_named(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name}="):
        SplitSettings(**wrong)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), k=st.integers(1, 6), m=st.integers(1, 60), noise=st.sampled_from([0.0, 0.1, 10.0, 1e6]))
def test_shrunk_means_are_means_whatever_the_noise(seed, k, m, noise):
    generator = torch.Generator().manual_seed(seed)
    counts = 1.0 + 500.0 * torch.rand(k, generator=generator)
    true = torch.rand(k, m, generator=generator)
    found = shrunk_means(true * counts[:, None] + noise * torch.randn(k, m, generator=generator), counts, noise)
    assert torch.isfinite(found).all() and (found >= 0).all() and (found <= 1).all()
    if not noise:
        torch.testing.assert_close(found, true, rtol=1e-3, atol=1e-3)


def test_rare_items_are_not_drowned():
    """Seeded: 2,000 items of which most are rarer than the noise, in four clusters; noise does not add up to baskets.

    All that is held is off by 0.018 (one standard deviation) for the noise, of 0.41.
    """
    generator = torch.Generator().manual_seed(0)
    shares = 0.05 / torch.arange(1, 2001).float()
    counts = torch.full((4,), 12_500.0)
    sums = (shares * counts[:, None]) + 10.0 * torch.randn(4, 2000, generator=generator)
    found = shrunk_means(sums, counts, 10.0)
    assert abs(float(found.sum(dim=1).mean() - shares.sum())) < 4 * 0.018
    clamped = (sums / counts[:, None]).clamp(min=0.0)
    assert (found - shares).abs().sum() < 0.4 * (clamped - shares).abs().sum()


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("dimensions", [None, 2])
@pytest.mark.parametrize("start", ["mean", "random"])
@pytest.mark.parametrize("means", [False, True])
def test_room_is_asked_for_before_each_access_and_is_enough_for_what_is_kept(k, dimensions, start, means):
    settings = SplitSettings(k=k, iterations=2, features=6, dimensions=dimensions, start=start)
    specs = settings.specs(900, means=means)
    account = Account(Plan(tuple(Stage(spec.access(1.0), spec.count, spec.share) for spec in specs), 1.0, 1e-5))
    events, opened = [], account.open
    account.open = lambda *words, **named: events.append("opened") or opened(*words, **named)

    def sizes(state):
        return {f.name: getattr(state, f.name).numel() for f in fields(state) if isinstance(getattr(state, f.name), Tensor)}

    records = torch.rand(60, 5, generator=torch.Generator().manual_seed(0))
    private_split(
        records, torch.ones(5), settings, 900, account, torch.Generator().manual_seed(0),
        reserve=lambda state: events.append(state), save=lambda state: events.append((state,)),
    )  # fmt: skip
    assert events.count("opened") == sum(spec.count for spec in specs)
    for i, event in enumerate(events):
        if event == "opened":
            room, ((kept, *_), *_) = events[i - 1], [own for own in events[i:] if isinstance(own, tuple)]
            assert all(sizes(room)[name] >= size for name, size in sizes(kept).items())
            own = (getattr(state, name) for state in (room, kept) for name in sizes(kept))
            assert {tensor.dtype for tensor in own} == {torch.float32}
