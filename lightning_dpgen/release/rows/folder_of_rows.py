"""Synthetic records as a folder of files of as many rows each: in several processes, and gone on with after an end."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lightning_dpgen.common import pace
from lightning_dpgen.common.folders import sync_folder
from lightning_dpgen.release.drawing.blocks import LARGEST_BLOCK
from lightning_dpgen.release.drawing.draw_spec import DrawSpec
from lightning_dpgen.release.rows.tables import write_table

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
        seeded = self if self.draw.seed is not None else replace(self, draw=replace(self.draw, seed=self._found_seed()))
        return seeded._write(processes)

    def _write(self, processes: int) -> tuple[int, int]:
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
            chunks = self.draw.chunks(self._rows(number))
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

    def _found_seed(self) -> int:
        """Return the seed of files that are there; a fresh one if there are none."""
        found = {match[3] for match in map(_NAME.fullmatch, self._names()) if match}
        return int(found.pop()) if len(found) == 1 else secrets.randbelow(2**63)

    def _names(self) -> list[str]:
        return sorted(os.listdir(self.folder)) if os.path.lexists(self.folder) else []

    def _checked(self, names: set[str]) -> set[str]:
        """Return the files of this draw that are there, and remove what interrupted writing has left."""
        there = set(self._names())
        left = {name for name in there if _PART.fullmatch(name)}
        if others := sorted(there - left - names):
            if any(_NAME.fullmatch(name) for name in others):
                raise OtherContent(
                    "holds files of another draw (another release, -n, --seed, condition, form or version): expected the "
                    "arguments with which they were drawn, or another folder"
                )
            raise OtherContent(f"holds {others[0]!r}: expected a new folder, or one that the same command has begun")
        for name in left:
            (self.folder / name).unlink(missing_ok=True)
        return there - left


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
