"""Tensors that metrics and attacks are handed: each mistake gets one line that names it, and devices are followed."""

import pytest
import torch

from lightning_dpgen.metrics import (
    MembershipInference,
    NearestNeighbourDistance,
    NearestSeries,
    WassersteinDistance,
    density_ratio,
    nearness,
)

N, WIDTH = 6, 4
RECORDS = torch.rand(N, WIDTH, generator=torch.Generator().manual_seed(0))

# For each argument that is a tensor: a call with it, and a good one in its place.
TENSORS = {
    "nearness, records": ("records", lambda given: nearness(given, RECORDS), RECORDS),
    "nearness, synthetic": ("synthetic", lambda given: nearness(RECORDS, given), RECORDS),
    "densities, records": ("records", lambda given: density_ratio(given, RECORDS, RECORDS), RECORDS),
    "densities, synthetic": ("synthetic", lambda given: density_ratio(RECORDS, given, RECORDS), RECORDS),
    "densities, reference": ("reference", lambda given: density_ratio(RECORDS, RECORDS, given), RECORDS),
    "neighbours": ("records", lambda given: NearestNeighbourDistance(WIDTH).update(given, real=True), RECORDS),
    "series": ("series", lambda given: NearestSeries(WIDTH).update(given, real=True), RECORDS),
    "transport": ("records", lambda given: WassersteinDistance(WIDTH).update(given, real=True), RECORDS),
    "membership": ("scores", lambda given: MembershipInference().update(given, member=True), RECORDS[:, 0]),
}
WRONG = {
    "a list": lambda good: good.tolist(),
    "an array": lambda good: good.numpy(),
    "nothing": lambda good: None,
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
    if case.endswith("records"):
        # The width of the records is that of the others.
        name = "synthetic"
    with pytest.raises(ValueError, match=rf"^{name} of shape \(\d, \d\): expected \(n, \d\)$"):
        call(RECORDS[:, :3])


OTHERS = {
    "scale": (lambda: density_ratio(RECORDS, RECORDS, RECORDS, scale="much"), "scale='much': expected a positive number"),
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
    ):
        torch.testing.assert_close(attack(some, RECORDS), attack(RECORDS.round(), RECORDS), check_dtype=False)


FOLLOWED = {
    "nearness": lambda: nearness(RECORDS, RECORDS[1:]),
    "densities": lambda: density_ratio(RECORDS, RECORDS[1:], RECORDS[2:]),
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
    ):
        with pytest.raises(ValueError, match=words):
            call()


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
