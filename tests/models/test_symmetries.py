"""Declared symmetries of pictures: the size of changes, upright pictures, and what a record can change through these."""

import math

import numpy as np
import pytest
import torch

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.measure.gaussians import GaussianRecipe
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.models.gaussians import StackedGaussians
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.poses import SETS, Symmetries, upright
from lightning_dpgen.release.drawing.draws import block_streams
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.files import NotARelease

SIDE = 21


def blobs(n, y, x):
    """Make a round spot y below and x right of the middle."""
    rows, columns = torch.meshgrid(torch.arange(SIDE) - 10.0, torch.arange(SIDE) - 10.0, indexing="ij")
    return torch.exp(-((rows - y).square() + (columns - x).square()) / 4.0)[None, ..., None].repeat(n, 1, 1, 1)


def centres(pictures):
    ink, place = pictures[..., 0].double(), torch.arange(SIDE).double() - 10.0
    mass = ink.sum(dim=(1, 2))
    return ink.sum(dim=2) @ place / mass, ink.sum(dim=1) @ place / mass


def leaning(n, seed=0):
    """Draw thick strokes of any direction and length, in whole levels."""
    random = np.random.default_rng(seed)
    pictures = np.zeros((n, 16, 14))
    for picture in pictures:
        y, x = np.linspace(4, 11, 60), 6.5 + random.uniform(-0.6, 0.6) * np.linspace(-4, 4, 60) + random.normal(0, 0.4, 60)
        np.add.at(picture, (y.round().astype(int), x.round().astype(int).clip(0, 13)), random.uniform(0, 60))
    return torch.from_numpy(np.minimum(pictures, 255.0).round() / 255.0)[..., None]


def by_hand(picture):
    """Compute `upright` by loops: the slope of columns on rows of ink, and each row moved by it."""
    mass = picture.sum()
    rows, columns = np.indices(picture.shape)
    y, x = (picture * rows).sum() / mass, (picture * columns).sum() / mass
    slope = (picture * (rows - y) * (columns - x)).sum() / (picture * (rows - y) ** 2).sum()
    found = np.zeros_like(picture)
    for i, row in enumerate(picture):
        padded = np.concatenate([[0.0], row, [0.0]])
        at = np.arange(len(row)) + np.clip(slope, -1, 1) * (i - y) + 1.0
        found[i] = np.interp(at, np.arange(len(padded)), padded, left=0.0, right=0.0)
    return found


def test_no_change_is_none():
    pictures = torch.rand(5, 7, 9, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Symmetries().applied(pictures, torch.Generator().manual_seed(1)), pictures)


