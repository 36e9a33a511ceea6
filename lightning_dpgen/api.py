"""`dpgen train data=table` and `data=histories` as a function: DataFrames in, a release out."""

from __future__ import annotations

import numbers
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from markupsafe import Markup

from lightning_dpgen.common import pace
from lightning_dpgen.data.conditions import Where
from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.tables.column import shortened
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import schema_of
from lightning_dpgen.kinds.histories import HistoryFiles
from lightning_dpgen.kinds.tables import TableFile
from lightning_dpgen.metrics.evaluation import Evaluation
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError
from lightning_dpgen.release.against_real import evaluate, write_evaluation
from lightning_dpgen.release.certificate import paragraphs
from lightning_dpgen.release.drawing.release import Release, load_release
from lightning_dpgen.release.files import read_certificate
from lightning_dpgen.runs import run_folder
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.notebook import short_in_notebooks
from lightning_dpgen.runs.reporter import LogReporter
from lightning_dpgen.runs.run import train
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.data import HistoriesSpec, TableSpec
from lightning_dpgen.specs.run import load_settings
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import UsageError


class _Frame(Protocol):
    """A DataFrame, or a table or record batch of Arrow, told by its shape: these libraries have no types of their own."""

    @property
    def shape(self) -> tuple[int, int]: ...


Table: TypeAlias = _Frame | DatabaseQuery | str | Path
# Tables of histories, by their names.
Tables: TypeAlias = Mapping[str, Table]
# Settings that have an argument of their own.
_ARGUMENTS = {
    "data": "frame", "data.source": "frame", "data.path": "frame", "data.url": "frame.url", "data.query": "frame.query",
    "data.rows_independent": "rows_independent", "data.schema": "schema", "data.n": "n",
    "data.n_share": "n_share", "data.person": "person", "data.max_rows": "max_rows", "data.outside": "outside",
    "data.discovery_share": "discovery_share", "privacy.epsilon": "epsilon", "privacy.delta": "delta",
    "privacy.fidelity_share": "fidelity_share", "run_dir": "run_dir",
}  # fmt: skip
_IN_MEMORY = "in memory"
_SPOKEN = {"data=table": "frame", "privacy=off": "overrides=['privacy=off']"}


@dataclass(frozen=True)
class Fitted:
    """A finished run: ``release/`` may be published, ``private/`` may not."""

    folder: Path

    @cached_property
    def release(self) -> Release:
        """The released model, read from its folder."""
        released = load_release(self.folder / "release")
        assert isinstance(released, Release), "a fit learns a model"
        return released

    @cached_property
    def certificate(self) -> dict[str, Any]:
        """``privacy.json``: what is claimed, and the events from which anyone can recompute it."""
        return read_certificate(self.folder / "release")

    @property
    def report(self) -> Path:
        """The page of the release, to be opened in a browser."""
        return self.folder / "release" / "report.html"

    @short_in_notebooks
    def sample(
        self, n: int, seed: int | None = None, where: Where | None = None
    ) -> pd.DataFrame | np.ndarray | dict[str, pd.DataFrame]:
        """n synthetic records, or persons with their histories; see `Release.sample`."""
        return self.release.sample(n, seed, where)

    @short_in_notebooks
    def evaluate(
        self,
        frame: Table | Tables,
        held_out: Table | Tables | None = None,
        seconds: float | None = None,
        *,
        by: str | None = None,
        sdmetrics: bool = False,
    ) -> Evaluation:
        """Compare the release with real records, read as they were for the training. PRIVATE: see `evaluate`.

        It is also written to ``private/evaluation.json`` and ``private/report.html``.

        Args:
            frame, held_out, seconds, by, sdmetrics: see `evaluate`.

        Raises:
            BadRecords, ValueError, MissingLibrary: as `evaluate`.
            OSError: if it cannot be written.
        """
        declared = self.certificate["declared"]
        as_read = {name: declared[name] for name in ("person", "max_rows", "outside") if name in declared}
        evaluation = evaluate(
            self.release,
            frame,
            held_out=held_out,
            seconds=seconds,
            seed=declared["seed"],
            by=by,
            sdmetrics=sdmetrics,
            **as_read,
        )
        facts = {name: self.certificate[name] for name in ("epsilon", "delta") if self.certificate[name] is not None}
        write_evaluation(self.folder / "private", evaluation, data=declared["data"], facts=facts)
        return evaluation

    def __repr__(self) -> str:
        release = str(self.folder / "release")
        if not self.certificate["private"]:
            return f"Fitted(NOT PRIVATE, release={release!r})"
        return f"Fitted(epsilon={self.certificate['epsilon']:g}, delta={self.certificate['delta']:g}, release={release!r})"

    def _repr_html_(self) -> str:
        certificate = self.certificate
        title = "NOT A PRIVATE RELEASE"
        if certificate["private"]:
            title = f"epsilon {certificate['epsilon']:g} at delta {certificate['delta']:g}"
        may = "may be published" if certificate["private"] else "must NOT be published"
        statement = Markup().join(Markup("<p>{}</p>").format(paragraph) for paragraph in paragraphs(certificate))
        return Markup(
            "<div><b>{}</b>{}<ul><li><code>{}</code> {}</li><li><code>{}</code> must not leave this machine</li></ul></div>"
        ).format(title, statement, self.folder / "release", may, self.folder / "private")


