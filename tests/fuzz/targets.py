"""The boundaries at which files and words of others are read: one function each, which lets a finding out.

A function takes the path of one input. It returns if the input is read, and raises one of the boundary's clean errors if
it is refused. Anything else is a finding: another exception, a warning that becomes one, a crash, more processor time or
memory than the boundary may take, or a `Finding`, which a function raises when an answer is wrong.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import math
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from lightning_dpgen.cli.main import _status
from lightning_dpgen.data.baskets.reading import read_baskets
from lightning_dpgen.data.baskets.schema import BasketSchema, read_items
from lightning_dpgen.data.files.arrays import read_rows
from lightning_dpgen.data.histories.description import read_description
from lightning_dpgen.data.histories.draft import draft_description, draft_of_table
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.pictures.reading import read_pictures
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.importers import read_domain, read_sdv
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_draft import draft_of_file, draft_text
from lightning_dpgen.data.tables.schema_file import parse_schema, read_schema, schema_text
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import PrivacyError
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.studies.study import Study
from lightning_dpgen.projection.project import check_rows
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.files import NotARelease
from lightning_dpgen.release.projected import ProjectedRows
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.run import load_projection_settings
from lightning_dpgen.specs.settings import load_complete_settings
from lightning_dpgen.specs.usage_error import FAULT
from lightning_dpgen.verification.verify import verify

# The share of another accountant's answer that a certificate may be below: both are upper bounds, on different grids.
_SLACK = 0.03
# Most characters of an error: a person reads it in a line.
_LONGEST_MESSAGE = 2000
TABLE = parse_schema(
    "label: smoker\n"
    "columns:\n"
    "  smoker: {type: boolean}\n"
    "  age: {type: integer, low: 0, high: 99, bins: 10}\n"
    "  weight: {type: number, low: 30, high: 150, bins: 8, missing: true}\n"
    "  city: {type: category, values: [Bonn, Köln, 'a b', rest], other: rest}\n"
    "  day: {type: date, low: 2020-01-01, high: 2024-12-31, bins: 5}\n"
    "constraints: [age + 20 <= weight, city = rest if age < 18 and smoker = false]\n"
    "found_constraints: ['weight is missing if age in (0..9, 20..29)']\n"
)
ITEMS = BasketSchema(tuple(range(30)), max_items=8)
LABELLED_ITEMS = BasketSchema(("tea", "milk", "jam"), max_items=2, classes=("a", "b"))
SERIES = SeriesSchema(3, 0.0, 10.0)
LABELLED_SERIES = SeriesSchema(3, 0.0, 10.0, classes=(1, 2))


class Finding(AssertionError):
    """A wrong answer, or an error that tells its reader nothing."""


@dataclass(frozen=True)
class Target:
    """A boundary.

    Args:
        read: the function that takes the path of an input.
        clean: errors that refuse an input.
        seconds: processor time that one input may take.
        megabytes: memory that one input may take beyond that in use before.
        each: the number of inputs in the slow suite.
    """

    read: Callable[[Path], object]
    clean: tuple[type[Exception], ...]
    seconds: float = 5.0
    megabytes: int = 1000
    each: int = 120

    def check(self, path: Path) -> str:
        """Read an input and return ``read`` or ``refused``.

        Raises:
            Exception: a finding, of any type.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            try:
                self.read(path)
            except self.clean as error:
                _check_message(error, path)
                return "refused"
        return "read"


def _check_message(error: Exception, path: Path) -> None:
    text = str(error)
    if not text.strip() or "\n" in text or len(text.replace(str(path), "")) > _LONGEST_MESSAGE or "Traceback" in text:
        raise Finding(f"an error that is not one line for a person: {type(error).__name__}: {text[:200]!r}") from None


def _choose(path: Path, *choices):
    """Return one of several ways to read an input, always the same one for the same bytes."""
    return choices[zlib.crc32(path.read_bytes()) % len(choices)]


def unpacked(path: Path) -> Path:
    """Return the folder that an input stands for: a ``.zip`` holds its files, anything else is its certificate."""
    folder = path.parent / "folder"
    folder.mkdir()
    if path.suffix == ".zip":
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            for name in archive.namelist():
                (folder / Path(name).name).write_bytes(archive.read(name))
    else:
        (folder / "privacy.json").write_bytes(path.read_bytes())
    return folder


def read_release(path: Path) -> None:
    folder = unpacked(path)
    if verify(folder).good:
        check_not_forged(folder)


