"""The corpus, mutations of it, and their outcomes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .children import Outcome, run_inputs
from .mutations import mutated
from .targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
# Inputs of one child: they share the cost of one fork.
_AT_ONCE = 400


@dataclass
class Tally:
    """The outcomes of the inputs of one target.

    Attributes:
        counts: numbers of ``read``, ``refused`` and ``finding``; of ``followed`` by atheris, which reports no outcomes.
        findings: one input and its outcome for each cause.
        slowest, largest: most seconds of the processor and most megabytes of one input.
    """

    counts: Counter[str] = field(default_factory=Counter)
    findings: dict[str, tuple[str, bytes, Outcome]] = field(default_factory=dict)
    slowest: float = 0.0
    largest: float = 0.0

    def add(self, name: str, content: bytes, outcome: Outcome) -> None:
        self.counts[outcome.kind] += 1
        self.slowest, self.largest = max(self.slowest, outcome.seconds), max(self.largest, outcome.megabytes)
        if outcome.kind == "finding":
            self.findings.setdefault(outcome.signature, (name, content, outcome))

    def __str__(self) -> str:
        counts = ", ".join(f"{self.counts[kind]:,} {kind}" for kind in ("read", "refused", "followed", "finding"))
        return (
            f"{self.counts.total():,} inputs: {counts} ({len(self.findings)} causes); at most {self.slowest:.2f} s and "
            f"{self.largest:.0f} MB"
        )


def corpus_of(target: str) -> list[tuple[str, bytes]]:
    """Return the seeds of a target and every input that ever failed, name and content."""
    return [(path.name, path.read_bytes()) for path in sorted((CORPUS / target).iterdir())]


def mutations_of(target: str, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield mutations of the corpus of a target without end, the same for the same seed."""
    corpus, random = corpus_of(target), Random(f"{target} {seed}")
    # Large or slow ones teach little more.
    bases = [(name, content) for name, content in corpus if len(content) < 20_000] or corpus
    while True:
        name, content = random.choice(bases)
        alike = [other for other_name, other in bases if Path(other_name).suffix == Path(name).suffix]
        yield name, mutated(random, name, content, alike)


def run_corpus(target: str) -> Tally:
    """Return the outcomes of the corpus of a target."""
    tally, inputs = Tally(), corpus_of(target)
    for (name, content), outcome in zip(inputs, run_inputs(TARGETS[target], inputs), strict=True):
        tally.add(name, content, outcome)
    return tally


def run_quick(target: str) -> Tally:
    """Return the outcomes of the corpus of a target and some mutations. One child makes all of them."""
    tally, inputs = Tally(), [*corpus_of(target), *itertools.islice(mutations_of(target, 0), TARGETS[target].each)]
    for (name, content), outcome in zip(inputs, run_inputs(TARGETS[target], inputs), strict=True):
        tally.add(name, content, outcome)
    return tally


def run_mutations(target: str, seed: int, *, count: int | None = None, seconds: float | None = None, tally: Tally) -> None:
    """Add to a tally the outcomes of so many mutations, or of as many as fit in some time of the clock."""
    mutations, until, done = mutations_of(target, seed), None if seconds is None else time.monotonic() + seconds, 0
    while (count is None or done < count) and (until is None or time.monotonic() < until):
        few = _AT_ONCE if count is None else min(_AT_ONCE, count - done)
        inputs = [next(mutations) for _ in range(few if until is None else min(few, 100))]
        for (name, content), outcome in zip(inputs, run_inputs(TARGETS[target], inputs), strict=True):
            tally.add(name, content, outcome)
        done += len(inputs)
