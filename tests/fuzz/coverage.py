"""Fuzzing by atheris (libFuzzer): inputs that reach new code are kept, and changed by our mutations."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from random import Random

from .children import run_inputs, scratch
from .mutations import mutated
from .runs import Tally, corpus_of
from .targets import TARGETS


def run_atheris(name: str, seed: int, seconds: float, tally: Tally) -> None:
    """Add to a tally the outcomes of fuzzing one target for some time of the clock, and of each input that stopped it.

    Each suffix of the corpus has a process of its own, since an input that crashes ends it. The input that ends it is read
    once more under the limits of all inputs, so that it is reported as those are.
    """
    corpus = corpus_of(name)
    suffixes = sorted({Path(file).suffix for file, _ in corpus})
    for suffix in suffixes:
        alike = [(file, content) for file, content in corpus if Path(file).suffix == suffix and len(content) < 20_000]
        if not alike:
            continue
        folder = scratch()
        process = os.fork()
        if process == 0:
            try:
                _fuzz(name, alike, seed, seconds / len(suffixes), folder)
            finally:
                os._exit(1)
        os.waitpid(process, 0)
        with contextlib.suppress(FileNotFoundError, ValueError):
            tally.counts["followed"] += int((folder / "count").read_text())
        stopped = [(alike[0][0], path.read_bytes()) for path in folder.glob("stop-*")]
        for (file, content), outcome in zip(stopped, run_inputs(TARGETS[name], stopped), strict=True):
            tally.add(file, content, outcome)
        shutil.rmtree(folder, ignore_errors=True)


def _fuzz(name: str, alike: list[tuple[str, bytes]], seed: int, seconds: float, folder: Path) -> None:
    """Fuzz until the time is over or an input is a finding. Does not return."""
    import atheris

    target, file = TARGETS[name], alike[0][0]
    seeds, place, count = folder / "seeds", folder / "input", 0
    seeds.mkdir()
    for number, (_, content) in enumerate(alike):
        (seeds / str(number)).write_bytes(content)

    def read(content: bytes) -> None:
        nonlocal count
        count += 1
        if count % 100 == 0:
            (folder / "count").write_text(str(count))
        place.mkdir()
        try:
            (place / file).write_bytes(content)
            target.check(place / file)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def change(content: bytes, most: int, number: int) -> bytes:
        return mutated(Random(number), file, content, [other for _, other in alike])[:most]

    words = [
        "atheris", f"-max_total_time={max(1, int(seconds))}", f"-seed={1 + seed % 2**31}",
        f"-artifact_prefix={folder}/stop-", f"-timeout={int(20 * target.seconds)}", "-rss_limit_mb=4000",
        "-max_len=100000", str(seeds),
    ]  # fmt: skip
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    for module in [module for loaded, module in sys.modules.items() if loaded.startswith("lightning_dpgen.")]:
        # Modules that are imported already are instrumented function by function.
        for value in list(vars(module).values()):
            if getattr(value, "__module__", None) == module.__name__ and hasattr(value, "__code__"):
                with contextlib.suppress(Exception):
                    vars(module)[value.__name__] = atheris.instrument_func(value)
    atheris.Setup(words, read, custom_mutator=change)
    atheris.Fuzz()
