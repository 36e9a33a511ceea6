"""Laws of whole runs, from records to a release: they hold for every access of a run, whatever code makes it."""

from __future__ import annotations

import functools
import json
import logging
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from contracts.door import Door, Noised, overspent, parts_add_up

from lightning_dpgen import fit
from lightning_dpgen.api import schema_of
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.histories.row_table import PersonRows, RowOrder, RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables import schema as table_schema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.measure import (
    basket_mixture,
    cells,
    classifier,
    copulas,
    crossings,
    history_steps,
    labels,
    moments,
    tables,
)
from lightning_dpgen.models import outputs
from lightning_dpgen.plugins import previews
from lightning_dpgen.release.rows import pictures
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.reporter import SilentReporter
from lightning_dpgen.runs.run import train
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.specs.run import load_settings
from lightning_dpgen.specs.source import source_of

ROWS = 3
TABLE = {
    "label": "smoker",
    "columns": {
        "who": {"type": "drop"},
        "age": {"type": "integer", "low": "private", "high": "private", "bins": 4},
        "town": {"type": "category", "values": "private"},
        "smoker": {"type": "boolean"},
        "pay": {"type": "integer", "low": 0, "high": 900},
    },
}
# Numbers, and a category whose values are declared, without a label.
UNLABELLED = {
    "columns": TABLE["columns"] | {
        "age": {"type": "integer", "low": 0, "high": 99, "bins": 4},
        "town": {"type": "category", "values": ["Rome", "Ur", "Oslo"]},
    }
}  # fmt: skip
HISTORIES = HistorySchema(
    parse_schema("columns: {sex: {type: category, values: [F, M]}}"),
    (
        RowTable("visits", parse_schema("columns: {ward: {type: category, values: [a, b, c]}}"), 3, RowOrder.of(
            "day", {"type": "integer", "low": 0, "high": 9, "bins": 2}, {"high": 9, "bins": 2})),
        RowTable("drugs", parse_schema("columns: {dose: {type: integer, low: 0, high: 9, bins: 3}}"), 2),
    ),
)  # fmt: skip
BASKETS = BasketSchema(range(40), max_items=40)
PICTURES = ImageSchema(4, 4, levels=255, classes=2)
SCALED = schema_of({
    "label": "smoker",
    "columns": {
        "age": {"type": "integer", "low": 0, "high": 99, "encoding": "scaled"},
        "town": {"type": "category", "values": ["Rome", "Ur", "Oslo"]},
        "smoker": {"type": "boolean"},
    },
})  # fmt: skip
SMALL = ["trainer.accelerator=cpu"]
NETWORK = [
    "model.hidden=8", "model.latent=2", "model.steps=4", "model.rate=0.2", "split.k=2", "split.iterations=1",
    "split.features=8",
]  # fmt: skip

# Fits make up so many records and codes: a few are enough here.
_MADE_UP = (
    (classifier, "_MADE", 100), (labels, "_MADE", 200), (moments, "_DRAWS", 400), (cells, "_SAMPLES", 1000),
    (outputs, "_CODES", 32), (outputs, "_FEWEST", 32), (history_steps, "_MADE_UP", 50), (history_steps, "_ROUNDS", 2),
)  # fmt: skip

Release = dict[str, bytes]
handed: Any = None


@dataclass(frozen=True)
class Run:
    """A run that is made quickly.

    Args:
        release: the function that makes it, in a folder that does not exist yet.
        data: a function that draws as many units as are asked for, by a seed.
        more: the same data with one more unit, in several ways.
        parted: the same data in two parts that share no unit.
    """

    release: Callable[[Any, Path], None]
    data: Callable[[int, int], Any]
    more: Callable[[Any], list[Any]]
    parted: Callable[[Any], tuple[Any, Any]]

    def __call__(self, data: Any) -> Release:
        """Return the files that may be published."""
        with (
            tempfile.TemporaryDirectory() as folder,
            warnings.catch_warnings(action="ignore"),
            pytest.MonkeyPatch.context() as patch,
        ):
            # The quality of a fit does not matter here.
            for module, name in ((tables, "fit_forest"), (basket_mixture, "fit_baskets")):
                patch.setattr(module, name, functools.partial(getattr(module, name), steps=3))
            for module, name, count in _MADE_UP:
                patch.setattr(module, name, count)
            for module in (previews, pictures):
                patch.setattr(module, "sheet", functools.partial(module.sheet, columns=1))
            patch.setattr(logging.getLogger("lightning_dpgen"), "disabled", True)
            self.release(data, Path(folder) / "run")
            return {file.name: file.read_bytes() for file in (Path(folder) / "run" / "release").iterdir()}


