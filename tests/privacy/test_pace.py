"""Stages of long work are seen every two seconds, whatever they do between two steps, and cost and say nothing else."""

import io
import random
import re

import numpy as np
import pytest
import torch

from lightning_dpgen.common import pace
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.pair_estimates import estimate_pairs
from lightning_dpgen.measure.pair_tables import NoisyTables
from lightning_dpgen.measure.statistics import Marginals
from lightning_dpgen.metrics.evaluation import evaluate_encoded
from lightning_dpgen.passes.reduce import reduce


class Clock:
    """A clock that goes on when it is told to, and a stream that notes when something was to be seen."""

    def __init__(self):
        self.now, self.seen = 0.0, []

    def __call__(self):
        return self.now


class Noted(io.StringIO):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def write(self, text):
        if text.strip():
            self.clock.seen.append(self.clock.now)
        return super().write(text)

    @property
    def pictures(self):
        return [part.strip() for part in re.split(r"[\r\n]+", self.getvalue()) if part.strip()]


def _display(bar):
    clock = Clock()
    stream = Noted(clock)
    return clock, stream, pace.Display(stream, bar=bar, clock=clock)


def _pass_time(clock, display, seconds):
    """Let time go on as the thread sees it."""
    for _ in range(round(seconds / 0.25)):
        clock.now += 0.25
        display.look()


def _nested(clock, stream, display, chance, depth=0):
    """Do random work: stages within stages, short and long steps, texts between them."""
    total = chance.choice([None, 0, 1, 7, 1000])
    with display.showing(pace.Stage(f"stage {depth}", total)) as stage:
        for _ in range(chance.randint(0, 5)):
            if depth < 3 and chance.random() < 0.5:
                _nested(clock, stream, display, chance, depth + 1)
            _pass_time(clock, display, chance.choice([0.0, 0.25, 0.75, 2.0, 9.0]))
            stage.advance(chance.choice([0, 1, 3]))
            if chance.random() < 0.2:
                display.write_above(stream, "said\n")


@pytest.mark.parametrize("bar", [True, False])
def test_nothing_is_silent_for_two_seconds(bar):
    """Whatever stages are within which, and however long a step takes, something is seen while a program runs."""
    for seed in range(40):
        clock, stream, display = _display(bar)
        with display.showing(pace.Stage("dpgen train")):
            _nested(clock, stream, display, random.Random(seed))
            _pass_time(clock, display, 3.0)
        if clock.now < 140.0:
            moments = [0.0, *clock.seen, clock.now]
            assert max(np.diff(moments)) <= 2.0, (seed, moments)


def test_a_log_of_hours_stays_short():
    clock, stream, display = _display(False)
    with display.showing(pace.Stage("training", 36_000)) as stage:
        for _ in range(36_000):
            stage.advance()
            clock.now += 1.0
            display.look()
    # A line each hundredth of the time that has passed: about 100 until then, and 100 for each factor of e.
    assert 500 < len(stream.pictures) < 800


@pytest.mark.parametrize("bar", [True, False])
def test_a_stage_says_its_name_how_far_it_is_and_the_time_that_is_left(bar):
    clock, stream, display = _display(bar)
    with display.showing(pace.Stage("fitting", 300, done=100)) as stage:
        for _ in range(100):
            stage.advance()
            _pass_time(clock, display, 0.5)
        stage.note = "the last"
        _pass_time(clock, display, 2.0)
    assert any("fitting" in seen and "67%" in seen and "about 00:5" in seen for seen in stream.pictures)
    assert "the last" in stream.pictures[-1] and (bar or stream.getvalue().endswith("\n"))
    # A bar leaves nothing behind.
    assert not bar or re.search(r"\r +\r$", stream.getvalue())


def test_no_stage_goes_backwards_though_its_total_changes():
    """A total may turn out to be more or less: what is seen grows, and comes to its end; it is exact where none changes."""
    for seed in range(50):
        chance = random.Random(seed)
        clock, stream, display = _display(False)
        with display.showing(pace.Stage("fitting", 100, done=chance.choice([0, 20]))) as stage:
            changes = seed % 2
            while stage.done < stage.total:
                stage.advance(chance.choice([1, 5, 20]))
                if changes and chance.random() < 0.3:
                    stage.total = stage.done + chance.choice([0, 10, 200]) if stage.done < 500 else stage.done
                _pass_time(clock, display, 1.25)
                assert changes or stage.share == pytest.approx(min(stage.done / 100, 1.0))
            _pass_time(clock, display, 3.0)
        shares = [int(share) for share in re.findall(r"(\d+)%", stream.getvalue())]
        assert shares == sorted(shares) and shares[-1] == 100, (seed, shares)