@short_in_notebooks
def fit(
    frame: Table | Tables,
    schema: TableSchema | Mapping[str, Any] | str | Path,
    *,
    epsilon: float | None,
    n: int | None = None,
    n_share: float | None = None,
    discovery_share: float | None = None,
    fidelity_share: float | None = None,
    delta: float | None = None,
    run_dir: str | Path | None = None,
    person: str | None = None,
    max_rows: int | None = None,
    outside: str = "refuse",
    overrides: Sequence[str] = (),
    progress: bool = True,
) -> Fitted:
    """Learn a generative model of a table, or of histories, under differential privacy; release it with a certificate.

    Does what ``dpgen train`` with ``data=table`` or ``data=histories`` does, and goes on with a run that did not end, given
    the same arguments and its `run_dir`. Prints nothing but a bar of progress; what there is to say goes to the logger
    ``lightning_dpgen``.

    Args:
        frame: the private records: a DataFrame, a table of Arrow, the path of a file or of a folder of Parquet files, or
            a `DatabaseQuery`. Of persons with histories: a dict of such tables, by the names of their description, as in
            ``{"persons": frame, "visits": frame}``.
        schema: their public description: a `TableSchema`, what a schema file says as a dict, or its path; of histories
            what their description says, or its path. Nothing is read off the records.
        epsilon, delta: the budget, one record (or person) added or removed; a delta of None follows from n. An epsilon of
            None goes with ``overrides=["privacy=off"]`` alone, the non-private twin.
        n: the declared number of records. It is public, so it is never taken from ``len(frame)``.
        n_share: where n may not be told: the share of the budget that a noisy count of the records may use.
        discovery_share: the share of what the schema leaves to be found privately; goes with ``outside="clamp"``.
        fidelity_share: the share of a public figure of how close the synthetic records are; None for none.
        run_dir: the folder of the run; None for a fresh one, ``runs/<time>``.
        person: the column that says whose a record is, where a person has several; goes with `max_rows`.
        max_rows: how many records of a person take part at most.
        outside: ``refuse`` values that the schema does not allow, or ``clamp`` them.
        overrides: further settings as on the command line, such as ``["model=vae", "split.k=5"]``; without a model the best
            one is taken (``model=auto``).
        progress: whether to show a bar of progress.

    Raises:
        ValueError: for an argument that makes no sense (`BadSchema` for a schema). Nothing has been spent.
        BadRecords: if the records are not what the schema says. Nothing has been spent.
        BudgetTooSmall: if the budget does not buy what was asked for; says what would do.
        LedgerError, DamagedState: if an earlier run of that folder cannot go on.
        MissingData, OSError: if a file is not there, or cannot be written.

    Example:
        >>> fitted = fit(frame, "people.schema.yaml", epsilon=2.0, n=5000)       # doctest: +SKIP
        >>> fitted.sample(1000, seed=1, where={"sex": "F"})                      # doctest: +SKIP
    """
    tables = frame if isinstance(frame, Mapping) else None
    for table in [frame] if tables is None else tables.values():
        if not isinstance(table, DatabaseQuery | pd.DataFrame | pa.Table | pa.RecordBatch | str | Path):
            raise ValueError(
                f"frame={shortened(frame)}: expected a DataFrame, an Arrow table, the path of a file, or a DatabaseQuery; "
                "or a dict of them, the tables of histories"
            )
    of_rows = {"person": person, "max_rows": max_rows, "discovery_share": discovery_share}
    if tables is not None and (said := [name for name, value in of_rows.items() if value is not None]):
        raise ValueError(f"{said[0]}={of_rows[said[0]]}: leave it out where frame is a dict: schema describes histories")
    if n is None and n_share is None:
        raise ValueError(
            "n: expected the declared number of records, such as n=5000; it becomes public, so it is never taken from "
            "len(frame), which would reveal it exactly: declare a number that may be known, or buy a noisy count with "
            "n_share=0.01"
        )
    given = {
        "data.n": n, "data.n_share": n_share, "privacy.epsilon": epsilon, "privacy.delta": delta,
        "privacy.fidelity_share": fidelity_share,
    }  # fmt: skip
    if tables is None:
        given |= {"data.discovery_share": discovery_share, "data.max_rows": max_rows}
    numbers_given = {name: _number(name.rpartition(".")[2], value) for name, value in given.items()}
    if fidelity_share is None:
        # Without privacy there is no such setting.
        del numbers_given["privacy.fidelity_share"]
    if person is not None and not isinstance(person, str):
        raise ValueError(f"person={shortened(person)}: expected the name of a column")
    if run_dir is not None and not isinstance(run_dir, str | Path):
        raise ValueError(f"run_dir={shortened(run_dir)}: expected the path of a folder, or None for a fresh one")
    if not isinstance(progress, bool):
        raise ValueError(f"progress={shortened(progress)}: expected True or False")
    _check_description(schema, tables is not None)
    place, described = _place_of(frame), None if tables is not None else schema_of(schema)
    if tables is None:
        place |= {"data.schema": "given", "data.person": person}
    elif not isinstance(schema, Mapping):
        place |= {"data.path": str(schema)}
    try:
        words = ["data=table" if tables is None else "data=histories", *_checked(overrides)]
        spec = load_settings(words, given=numbers_given | place | {"data.outside": outside})
        if spec.trainer.devices != 1 or spec.trainer.num_nodes != 1:
            raise ValueError(
                f"overrides: trainer.devices={spec.trainer.devices}, trainer.num_nodes={spec.trainer.num_nodes}: fit runs "
                "in one process; dpgen train data=table starts one for each device"
            )
        source: Source
        if isinstance(spec.data, TableSpec):
            source = TableFile(spec.data, None if isinstance(frame, DatabaseQuery | str | Path) else frame, described)
        else:
            assert isinstance(spec.data, HistoriesSpec), "data=histories is one"
            source = HistoryFiles(spec.data, tables, schema if isinstance(schema, Mapping) else None)
        source.check_records()
        folder = run_folder.choose(run_dir)
        shown_on = sys.stderr if progress else None
        with pace.show_progress(shown_on, bar=True), Interrupts().caught() as interrupts:
            train(spec, source, folder, interrupts, LogReporter(progress))
    except UsageError as mistake:
        raise ValueError(_in_arguments(mistake)) from None
    except (BadRecords, BudgetTooSmall, LedgerError, MissingData) as error:
        error.args = (_in_arguments(error),)
        raise
    except KeyboardInterrupt:
        again = f"; to go on, call fit again with run_dir={str(folder.root)!r}" if folder.unfinished else ""
        raise KeyboardInterrupt(f"interrupted{again}") from None
    return Fitted(folder.root.absolute())


