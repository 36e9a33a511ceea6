"""Tables of what is computed from single real records: new files of their owner, never within a release."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_dpgen.common.folders import owner_only, place_of
from lightning_dpgen.release.folder import lies_in_release
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET, CSV = ".parquet", ".csv"


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
    if os.path.lexists(output):
        raise UsageError(f"-o {output}: exists already; choose another name")
    if not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")
    if output.parent.resolve().is_relative_to(release.resolve()) or lies_in_release(output):
        raise UsageError(
            f"-o {output}: lies in a release, which may be published, and {what} may not; choose another folder"
        )
    return output


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
