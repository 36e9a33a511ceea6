"""Synthetic records as a folder of files of as many rows each: in several processes, and gone on with after an end."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lightning_dpgen.common import pace
from lightning_dpgen.common.folders import sync_folder
from lightning_dpgen.data.files.kinds import PARQUET
from lightning_dpgen.data.schema import kind_of
from lightning_dpgen.privacy.software import installed_version
from lightning_dpgen.release.drawing.draws import LARGEST_BLOCK
from lightning_dpgen.release.drawing.opened import file_hash
from lightning_dpgen.release.drawing.release import Release, load_release
from lightning_dpgen.release.files import MODEL, WEIGHTS, NotARelease, read_certificate
from lightning_dpgen.release.rows.output_format import OutputFormat, WrittenRecords
from lightning_dpgen.release.rows.tables import write_table


@dataclass(frozen=True)
class DrawSpec:
    """Records of a release, as `dpgen sample` draws them.

    Args:
        folder: of the release.
        n, seed, where, balance: as of `Release.sample`.
        component: the only one that is drawn from, or None for all.
        form: of series, ``wide`` or ``long``; None for that in which they were read.
        ending: of the files, on which the form of baskets depends.
    """

    folder: Path
    n: int
    seed: int | None = None
    where: tuple[str, ...] = ()
    component: int | None = None
    form: str | None = None
    ending: str = PARQUET
    balance: str | None = None

    @cached_property
    def release(self) -> Release:
        """The release, or its component.

        Raises:
            NotARelease: if there is none.
        """
        release = load_release(self.folder)
        return release if self.component is None else release.component(self.component)

    @cached_property
    def _written(self) -> WrittenRecords:
        schema = self.release.schema
        return kind_of(schema).output_format(schema, self.release, self.ending, self.form, self._declared)

    @property
    def written_form(self) -> OutputFormat:
        """The form of a file of text, as real records were read."""
        return self._written.form

    @property
    def columns(self) -> pa.Schema:
        """The columns of a file."""
        return self._written.columns.with_metadata(self.release.arrow.metadata)

    @property
    def rows_a_record(self) -> int | None:
        """The rows of each record in a file; None where records differ in it."""
        return self._written.rows_a_record

    def sample_blocks(self, rows: range | None = None) -> Iterator[pa.RecordBatch]:
        """Draw the rows of a file of the records, or of some of them (`Release.sample_blocks`), a block at a time."""
        return self._written.rows(self.record_blocks(rows), 0 if rows is None else rows.start)

    @cached_property
    def related(self) -> dict[str, WrittenRecords]:
        """The tables that records have together, by their names; none where they have one, or one is asked for."""
        return {} if self.form is not None else kind_of(self.release.schema).related(self.release.schema)

    def record_blocks(self, rows: range | None = None) -> Iterator[pa.RecordBatch]:
        """Draw the records, one a row, or some of them (`Release.sample_blocks`), a block at a time."""
        return self.release.sample_blocks(self.n, self.seed, list(self.where), rows, self.balance)

    def digest(self, **written: bool) -> str:
        """Return twelve hexadecimal digits that another draw lacks, and the same by another version of this software.

        Args:
            written: what else decides the content of a file.
        """
        told = asdict(self) | {"folder": [file_hash(self.folder / name) for name in (MODEL, WEIGHTS)]}
        told |= written | {"columns": self.columns.to_string(), "version": installed_version()}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]

    def _declared(self) -> dict[str, Any]:
        with suppress(NotARelease):  # a model gives records without its certificate
            declared = read_certificate(self.folder).get("declared")
            return declared if isinstance(declared, dict) else {}
        return {}


def write_tables(folder: Path, draw: DrawSpec, escape: bool = True) -> list[str]:
    """Write each of the tables that records have together to a file of a new folder, and return the names of the files.

    Args:
        folder: which is there whole, or not at all.
        draw: its ending is one of `tables.OF_FOLDERS`.
        escape: as of `tables.write_table`.

    Raises:
        ValueError: for a table whose name no file may have.
        OSError, NotARelease, TooRare: as `RowsFolder.write`.
    """
    names = {table: f"{table}{draw.ending}" for table in draw.related}
    if odd := [table for table, name in names.items() if Path(name).name != name or not name.isprintable()]:
        raise ValueError(f"{odd[0]!r} is no name of a file: write one table at a time, by --form")
    # Each table is drawn by itself, from the same numbers.
    draw = draw if draw.seed is not None else replace(draw, seed=secrets.randbelow(2**63))
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    part.mkdir()
    try:
        for table, written in draw.related.items():
            columns = written.columns.with_metadata(draw.release.arrow.metadata)
            chunks = written.rows(draw.record_blocks(), 0)
            write_table(part / names[table], chunks, columns, escape=escape, form=written.form)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return list(names.values())


# Rows of each file but the last.
ROWS_OF_A_FILE = 100 * LARGEST_BLOCK
_NAME = re.compile(r"part-(\d{6})-of-(\d{6})-seed-(\d{1,19})-([0-9a-f]{12})(\.[a-z]+)")
_PART = re.compile(rf"\.{_NAME.pattern}\.[0-9a-f]{{8}}\.part\.[a-z]+")
# Threads of the libraries in a process, each of which would start as many as there are cores.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class LostProcess(RuntimeError):
    """A process that draws records was ended from outside."""


class OtherContent(ValueError):
    """A folder holds something else than files of this draw."""


@dataclass(frozen=True)
class RowsFolder:
    """A folder of the records of a draw, whose files are there whole or not at all.

    Every file has a name that says its number, and the number of all, the seed, and a digest of all that decides the
    records; so the files that a process of an earlier command has finished are kept. They are the same, byte for byte,
    however many processes make them and in whatever order.

    Args:
        folder: the place, whose parent exists.
        draw: its seed is None for that of files which are there, or a fresh one; its ending is one of
            `tables.OF_FOLDERS`.
        escape: as of `tables.write_table`.

    Example:
        >>> RowsFolder(Path("rows"), DrawSpec(Path("runs/mine/release"), n=10**8, seed=1)).write(2)      # doctest: +SKIP
    """

    folder: Path
    draw: DrawSpec
    escape: bool = True

    def write(self, processes: int = 1) -> tuple[int, int]:
        """Write the files that are not there, and return how many rows a file has at most, and how many files were there.

        Raises:
            OtherContent: if the folder holds anything else.
            OSError: from the disk; the files that are finished stay.
            NotARelease, TooRare: as of `DrawSpec.release` and `Release.sample`.
            LostProcess: if a process was ended from outside.
        """
        if self.draw.seed is None:
            there = {match[3] for match in map(_NAME.fullmatch, self._names()) if match}
            seed = int(there.pop()) if len(there) == 1 else secrets.randbelow(2**63)
            return replace(self, draw=replace(self.draw, seed=seed)).write(processes)
        count = max(1, -(-self.draw.n // ROWS_OF_A_FILE))
        digest = self.draw.digest(escape=self.escape)
        names = [
            f"part-{number:06}-of-{count:06}-seed-{self.draw.seed}-{digest}{self.draw.ending}"
            for number in range(1, count + 1)
        ]
        kept = self._checked(set(names))
        self.folder.mkdir(exist_ok=True)
        todo = [(i, name) for i, name in enumerate(names) if name not in kept or not self._is_whole(name, self._rows(i))]
        there = count - len(todo)
        with pace.stage("files", count, done=there, alone=True) as shown:
            for _ in self._made(todo, min(processes, len(todo))):
                shown.advance()
        sync_folder(self.folder)
        return min(self.draw.n, ROWS_OF_A_FILE), there

    def _made(self, todo: list[tuple[int, str]], processes: int) -> Iterator[None]:
        if processes < 2:
            with _one_thread():
                for number, name in todo:
                    yield self._write_file(number, name)
            return
        # Children of a spawn share no lock or generator with this process, and read the environment when they start.
        with _one_thread(), ProcessPoolExecutor(processes, get_context("spawn"), _begin, (self,)) as pool:
            waiting = [pool.submit(_write_file, *one) for one in todo]
            try:
                for done in as_completed(waiting):
                    yield done.result()
            except BrokenProcessPool:
                raise LostProcess(
                    "a process that draws was ended, perhaps because memory ran out: use fewer --processes"
                ) from None
            finally:
                pool.shutdown(cancel_futures=True)

    def _write_file(self, number: int, name: str) -> None:
        part = self.folder / f".{name}.{secrets.token_hex(4)}.part{self.draw.ending}"
        try:
            chunks = self.draw.sample_blocks(self._rows(number))
            write_table(part, chunks, self.draw.columns, escape=self.escape, form=self.draw.written_form)
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(part, self.folder / name)
        finally:
            part.unlink(missing_ok=True)

    def _rows(self, number: int) -> range:
        """Return the rows of a file among those of the draw."""
        start = number * ROWS_OF_A_FILE
        return range(start, min(self.draw.n, start + ROWS_OF_A_FILE))

    def _is_whole(self, name: str, rows: range) -> bool:
        """Tell whether a file that is there can be kept: the end of a Parquet file says how many rows it has."""
        if self.draw.ending != ".parquet":
            return True
        try:
            found, each = pq.read_metadata(self.folder / name).num_rows, self.draw.rows_a_record
            return each is None or found == each * len(rows)
        except (OSError, pa.ArrowInvalid):
            return False

    def _names(self) -> list[str]:
        return sorted(os.listdir(self.folder)) if os.path.lexists(self.folder) else []

    def _checked(self, names: set[str]) -> set[str]:
        """Return the files of this draw that are there, and remove what interrupted writing has left."""
        there = set(self._names())
        unfinished = {name for name in there if _PART.fullmatch(name)}
        if others := sorted(there - unfinished - names):
            if any(_NAME.fullmatch(name) for name in others):
                raise OtherContent(
                    "holds files of another draw (another release, -n, --seed, condition, form or version): expected the "
                    "arguments with which they were drawn, or another folder"
                )
            raise OtherContent(f"holds {others[0]!r}: expected a new folder, or one that the same command has begun")
        for name in unfinished:
            (self.folder / name).unlink(missing_ok=True)
        return there - unfinished


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread, here and in processes that start meanwhile: sums of several are rounded otherwise."""
    threads, before = torch.get_num_threads(), {name: os.environ.get(name) for name in _ONE_THREAD}
    torch.set_num_threads(1)
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# The folder that a process of `RowsFolder.write` writes to.
_own: RowsFolder | None = None


def _begin(folder: RowsFolder) -> None:
    global _own
    if (parent := parent_process()) is not None:
        Thread(target=_leave_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    _own = folder


def _leave_with(parent: BaseProcess) -> None:
    """End this process once a killed parent hands out no files any more."""
    parent.join()
    os._exit(1)


def _write_file(number: int, name: str) -> None:
    _own._write_file(number, name)
