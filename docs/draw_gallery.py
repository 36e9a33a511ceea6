"""Make the gallery of the book, its page and its pictures, from releases: python docs/draw_gallery.py FOLDER

The script writes generated records into FOLDER, runs the commands of the page there, and draws what was released beside the
records. A release that is already in FOLDER is not made again. Two minutes on one idle core. Sentences that judge a
picture stand in this file: see that they still hold.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure
from PIL import Image
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_moons
from sklearn.ensemble import RandomForestClassifier

from lightning_dpgen import evaluate, load_release
from lightning_dpgen.common.strict_json import read_json
from lightning_dpgen.data.simulated.points import blobs
from lightning_dpgen.metrics.evaluation import Evaluation
from lightning_dpgen.release.files import CERTIFICATE

DOCS = Path(__file__).resolve().parent
PAGE, PICTURES = DOCS / "results/gallery.md", DOCS / "_static/gallery"
# Columns of a command on the page.
WIDTH = 100
# Shades of a picture: half the bytes, and no difference that is seen.
SHADES = 64
REAL, MADE = "#6b7785", "#1f6fb2"
HOURS = np.arange(24)
ITEMS = ["bread", "butter", "jam", "milk", "coffee", "tea", "pasta", "sauce", "cheese", "wine", "beer", "crisps"]
HABITS = np.array(
    [
        [0.9, 0.7, 0.5, 0.5, 0.4, 0.2, 0.05, 0.05, 0.1, 0.02, 0.02, 0.05],
        [0.2, 0.1, 0.02, 0.1, 0.05, 0.05, 0.8, 0.75, 0.6, 0.4, 0.1, 0.05],
        [0.05, 0.02, 0.02, 0.05, 0.05, 0.05, 0.05, 0.05, 0.3, 0.3, 0.8, 0.8],
    ]
)


@dataclass(frozen=True)
class Exhibit:
    """One picture of the gallery.

    Args:
        title: heading on the page.
        records: where the records come from, in a sentence.
        commands: arguments of `dpgen`, by the name of the run.
        write: writes the records into the folder that it runs in.
        draw: returns the picture, and numbers that `words` names; it is handed each release by the name of its run.
        seen: what the picture shows, for those who do not see it, in one line: a break in it would lose a space.
        words: the judgement under the picture.
    """

    title: str
    records: str
    commands: dict[str, str]
    write: Callable[[], None]
    draw: Callable[[dict], tuple[Figure, dict[str, float]]]
    seen: str
    words: str


def write_nothing() -> None:
    """Write no file: the program has these records."""


def write_visits() -> None:
    """Write visits.csv and visits.schema.yaml, those of the pages for curators, and coarse.schema.yaml, with fewer bins."""
    schema = yaml.safe_load((DOCS / "start/visits.schema.yaml").read_text())
    shutil.copy(DOCS / "start/visits.schema.yaml", ".")
    schema["columns"]["age"]["edges"] = [16, 40, 55, 70, 85]
    schema["columns"]["admitted"]["bins"] = 6
    schema["columns"]["discharged"] |= {"distance": [0, 60], "edges": [1, 2, 3, 4, 6, 9]}
    cost = schema["columns"]["cost"] | {"edges": [1000, 1800, 2600, 3600, 5000, 8000]}
    schema["columns"]["cost"] = {key: value for key, value in cost.items() if key != "transform"}
    Path("coarse.schema.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    subprocess.run([sys.executable, str(DOCS / "start/make_visits.py")], check=True)


def write_moons() -> None:
    """Write moons.csv and moons.schema.yaml: two columns of numbers, and which half moon a row belongs to."""
    points, moon = make_moons(5000, noise=0.08, random_state=0)
    table = pd.DataFrame(points.round(3), columns=["x", "y"]).assign(moon=np.where(moon, "lower", "upper"))
    table.to_csv("moons.csv", index=False)
    bounds = "type: number, low: {}, high: {}, bins: 24, decimals: 3"
    Path("moons.schema.yaml").write_text(
        "label: moon\ncolumns:\n"
        f"  x: {{{bounds.format(-1.5, 2.5)}}}\n  y: {{{bounds.format(-1, 1.5)}}}\n"
        "  moon: {type: category, values: [upper, lower]}\n"
    )


def write_baskets() -> None:
    """Write baskets.txt: 5,000 customers who shop for breakfast, for dinner or for an evening with friends."""
    random = np.random.default_rng(0)
    bought = random.random((5000, len(ITEMS))) < HABITS[random.choice(3, 5000, p=[0.5, 0.3, 0.2])]
    lines = (" ".join(ITEMS[item] for item in np.flatnonzero(row)) for row in bought)
    Path("baskets.txt").write_text("".join(f"{line}\n" for line in lines))


def write_days() -> None:
    """Write days.csv: a day of 2,000 households in kilowatts, of which half are away at noon."""
    random = np.random.default_rng(0)
    away = random.random((2000, 1)) < 0.5
    morning, noon, evening = (np.exp(-0.5 * ((HOURS - at) / wide) ** 2) for at, wide in ((7.5, 1.3), (13, 3), (19, 2)))
    sizes = random.gamma(4, 0.25, (2, 2000, 1))
    readings = np.where(away, 1.2 * sizes[0] * morning + 2 * sizes[1] * evening, 2 * sizes[0] * noon + 0.3 * evening)
    readings = np.clip(0.5 + readings + random.normal(0, 0.1, readings.shape), 0, 6).round(2)
    days = pd.DataFrame(readings, columns=[f"h{hour:02}" for hour in HOURS])
    days.assign(label=np.where(away[:, 0], "away", "home")).to_csv("days.csv", index=False)


def draw_digits(releases: dict) -> tuple[Figure, dict[str, float]]:
    """Draw eight pictures of each class, and let a forest learn from 1,500 of each kind."""
    digits = load_digits()
    pictures, labels = digits.images[:1500], digits.target[:1500]
    rows = {"real": np.stack([pictures[labels == label][:8] for label in range(10)])}
    learned = {"real": (pictures.reshape(-1, 64), labels)}
    for name, released in releases.items():
        rows[name] = np.stack([released.sample(8, seed=1, where={"label": label}) for label in range(10)])
        table = released.table(1500, seed=2).to_pandas()
        learned[name] = table.drop(columns="label").to_numpy(), table["label"].to_numpy()
    titles = {"real": "real", "digits_measured": "measured, epsilon 4", "digits_vae": "vae, epsilon 4"}
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    for place, (name, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        apart = np.pad(rows[name], ((0, 0), (0, 0), (0, 1), (0, 2)))
        place.imshow(np.vstack([np.hstack(list(row)) for row in apart]), cmap="gray_r", interpolation="nearest")
        place.set_title(title)
        place.set_axis_off()
    held_out = digits.images[1500:].reshape(-1, 64), digits.target[1500:]
    forests = {name: RandomForestClassifier(random_state=0).fit(*own) for name, own in learned.items()}
    return figure, {name: forest.score(*held_out) for name, forest in forests.items()}


def draw_visits(releases: dict) -> tuple[Figure, dict[str, float]]:
    """Draw cost by age in each department, and evaluate."""
    visits = pd.read_csv("visits.csv")
    tables = {"real": visits} | {name: released.sample(6000, seed=1) for name, released in releases.items()}
    titles = {"real": "real", "visits": "bins found with noise", "coarse": "few public bins"}
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    places = figure.subplots(1, 3, sharex=True, sharey=True)
    for place, (name, title) in zip(places, titles.items(), strict=True):
        shown = tables[name].iloc[:1500]
        for number, department in enumerate(sorted(visits["department"].unique())):
            own = shown[shown["department"] == department]
            place.scatter(own["age"], own["cost"], s=1.5, color=f"C{number}", label=department)
        place.set(title=title, xlabel="age", yscale="log", ylim=(100, 50000))
    places[0].set_ylabel("cost")
    legend = {"loc": "outside lower center", "ncols": 5, "markerscale": 4, "frameon": False, "fontsize": 8}
    figure.legend(*places[0].get_legend_handles_labels(), **legend)
    found = {
        name: qualities(evaluate(released, visits, person="patient", max_rows=4)) for name, released in releases.items()
    }
    return figure, found["visits"] | {f"coarse_{name}": value for name, value in found["coarse"].items()}


def qualities(found: Evaluation) -> dict[str, float]:
    """Return the quality of an evaluation, that of as many real records, and how well the two are told apart."""
    made, whole = found.scores["quality"], "quality, 1 less the mean of its parts"
    return {"quality": made[whole], "reference": found.reference["quality"][whole], "told": made["told apart, 2 AUC - 1"]}


def draw_moons(releases: dict) -> tuple[Figure, dict[str, float]]:
    """Draw points, and evaluate."""
    released, moons = releases["moons"], pd.read_csv("moons.csv")
    figure = Figure(figsize=(7, 2.5), layout="constrained")
    tables = {"real": moons, "synthetic, epsilon 1": released.sample(5000, seed=1)}
    for place, (title, table) in zip(figure.subplots(1, 2, sharex=True, sharey=True), tables.items(), strict=True):
        for number, moon in enumerate(("upper", "lower")):
            own = table[table["moon"] == moon]
            place.scatter(own["x"], own["y"], s=0.6, color=f"C{number}")
        place.set(title=title, xlim=(-1.5, 2.5), ylim=(-1, 1.5), xlabel="x")
    return figure, qualities(evaluate(released, moons))


def draw_baskets(releases: dict) -> tuple[Figure, dict[str, float]]:
    """Draw the share of baskets with each pair of items."""
    real = [line.split() for line in Path("baskets.txt").read_text().splitlines()]
    shares = {
        "real": share_pairs(real),
        "synthetic, epsilon 1": share_pairs(releases["baskets"].sample(5000, seed=1)["items"]),
    }
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    places = figure.subplots(1, 2, sharey=True)
    for place, (title, own) in zip(places, shares.items(), strict=True):
        shown = place.imshow(own, cmap="Blues", vmin=0, vmax=0.35)
        place.set(title=title, xticks=range(len(ITEMS)), yticks=range(len(ITEMS)), yticklabels=ITEMS)
        place.set_xticklabels(ITEMS, rotation=90)
    figure.colorbar(shown, ax=places, label="share of baskets", shrink=0.8)
    error = np.abs(np.subtract(*shares.values()))[np.triu_indices(len(ITEMS), 1)]
    return figure, {"mean": float(error.mean()), "worst": float(error.max())}


def share_pairs(baskets) -> np.ndarray:
    """Return the share of baskets that hold both items of each pair, and each item on the diagonal."""
    found = np.zeros((len(ITEMS), len(ITEMS)))
    for basket in baskets:
        places = [ITEMS.index(item) for item in basket]
        found[places, places] += 1
        for one, other in combinations(places, 2):
            found[one, other] += 1
            found[other, one] += 1
    return found / len(baskets)


def draw_days(releases: dict) -> tuple[Figure, dict[str, float]]:
    """Draw ten days of each kind, and the mean of all."""
    real = pd.read_csv("days.csv")
    made = pd.concat([releases["days"].sample(1000, seed=1, where={"label": kind}) for kind in ("away", "home")])
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    places, errors = figure.subplots(2, 2, sharex=True, sharey=True), []
    for row, kind in zip(places, ("away", "home"), strict=True):
        means = []
        for place, (title, table), color in zip(
            row, {"real": real, "synthetic, epsilon 2": made}.items(), (REAL, MADE), strict=True
        ):
            own = table[table["label"] == kind].drop(columns="label").to_numpy()
            place.plot(HOURS, own[:10].T, color=color, linewidth=0.6)
            place.plot(HOURS, own.mean(axis=0), color="black", linewidth=1.6)
            place.set(title=f"{kind}, {title}")
            means.append(own.mean(axis=0))
        row[0].set_ylabel("kilowatts")
        errors.append(np.abs(means[0] - means[1]).max())
    for place in places[-1]:
        place.set_xlabel("hour")
    return figure, {"mean": float(max(errors))}


def draw_projected(releases: dict) -> tuple[Figure, dict[str, float]]:
    """Draw the two leading directions of rows, and how well k-means finds their clusters."""
    rows, labels = blobs(2000, 10, 0)
    shown = {
        "real": rows,
        "projected to 3, epsilon 4": releases["projected"].rows,
        "not projected, epsilon 4": releases["noisy"].rows,
    }
    figure, right = Figure(figsize=(7, 2.6), layout="constrained"), []
    for place, (title, own) in zip(figure.subplots(1, 3), shown.items(), strict=True):
        centred = own - own.mean(axis=0)
        plane = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
        for label in (0, 1):
            place.scatter(*plane[labels == label].T, s=0.8, color=f"C{label}")
        place.set(title=title, aspect="equal", xlim=(-9, 9), ylim=(-9, 9))
        told = float(np.mean(KMeans(2, n_init=10, random_state=0).fit_predict(own) == labels))
        right.append(max(told, 1 - told))
    return figure, dict(zip(("real", "projected", "noisy"), right, strict=True))


EXHIBITS = {
    "digits": Exhibit(
        "Labelled pictures",
        "1,500 digits of 8 x 8 pixels, which come with scikit-learn.",
        {
            "digits_measured": "train data=digits model=measured privacy.epsilon=4",
            "digits_vae": "train data=digits model=vae privacy.epsilon=4",
        },
        write_nothing,
        draw_digits,
        "Digits of each class: real, of measured statistics, and of autoencoders",
        "A forest that learns from 1,500 digits of `measured` is right about {digits_measured:.3f} of the 297 real "
        "digits that were held out, one that learns from digits of `vae` about {digits_vae:.3f}, one that learns from "
        "real digits about {real:.3f}. Digits of `measured` differ from each other as real ones do, and have stray "
        "pixels. Those of `vae` are blurred, alike within a class, and some are of another class. 1,500 records are "
        "few: the noise would be the same with 60,000 ([Labelled pictures](../tutorials/digits.ipynb)).",
    ),
    "visits": Exhibit(
        "A table, with persons as the unit",
        "6,000 generated visits of patients to a hospital. `visits.schema.yaml` has wide bounds and no bins; "
        "`coarse.schema.yaml` has the edges of a few bins, which are public ([A table with "
        "persons](../tutorials/persons.ipynb)).",
        {
            name: f"train data=table data.path=visits.csv data.schema={name}.schema.yaml data.n=6000 data.person=patient"
            " data.max_rows=4 privacy.epsilon=2"
            for name in ("visits", "coarse")
        },
        write_visits,
        draw_visits,
        "Cost by age and department: real, with bins found with noise, and with few public bins",
        "Both have the same budget. In the middle much is lost: no one is younger than 22 or older than 87, cost grows "
        "less with age than it should, and departments hardly depend on age. The quality of an evaluation is "
        "{quality:.2f}, where as many real records have {reference:.2f}, and 2 AUC - 1 of telling rows apart is "
        "{told:.2f}. The program warns of it before it reads a record: cells of two columns hold fewer records than "
        "there is noise. With few bins, on the right, the quality is {coarse_quality:.2f} and rows are told apart by "
        "{coarse_told:.2f}. All ages are there again, and cost grows with age. Some children are in departments for "
        "adults, some adults are in paediatrics, and some costs are far above real ones, since the last bin reaches to "
        "50,000.",
    ),
    "moons": Exhibit(
        "Two numbers and a label",
        "5,000 points of scikit-learn's `make_moons`.",
        {"moons": "train data=table data.path=moons.csv data.schema=moons.schema.yaml data.n=5000 privacy.epsilon=1"},
        write_moons,
        draw_moons,
        "Two half moons of points, real and synthetic",
        "Both moons have their shape. Their ends are square, since numbers are drawn within bins, and a few points "
        "lie where no real one does. The quality of an evaluation is {quality:.2f}, where as many real points have "
        "{reference:.2f}, and 2 AUC - 1 of telling points apart is {told:.2f}. `model=auto`, the default, takes "
        "`measured` here.",
    ),
    "baskets": Exhibit(
        "Baskets",
        "5,000 generated baskets of twelve items.",
        {
            "baskets": f"train data=baskets data.path=baskets.txt data.items=[{','.join(ITEMS)}] data.max_items=10"
            " data.n=5000 model=measured privacy.epsilon=1"
        },
        write_baskets,
        draw_baskets,
        "Shares of baskets with each pair of items, real and synthetic",
        "The three habits of shoppers are seen. Shares of pairs differ by {mean:.3f} on average, and by {worst:.3f} "
        "at most. The noise of all pairs is alike, so rare pairs are further off in proportion "
        "([Baskets](../tutorials/baskets.ipynb)).",
    ),
    "days": Exhibit(
        "Series",
        "2,000 generated days of 24 readings, of two kinds.",
        {
            "days": "train data=series data.path=days.csv data.length=24 data.low=0 data.high=6 data.decimals=2 data.n=2000"
            " data.label=label data.classes=[away,home] model=measured privacy.epsilon=2"
        },
        write_days,
        draw_days,
        "Ten days and their mean, away and at home, real and synthetic",
        "The black lines are means of all days of a kind; in no hour do they differ by more than {mean:.2f} "
        "kilowatts. Single days are less alike: real ones are flat at night and at noon, where some synthetic ones "
        "are not ([Series](../tutorials/series.ipynb)).",
    ),
    "projected": Exhibit(
        "Projected rows",
        "2,000 generated rows of ten numbers in two round clusters, 4 apart.",
        {
            "projected": "project data=blobs data.d=10 project.k=3 project.distance=1 privacy.epsilon=4",
            "noisy": "project data=blobs data.d=10 project.matrix=identity project.distance=1 privacy.epsilon=4",
        },
        write_nothing,
        draw_projected,
        "Two clusters of rows: real, projected with noise, and with noise alone",
        "Clusters that k-means finds are right for {projected:.3f} of the rows that were projected, {noisy:.3f} of "
        "those that were not, and {real:.3f} of real ones. So noise on the rows as they are is better here, and "
        "`dpgen budget project` says so beforehand ([The Johnson-Lindenstrauss release](../papers/projection.md)).",
    ),
}


def shown_commands(exhibit: Exhibit) -> str:
    """Return the commands of an exhibit as the page has them, broken into lines."""
    lines = []
    for name, arguments in exhibit.commands.items():
        line = "dpgen"
        for word in [*arguments.split(), f"run_dir=runs/{name}"]:
            if len(line) + len(word) + 3 > WIDTH:
                lines.append(f"{line} \\")
                line = "   "
            line += f" {word}"
        lines.append(line)
    return "\n".join(lines)


def run_commands(exhibit: Exhibit) -> None:
    """Make the releases of an exhibit that are not there, in this folder."""
    for name, arguments in exhibit.commands.items():
        if not Path(f"runs/{name}/release/{CERTIFICATE}").exists():
            words = shlex.split(arguments)
            subprocess.run([sys.executable, "-m", "lightning_dpgen", *words, f"run_dir=runs/{name}"], check=True)


def write_picture(figure: Figure, path: Path) -> None:
    """Write a PNG of few shades."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    Image.open(drawn).convert("RGB").quantize(SHADES, dither=Image.Dither.NONE).save(path, optimize=True)