@pytest.mark.parametrize("name", SETS)
def test_the_seed_decides_and_values_stay_where_they_are(name):
    pictures = torch.rand(50, 7, 9, 3, generator=torch.Generator().manual_seed(0))
    one, again, other = (SETS[name].applied(pictures, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert one.shape == pictures.shape and one.min() >= 0.0 and one.max() <= 1.0
    assert (Symmetries(turn=5.0).applied(torch.full((3, 6, 6, 1), 0.7), torch.Generator()) - 0.7).abs().max() < 1e-6


MOVED = {
    # The moves, down and right, of the centre of a spot 6 below the middle (y) or right of it.
    "shift": (Symmetries(shift=1.0 / SIDE), (0.0, 0.0), (1.0, 1.0)),
    "turn": (Symmetries(turn=6.0), (6.0, 0.0), (0.0, math.radians(6.0) * 6.0)),
    "shear": (Symmetries(shear=0.15), (6.0, 0.0), (0.0, 0.9)),
    "scale": (Symmetries(scale=0.1), (6.0, 0.0), (0.6, 0.0)),
    "elastic": (Symmetries(elastic=1.0 / SIDE, smooth=1.0), (0.0, 0.0), (1.0, 1.0)),
}


@pytest.mark.parametrize(("symmetries", "place", "expected"), MOVED.values(), ids=MOVED)
def test_a_spot_moves_as_far_as_is_declared(symmetries, place, expected):
    """2,000 draws: a deviation is within 8 % (five standard errors) and 0.1 of bending; 1.5 times as much is not."""
    spot = blobs(2000, *place)
    moved = [float((at - start).std()) for at, start in zip(
        centres(symmetries.applied(spot, torch.Generator().manual_seed(0))), place, strict=True)]  # fmt: skip
    assert moved == pytest.approx(expected, rel=0.08, abs=0.1)
    assert moved != pytest.approx([1.5 * far for far in expected], rel=0.08, abs=0.1)


def test_pixels_that_are_near_move_alike():
    """Correlation over a distance r is exp(-r^2 / 2 smooth^2), of a spot and one 6 beside it; 0.15 is six deviations."""
    symmetries = Symmetries(elastic=1.0 / SIDE, smooth=5.0 / SIDE)
    left, right = (
        centres(symmetries.applied(blobs(2000, 0.0, x), torch.Generator().manual_seed(0)))[0] for x in (-3.0, 3.0)
    )
    assert float(torch.corrcoef(torch.stack([left, right]))[0, 1]) == pytest.approx(math.exp(-36 / 50), abs=0.15)


def test_upright_is_what_it_is_by_hand():
    pictures = leaning(40)
    found = upright(pictures)[..., 0].numpy()
    np.testing.assert_allclose(found, [by_hand(picture) for picture in pictures[..., 0].numpy()], atol=1e-12)
    assert abs(found - pictures[..., 0].numpy()).max() > 0.1


def test_ink_that_is_upright_leans_neither_way_and_stays_so():
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(14.0), indexing="ij")

    def slopes(pictures):
        ink = pictures[..., 0] / pictures[..., 0].sum(dim=(1, 2), keepdim=True)
        y, x = (one - (ink * one).sum(dim=(1, 2), keepdim=True) for one in (rows, columns))
        return (ink * y * x).sum(dim=(1, 2)) / (ink * y * y).sum(dim=(1, 2))

    pictures = leaning(40)
    assert slopes(pictures).abs().max() > 0.4
    once = upright(pictures)
    assert slopes(once).abs().max() < 1e-9
    torch.testing.assert_close(upright(once), once, atol=1e-9, rtol=0.0)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_without_a_slant_stay_as_they_are(channels):
    row, dot = torch.zeros(2, 9, 8, channels, dtype=torch.float64)
    row[4], dot[2, 3] = 1.0, 0.3
    plain = torch.stack([torch.zeros_like(row), row, dot])
    torch.testing.assert_close(upright(plain), plain)
    # A constant picture stays constant except near the edges, beyond which there is no ink.
    torch.testing.assert_close(upright(torch.ones(1, 9, 8, channels).double()), torch.ones(1, 9, 8, channels).double())


def test_channels_lean_together():
    grey = leaning(5)
    colour = torch.cat([grey, 0.5 * grey, 0.0 * grey], dim=3)
    torch.testing.assert_close(upright(colour), torch.cat([upright(grey), 0.5 * upright(grey), 0.0 * grey], dim=3))


def test_it_is_of_the_picture_alone_and_continuous():
    pictures = leaning(40)
    alone = torch.cat([upright(picture[None]) for picture in pictures])
    torch.testing.assert_close(upright(pictures), alone, atol=1e-13, rtol=0.0)
    hardly = torch.zeros(1, 9, 8, 1, dtype=torch.float64)
    hardly[0, 4] = 1.0
    moved = hardly.clone()
    moved[0, 3, 0], moved[0, 5, 7] = 1e-9, 1e-9
    assert (upright(moved) - upright(hardly)).abs().max() < 1e-6


WRITING = ImageSchema(16, 14, levels=255, classes=2)


def recipe(**changed):
    settings = {"size": 60, "radius": 1.5, "spread": 0.7, "symmetries": SETS["handwriting"]}
    return GaussianRecipe(WRITING, 2, 100, **(settings | changed))


def test_one_record_moves_statistics_by_their_bounds_at_most():
    """Records may be longer than the radius, upright or not, or as long as can be; some reach the bound."""
    random = np.random.default_rng(0)
    units = np.concatenate([
        (leaning(20) * 255).reshape(20, -1).numpy(), random.integers(0, 256, (10, 224)), np.full((1, 224), 255),
        np.eye(1, 224) * 255,
    ]).astype(np.uint8)  # fmt: skip
    own, component = recipe(), torch.zeros(1, dtype=torch.int64)
    means = {"counts": Measured(torch.ones(2).double(), 0.0), "means": Measured(torch.ones(2, 60).double(), 0.0)}
    for stage, state in (("means", {}), ("squares", {"means": (means,)})):
        statistics = own.statistics(stage, state)
        for statistic in statistics.values():
            lengths = [
                float(statistic.sums(Encoded(row[None], np.zeros((1, 1), np.uint8)), component).double().norm())
                * statistic.unit
                for row in units
            ]
            assert max(lengths) <= statistic.bound * (1 + 1e-9) and max(lengths) > 0.99 * statistic.bound


def test_measured_upright_and_plain_where_it_is_not_declared():
    records = Encoded((leaning(30) * 255).reshape(30, -1).numpy().astype(np.uint8), np.zeros((30, 1), np.uint8))
    component = torch.zeros(30, dtype=torch.int64)

    def means(symmetries):
        own = recipe(symmetries=symmetries, size=224, radius=100.0)
        asked = own.statistics("means", {})["means"]
        mean = asked.sums(records, component)[0].double() * (asked.unit / 30)
        return (mean @ asked.basis.vectors).view(16, 14)

    assert (upright(leaning(30)) - leaning(30)).mean(dim=0).abs().max() > 0.05
    torch.testing.assert_close(means(SETS["handwriting"]), upright(leaning(30)).mean(dim=0)[..., 0], atol=0.01, rtol=0.0)
    for plain in (None, SETS["small"]):
        torch.testing.assert_close(means(plain), leaning(30).mean(dim=0)[..., 0], atol=0.01, rtol=0.0)


def test_a_release_says_its_symmetries_and_draws_by_them(tmp_path):
    network = StackedGaussians(WRITING, 2, size=60, rank=3, symmetries={"turn": 9, "elastic": 0.05})
    network.centres.normal_(generator=torch.Generator().manual_seed(0))
    write_model(tmp_path, mixture := Mixture(network, torch.tensor([0.5, 0.5])))
    text = (tmp_path / "model.json").read_text()
    assert '"turn": 9' in text and '"upright": false' in text
    mine, theirs = mixture.sample(40, block_streams(3, 0)[0]), load_release(tmp_path).sample_encoded(40, 3)
    assert np.array_equal(mine.units, theirs.units)
    network.symmetries = None
    assert not np.array_equal(network.generate((0, 20, 40), torch.Generator().manual_seed(3))[:, :-2] * 255, theirs.units)
    for wrong in ('"turn": 900', '"turn": "far"', '"turn": NaN', '"spin": 9', '"turn": true'):
        (tmp_path / "model.json").write_text(text.replace('"turn": 9', wrong))
        with pytest.raises(NotARelease):
            load_release(tmp_path)


BAD = {
    "turn": ({"turn": 181.0}, r"turn=181\.0: expected a number from 0 to 180"),
    "negative": ({"scale": -0.1}, r"scale=-0\.1: expected a number from 0 to 1"),
    "not a number": ({"elastic": math.nan}, "elastic=nan"),
    "no smoothness": ({"smooth": 0.0}, r"smooth=0\.0: expected a number from 0\.02 to 1"),
    "neither": ({"upright": 1}, "upright=1: expected true or false"),
}


@pytest.mark.parametrize(("numbers", "message"), BAD.values(), ids=BAD)
def test_numbers_that_make_no_sense_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        Symmetries(**numbers)


def test_they_are_of_pictures():
    with pytest.raises(ValueError, match="records of kind series: expected none"):
        StackedGaussians(SeriesSchema(6, low=0.0, high=1.0), 1, size=2, rank=1, symmetries={})
