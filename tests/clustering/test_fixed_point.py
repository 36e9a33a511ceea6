"""Whole numbers of records: exact products and lengths, and the nearest centre that exact arithmetic finds."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import torch

from lightning_dpgen.clustering.block_sums import clipped_sums, lloyd
from lightning_dpgen.clustering.features import FourierFeatures, IdentityFeatures, KeptFeatures
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.fixed_point import Grid, Nearest, lengths, unit_of, whole_product, whole_rows
from lightning_dpgen.sampling.stores import Steps


@pytest.mark.parametrize("d", [2, 16, 400])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_the_nearest_centre_is_that_of_exact_arithmetic(d, size):
    """Fractions find the same centres, also where float32 cannot tell these apart, and where one stands twice."""
    generator = torch.Generator().manual_seed(d)
    whole = torch.randint(-8192, 8193, (40, d), generator=generator).float()
    first = size * torch.randn(1, d, generator=generator)
    near = first * (1.0 + 1e-7 * torch.randn(6, d, generator=generator))
    centres = torch.cat([first, near, first, size * torch.randn(2, d, generator=generator)]).double()
    search = Nearest(centres, float(whole.norm(dim=1).max()))
    # Centres are taken as whole multiples of one unit, which equal them but for rounding.
    multiples, halves = search._exact.long().tolist(), [Fraction(-offset) for offset in search._offsets.tolist()]
    unit = centres.abs().max() / search._exact.abs().max()
    assert (search._exact * unit - centres).abs().max() <= unit / 2 * (1 + 1e-9)
    torch.testing.assert_close(-search._offsets, 0.5 * unit * search._exact.square().sum(dim=1), rtol=1e-14, atol=0)
    expected = []
    for z in whole.long().tolist():
        products = (sum(a * b for a, b in zip(z, c, strict=True)) for c in multiples)
        scores = [float(product - half) for product, half in zip(products, halves, strict=True)]
        expected.append(scores.index(max(scores)))
    assert search(whole).tolist() == expected
    for rows in ([3], [5, 3, 5], list(range(39, -1, -1))):
        assert search(whole[rows]).tolist() == [expected[row] for row in rows]
    rough = (whole @ centres.float().T - 0.5 * centres.float().square().sum(dim=1)).argmax(dim=1)
    assert d == 2 or size > 1.0 or rough.tolist() != expected


@pytest.mark.parametrize("width", [12, 16_470, pytest.param(300_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sparse", [False, True])
def test_no_record_is_longer_than_the_radius_however_wide(width, sparse):
    """Sums are computed again in float64 from single records; without the cut towards 0 some would be longer."""
    generator = torch.Generator().manual_seed(width)
    records = torch.rand(4, width, generator=generator) + torch.tensor([0.0, 1.0, 100.0, 1e30])[:, None]
    records = torch.cat([records, records.half().float(), torch.full((1, width), 3e38)])
    if sparse:
        records = records.where(torch.rand(len(records), width, generator=generator) < 0.5, 0.0)
    for radius in (0.1, 1.0, 0.3 * width**0.5):
        for row in records:
            store = store_of(scipy.sparse.csr_array(row[None].numpy()) if sparse else row[None])
            multiples, unit = clipped_sums(store, radius, torch.zeros(1, dtype=torch.int64), 1)
            assert sum(number**2 for number in multiples[0].tolist()) <= Fraction(radius / unit) ** 2
            added = multiples.double() * unit
            shortened = row.double() * min(1.0, radius / float(row.double().norm()))
            assert row.max() > 100 or float((added[0] - shortened).norm()) < 0.02 * radius


@pytest.mark.parametrize("width", [1, 2, 24, 113, 1000])
@pytest.mark.parametrize("bits", [16, 28])
def test_whole_rows_are_within_the_bound_and_each_follows_from_its_own_row(width, bits):
    """Rows far from the bound, beside it by some last bits, and far beyond; lengths are Python's whole numbers."""
    random = torch.Generator().manual_seed(width)
    rows = torch.randn(193, width, generator=random, dtype=torch.float64)
    rows /= torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    factors = torch.tensor([0.1, 1.0 - 3e-4, 1.0 - 2e-6, 1.0, 1.0 + 1e-15, 1.5, 1e200], dtype=torch.float64)
    rows *= 3.0 * factors.repeat(28)[:193, None]
    for unit in (unit_of(3.0, bits), 3.0 / 2**bits):
        whole, most = whole_rows(rows, 3.0, unit), 3.0 / unit
        squares = [sum(number * number for number in row) for row in whole.tolist()]
        assert max(squares) <= most**2 and min(squares[3::7]) > ((1.0 - (2.0 + width**0.5) * 2.0**-16) * most) ** 2
        torch.testing.assert_close(whole[::7].double() * unit, rows[::7], atol=0.51 * unit, rtol=0.0)
        assert torch.equal(whole, torch.cat([whole_rows(row[None], 3.0, unit) for row in rows]))
        assert torch.equal(whole[1:], whole_rows(rows[1:], 3.0, unit))


