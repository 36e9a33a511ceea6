"""Adding one record moves every noiseless value by at most the sensitivity that is declared beside its noise."""

import math

import pytest
import torch

from lightning_dpgen.clustering import kmeans
from lightning_dpgen.clustering.kmeans import private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.gradients import privatize
from lightning_dpgen.gradients.clipping import DPNorm, Fixed
from lightning_dpgen.gradients.ghost import ghost_gradients
from lightning_dpgen.gradients.records import materialised
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.calibration import make_plan
from lightning_dpgen.sampling.lots import Lot


class Watch:
    """A stand-in for the Gaussian mechanism: it keeps each exact value, and answers alike for both neighbours.

    The first neighbour's answers (its exact values plus fixed noise) are replayed to the second. So both walk the same
    public path, on which adaptive composition conditions.
    """

    def __init__(self):
        self.answers, self.values, self.calls = None, [], []

    def __call__(self, access, name, values, *, sensitivity, unit=1.0, of_unit=False, of_shard=False, largest=0.0):
        access.consume(name)
        values = values if values.is_floating_point() else values.double() * unit
        i = len(self.values)
        self.values.append(values.clone().double())
        self.calls.append((name, sensitivity))
        if self.answers is None:
            noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
            return values.add_((0.3 * sensitivity * noise if math.isfinite(sensitivity) else noise).to(values.dtype))
        return values.copy_(self.answers[i])


def shifts(monkeypatch, module_names, run, first, second):
    """Return (name, joint L2 shift, declared sensitivity) of every value that the run would noise."""
    watch, answers = Watch(), []

    def noised(*a, **k):
        answer = watch(*a, **k)
        answers.append(answer.clone())
        return answer

    for module in module_names:
        for name in ("gaussian", "rounded_gaussian"):
            monkeypatch.setattr(module, name, noised, raising=False)
    run(first)
    values, watch.values, watch.calls = watch.values, [], []
    watch.answers = list(answers)
    run(second)
    return [
        (name, float((a - b).norm()), sensitivity)
        for (name, sensitivity), a, b in zip(watch.calls, values, watch.values, strict=True)
    ]


RECORDS = torch.rand(40, 12, generator=torch.Generator().manual_seed(0))
NEIGHBOURS = {
    "copy of a record": RECORDS[:1],
    "ones": torch.ones(1, 12),
    "zeros": torch.zeros(1, 12),
    "one column": torch.eye(12)[:1],
    "random": torch.rand(1, 12, generator=torch.Generator().manual_seed(9)),
    "far outside": torch.full((1, 12), 1e4),
}


@pytest.mark.parametrize("radius", [0.7, 3.0])
@pytest.mark.parametrize("k", [1, 3, 30])
@pytest.mark.parametrize("extra", NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
@pytest.mark.parametrize("dimensions", [None, 3])
def test_split(monkeypatch, extra, k, radius, dimensions):
    settings = SplitSettings(k=k, iterations=3, features=8, dimensions=dimensions, radius=radius)

    def run(records):
        last = settings.specs(40)
        plan = make_plan([*last[:-1], _rest(last[-1])], epsilon=float("inf"), delta=1e-5)
        private_split(records, torch.ones(12), settings, 40, Account(plan), torch.Generator().manual_seed(1))

    moved = shifts(monkeypatch, [kmeans, mechanisms], run, RECORDS, torch.cat([extra, RECORDS]))
    first = ["sum", "moments"] if dimensions else ["sum"]
    assert [name for name, _, _ in moved] == [*([*first, *["counts", "sums"] * 3] if k > 1 else []), "counts", "means"]
    for name, shift, sensitivity in moved:
        assert shift <= sensitivity * (1 + 1e-9), f"{name} moved by {shift}, declared {sensitivity}"
    # The declared numbers are met and not merely safe: a check against half of them would fail.
    assert max(shift / sensitivity for _, shift, sensitivity in moved) > 0.99


def _rest(spec):
    return type(spec)(spec.stage, spec.noise_shares, spec.count, spec.max_noise, spec.sample_rate)


@pytest.mark.parametrize("rule", [Fixed(0.5), DPNorm(c_max=2.0, bins=10)], ids=["fixed", "dpnorm"])
@pytest.mark.parametrize("kind", ["antipodal", "huge", "tiny", "nan", "lonely"])
def test_clipped_sum_and_histogram(monkeypatch, account_of, rule, kind):
    """Gradients of two components are materialised, so that the neighbour may be anything at all."""
    weight = torch.nn.Parameter(torch.zeros(2, 6))
    rows = torch.randn(10, 2, 6, generator=torch.Generator().manual_seed(0))
    rows[:, 1] = 0.0  # every record belongs to the first component
    extra = {
        "antipodal": -rows[:1],
        "huge": rows[:1] * 1e20,
        "tiny": rows[:1] * 1e-30,
        "nan": rows[:1] * float("nan"),
        "lonely": rows[:1].flip(1),
    }[kind]
    multipliers = dict.fromkeys([*rule.noise_shares, "gradient"], 1.0)

    def run(gradients):
        with account_of(multipliers).open("training") as access:
            out = privatize.GradientBuffer([weight])
            privatize.privatize([(materialised({weight: gradients}), rule)], access, 4.0, out)

    moved = shifts(monkeypatch, [mechanisms, privatize], run, rows, torch.cat([extra, rows]))
    assert [name for name, _, _ in moved] == list(multipliers)
    for name, shift, sensitivity in moved:
        assert shift <= sensitivity, f"{name} moved by {shift}, declared {sensitivity}"


def test_a_lot_through_the_real_engine(monkeypatch, account_of):
    network = StackedVAE(ImageSchema(3, 3, levels=1), 3, hidden=4, latent=2, generator=torch.Generator().manual_seed(0))
    rule = DPNorm(c_max=3.0)
    records = torch.rand(8, 9, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(9, 2, generator=torch.Generator().manual_seed(2))

    def run(lot):
        gradients = ghost_gradients(network, network.term, lot, noise[9 - len(lot) :])
        with account_of({"norms": 1.0, "gradient": 1.0}).open("training") as access:
            privatize.privatize([(gradients, rule)], access, 3.0, privatize.GradientBuffer(network.parameters()))

    front = Lot(torch.cat([torch.ones(1, 9), records]), (0, 4, 4, 9))
    moved = shifts(monkeypatch, [mechanisms, privatize], run, Lot(records, (0, 3, 3, 8)), front)
    for name, shift, sensitivity in moved:
        assert shift <= sensitivity * (1 + 1e-5), f"{name} moved by {shift}, declared {sensitivity}"