def _check_description(schema: Any, of_histories: bool) -> None:
    """Refuse what describes no histories where they are expected, and histories where a table is.

    Raises:
        ValueError: for either.
    """
    if not of_histories:
        if (
            isinstance(schema, Mapping)
            and "columns" not in schema
            and any(isinstance(own, Mapping) for own in schema.values())
        ):
            raise ValueError(
                f"schema={shortened(schema)}: describes histories, so frame is expected to be a dict of their tables"
            )
        return
    if not isinstance(schema, Mapping | str | Path):
        raise ValueError(
            f"schema={shortened(schema)}: expected the path of a description of histories, or what it says as a dict"
        )
    if not isinstance(schema, Mapping) and not Path(schema).is_file():
        raise ValueError(f"schema={schema}: no such file: expected a description of histories")


def _place_of(frame: Table | Tables) -> dict[str, Any]:
    """Return the settings that say where records are."""
    if isinstance(frame, Mapping):
        declared = any(isinstance(table, DatabaseQuery) and table.rows_independent for table in frame.values())
        return {"data.path": _IN_MEMORY, "data.rows_independent": declared or None}
    if isinstance(frame, DatabaseQuery):
        return {
            "data.url": frame.url, "data.query": frame.query, "data.rows_independent": frame.rows_independent or None,
        }  # fmt: skip
    return {"data.path": str(frame) if isinstance(frame, str | Path) else _IN_MEMORY}


def _number(name: str, value: Any) -> int | float | None:
    """Return a number of any type as Python has it."""
    if value is None:
        return None
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name}={shortened(value)}: expected a number")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _in_arguments(error: Exception) -> str:
    """Return a message about settings in the arguments of `fit`; null is None there."""
    names = {**_SPOKEN, **_ARGUMENTS}
    # The word "data" is a setting where it is given a value, or stands at the head.
    settings = "|".join(r"data(?==)|^data(?=:)" if name == "data" else re.escape(name) for name in names)
    setting = re.compile(rf"(?<![\w.'/])({settings})(?!\w|\.\w)(=null\b)?")
    text = str(error).replace(" or null", " or None")
    return setting.sub(lambda found: f"{names[found[1]]}{'=None' if found[2] else ''}", text)


def _checked(overrides: Sequence[str]) -> list[str]:
    listed = isinstance(overrides, Sequence) and not isinstance(overrides, str)
    if not listed or not all(isinstance(word, str) for word in overrides):
        raise ValueError(f"overrides={shortened(overrides)}: expected a list of settings, such as ['model.steps=500']")
    for word in overrides:
        name = word.partition("=")[0].lstrip("+~")
        if name in _ARGUMENTS:
            raise ValueError(f"overrides: {word}: {name} follows from the arguments of fit; give it there")
    return list(overrides)
