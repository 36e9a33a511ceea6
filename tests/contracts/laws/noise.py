"""Laws of the noise that mechanisms draw, and of the stream that it comes from."""

from __future__ import annotations

import inspect
import itertools
import math

import numpy as np
import pytest
import torch
from contracts.laws.accounts import account_of
from torch import nn

from lightning_dpgen.gradients import privatize
from lightning_dpgen.gradients.clipping import Fixed, PerPerson
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE, PURE
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import PoissonLots


def deviates(values: torch.Tensor, deviation: float) -> bool:
    """Return whether a mean square is 5.5 standard errors off; for normals of that deviation a false alarm of 4e-8."""
    values = values.double().flatten() / deviation
    return abs(float(values.square().mean()) - 1) > 5.5 * math.sqrt(2 / values.numel())


def noise_is_multiplier_times_sensitivity(multiplier=0.8, sensitivity=3.0, dtype=torch.float32) -> None:
    with account_of({"sum": multiplier}).open("training") as access:
        noisy = gaussian(access, "sum", torch.zeros(50_000, dtype=dtype), sensitivity=sensitivity)
    assert noisy.dtype == dtype
    assert not deviates(noisy, multiplier * sensitivity)
    assert deviates(noisy, multiplier * sensitivity * math.sqrt(2))
    assert deviates(noisy, multiplier * sensitivity / math.sqrt(2))


def noise_is_that_of_all_records_of_a_person(max_rows=4) -> None:
    """Check it, also where the sensitivity is that of a person already."""
    with account_of({"sum": 0.8, "own": 0.8}, max_rows=max_rows).open("training") as access:
        noisy = gaussian(access, "sum", torch.zeros(50_000), sensitivity=3.0)
        own = gaussian(access, "own", torch.zeros(50_000), sensitivity=3.0, per_person=True)
    assert not deviates(noisy, 0.8 * 3.0 * max_rows) and deviates(noisy, 0.8 * 3.0)
    assert not deviates(own, 0.8 * 3.0)


def _zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


MECHANISMS = {
    "gaussian": (GAUSSIAN, 1.0, lambda access: mechanisms.gaussian(access, "x", torch.zeros(4), sensitivity=3.0)),
    "rounded_gaussian": (
        GAUSSIAN,
        1.0,
        lambda access: mechanisms.rounded_gaussian(access, "x", torch.zeros(4, dtype=torch.int64), sensitivity=3.0),
    ),
    "noisy_histogram": (
        GAUSSIAN, 1.0, lambda access: mechanisms.noisy_histogram(access, "x", torch.arange(4), 4, sensitivity=3.0)
    ),
    "rounded_laplace": (LAPLACE, 1.0, lambda access: mechanisms.rounded_laplace(access, "x", _zeros(4), sensitivity=3.0)),
    "rounded_spherical": (PURE, 1.0, lambda access: mechanisms.rounded_spherical(access, "x", _zeros(4), sensitivity=3.0)),
    "rounded_spherical by row": (
        PURE, 1.0, lambda access: mechanisms.rounded_spherical(access, "x", _zeros(2, 2), sensitivity=3.0, by_row=True)
    ),
    "report_noisy_max": (PURE, 2.0, lambda access: mechanisms.report_noisy_max(access, "x", _zeros(4), sensitivity=3.0)),
    "report_noisy_max of scores that only rise": (
        PURE, 1.0, lambda access: mechanisms.report_noisy_max(access, "x", _zeros(4), sensitivity=3.0, monotonic=True)
    ),
}  # fmt: skip


def every_mechanism_is_noised_for_all_records_of_a_person() -> None:
    """Check for every mechanism that the stream is asked for a scale of multiplier times sensitivity times records.

    Keys are counted by person already, and a number of trials has no sensitivity.
    """
    public = {name for name, found in vars(mechanisms).items() if inspect.isfunction(found) and name[0] != "_"}
    own = {name for name in public if getattr(mechanisms, name).__module__ == mechanisms.__name__}
    assert own - {"key_threshold", "number_of_trials", "select_keys"} <= MECHANISMS.keys(), "a mechanism without this law"
    for name, (kind, times, draw) in MECHANISMS.items():
        for max_rows in (1, 3):
            account, asked = account_of({"x": 0.8}, kinds={"x": kind}, max_rows=max_rows), []
            with pytest.MonkeyPatch.context() as patch, account.open("training") as access:
                for add in ("add_normal_", "add_rounded_normal_", "add_rounded_laplace_", "add_rounded_spherical_"):
                    patch.setattr(account.stream, add, lambda values, scale, asked=asked: asked.append(scale) or values)
                patch.setattr(account.stream, "noisy_maximum", lambda scores, scale, asked=asked: asked.append(scale) or 0)
                draw(access)
            assert asked == [pytest.approx(0.8 * 3.0 * times * max_rows, rel=1e-12)], (name, max_rows)