def check_not_forged(folder: Path) -> None:
    """Check that a verified release agrees with its certificate, by other means than those of `verify`.

    The oracle: each file has the sha256 that the certificate states, and there is no other file but a signature; the
    run is private and its noise was not seeded; the statement gives its epsilon and delta; and epsilon is no less
    than the answer of dp-accounting's own accountants for the event tree, which is read here separately (with 3 % of
    slack, since two upper bounds differ), at the part of delta of each named time. A tree that they cannot account for is
    held to the largest of its parts.

    Raises:
        Finding: if it does not.
    """
    certificate = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    others = [path for path in folder.iterdir() if path.name not in ("privacy.json", "privacy.json.sig")]
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in others}
    if hashes != certificate["files"] or not set(certificate["released"]) <= set(hashes):
        raise Finding("verified, though its files are others than those of the certificate")
    if certificate["private"] is not True or certificate["noise"]["seeded"] is not False:
        raise Finding("verified, though it is not private")
    epsilon, delta = certificate["epsilon"], certificate["delta"]
    if not (0.0 < epsilon < math.inf and 0.0 <= delta < 1.0 / certificate["declared"]["n"]):
        raise Finding(f"verified with epsilon={epsilon!r}, delta={delta!r}")
    stops, whole, times = certificate.get("stops"), epsilon, 1
    if stops is not None:
        whole, times = stops["epsilons"][-1], len(stops["named"])
        drawn = certificate.get("stopped", {}).get(stops["stage"], stops["named"][-1])
        if not drawn <= stops["charged"] or stops["charged"] not in stops["named"] or whole < epsilon:
            raise Finding("verified, though it is charged up to another time than one that was named and not passed")
    if f"({whole:g}, {delta:g})-differentially private" not in certificate["statement"]:
        raise Finding("verified, though its statement gives other numbers")
    least = _least_epsilon(json.dumps(certificate["event"], sort_keys=True), delta / times, certificate["relation"])
    if not epsilon >= least * (1.0 - _SLACK):
        raise Finding(f"verified with epsilon {epsilon}, of an event tree that costs {least}")


@functools.lru_cache(maxsize=64)
def _least_epsilon(tree: str, delta: float, relation: str) -> float:
    """Return the epsilon that dp-accounting gives for a tree (JSON)."""
    leaves = list(_leaves(json.loads(tree), 1))
    if delta == 0.0:
        return sum(count / leaf["noise_multiplier"] for leaf, count in leaves)
    times = 2.0 if relation == "replace_one" else 1.0
    sound = sum(count * math.log1p(-times * leaf["delta"]) for leaf, count in leaves if "Delta" in leaf["type"])
    left = -math.expm1(sound)
    delta = (delta - left) / (1.0 - left)
    relations = dp_accounting.NeighboringRelation
    neighbours = relations.REPLACE_ONE if relation == "replace_one" else relations.ADD_OR_REMOVE_ONE
    selections = [leaf for leaf, _ in leaves if leaf["type"] == "RepeatAndSelectDpEvent"]
    # Choosing the best of several trials costs no less than one of them.
    parts = [_stock(leaf["event"]) for leaf in selections for leaf in _trials(leaf)]
    parts += (
        [
            dp_accounting.ComposedDpEvent(
                [
                    dp_accounting.SelfComposedDpEvent(_stock(leaf), count)
                    for leaf, count in leaves
                    if leaf not in selections and "Delta" not in leaf["type"]
                ]
            )
        ]
        if len(leaves) > len(selections)
        else []
    )
    if selections:
        return max(RdpAccountant(neighboring_relation=neighbours).compose(part).get_epsilon(delta) for part in parts) * 0.9
    return max(PLDAccountant(neighbours, 1e-3).compose(part).get_epsilon(delta) for part in parts)


def _trials(selection: dict) -> list[dict]:
    event = selection["event"]
    return [{"event": one} for one in event["events"]] if event["type"] == "OneOfDpEvent" else [{"event": event}]


def _leaves(tree: dict, count: int):
    if tree["type"] == "ComposedDpEvent":
        for part in tree["events"]:
            yield from _leaves(part, count)
    elif tree["type"] == "SelfComposedDpEvent":
        yield from _leaves(tree["event"], count * tree["count"])
    else:
        yield tree, count


def _stock(tree: dict) -> dp_accounting.DpEvent:
    """Return an event of dp-accounting, read by this file alone."""
    if tree["type"] == "ComposedDpEvent":
        return dp_accounting.ComposedDpEvent([_stock(part) for part in tree["events"]])
    if tree["type"] == "SelfComposedDpEvent":
        return dp_accounting.SelfComposedDpEvent(_stock(tree["event"]), tree["count"])
    if tree["type"] == "PoissonSampledDpEvent":
        return dp_accounting.PoissonSampledDpEvent(tree["sampling_probability"], _stock(tree["event"]))
    noise = {"GaussianDpEvent": dp_accounting.GaussianDpEvent, "LaplaceDpEvent": dp_accounting.LaplaceDpEvent}
    return noise[tree["type"]](tree["noise_multiplier"])


