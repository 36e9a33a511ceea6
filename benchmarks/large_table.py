"""A table of any number of rows: written by a seed, in 100 Parquet files, and measured by `dpgen` in time and memory.

    python benchmarks/large_table.py make FOLDER 10_000_000
    python benchmarks/large_table.py measure FOLDER 10_000_000

A row has 20 columns of mixed types that depend on each other. Rows are drawn a hundred thousand at a time, each batch from
a seed of its own, so a table of any size takes little memory to write.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES, AT_ONCE = 100, 100_000
REGIONS = [f"region {i:02d}" for i in range(16)]
JOBS = ["clerical", "craft", "farming", "finance", "manual", "medical", "sales", "science", "service", "teaching"]
SCHEMA = f"""columns:
  age: {{type: integer, low: 17, high: 95, bins: 16}}
  sex: {{type: category, values: [F, M, X]}}
  region: {{type: category, values: [{", ".join(REGIONS)}]}}
  job: {{type: category, values: [{", ".join(JOBS)}], missing: true}}
  school_years: {{type: integer, low: 0, high: 20, bins: 21}}
  hours: {{type: integer, low: 0, high: 99, bins: 12}}
  pay: {{type: number, low: 0, high: 250000, decimals: 2, bins: 16}}
  tax: {{type: number, low: 0, high: 100000, decimals: 2, bins: 16}}
  married: {{type: category, values: [never, married, divorced, widowed]}}
  children: {{type: integer, low: 0, high: 9, bins: 10}}
  rooms: {{type: integer, low: 1, high: 12, bins: 12}}
  owner: {{type: category, values: ["no", "yes"]}}
  car: {{type: category, values: [none, small, large, electric]}}
  distance: {{type: number, low: 0, high: 120, bins: 12, missing: true}}
  visits: {{type: integer, low: 0, high: 60, bins: 12}}
  smoker: {{type: category, values: ["no", former, "yes"]}}
  weight: {{type: number, low: 35, high: 180, decimals: 1, bins: 14}}
  height: {{type: integer, low: 130, high: 215, bins: 14}}
  joined: {{type: date, low: 2000-01-01, high: 2024-12-31, bins: 12}}
  risk: {{type: category, values: [low, medium, high]}}