def every_component_is_noised_alike_also_without_records(size=0) -> None:
    """Check two components of 20,000 parameters; all records belong to the first and have zero gradients."""
    weight = nn.Parameter(torch.zeros(2, 20_000))
    bias = nn.Parameter(torch.zeros(2, 20_000))
    out = GradientBuffer([weight, bias])
    out.flat.fill_(9.0)  # left by an earlier step
    gradients = materialised({p: torch.zeros(size, 2, 20_000) for p in (weight, bias)})
    with account_of({"gradient": 1.3}).open("training") as access:
        bounds = privatize.privatize([(gradients, Fixed(0.7))], access, 5.0, out)
    assert bounds == [(0.7,)]
    for p in (weight, bias):
        for component in out.views[p]:
            assert not deviates(component, 1.3 * 0.7 / 5.0)
            assert deviates(component, 1.3 * 0.7 / 5.0 * math.sqrt(2))
            assert deviates(component, 1.3 * 0.7 / 5.0 / math.sqrt(2))
    parts = torch.stack([view for p in (weight, bias) for view in out.views[p]]).double()
    correlation = torch.corrcoef(parts) - torch.eye(4)
    assert correlation.abs().max() < 5.5 / math.sqrt(20_000)


def a_step_of_persons_has_the_noise_of_one_bound(max_rows=4) -> None:
    """Check 40,000 parameters of a lot of no person, and that a rule for records draws the noise of all four."""
    for rule, times in ((PerPerson(Fixed(0.7)), 1), (Fixed(0.7), max_rows)):
        account = account_of({"gradient": 1.3}, max_rows=max_rows)
        weight = nn.Parameter(torch.zeros(40_000))
        optimizer = PrivateOptimizer(
            torch.optim.SGD([weight], lr=1.0), account=account, clipping=rule, expected_batch_size=5
        )
        lot = PoissonLots(torch.zeros(0, 1), account, persons=np.zeros(0, int)).draw()
        optimizer.set_gradients(materialised({weight: torch.zeros(0, 40_000)}, lot.draw, persons=lot.persons))
        optimizer.step()
        assert not deviates(weight.detach(), times * 1.3 * 0.7 / 5.0)
        assert deviates(weight.detach(), times * 1.3 * 0.7 / 5.0 / math.sqrt(2))


def steps_have_noise_of_their_own() -> None:
    """Check that the mean product of 20,000 pairs of normals is within 5.5 of its deviations."""
    account, noise = account_of({"sum": 1.0}, count=2), []
    for _ in range(2):
        with account.open("training") as access:
            noise.append(gaussian(access, "sum", torch.zeros(20_000), sensitivity=1.0))
    assert abs(float((noise[0] * noise[1]).mean())) < 5.5 / math.sqrt(20_000)


def no_number_of_the_stream_is_handed_out_twice(stream_of=lambda seed: PrivateStream(seed=seed)) -> None:
    """Check normals of both types, requested in small and large numbers, around the sizes at which others are drawn ahead.

    In float64 any two are equal with a chance of 1e-5. In float32 about 150 are equal by chance; if one number of each
    request were also one of the next, there would be 600 more.
    """
    random = np.random.default_rng(0)
    sizes = [*random.integers(0, 70, 600), *(2 ** np.arange(16)), *(2 ** np.arange(1, 15) - 1), *(2 ** np.arange(14) + 1)]
    for kinds in itertools.permutations((torch.float32, torch.float64)):
        stream, drawn = stream_of(11), {kind: [] for kind in kinds}
        for size in random.permutation(sizes).tolist():
            for kind in kinds:
                drawn[kind].append(stream.normal((size,), dtype=kind))
        single, double = (torch.cat(drawn[kind]).numpy() for kind in (torch.float32, torch.float64))
        assert len(np.unique(double)) == len(double)
        assert len(single) - len(np.unique(single)) < 300
        assert np.isin(single, double.astype(np.float32)).sum() < 1000, "numbers of one type are those of the other"


def no_seed_reaches_the_private_stream() -> None:
    draws, lots = [], []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        draws.append(PrivateStream().normal((8,)))
        lots.append(PrivateStream().poisson_sample(1000, 0.5).tolist())
    assert not torch.equal(*draws) and lots[0] != lots[1]
    assert not torch.equal(PrivateStream().normal((8,)), PrivateStream().normal((8,)))


def the_key_of_a_gpu_is_the_operating_systems() -> None:
    """Check two keys of 64 bits on a pretended device, whatever the seeds; both are below 2^48 with a chance of 2^-32."""
    keys = []
    for _ in range(2):
        torch.manual_seed(0)
        keys.append(PrivateStream()._normals_on(torch.device("meta"))._key)
        torch.manual_seed(0)
        keys.append(PrivateStream()._key_of_device())
    assert len(set(keys)) == 4 and max(keys) >= 2**48