def test_a_row_that_is_not_finite_or_absurdly_long_counts_as_nothing():
    rows = torch.ones(4, 200, dtype=torch.float64)
    rows[0, 5], rows[1], rows[2] = torch.nan, torch.inf, -1e308
    for bound in (1e-6, 1.0, 1e6):
        assert whole_rows(rows, bound, unit_of(bound)).any(dim=1).tolist() == [False, False, False, True]


def test_what_is_no_number_counts_as_nothing_and_what_is_too_large_as_the_largest():
    grid = Grid(2.0**-12, bits=22)
    found = grid(torch.tensor([[torch.nan, torch.inf, -torch.inf, 3e38, 1e-30, 0.5]]))
    assert found.tolist() == [[0.0, 2.0**22, -(2.0**22), 2.0**22, 0.0, 2048.0]]
    assert torch.equal(grid(found.half()), grid(found.half().double()))


def test_multiples_are_within_what_the_grid_says_whatever_a_store_gives():
    given = Grid(1.0, bits=2, given=True)(torch.tensor([[255, 3, 0]], dtype=torch.uint8))
    assert given.tolist() == [[4.0, 3.0, 0.0]] and given.dtype == torch.float64
    assert Grid(1.0, bits=8, given=True)(torch.tensor([[255]], dtype=torch.uint8)).tolist() == [[255.0]]


def test_a_record_that_is_shortened_is_within_the_radius_by_fractions():
    """Radii are just below whole numbers of steps of 1/255 over a power of two: quotients of floats round up to these."""
    random, none = np.random.default_rng(0), torch.zeros(1, dtype=torch.int64)
    for byte, steps in zip(random.integers(100, 256, 60), random.integers(2**20, 2**22, 60), strict=True):
        radius = float(np.nextafter(steps / (255 * 2**16), 0.0))
        sums, unit = clipped_sums(store_of(np.full((1, 1), byte, np.uint8), scale=255), radius, none, 1)
        assert int(sums) * Fraction(unit) <= Fraction(radius)


@pytest.mark.parametrize("k", [2, 5])
def test_a_record_adds_to_the_sum_of_its_own_cluster_alone(k):
    """Also where records are as far from two centres, and the cluster is found on a second look."""
    ends, others = torch.eye(6)[:k], torch.rand(40, 6, generator=torch.Generator().manual_seed(k))
    records = torch.cat([0.5 * (ends[:-1] + ends[1:]), ends, others]).repeat(30, 1)
    kept = KeptFeatures(IdentityFeatures(torch.ones(6), 3.0), store_of(records), 1e9)
    whole = torch.cat([rows for _, rows in kept]).to(torch.int64)
    clusters, sums = lloyd(kept, whole[k - 1 : 2 * k - 1] * kept.unit)
    expected = torch.zeros_like(sums).index_add_(0, clusters, whole)
    assert torch.equal(sums, expected) and len(clusters.unique()) == k


def test_sums_of_the_largest_squares_are_exact():
    for width in (3, 784, 20_000):
        grid = Grid.of_squares(width, 7.0)
        assert grid.unit * 2.0**grid.bits >= 7.0 and width * 4**grid.bits < 2**53
        rows = grid(torch.full((2, width), 1e9))
        assert (lengths(rows) == float(np.sqrt(width * 4.0**grid.bits))).all()
        assert torch.equal(lengths(scipy.sparse.csr_array(rows.numpy())), lengths(rows))


