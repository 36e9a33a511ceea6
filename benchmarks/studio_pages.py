"""Times of the studio: its start, and its pages beside a run, for a table of 200 columns.

    python benchmarks/studio_pages.py              half a minute; two cores
    python benchmarks/studio_pages.py --quick      that it runs: 20 columns, no run beside it

The wall clock is read, as by a person who waits. The start is told from the end of the imports to the first answer, and
that of the whole program beside it. Each page is asked for in turn, and medians stand beside the 95th percentiles.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

ROUNDS = 20
COMMAND = [sys.executable, "-P", "-m", "lightning_dpgen.cli.main"]


class Browser:
    """Asks as a browser does that has opened the address at the terminal."""

    def __init__(self, address: str) -> None:
        origin, _, token = address.partition("/?token=")
        with urllib.request.urlopen(address) as answer:
            self.root = origin + re.search(r"url=([^\"]+)", answer.read().decode())[1]
        self.headers = {"Cookie": f"dpgen-studio-{origin.rpartition(':')[2]}={token}", "Origin": origin}

    def ask(self, path: str, /, **form: str) -> tuple[float, bytes]:
        data = urllib.parse.urlencode(form).encode() if form else None
        begin = time.perf_counter()
        with urllib.request.urlopen(urllib.request.Request(self.root + path, data, self.headers)) as answer:
            content = answer.read()
        return 1e3 * (time.perf_counter() - begin), content


def write_table(root: Path, columns: int) -> None:
    names = [f"column_{number}" for number in range(columns)]
    rows = [",".join(str((7 * row + 3 * number) % 90) for number in range(columns)) for row in range(2000)]
    (root / "wide.csv").write_text("\n".join([",".join(names), *rows]) + "\n")
    declared = "".join(f"  {name}: {{type: integer, low: 0, high: 99}}\n" for name in names)
    (root / "wide.schema.yaml").write_text(f"columns:\n{declared}")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--quick", action="store_true")
    quick = asked.parse_args().quick
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        write_table(root, 20 if quick else 200)
        begin = time.perf_counter()
        server = subprocess.Popen([*COMMAND, "studio", place, "--no-browser"], stdout=subprocess.PIPE, text=True)
        try:
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
            imported = time.perf_counter()
            browser = Browser(address)
            browser.ask("")
            print(
                f"start: {time.perf_counter() - imported:.2f} s after imports, {time.perf_counter() - begin:.2f} s in all"
            )
            browser.ask("new", name="wide", path=f"{place}/wide.csv", schema=f"{place}/wide.schema.yaml")
            settings = {"data.n": "2000", "privacy.epsilon": "2", "model": "measured"}
            first, plan = browser.ask("case/wide/settings?live", **settings)
            print(f"first plan: {first:,.0f} ms")
            if not quick:
                browser.ask("case/wide/run", mark=re.search(r'name="mark" value="(\w+)"', plan.decode())[1])
                time.sleep(5.0)
            column = {"column": "column_7", "high": "99"}
            pages = {
                "cases": ("", {}), "schema": ("case/wide", {}), "a column is kept": ("case/wide/column?live", column),
                "budget": ("case/wide/budget", {}), "plan": ("case/wide/plan", {}), "run": ("case/wide/run/1", {}),
                "progress": ("case/wide/job/run-1", {}), "studies": ("studies", {}),
            }  # fmt: skip
            for name, (path, form) in pages.items():
                if quick and "run" in path:
                    continue
                found = [browser.ask(path, **form) for _ in range(2 if quick else ROUNDS)]
                times = sorted(milliseconds for milliseconds, _ in found)
                last = times[int(0.95 * len(times))]
                size = len(found[0][1]) / 1e3
                print(f"{name:18} median {statistics.median(times):6.1f} ms, 95 % {last:6.1f} ms, {size:,.0f} kB")
            browser.ask("case/wide/run/1/stop", stop="") if not quick else None
        finally:
            server.terminate()
            server.wait()
            server.stdout.close()


if __name__ == "__main__":
    main()