"""


def batch(seed: int, n: int) -> pa.Table:
    """Draw rows, which follow from the seed alone."""
    random = np.random.default_rng(seed)
    age = np.clip(random.gamma(7.0, 6.5, n), 17, 95)
    sex = random.choice(3, n, p=[0.49, 0.5, 0.01])
    school = np.clip(random.normal(12 + 2.5 * (age < 50), 3, n), 0, 20)
    region = np.minimum((random.exponential(4.0, n) + 0.2 * school).astype(int), 15)
    job = np.clip(random.normal(0.45 * school + 0.8 * sex, 1.6, n), 0, 9).astype(int)
    hours = np.clip(random.normal(np.where(age > 66, 8, 38), 9, n), 0, 99)
    pay = np.clip(random.lognormal(9.2 + 0.07 * school + 0.01 * hours, 0.45, n), 0, 250_000)
    married = np.where(age < 25 + random.exponential(8, n), 0, 1 + random.choice(3, n, p=[0.7, 0.22, 0.08]))
    children = np.minimum(random.poisson(0.2 + 1.4 * (married > 0)), 9)
    rooms = np.clip(random.poisson(2 + 0.7 * children + pay / 60_000) + 1, 1, 12)
    owner = random.random(n) < 1 / (1 + np.exp(-(pay / 30_000 + (age - 45) / 15 - 1.5)))
    car = np.clip(random.normal(pay / 35_000 + 0.3 * children, 0.9, n), 0, 3).astype(int)
    smoker = random.choice(3, n, p=[0.55, 0.25, 0.2]) * (school < 17)
    height = np.clip(random.normal(164 + 12 * (sex == 1), 7, n), 130, 215)
    weight = np.clip(random.normal(0.9 * (height - 100) + 0.15 * age, 12, n), 35, 180)
    visits = np.minimum(random.poisson(1 + age / 12 + 2 * smoker), 60)
    risk = np.digitize(weight / height + 0.2 * smoker + 0.01 * visits + random.normal(0, 0.1, n), [0.55, 0.85])

    def named(places: np.ndarray, names: list[str], missing: float = 0.0) -> pa.Array:
        absent = random.random(n) < missing if missing else None
        return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32), mask=absent), pa.array(names))

    day = (np.datetime64("2000-01-01") + (9131 * random.beta(2, 1 + age / 60)).astype("timedelta64[D]")).astype(
        "datetime64[D]"
    )
    return pa.table({
        "age": age.astype(np.int64), "sex": named(sex, ["F", "M", "X"]), "region": named(region, REGIONS),
        "job": named(job, JOBS, 0.04), "school_years": school.astype(np.int64), "hours": hours.astype(np.int64),
        "pay": pay.round(2), "tax": np.clip(0.3 * pay - 2500 + random.normal(0, 400, n), 0, 100_000).round(2),
        "married": named(married, ["never", "married", "divorced", "widowed"]), "children": children, "rooms": rooms,
        "owner": named(owner, ["no", "yes"]), "car": named(car, ["none", "small", "large", "electric"]),
        "distance": pa.array(np.minimum(random.exponential(12, n), 120), mask=hours < 10), "visits": visits,
        "smoker": named(smoker, ["no", "former", "yes"]), "weight": weight.round(1), "height": height.astype(np.int64),
        "joined": pa.array(day), "risk": named(risk, ["low", "medium", "high"]),
    })  # fmt: skip


def make(folder: Path, rows: int) -> None:
    """Write the table, and its schema beside the folder."""
    folder.mkdir(parents=True)
    folder.with_suffix(".schema.yaml").write_text(SCHEMA)
    for number in range(FILES):
        left = rows * (number + 1) // FILES - rows * number // FILES
        seeds = iter(range(number * 10**6, (number + 1) * 10**6))
        writer = None
        while left:
            part = batch(next(seeds), min(left, AT_ONCE))
            writer = writer or pq.ParquetWriter(folder / f"part-{number:03d}.parquet", part.schema)
            writer.write_table(part)
            left -= len(part)
        if writer is not None:
            writer.close()


def measure(folder: Path, rows: int, *more: str) -> dict[str, float]:
    """Run `dpgen train` on the table as a user does, and return its time (s) and peak memory (GiB)."""
    run_dir = folder.with_name(f"{folder.name}-run-{int(time.time())}")
    words = [
        "data=table", f"data.path={folder}", f"data.schema={folder.with_suffix('.schema.yaml')}", f"data.n={rows}",
        "model=measured", "data.memory_gib=0", "rows=10000", f"run_dir={run_dir}", *more,
    ]  # fmt: skip
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, "-m", "lightning_dpgen", "train", *words])
    log = folder.with_name(f"{run_dir.name}.memory.csv")

    def watch() -> None:
        with open(log, "w") as file:
            file.write("seconds,resident_gib\n")
            while child.poll() is None:
                try:
                    pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1])
                except (OSError, IndexError):
                    return
                file.write(f"{time.monotonic() - began:.1f},{pages * os.sysconf('SC_PAGE_SIZE') / 2**30:.3f}\n")
                file.flush()
                time.sleep(1.0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    status = child.wait()
    watcher.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "status": status, "rows": rows, "seconds": round(time.monotonic() - began, 1),
        "processor seconds": round(used.ru_utime + used.ru_stime, 1), "peak GiB": round(used.ru_maxrss / 2**20, 3),
    }  # fmt: skip


if __name__ == "__main__":
    what, where, count, *rest = sys.argv[1:]
    if what == "make":
        make(Path(where), int(count))
    else:
        print(json.dumps(measure(Path(where), int(count), *rest)))
