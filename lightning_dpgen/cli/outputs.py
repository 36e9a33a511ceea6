"""Places that a command may write to: new, and never within a release; tables of private rows are their owner's alone."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_dpgen.common.folders import owner_only, place_of
from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.data.files.kinds import DATABASES, SQLITE, WORKBOOK
from lightning_dpgen.release.files import IN_RELEASE, lies_in_release
from lightning_dpgen.release.rows.database_table import check_new_table
from lightning_dpgen.release.rows.tables import FORMATS, OF_BASKETS, check_sheet
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET, CSV = ".parquet", ".csv"
# Databases that are files.
_IN_FILES = ("sqlite", "duckdb")


@dataclass(frozen=True)
class Place:
    """The place of records: a file or a folder, or a table of a database.

    Args:
        path: of the file or folder.
        folder: whether it is one, of pictures.
        url: of the database.
        table: in the database, or the sheet of a workbook.
    """

    path: Path | None = None
    folder: bool = False
    url: str | None = None
    table: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.url is None else f"{without_passwords(self.url)}, table {self.table}"


def new_place(name: str, table: str | None) -> Place:
    """Return where records may be written.

    Raises:
        UsageError: if they may not.
    """
    system, is_file, file = name.partition(":///")
    # Other databases are no files.
    path = name if "://" not in name else file if is_file and system.startswith(_IN_FILES) else None
    if path is not None and lies_in_release(place_of(path)):
        raise UsageError(f"-o {without_passwords(name)}: {IN_RELEASE}")
    if "://" in name:
        if not table:
            raise UsageError(f"-o {without_passwords(name)}: give its new table a name, as in --table people")
        try:
            check_new_table(name, table)
        except BadRecords as error:
            # It names the database.
            raise UsageError(f"-o {error}") from None
        except ValueError as error:
            raise UsageError(f"-o {without_passwords(name)}: {error}") from None
        return Place(url=name, table=table)
    output, folder = place_of(name), name.endswith(("/", os.sep))
    if not folder and output.suffix not in (*FORMATS, *OF_BASKETS):
        raise UsageError(
            f"-o {output}: expected a name that ends in {', '.join(FORMATS)}, the URL of a database, or FOLDER/"
        )
    if table is not None:
        try:
            if output.suffix not in (WORKBOOK, *DATABASES):
                raise ValueError("names a table of a database, or the sheet of an .xlsx file: leave it out")
            if output.suffix == WORKBOOK:
                check_sheet(table)
        except ValueError as error:
            raise UsageError(f"--table {table}: {error}") from None
    # A folder of rows may have been begun.
    if os.path.lexists(output) and not (folder and output.is_dir()):
        more = f", or give the URL sqlite:///{output} and --table for a new table in it" if output.suffix in SQLITE else ""
        raise UsageError(f"-o {output}: exists already; choose another name{more}")
    if not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")
    return Place(output, folder, table=table)


def private_place(name: str, release: Path, what: str, endings: tuple[str, ...] = (PARQUET,)) -> Path:
    """Return where a table may be written.

    Args:
        name: as the user has given it (`-o`).
        release: the folder of the release in use.
        what: the rows in words, for messages.
        endings: those that its name may have.

    Raises:
        UsageError: if it may not, as into a release, which is published.
    """
    output = place_of(name)
    if output.suffix not in endings:
        raise UsageError(f"-o {output}: expected a name that ends in {' or '.join(endings)}")
    check_new(output)
    if not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")
    if output.parent.resolve().is_relative_to(release.resolve()) or lies_in_release(output):
        raise UsageError(
            f"-o {output}: lies in a release, which may be published, and {what} may not; choose another folder"
        )
    return output


def check_new(output: Path) -> None:
    """Refuse a place where something is.

    Raises:
        UsageError: if something is there.
    """
    if os.path.lexists(output):
        raise UsageError(f"-o {output}: exists already; choose another name")


def write_private_table(output: Path, table: pa.Table) -> None:
    """Write a table, by the ending of its name, to a file that its owner alone may read.

    Raises:
        UsageError: if the disk refuses.
    """
    import pyarrow.csv
    import pyarrow.parquet

    # Written beside its place and renamed, so that an interruption leaves no half file under the final name.
    part = output.with_name(f".{output.stem}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "wb", opener=owner_only) as file:
            if output.suffix == CSV:
                pyarrow.csv.write_csv(table, file)
            else:
                pyarrow.parquet.write_table(table, file, compression="zstd")
        os.replace(part, output)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written ({error.strerror or error})") from None
    finally:
        part.unlink(missing_ok=True)