def certified(name: str) -> str:
    """Return what the certificate of a run states, as a row of a table."""
    certificate = read_json(Path(f"runs/{name}/release/{CERTIFICATE}"))
    return f"| `runs/{name}` | {certificate['epsilon']:.6g} | {certificate['delta']:g} | {certificate['unit']} |"


def wrapped(words: str) -> str:
    """Return a paragraph in lines of the page."""
    return textwrap.fill(words, 120, break_long_words=False, break_on_hyphens=False)


def section(name: str, exhibit: Exhibit, numbers: dict[str, float]) -> str:
    """Return the part of the page that an exhibit has."""
    return f"""## {exhibit.title}

{wrapped(exhibit.records)}

![{exhibit.seen}](../_static/gallery/{name}.png)

```sh
{shown_commands(exhibit)}
```

| release | epsilon | delta | unit |
| --- | --- | --- | --- |
{chr(10).join(map(certified, exhibit.commands))}

{wrapped(exhibit.words.format(**numbers))}
"""


OPENING = """# Gallery

Real records stand beside those of a release, with the command that made it and what its certificate states. All records
here are generated or public. With records of your own, such a picture is private: it shows real ones.

`python docs/draw_gallery.py FOLDER` writes the records into a folder, runs the commands below there, and draws this page
and its pictures. Noise is drawn anew for each release, so another run gives other pictures and slightly other numbers.
One release was made of each kind, and none was chosen among several. [How good the records are](index.md) has spreads.
"""


def main(folder: Path) -> None:
    """Make what is missing in a folder, then draw."""
    folder.mkdir(parents=True, exist_ok=True)
    PICTURES.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    parts = [OPENING]
    for name, exhibit in EXHIBITS.items():
        exhibit.write()
        run_commands(exhibit)
        figure, numbers = exhibit.draw({run: load_release(f"runs/{run}/release") for run in exhibit.commands})
        write_picture(figure, PICTURES / f"{name}.png")
        parts.append(section(name, exhibit, numbers))
        print(name, numbers, flush=True)
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