@pytest.mark.parametrize("bar", [True, False])
def test_a_program_is_named_only_where_no_stage_of_it_is_known(bar):
    """A stage without steps says its name alone, so a young one within it is shown; one with steps says how far it is."""
    clock, stream, display = _display(bar)
    with display.showing(pace.Stage("dpgen train")):
        _pass_time(clock, display, 3.0)
        assert "dpgen train" in stream.getvalue()
        stream.truncate(0)
        for _ in range(8):
            with display.showing(pace.Stage("counting", 3)), display.showing(pace.Stage("reading", 3)):
                _pass_time(clock, display, 0.75)
        assert "counting" in stream.getvalue() and not re.search("dpgen train|reading", stream.getvalue())
        with display.showing(pace.Stage("measuring", 3)):
            _pass_time(clock, display, 3.0)
            stream.truncate(0)
            with display.showing(pace.Stage("reading", 3)):
                _pass_time(clock, display, 0.75)
            assert "reading" not in stream.getvalue()


def test_quick_work_is_not_shown():
    for bar in (True, False):
        clock, stream, display = _display(bar)
        for _ in range(100):
            with display.showing(pace.Stage("quick", 3)):
                clock.now += 0.75
                display.look()
        assert not stream.getvalue()


def test_text_stands_above_the_bar_and_is_never_written_over():
    clock, stream, display = _display(True)
    with display.showing(pace.Stage("fitting")):
        _pass_time(clock, display, 2.0)
        display.write_above(stream, "epsilon ")
        before = stream.getvalue()
        _pass_time(clock, display, 5.0)
        # A line that is begun is ended first.
        assert stream.getvalue() == before and re.search(r"\r +\repsilon $", before)
        display.write_above(stream, "1\n")
        _pass_time(clock, display, 1.0)
        assert stream.getvalue().split("epsilon 1\n")[1].startswith("\rfitting after 00:07")


def test_a_stream_that_is_closed_stops_no_work():
    clock, stream, display = _display(False)
    with display.showing(pace.Stage("fitting")):
        stream.close()
        _pass_time(clock, display, 9.0)
    assert display.stream is None


LAYOUT = Layout(0, groups=(2, 3, 4))
RECORDS = Encoded(np.zeros((50, 0), np.uint8), np.random.default_rng(0).integers(0, 2, (50, 3)))


class _Blocks:
    keys = ("a", "b", "c")

    def __len__(self):
        return 3

    def read(self, key):
        return key


class _Ones:
    def __init__(self):
        self.shapes = {"ones": (1,)}

    def __call__(self, records):
        return {"ones": torch.ones(1, dtype=torch.int64)}


def _tables():
    random = np.random.default_rng(0)
    singles = {group: random.random((1, size)) * 100 for group, size in enumerate(LAYOUT.groups)}
    pairs = {
        (i, j): random.random((1, LAYOUT.groups[i], LAYOUT.groups[j])) * 100 for i in range(3) for j in range(i + 1, 3)
    }
    return NoisyTables(singles, pairs, 1.0, 1.0, 100.0)


def _evaluate():
    pictures = Encoded(np.arange(40, dtype=np.uint8).reshape(20, 2) % 3, np.zeros((20, 0), np.uint8))
    evaluate_encoded(pictures, pictures, Layout(units=2, levels=2), kind="images", held_out=pictures, seconds=1e-9)


WORK = {
    "counting": lambda: Marginals(LAYOUT, [(0, 1), (1, 2), (0, 2)]).sums(RECORDS, torch.zeros(50, dtype=torch.int64)),
    "estimating pairs": lambda: estimate_pairs(tables := _tables(), tables.shares(), 0),
    "passing over all records": lambda: reduce(_Blocks(), _Ones()),
    "evaluating": _evaluate,
    "loop": lambda: list(pace.counted("loop", range(4))),
}


@pytest.mark.parametrize("name", WORK)
def test_each_stage_comes_to_its_end(monkeypatch, name):
    """Work that tells of itself reaches all steps that it has announced, and no more; and it needs nobody who listens."""
    WORK[name]()
    heard, showing = [], pace.Display.showing

    def noted(display, stage):
        heard.append(stage)
        return showing(display, stage)

    monkeypatch.delenv("TQDM_DISABLE")
    monkeypatch.setattr(pace.Display, "showing", noted)
    with pace.show_progress(io.StringIO()):
        WORK[name]()
    ended = {stage.name: (stage.done, stage.total) for stage in heard}
    assert name in ended and ended[name][0] == pytest.approx(ended[name][1], abs=name == "evaluating")


def test_who_asks_for_silence_gets_it(monkeypatch):
    monkeypatch.setattr(pace, "_FIRST", 0.0)
    monkeypatch.setattr(pace, "_LINE", 0.0)
    for off, hidden in (("1", False), ("0", True), ("0", False)):
        monkeypatch.setenv("TQDM_DISABLE", off)
        stream = io.StringIO()
        with pace.show_progress(stream):
            if hidden:
                with pace.hide_progress(), pace.stage("silent", 1):
                    pass
            else:
                with pace.stage("silent", 1):
                    pass
        assert ("silent" in stream.getvalue()) == (off == "0" and not hidden)