def read_bundle(path: Path) -> None:
    release = load_release(unpacked(path))
    if isinstance(release, ProjectedRows):
        release.whitened()
        release.recovery.squared_distances(release.rows[:2], release.rows[:2])
        return
    release.component(0)
    drawn = release.sample_encoded(3, seed=0)
    if len(drawn) != 3:
        raise Finding(f"{len(drawn)} records were drawn, of 3 that were asked for")
    if release.schema.layout.width < 10_000:
        release.table(3, seed=0)


def read_ledger(path: Path) -> None:
    folder = unpacked(path)
    ledger = folder / "ledger.jsonl"
    if not ledger.is_file():
        return
    Ledger.read(ledger)
    account = Account.resume(ledger)
    try:
        account.go_on({})
        _ = account.finished, account.done, account.plan.spent
    finally:
        account.ledger.close()


def read_study(path: Path) -> None:
    study = Study(unpacked(path) / "study.jsonl")
    _ = study.total
    study.check(dp_accounting.GaussianDpEvent(4.0))


def read_schemas(path: Path) -> None:
    schema = read_schema(path)
    if not schema.open:
        _ = schema.with_bins(8).layout
    if parse_schema(schema_text(schema)) != schema:
        raise Finding("a schema that was written and read again is another one")


def read_row_files(path: Path) -> None:
    if path.name.startswith("table"):
        read_table(path, TABLE, outside=_choose(path, "clamp", "refuse"))
    elif path.name.startswith("draft"):
        columns, about = draft_of_file(path)
        draft_text(columns, path.name, about)
    else:
        check_rows(read_rows(path))


def read_history_files(path: Path) -> None:
    """Read a description of histories, or draft one of a table."""
    if path.name.startswith("draft"):
        table = draft_of_table(path, "id")
        draft_description([table], "id", _choose(path, (), ("day",)), path.parent)
        return
    schema = read_description(path, 8).schema
    if HistorySchema.from_json(json.loads(json.dumps(schema.as_json()))) != schema:
        raise Finding("a schema of histories that was written and read again is another one")


def read_basket_files(path: Path) -> None:
    if path.name.startswith("items"):
        read_items(path)
    else:
        schema = LABELLED_ITEMS if path.name.startswith("labelled") else ITEMS
        read_baskets(path, schema, outside=_choose(path, "clamp", "refuse"))


def read_picture_files(path: Path) -> None:
    if path.suffix in (".npy", ".npz"):
        read_pictures(path, 4, 4, channels=_choose(path, 1, 3), fit=_choose(path, "stretch", "pad", "crop"))
    else:
        folder = path.parent / "pictures"
        folder.mkdir()
        path.rename(folder / path.name)
        read_pictures(folder, 4, 4)


def read_series_files(path: Path) -> None:
    if path.name.startswith("long"):
        read_series(path, SERIES, form="long", day="d", outside=_choose(path, "clamp", "refuse"))
    else:
        read_series(path, LABELLED_SERIES if path.suffix == ".csv" else SERIES, outside=_choose(path, "clamp", "refuse"))


def read_others(path: Path) -> None:
    columns = read_domain(path) if path.name.startswith("domain") else read_sdv(path)
    draft_text(columns, path.name)


class Complained(Exception):
    """A mistake that the program reports in one line."""


def read_overrides(path: Path) -> None:
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        # A command line could not hold it: it is no list of words.
        return
    try:
        if words and words[0] == "project":
            load_projection_settings(words[1:])
        else:
            load_complete_settings(words)
    except Exception as error:
        if _status(error) == FAULT:
            raise
        # The same message as the program prints.
        raise Complained(" ".join(str(error).split())) from None


TARGETS = {
    "verify": Target(read_release, (NotARelease,), seconds=10.0, each=50),
    "bundle": Target(read_bundle, (NotARelease,), seconds=10.0, each=80),
    "ledger": Target(read_ledger, (PrivacyError, FileNotFoundError), each=100),
    "study": Target(read_study, (PrivacyError,), each=100),
    "schema": Target(read_schemas, (BadSchema,), each=120),
    "rows": Target(read_row_files, (BadRecords, BadSchema)),
    "histories": Target(read_history_files, (BadRecords, BadSchema)),
    "baskets": Target(read_basket_files, (BadRecords,)),
    "pictures": Target(read_picture_files, (BadRecords,)),
    "series": Target(read_series_files, (BadRecords,)),
    "importers": Target(read_others, (BadSchema,)),
    "overrides": Target(read_overrides, (Complained,), each=12),
}
