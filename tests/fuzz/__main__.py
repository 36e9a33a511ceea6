"""Fuzzing before a release: ``python -m tests.fuzz --minutes 60``. Exit status 1 if there is a finding.

Each target has its part of the time. Where atheris is installed, it drives the inputs by the code that they reach;
elsewhere they are mutations of the corpus. An input that fails is kept in a folder: correct the fault that it shows, and
move it to ``tests/fuzz/corpus/TARGET/found_NAME``, so that it is always tried.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path

# Set before torch is imported: its threads would not survive a fork.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, help="minutes of the clock, for all targets together")
    parser.add_argument("--inputs", type=int, help="inputs for each target, in place of minutes")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31)
    parser.add_argument("--target", action="append", help="only this target; may be given several times")
    parser.add_argument("--out", type=Path, help="folder for inputs that fail; a new one by default")
    parser.add_argument("--no-atheris", action="store_true", help="our own mutations, even where atheris is installed")
    parser.add_argument("--default", action="store_true", help="run the slow suite's part; results as JSON")
    parser.add_argument("--worst", action="store_true", help="measure the most expensive releases allowed; as JSON")
    parser.add_argument("--seeds", action="store_true", help="make the seeds of the corpus again, and stop")
    arguments = parser.parse_args()

    from .runs import CORPUS, Tally, run_corpus, run_mutations, run_quick
    from .targets import TARGETS
    from .worst import QUICK, SLOW

    # A child that looked for garbage among what is imported here would copy all of it.
    gc.freeze()

    if arguments.seeds:
        from .seeds import write_seeds

        write_seeds(CORPUS)
        return 0
    if arguments.worst:
        print(json.dumps(_costs(SLOW)))
        return 0
    targets = arguments.target or list(TARGETS)
    if arguments.default:
        found = {}
        for name in targets:
            tally = run_quick(name)
            found[name] = {"counts": tally.counts, "findings": _told(tally)}
        print(json.dumps({"targets": found, "costs": _costs(QUICK), "planted": _planted()}))
        return 0
    out = arguments.out or Path(tempfile.mkdtemp(prefix="fuzz-findings-"))
    by_atheris = importlib.util.find_spec("atheris") is not None and not arguments.no_atheris
    each = 60.0 * arguments.minutes / len(targets) if arguments.minutes else None
    print(f"seed {arguments.seed}; inputs that fail are kept in {out}", flush=True)
    tallies = {}
    for name in targets:
        tally = tallies[name] = Tally() if arguments.inputs else run_corpus(name)
        if by_atheris and each:
            from .coverage import run_atheris

            run_atheris(name, arguments.seed, each, tally)
        else:
            run_mutations(
                name, arguments.seed, count=arguments.inputs, seconds=each if not arguments.inputs else None, tally=tally
            )
        print(f"{name:<10} {tally}", flush=True)
        for number, (file, content, outcome) in enumerate(tally.findings.values()):
            kept = out / name / f"{number}_{file}"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(content)
            kept.with_name(f"{kept.name}.told").write_text(outcome.told, encoding="utf-8", errors="replace")
            print(f"  {kept}: {outcome.signature}", flush=True)
    return 1 if any(tally.findings for tally in tallies.values()) else 0


def _costs(cases) -> dict[str, list]:
    """Return the kind of outcome, seconds, megabytes and any finding's text for each case."""
    from .children import run_inputs
    from .targets import TARGETS
    from .worst import inputs

    found = {}
    for title, target, name, content in inputs(cases):
        outcome = run_inputs(TARGETS[target], [(name, content)])[0]
        found[title] = [outcome.kind, outcome.seconds, outcome.megabytes, outcome.told[-1500:]]
    return found


def _planted() -> dict[str, list[str]]:
    """Return the outcomes of the input of each planted fault, and of the one after it."""
    from .children import run_inputs
    from .planted import TITLES, planted

    inputs = [("x", b"good"), ("x", b"bad"), ("x", b"good")]
    return {title: [outcome.kind for outcome in run_inputs(planted(title), inputs)[1:]] for title in TITLES}


def _told(tally) -> list[str]:
    return [f"{name}: {outcome.told[-1500:]}" for name, _, outcome in tally.findings.values()]


if __name__ == "__main__":
    sys.exit(main())
