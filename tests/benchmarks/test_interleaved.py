"""The harness measures known quantities: a ratio of two workloads, bytes that a call allocates, and a table of them."""

import doctest
import itertools

import interleaved
import pytest
import torch
from interleaved import Line, Ratio, Result, peak_memory, ratios, table


def test_examples():
    assert doctest.testmod(interleaved).failed == 0


def _work(turns):
    return lambda: sum(range(turns))


def test_the_ratio_of_two_workloads():
    result = ratios({"one": _work(20_000), "three": _work(60_000)}, rounds=9, warmup=1, steps=2)
    ratio = result.ratio("three", "one")
    assert 2.4 < ratio.median < 3.6
    assert ratio.low <= ratio.median <= ratio.high
    assert result.milliseconds("three") > result.milliseconds("one") > 0
    assert result.elsewhere < 0.1


def test_ratios_are_taken_round_by_round():
    """A machine that gets ten times slower in mid-run changes no ratio."""
    times = {"base": [1.0, 1.0, 10.0], "other": [2.0, 2.0, 20.0]}
    assert Result(times, times, 0.0).ratio("other", "base") == Ratio(2.0, 2.0, 2.0)


def test_every_contender_follows_every_other():
    """Each contender then meets the caches as each other one leaves them."""
    calls = []
    ratios({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=24, warmup=0)
    assert sorted(calls) == sorted("abc" * 24)
    pairs = {(first, second) for first, second in itertools.pairwise(calls) if first != second}
    assert len(pairs) == 6


@pytest.mark.parametrize("values", [250_000, 1_000_000])
def test_the_probe_sees_an_allocation(values):
    def run():
        kept = torch.zeros(values)
        for _ in range(3):
            torch.ones(values // 4)
        return kept

    assert peak_memory(run) == pytest.approx(4 * values * 1.25, rel=0.05)


def test_the_probe_sees_inside_an_operation():
    """A product copies operands whose strides BLAS does not know; no operation's output shows that memory."""
    strided, column = torch.rand(1000, 2000)[:, ::2], torch.rand(1000, 1)
    assert peak_memory(lambda: strided @ column) == pytest.approx(4 * strided.numel(), rel=0.05)


def test_the_probe_does_not_count_what_was_there():
    there = [torch.zeros(1_000_000)]
    assert peak_memory(there.clear) == 0


def test_the_table():
    lines = [
        Line.of("first", Ratio(1.3, 1.2, 1.41), must=1.4, aim=1.2),
        Line("second", 0.0123, must=0.01, aim=0.001),
        Line("third", 2.0),
        Line("fourth", float("nan"), must=1.0),
    ]
    assert [line.met for line in lines] == [True, False, None, False]
    rows = [row.split() for row in table(lines).splitlines()]
    assert rows[1] == ["first", "1.30", "1.20", "to", "1.41", "1.40", "1.20", "yes"]
    assert rows[2] == ["second", "0.012", "-", "0.010", "0.0010", "NO"]
    assert rows[3] == ["third", "2.00", "-", "-", "-", "-"]
    assert rows[4][-1] == "NO"


def test_options():
    arguments = interleaved.parser("").parse_args(["--quick"])
    try:
        assert interleaved.start(arguments) == interleaved.QUICK
        assert torch.get_num_threads() == 1
    finally:
        torch.set_flush_denormal(False)