def test_places_that_a_sparse_row_holds_twice_are_added_up():
    twice = scipy.sparse.csr_array((np.full(4, 0.4, np.float32), np.array([2, 0, 2, 1]), np.array([0, 4])), shape=(1, 3))
    features = FourierFeatures(torch.ones(3), 20, 1.0, torch.Generator().manual_seed(0))
    assert torch.equal(features(twice), features(torch.tensor([[0.4, 0.4, 0.8]])))


def test_frequencies_of_many_turns_are_refused_only_where_sums_would_not_be_exact():
    """Whole turns are cut off frequencies of a few columns: multiples of the grid turn as before."""

    def features(m, scale):
        return FourierFeatures(torch.full((m,), scale), 2, 1.0, torch.Generator().manual_seed(0))

    assert features(3, 1e12)(torch.rand(5, 3)).isfinite().all()
    with pytest.raises(ValueError, match="expected a smaller gamma or scale"):
        features(40_000, 1e12)
    with pytest.raises(ValueError, match="scale: expected finite numbers"):
        features(3, float("nan"))


@pytest.mark.parametrize(("levels", "m"), [(1, 300), (1, 5_000), (4, 300), (255, 300)])
def test_bytes_are_split_like_the_numbers_that_they_stand_for(levels, m):
    """Bytes are taken as they are; the results equal cosines in float64, and sums of fractions."""
    generator = torch.Generator().manual_seed(levels)
    bytes_ = torch.randint(0, levels + 1, (40, m), generator=generator, dtype=torch.uint8)
    own, plain = store_of(bytes_, scale=levels), bytes_.double() / levels
    features = FourierFeatures(torch.ones(m), 30, 4.0 / m, generator)
    rows = slice(3, 40)
    found = features._multiples(own.stretch(rows), own).double() * features.unit
    angles = 2 * np.pi * plain[rows] @ features._turns
    torch.testing.assert_close(found, torch.cat([angles.cos(), angles.sin()], dim=1) / 15**0.5, atol=1e-3, rtol=0)
    # Some records are shortened.
    clusters, radius = torch.arange(40) % 3, float(plain.norm(dim=1).median())
    short = plain * (radius / plain.norm(dim=1)).clamp(max=1.0)[:, None]
    expected = torch.stack([short[clusters == cluster].sum(dim=0) for cluster in range(3)])
    sums, unit = clipped_sums(own, radius, clusters, 3)
    torch.testing.assert_close(sums.double() * unit, expected, atol=40 * 2.0**-20 * radius, rtol=0)
    one, unit = clipped_sums(store_of(bytes_[:1], scale=levels), 0.5 * radius, clusters[:1], 1)
    assert 0.49 * radius < float(one.double().norm()) * unit <= 0.5 * radius


def test_a_record_gives_multiples_with_its_choices():
    schema = ImageSchema(1, 3, levels=4, classes=2)
    records = Records(schema, Encoded(np.array([[0, 4, 1], [2, 2, 2]], np.uint8), np.array([[1], [0]], np.uint8)))
    stretch = records.stretch(slice(0, 2))
    assert stretch.dtype == torch.uint8 and records.steps == Steps(0.25, bits=2)
    assert torch.equal(stretch * records.steps.unit, records.take(np.arange(2)))


def test_a_one_that_finds_no_room_in_a_byte_is_written_out():
    schema = ImageSchema(1, 3, levels=1000, classes=2)
    records = Records(schema, Encoded(np.array([[0, 200, 1]], np.uint8), np.array([[1]], np.uint8)))
    assert records.steps is None and torch.equal(records.stretch(slice(0, 1)), records.take(np.arange(1)))


@pytest.mark.parametrize("bits", [1, 7, 20, 29])
def test_a_product_by_digits_is_that_of_whole_numbers(bits):
    """Products in Python's integers, wrapped as int64 does."""
    rng = np.random.default_rng(bits)
    short, long = rng.integers(-(2**bits), 2**bits + 1, (3, 50)), rng.integers(-(2**63), 2**63, (50, 4))
    short[0], long[:2, 0] = 2**bits, (2**63 - 1, -(2**63))
    expected = (short.astype(object) @ long.astype(object) + 2**63) % 2**64 - 2**63
    assert (whole_product(torch.from_numpy(short), torch.from_numpy(long)).numpy() == expected).all()
