"""One noisy measurement becomes two whose noise is independent."""

import math

import pytest
import torch

from lightning_dpgen.measure.workload import Measured, split_noise

N = 40_000


@pytest.mark.parametrize("part", [0.5, 0.7, 2.0])
def test_noise_of_both_parts_is_as_stated_and_independent(part):
    """Bounds of five deviations: false alarm in about 1 of 10^5. The noise of one part alone has a correlation of .45 or
    more with that of the whole."""
    true = torch.linspace(-50.0, 1000.0, N, dtype=torch.float64)
    noise = 8.0 * torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = Measured(true + noise, 8.0, "run")
    parts = [found["items"] for found in split_noise({"items": whole}, part, seed=2)]
    errors = [own.sums - true for own in parts]
    for own, error in zip(parts, errors, strict=True):
        assert own.run == "run"
        assert abs(float(error.std()) / own.deviation - 1.0) < 5.0 / math.sqrt(2 * N)
        assert abs(float(error.mean())) < 5.0 * own.deviation / math.sqrt(N)

    def correlation(one, other):
        return float(torch.corrcoef(torch.stack([one, other]))[0, 1])

    assert abs(correlation(*errors)) < 5.0 / math.sqrt(N)
    assert min(correlation(error, noise) for error in errors) > 0.4
    # They are of the same records: weighted by their variances they are the whole again.
    one, other = ((own.sums / own.deviation**2, own.deviation**-2) for own in parts)
    torch.testing.assert_close((one[0] + other[0]) / (one[1] + other[1]), whole.sums)


def test_sums_without_noise_are_in_both():
    exact = Measured(torch.arange(3.0, dtype=torch.float64), 0.0)
    for own in split_noise({"a": exact}, 0.7, seed=0):
        assert torch.equal(own["a"].sums, exact.sums) and own["a"].deviation == 0.0


def test_chance_is_split_beside_noise():
    """Counts of records are off from what was expected by chance, which no noise has hidden; both parts share none of it.
    Bounds of five deviations."""
    expected = torch.full((N,), 50.0, dtype=torch.float64)
    counts = torch.poisson(expected, generator=torch.Generator().manual_seed(3))
    noisy = counts + 4.0 * torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    for chance, apart in (({"items": expected}, True), (None, False)):
        one, other = (own["items"].sums - expected for own in split_noise({"items": Measured(noisy, 4.0)}, 0.7, 5, chance))
        correlation = float(torch.corrcoef(torch.stack([one, other]))[0, 1])
        assert (abs(correlation) < 5.0 / math.sqrt(N)) is apart