def own_data() -> Any:
    """Return the data that `data.target` names."""
    return handed


def _own(*words: str) -> Callable[[Any, Path], None]:
    conf = ["data=own", "data.target=contracts.whole_runs.own_data", "data.n=null", "data.n_share=0.1",
            "privacy.epsilon=8", "privacy.delta=1e-5", "privacy.fidelity_share=0.1", *SMALL, *words]  # fmt: skip

    def release(data: Any, folder: Path) -> None:
        global handed
        handed = data
        with Interrupts().caught() as interrupts:
            spec = load_settings(conf)
            train(spec, source_of(spec.data), RunFolder(folder), interrupts, SilentReporter())

    return release


def _fit(frame: pd.DataFrame, folder: Path, *words: str) -> None:
    _fit_as(TABLE, frame, folder, "model.label_share=0.2", *words, discovery_share=0.3)


def _fit_as(schema: dict[str, Any], frame: pd.DataFrame, folder: Path, *words: str, **bought: float) -> None:
    bought |= {"n_share": 0.05, "fidelity_share": 0.1}
    fit(
        frame, schema, epsilon=8.0, delta=1e-4, **bought, person="who", max_rows=ROWS, outside="clamp", run_dir=folder,
        progress=False, overrides=[*SMALL, "model=measured", "data.bins_share=0.1", *words],
    )  # fmt: skip


def _fit_crossed(frame: pd.DataFrame, folder: Path) -> None:
    """Cross columns, as is done of many more records, and count what is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crossings, "buys_crossings", lambda *_: True)
        _fit(frame, folder, "data.workload=[[smoker,pay],[town]]")


def _fit_wide(frame: pd.DataFrame, folder: Path) -> None:
    """Take the model of very many numbers, and count the values of a category first, as is done of very many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copulas, "takes_copula", lambda *_: True)
        patch.setattr(table_schema, "MANY", 2)
        _fit_as(UNLABELLED, frame, folder)


def _rows(persons: int, seed: int) -> pd.DataFrame:
    """Return up to three rows a person, so that none is left out."""
    random = np.random.default_rng(seed)
    who = np.repeat(np.arange(persons), random.integers(1, ROWS + 1, persons))
    ages, towns = random.integers(1, 90, len(who)), random.choice(["Rome", "Ur", "Oslo"], len(who))
    frame = pd.DataFrame({"who": who, "age": ages, "town": towns, "smoker": random.random(len(who)) < 0.5})
    return frame.assign(pay=np.where(random.random(len(who)) < 0.7, 0, random.integers(0, 900, len(who))))


