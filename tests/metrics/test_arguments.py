"""Tensors that metrics and attacks are handed: each mistake gets one line that names it, and devices are followed."""

import pytest
import torch

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.metrics import (
    MembershipInference,
    NearestNeighbourDistance,
    NearestSeries,
    Shadows,
    WassersteinDistance,
    critic_scores,
    density_ratio,
    likelihood_ratios,
    nearness,
    train_shadows,
)
from lightning_dpgen.models.critics import StackedCritic
from lightning_dpgen.models.generators import StackedGenerator

N, WIDTH = 6, 4
RECORDS = torch.rand(N, WIDTH, generator=torch.Generator().manual_seed(0))
INSIDE = RECORDS[:, :3].T > 0.5
MADE_BY = StackedGenerator(ImageSchema(2, 2, levels=1), k=2, hidden=4, latent=2, generator=torch.Generator().manual_seed(1))
CRITIC = StackedCritic(MADE_BY, hidden=4, generator=torch.Generator().manual_seed(2))
COMPONENT = torch.tensor([0, 1, 1, 0, 1, 0])

# For each argument that is a tensor: a call with it, and a good one in its place.
TENSORS = {
    "nearness, records": ("records", lambda given: nearness(given, RECORDS), RECORDS),
    "nearness, synthetic": ("synthetic", lambda given: nearness(RECORDS, given), RECORDS),
    "densities, records": ("records", lambda given: density_ratio(given, RECORDS, RECORDS), RECORDS),
    "densities, synthetic": ("synthetic", lambda given: density_ratio(RECORDS, given, RECORDS), RECORDS),
    "densities, reference": ("reference", lambda given: density_ratio(RECORDS, RECORDS, given), RECORDS),
    "critic, records": ("records", lambda given: critic_scores(CRITIC, given, COMPONENT), RECORDS),
    "critic, component": ("component", lambda given: critic_scores(CRITIC, RECORDS, given), COMPONENT),
    "shadows, scores": ("scores", lambda given: Shadows(given, INSIDE), RECORDS[:, :3].T),
    "shadows, inside": ("inside", lambda given: Shadows(RECORDS[:, :3].T, given), INSIDE),
    "training of shadows": ("scores", lambda given: train_shadows(lambda *_: given, N, 1), RECORDS[:, 0]),
    "neighbours": ("records", lambda given: NearestNeighbourDistance(WIDTH).update(given, real=True), RECORDS),
    "series": ("series", lambda given: NearestSeries(WIDTH).update(given, real=True), RECORDS),
    "transport": ("records", lambda given: WassersteinDistance(WIDTH).update(given, real=True), RECORDS),
    "membership": ("scores", lambda given: MembershipInference().update(given, member=True), RECORDS[:, 0]),
}
WRONG = {
    "a list": lambda good: good.tolist(),
    "an array": lambda good: good.numpy(),
    "nothing": lambda good: None if good is not COMPONENT else "0",
    "another shape": lambda good: good[..., None],
    "one axis less": lambda good: good[0],
    "NaN": lambda good: good.float().fill_(torch.nan),
    "infinity": lambda good: good.float().fill_(torch.inf),
    "complex numbers": lambda good: good.to(torch.complex64),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("case", TENSORS)
def test_a_wrong_tensor_gets_one_line_that_names_it(case, wrong):
    name, call, good = TENSORS[case]
    call(good)
    with pytest.raises(ValueError, match=f"^{name}\\b.*expected") as told:
        call(WRONG[wrong](good.clone() if wrong in ("NaN", "infinity") else good))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("case", [case for case, (_, _, good) in TENSORS.items() if good.shape == (N, WIDTH)])
def test_another_width_is_told_beside_the_expected_one(case):
    name, call, _ = TENSORS[case]
    if case.endswith("records") and case != "critic, records":
        # The width of the records is that of the others.
        name = "synthetic"
    with pytest.raises(ValueError, match=rf"^{name} of shape \(\d, \d\): expected \(n, \d\)$"):
        call(RECORDS[:, :3])


OTHERS = {
    "scale": (lambda: density_ratio(RECORDS, RECORDS, RECORDS, scale="much"), "scale='much': expected a positive number"),
    "critic": (lambda: critic_scores(torch.nn.Linear(4, 1), RECORDS), "critic: found Linear, expected critics"),
    "too large": (lambda: critic_scores(CRITIC, RECORDS, COMPONENT + 1), "component from 1 to 2: expected 0 to 1"),
    "negative": (lambda: critic_scores(CRITIC, RECORDS, COMPONENT - 1), "component from -1 to 0: expected 0 to 1"),
    "no whole numbers": (lambda: critic_scores(CRITIC, RECORDS, COMPONENT.float()), "component of torch.float32: expected"),
    "few components": (
        lambda: critic_scores(CRITIC, RECORDS, COMPONENT[1:]),
        r"component of shape \(5,\): expected \(6,\)",
    ),
    "numbers for true": (lambda: Shadows(RECORDS, RECORDS), r"inside of shape .* torch.float32: expected \(6, 4\), true"),
    "no shadows": (lambda: likelihood_ratios(RECORDS), "shadows: found Tensor, expected Shadows"),
    "no training": (lambda: train_shadows(RECORDS, N, 2), "train: found Tensor, expected a function"),
    "time": (lambda: train_shadows(lambda *_: RECORDS[:, 0], N, 2, seconds="1"), "seconds='1': expected a positive number"),
    "time of series": (lambda: NearestSeries(3, seconds=True), "seconds=True: expected a positive number"),
}


@pytest.mark.parametrize(("call", "words"), OTHERS.values(), ids=OTHERS.keys())
def test_other_mistakes_get_one_line(call, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        call()


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int64, torch.bool])
def test_records_of_any_kind_of_numbers_are_scored(kind):
    """Whole numbers and halves are what they stand for, and the kinds of two sides need not be the same."""
    some = RECORDS.round().to(kind)
    for attack in (
        lambda own, made: nearness(own, made),
        lambda own, made: density_ratio(own, made, RECORDS),
        lambda own, made: critic_scores(CRITIC, own, COMPONENT),
    ):
        torch.testing.assert_close(attack(some, RECORDS), attack(RECORDS.round(), RECORDS), check_dtype=False)


