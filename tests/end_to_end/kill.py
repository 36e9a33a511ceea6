"""Kills of `dpgen train` at random moments, which show that no noise that was drawn is forgotten.

    python tests/end_to_end/kill.py 50

Each round begins a run, kills it with SIGKILL after a random time, and repeats the command, up to four kills, until there
is a release. After every kill the ledger holds all bytes that it held the moment before, and there is no release or a
complete one. At the end `verify` accepts the release, epsilon is within the budget, and the certificate's events are those
of the ledger, line by line.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from lightning_dpgen.cli.main import main as dpgen

SETTINGS = ["model.steps=300", "model.hidden=8", "split.iterations=4", "split.features=16", "rows=200", "privacy.epsilon=6"]
_KILLS, _EARLY, _LONGEST = 4, 0.15, 5.0


def program(arguments: list[str]) -> subprocess.Popen:
    """Start `dpgen` as a user does."""
    command = [sys.executable, "-W", "ignore", "-m", "lightning_dpgen", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def one_round(root: Path, seconds: random.Random, kills: int = _KILLS, start: Callable = program) -> dict[str, int]:
    """Take one run to its end, and return how many kills came at each moment.

    Args:
        root: an empty folder.
        seconds: the random source of the moments to kill at.
        kills: most kills.
        start: a function that starts dpgen with arguments; its result has the methods of a `subprocess.Popen`.

    Raises:
        AssertionError: if something was lost.
    """
    run = root / "run"
    ledger, release = run / "private" / "ledger.jsonl", run / "release"
    seen, moments = b"", Counter()
    for kill in range(kills + 1):
        process = start(["train", *SETTINGS, f"run_dir={run}"])
        # Most kills come in the seconds after the process first writes to the ledger, some before.
        deadline = time.monotonic() + seconds.uniform(0.5, 6.0) if seconds.random() < _EARLY else None
        before = len(seen)
        while process.poll() is None and (kill == kills or deadline is None or time.monotonic() < deadline):
            time.sleep(0.005)
            if ledger.exists():
                now = ledger.read_bytes()
                # One that no access was made from makes room for another.
                assert now.startswith(seen) or b'"id"' not in seen, "the ledger lost what it held"
                seen = now
                if deadline is None and len(seen) > before:
                    deadline = time.monotonic() + seconds.uniform(0.0, _LONGEST)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        _, err = process.communicate()
        if release.exists():
            break
        assert process.returncode == -signal.SIGKILL, f"exit {process.returncode}: {err[-500:]}"
        moments[_moment(run)] += 1
    assert release.exists(), "no release after the last start, which was not killed"
    certificate = json.loads((release / "privacy.json").read_text())
    with contextlib.redirect_stdout(io.StringIO()):
        assert dpgen(["verify", str(release)]) == 0
    assert certificate["private"] and certificate["epsilon"] <= certificate["target_epsilon"]
    counted = {stage["name"]: stage["event"].get("count", 1) for stage in certificate["stages"]}
    listed = _listed(ledger)
    assert counted == listed, f"certificate {counted}, ledger {listed}"
    return moments


def _moment(run: Path) -> str:
    """Return the stage that a killed run had reached."""
    private = run / "private"
    if not (private / "ledger.jsonl").exists():
        return "before the ledger"
    if (private / "release-in-progress").exists():
        return "while the release was written"
    if (private / "checkpoint.ckpt").exists():
        return "in training"
    return "in the split, or before the first checkpoint"


def _listed(ledger: Path) -> dict[str, int]:
    """Count the entries of each stage that may have been drawn; the ledger is read without the package."""
    stages: dict[str, str] = {}
    for raw in ledger.read_bytes().splitlines():
        if raw.endswith(b"#torn"):
            continue
        line = json.loads(raw)
        if "id" in line:
            stages[line["id"]] = line["stage"]
        for identity in line.get("never_drawn", []):
            del stages[identity]
    return dict(Counter(stages.values()))


def main(rounds: int, seed: int = 0) -> Counter:
    random_seconds, total = random.Random(seed), Counter()
    for number in range(1, rounds + 1):
        root = Path(tempfile.mkdtemp(prefix="kill-"))
        try:
            total += one_round(root, random_seconds)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        print(f"round {number}: nothing lost; kills so far: {dict(total)}", flush=True)
    return total


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