def _one_person_more(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Add a person whose rows are all alike, as different as possible, or more than may take part."""
    alike = pd.DataFrame({"who": -1, "age": 70, "town": "Ur", "smoker": True, "pay": 0}, index=range(ROWS))
    different = alike.assign(age=[2, 20, 80], town=["Rome", "Ur", "Oslo"], pay=[0, 450, 900])
    return [pd.concat([more, frame]) for more in (alike, different, pd.concat([alike] * ROWS))]


def _parted_rows(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    return frame[frame["who"] < 30], frame[frame["who"] >= 30]


def _baskets(count: int, seed: int) -> tuple[BasketSchema, Records]:
    random = np.random.default_rng(seed)
    held = random.random((count, 40)) < random.choice([0.05, 0.2, 0.6], (count, 1))
    encoded = BASKETS.encode(scipy.sparse.csr_array(held.astype(np.uint8)))
    return BASKETS, Records(BASKETS, encoded, np.arange(count) // 2)


def _one_customer_more(data: tuple[BasketSchema, Records]) -> list[Any]:
    """Add a customer with two baskets of one size: of one item, of two, of many, of all."""
    found, (schema, records) = [], data
    for size in (1, 2, 30, 40):
        own = BASKETS.encode(scipy.sparse.csr_array(np.tile(np.arange(40) < size, (2, 1)).astype(np.uint8)))
        encoded = Encoded.joined([own, records.encoded])
        found.append((schema, Records(schema, encoded, np.concatenate([[-1, -1], records.persons]))))
    return found


def _history(counts: np.ndarray, choice: Callable[[int, int], np.ndarray]) -> Encoded:
    """Return persons with these numbers of rows (N, 2), and choices that a function of their number and size gives."""
    parts = []
    for table, own in zip(HISTORIES.tables, counts.T, strict=True):
        rows = choice(int(own.sum()), 3)[:, None]
        times = (choice(len(own), 2), choice(len(rows), 2))
        parts.append(PersonRows(own, *(times if table.order else (None, 0 * times[1])), rows))
    return HISTORIES.joined(choice(len(counts), 2)[:, None], parts)


def _histories(count: int, seed: int) -> tuple[HistorySchema, Records]:
    random = np.random.default_rng(seed)
    encoded = _history(random.integers(0, [4, 3], (count, 2)), lambda size, choices: random.integers(0, choices, size))
    return HISTORIES, Records(HISTORIES, encoded)


def _one_history_more(data: tuple[HistorySchema, Records]) -> list[Any]:
    """Add a person with as many rows as count, all alike, or none in one table or in both."""
    found, (schema, records) = [], data
    for counts in ((3, 2), (3, 0), (0, 2), (0, 0)):
        own = _history(np.array([counts]), lambda size, _: np.ones(size, np.int64))
        found.append((schema, Records(schema, Encoded.joined([own, records.encoded]))))
    return found


def _parted_records(data: tuple[Any, Records]) -> tuple[Any, Any]:
    schema, records = data
    return tuple((schema, _some(records, rows)) for rows in (slice(0, 20), slice(20, None)))


def _some(records: Records, rows: slice) -> Records:
    persons = None if records.persons is None else records.persons[rows]
    return Records(records.schema, records.encoded[rows], persons)


def _pictures(count: int, seed: int) -> tuple[ImageSchema, Records]:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (count, 16)) * (random.random((count, 1)) < 0.7)
    encoded = Encoded(pixels.astype(np.uint8), random.integers(0, 2, (count, 1)).astype(np.uint8))
    return PICTURES, Records(PICTURES, encoded)


def _one_picture_more(data: tuple[ImageSchema, Records]) -> list[Any]:
    """Add a picture that is white, black, or half of each."""
    found, (schema, records) = [], data
    for pixels in (np.ones(16), np.zeros(16), np.arange(16) % 2):
        own = Encoded((255 * pixels[None]).astype(np.uint8), np.array([[1]], np.uint8))
        found.append((schema, Records(schema, Encoded.joined([own, records.encoded]))))
    return found


def _table(count: int, seed: int) -> tuple[Any, Records]:
    random = np.random.default_rng(seed)
    codes = np.stack([random.integers(0, 3, count), random.integers(0, 2, count)], axis=1)
    return SCALED, Records(SCALED, Encoded(random.random((count, 1)).astype(np.float32), codes.astype(np.uint8)))


def _one_row_more(data: tuple[Any, Records]) -> list[Any]:
    """Add a row at either end of the ages."""
    found, (schema, records) = [], data
    for age in (0.0, 1.0):
        own = Encoded(np.array([[age]], np.float32), np.array([[2, 1]], np.uint8))
        found.append((schema, Records(schema, Encoded.joined([own, records.encoded]))))
    return found


MEASURED = {
    "a table of persons": Run(_fit, _rows, _one_person_more, _parted_rows),
    "a table that is crossed": Run(_fit_crossed, _rows, _one_person_more, _parted_rows),
    "a table of many numbers and values": Run(_fit_wide, _rows, _one_person_more, _parted_rows),
    "baskets of customers": Run(
        _own("model=measured", "data.person=customer", "data.max_rows=2", "model.components=2"),
        _baskets, _one_customer_more, _parted_records,
    ),
    "histories": Run(
        _own("model=measured", "model.components=2"), _histories, _one_history_more, _parted_records,
    ),
    "pictures": Run(
        _own("model=measured", "model.cells=2", "model.waves=6", "model.symmetries=small"),
        _pictures, _one_picture_more, _parted_records,
    ),
    "pictures and their classifier": Run(
        _own("model=classifier", "split.k=1", "model.waves=6"), _pictures, _one_picture_more, _parted_records,
    ),
}  # fmt: skip
RUNS = MEASURED | {
    "pictures by an autoencoder": Run(
        _own("model=vae", *NETWORK, "clipping=dpnorm", "model.divergence=mmd"),
        _pictures, _one_picture_more, _parted_records,
    ),
    "a table by a critic, and its label": Run(
        _own("model=wgan", *NETWORK, "model.label_share=0.3"), _table, _one_row_more, _parted_records,
    ),
    "histories by a network": Run(
        _own("model=autoregressive", "model.hidden=8", "model.steps=4", "model.rate=0.2"),
        _histories, _one_history_more, _parted_records,
    ),
    "baskets by a critic": Run(
        _own("model=wgan", *NETWORK, "clipping=quantile", "data.person=customer", "data.max_rows=2"),
        _baskets, _one_customer_more, _parted_records,
    ),
}  # fmt: skip


def given_the_answers_a_release_is_the_same(name: str) -> None:
    """Check that where every mechanism answers alike, files are equal, byte by byte, for some records, many and few.

    So a release follows from noisy numbers and public ones: no number leaves without noise, nothing is divided by a true
    number of records, and public random numbers are not drawn as often as there are records.
    """
    run = RUNS[name]
    with Door() as door:
        walk, first = door.walked(run, run.data(60, 0))
        _check_stated(json.loads(first["privacy.json"]), walk)
        for drawn in ((20, 2), (600, 1)):
            _, other = door.walked(run, run.data(*drawn))
            assert first.keys() == other.keys()
            assert not [file for file in first if first[file] != other[file]], "files that differ"


def _check_stated(certificate: dict[str, Any], walk: list[Noised]) -> None:
    """Check that a certificate states the noises that passed the door, those of whole numbers with their sizes.

    That no unit moves a sum by more than is paid for is `no_one_costs_a_run_more_than_its_accesses`.
    """
    stated: dict[tuple[str, str], set[float | None]] = {}
    for entry in certificate["noise"]["sums"] + certificate["noise"]["others"]:
        for noise in entry["names"]:
            size = entry.get("scale_in_units")
            stated.setdefault((entry["stage"], noise), set()).add(size and float(f"{size:.9g}"))
    drawn: dict[tuple[str, str], set[float | None]] = {}
    for noised in walk:
        size = noised.in_units
        drawn.setdefault((noised.access.access.stage, noised.name), set()).add(size and float(f"{size:.9g}"))
    assert stated == drawn
    assert {stage["name"] for stage in certificate["stages"]} == {stage for stage, _ in drawn}


def no_one_costs_a_run_more_than_its_accesses(name: str) -> None:
    """Check that no noise of any access is too small for one more unit (a record, or a person with all records)."""
    run = MEASURED[name]
    data = run.data(60, 0)
    assert max(overspent(run, data, *run.more(data))) <= 1.0 + 1e-9


def what_a_run_noises_is_a_sum_over_its_records(name: str) -> None:
    """Check for every access, given the answers so far, that the records of two groups of people add up to all."""
    run = MEASURED[name]
    both = run.data(80, 0)
    parts_add_up(run, both, *run.parted(both))