ONE_CRITIC = StackedCritic(StackedGenerator(ImageSchema(2, 2, levels=1), k=1, hidden=4, latent=2), hidden=4)
FOLLOWED = {
    "nearness": lambda: nearness(RECORDS, RECORDS[1:]),
    "densities": lambda: density_ratio(RECORDS, RECORDS[1:], RECORDS[2:]),
    "critics": lambda: critic_scores(CRITIC, RECORDS, COMPONENT),
    "one critic": lambda: critic_scores(ONE_CRITIC, RECORDS),
    "shadows": lambda: train_shadows(lambda places, _: RECORDS[:, 0], N, 2).inside,
    "ratios": lambda: likelihood_ratios(Shadows(RECORDS[:, :3].T, INSIDE)),
}


@pytest.mark.parametrize("call", FOLLOWED.values(), ids=FOLLOWED.keys())
def test_results_are_where_the_arguments_are(call):
    """A tensor on torch's default device, here one without memory, could not meet the arguments."""
    expected = call()
    with torch.device("meta"):
        found = call()
    assert found.device == RECORDS.device and torch.equal(found, expected)


def test_tensors_on_several_devices_are_refused():
    elsewhere = RECORDS.to("meta")
    for call, words in (
        (lambda: nearness(RECORDS, elsewhere), "synthetic on meta: expected cpu"),
        (lambda: density_ratio(RECORDS, RECORDS, elsewhere), "reference on meta: expected cpu"),
        (lambda: critic_scores(CRITIC, elsewhere, COMPONENT), "records on meta: expected cpu"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_no_record_has_no_score():
    assert critic_scores(CRITIC, RECORDS[:0], COMPONENT[:0]).shape == (0,)


KEPT = {
    "neighbours": (lambda: NearestNeighbourDistance(WIDTH), "real", RECORDS),
    "series": (lambda: NearestSeries(WIDTH), "real", RECORDS),
    "transport": (lambda: WassersteinDistance(WIDTH), "real", RECORDS),
    "membership": (lambda: MembershipInference(), "member", RECORDS[:, 0]),
}


@pytest.mark.parametrize(("make", "side", "given"), KEPT.values(), ids=KEPT.keys())
def test_records_of_several_processes_are_joined(make, side, given):
    """Torchmetrics hands one tensor of all processes to `compute`, in place of a list of parts."""
    metrics = [make() for _ in range(2)]
    for metric in metrics:
        for part in given.split(4):
            metric.update(part, **{side: True})
        metric.update(given.flip(0) / 2, **{side: False})
    for name in metrics[1].metric_state:
        setattr(metrics[1], name, torch.cat(getattr(metrics[1], name)))
    one, other = (metric.compute() for metric in metrics)
    assert all(torch.equal(one[name], other[name]) for name in one)
