"""The scattering transform: what its features are by plain sums, what they do not see, and that a record has its own."""

import math

import numpy as np
import pytest
import torch

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.models.bases import Scattering, _lengths

AXES = {
    "grey": (12, 10, 1),
    "colour": (8, 8, 3),
    "series": (40, 2),
    "a reading": (1, 1),
    "long": (900, 1),
    "tall": (70, 3, 1),
}


def some_records(axes, n, seed=0):
    units = np.random.default_rng(seed).random((n, math.prod(axes))).astype(np.float32)
    return Layout(math.prod(axes)), Encoded(units, np.zeros((n, 0), np.uint8))


def plain_lengths(picture, angle, scale, size):
    """Compute |x * psi| at each place by sums over a picture that is continued by mirrors."""
    sigma, turn = 0.8 * scale, 0.75 * math.pi / scale
    reach, (height, width) = math.ceil(4 * sigma), picture.shape
    at = [
        [(i + 0.5) * length / places - 0.5 for i in range(places)]
        for length, places in zip((height, width), size, strict=True)
    ]
    found = np.zeros(size)
    for i, y in enumerate(at[0]):
        for j, x in enumerate(at[1]):
            ys = [v for v in range(-3 * reach, height + 3 * reach) if abs(v - y) <= reach + 0.5]
            xs = [u for u in range(-3 * reach, width + 3 * reach) if abs(u - x) <= reach + 0.5]
            bump = np.array([[math.exp(-((v - y) ** 2 + (u - x) ** 2) / (2 * sigma**2)) for u in xs] for v in ys])
            bump /= bump.sum()
            phase = [[turn * (math.cos(angle) * (u - x) + math.sin(angle) * (v - y)) for u in xs] for v in ys]
            wave = bump * (np.exp(1j * np.array(phase)) - math.exp(-((sigma * turn) ** 2) / 2))
            mirrored = np.pad(picture, 4 * reach, mode="symmetric")
            seen = mirrored[np.ix_([v + 4 * reach for v in ys], [u + 4 * reach for u in xs])]
            found[i, j] = abs((wave * seen).sum())
    return found


@pytest.mark.parametrize(("scale", "size"), [(1.0, (9, 11)), (2.0, (5, 6))])
def test_waves_are_what_plain_sums_give(scale, size):
    picture = np.random.default_rng(0).random((9, 11)).astype(np.float32)
    found = _lengths((torch.from_numpy(picture).double() * 2**19).round()[None], size, scale, 8)[0]
    assert torch.equal(found, found.round())
    for angle in range(8):
        # Weights are rounded to 2^-16.
        expected = plain_lengths(picture, math.pi * angle / 8, scale, size)
        np.testing.assert_allclose(found[angle] / 2**19, expected, atol=3e-5)


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_a_record_has_the_same_features_beside_any_others(axes):
    layout, records = some_records(axes, 12)
    scattering = Scattering(layout, axes)
    features = scattering(records)
    assert features.shape == (12, scattering.count) and features.dtype == torch.float64 and features.isfinite().all()
    alone = torch.cat([scattering(records[i : i + 1]) for i in range(12)])
    assert torch.equal(features, alone) and torch.equal(features, (features * 2**19).round() / 2**19)
    assert scattering.count <= 4000


def test_waves_do_not_see_how_bright_a_picture_is_but_places_do():
    layout, records = some_records((16, 16, 1), 1)
    scattering = Scattering(layout, (16, 16, 1))
    darker = Encoded(records.units * 0.5, records.codes)
    places = scattering.count // 81
    for feature, factor in ((slice(0, places), 0.5), (slice(places, None), 0.5)):
        expected = factor * scattering(records)[:, feature]
        torch.testing.assert_close(scattering(darker)[:, feature], expected, rtol=0.0, atol=2.0**-17)
    flat = Encoded(np.full((1, 256), 0.5, np.float32), records.codes)
    assert scattering(flat)[0, :places].sub(0.5).abs().max() < 1e-4 and scattering(flat)[0, places:].max() < 0.01


def test_axes_that_the_units_do_not_fill_are_refused():
    for axes in ((4, 4, 2), (16,), (2, 2, 2, 2)):
        with pytest.raises(ValueError, match="expected one or two and the channels, of 16 units"):
            Scattering(Layout(16), axes)
