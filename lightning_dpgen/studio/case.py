"""A case: one file of records, its schema, the settings of its runs, and the runs, in a folder on disk.

A case is nothing but files, most of which `dpgen` reads and writes itself: the schema, the runs, their releases. So a page
holds nothing that a killed server would lose, and each step can be made at a terminal as well.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from lightning_dpgen.common.folders import FILE, FOLDER, make_private, place_of, read_plain, write_whole
from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.release.files import EVALUATION, read_certificate
from lightning_dpgen.specs.usage_error import MISTAKE, OK, UsageError
from lightning_dpgen.specs.words import name_of, write_word
from lightning_dpgen.studio.job import Job, start_job

if TYPE_CHECKING:
    from lightning_dpgen.runs.run_folder import RunFolder

# The folder of studies beside those of cases; no name of a case begins so.
STUDIES = "_studies"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
# Values that need no quotes.
_PLAIN = re.compile(r"[\w.+-]+", re.ASCII)
# Further settings that a page takes: those of the network and the split, but for what names files or programs of a user.
_FURTHER = re.compile(
    r"(?!.*\.(target|init|options)$)(model|split|clipping)\.[a-z][a-z_]*|clipping|seed|rows|data\.(bins|bins_share|max_moved)"
)
# Databases that are reached by a network; files of others are named by their paths.
_SYSTEMS = ("postgresql", "mysql", "mariadb", "oracle", "mssql")
_LARGEST = 2**24


@dataclass(frozen=True)
class Setting:
    """A setting that has a field on the page of the budget.

    Args:
        choices: all values there are; none for any text.
        range: the least, the largest and the step of a slider.
        number: whether the value is a number.
        default: what an empty field stands for, where a page shows it.
    """

    name: str
    label: str
    hint: str = ""
    choices: tuple[str, ...] = ()
    range: tuple[float, float, float] | None = None
    number: bool = True
    default: str = ""


# The first ones stand open, others below a heading.
SETTINGS = {
    "": (
        Setting("data.n", "Number of records", "declared, as public knowledge: a round number near the true one"),
        Setting("privacy.epsilon", "Epsilon", "smaller protects more and adds more noise", range=(0.1, 10.0, 0.1),
                default="4"),
        Setting("privacy.delta", "Delta", "empty for the default, which follows from the number of records"),
        Setting("privacy.fidelity_share", "Share for a public figure of quality",
                "of the budget, such as 0.05: the published report then says how good the records are"),
    ),
    "Persons with several records": (
        Setting("data.person", "Column that names the person", number=False),
        Setting("data.max_rows", "Records of a person, at most"),
    ),
    "A study": (
        Setting("privacy.study", "Name", "of all releases about these people, whose spending adds up", number=False),
        Setting("privacy.study_epsilon", "Epsilon of all its runs together", "given when it begins"),
        Setting("privacy.study_delta", "Delta of all its runs together", "given when it begins"),
    ),
    "Model and reading": (
        Setting("model", "Model", "auto takes what was best on such records",
                ("auto", "measured", "vae", "wgan", "rbm", "classifier")),
        Setting("data.outside", "Values that the schema does not allow", "refuse stops the run, clamp moves them",
                ("refuse", "clamp")),
        Setting("data.discovery_share", "Share for private bounds and values", "needed where the schema says private"),
    ),
}  # fmt: skip
ALL_SETTINGS = tuple(setting for settings in SETTINGS.values() for setting in settings)


class NotThere(Exception):
    """There is no case, run, job or file of the name in an address."""


@dataclass(frozen=True)
class Run:
    """A run of a case, and the jobs about it."""

    case: Case
    number: int

    @property
    def folder(self) -> RunFolder:
        # It imports torch, which the help of the program does not wait for.
        from lightning_dpgen.runs.run_folder import RunFolder

        return RunFolder(self.case.folder / "runs" / str(self.number))

    @property
    def job(self) -> Job:
        return self.job_of("run")

    def job_of(self, what: str) -> Job:
        return Job(self.case.jobs / f"{what}-{self.number}")

    @property
    def state(self) -> str:
        """In a word or a few: how it stands."""
        if self.job.running:
            return "running"
        if self.folder.finished:
            return "released"
        if not self.folder.unfinished:
            return "ended without a release"
        from lightning_dpgen.privacy.ledger import Ledger

        with suppress(LedgerError, OSError):
            if Ledger.read(self.folder.ledger).stopped:
                return "ended for good"
        return "interrupted, can go on"

    @property
    def verified(self) -> bool | None:
        """The last word of `dpgen verify`; None while it has said nothing."""
        again = self.job_of("verify")
        last = again if again.exists else self.job
        if last.status not in (OK, MISTAKE):
            return None
        # A file that was changed since is not verified.
        changed = max((path.stat().st_mtime for path in self.folder.release.iterdir()), default=math.inf)
        return None if changed > last.ended else last.status == OK

    @property
    def judgement(self) -> Mapping[str, str]:
        """The first paragraph of the private comparison with the real records; empty where there is none."""
        with suppress(OSError, ValueError):
            return json.loads(read_plain(self.folder.private / EVALUATION, _LARGEST)).get("judgement", {})
        return {}

    @property
    def schema(self) -> Path:
        """The copy of the schema that the run reads, so that a later change of the case does not reach it."""
        return self.case.folder / "runs" / f"{self.number}.schema.yaml"

    @property
    def commands(self) -> list[list[str]]:
        """The training by the settings of the case as they are now, and the verification of its release."""
        root = str(self.case.folder / "runs" / str(self.number))
        return [["train", *self.case.words(self.schema), write_word("run_dir", root)], ["verify", root]]

    @property
    def mark(self) -> str:
        """A digest of all that a start would run: the commands and the schema."""
        content = json.dumps(self.commands).encode() + self.case.schema.read_bytes()
        return hashlib.sha256(content).hexdigest()[:32]

    @property
    def certificate(self) -> Mapping[str, object] | None:
        return read_certificate(self.folder.release) if self.folder.finished else None

    @property
    def study(self) -> str | None:
        """The study that the run was started in."""
        words = (word for command in self.job.commands for word in command)
        return next((word.partition("=")[2].strip('"') for word in words if name_of(word) == "privacy.study"), None)

    @property
    def samples(self) -> list[Path]:
        """The files of synthetic records that were drawn, and of completed rows, which are private."""
        return sorted((*self.case.drawn.glob(f"{self.number}-*"), *self.case.completed.glob(f"{self.number}-*")))


@dataclass(frozen=True)
class Case:
    """One file of records with all that is made of it."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def schema(self) -> Path:
        return self.folder / "table.schema.yaml"

    @property
    def private(self) -> Path:
        return self.folder / "private"

    @property
    def jobs(self) -> Path:
        return self.private / "jobs"

    @property
    def drawn(self) -> Path:
        return self.folder / "samples"

    @property
    def completed(self) -> Path:
        return self.private / "completed"

    @property
    def _kept(self) -> dict:
        return json.loads(read_plain(self.folder / "case.json", _LARGEST))

    @property
    def source(self) -> dict[str, str]:
        """Where the records are: `data.path`, or `data.url` and `data.query`."""
        return self._kept["source"]

    @property
    def settings(self) -> dict[str, str]:
        """The settings that have fields, by name, as they were typed."""
        return self._kept["settings"]

    @property
    def more(self) -> str:
        """Further settings, one a line."""
        return self._kept["more"]

    def keep(self, **changed: Any) -> None:
        """Write the source, some settings, or the further ones; what is not named stays."""
        with self.locked():
            before = self._kept if (self.folder / "case.json").exists() else {"settings": {}, "more": ""}
            settings = {"settings": before["settings"] | changed.pop("settings", {})}
            kept = json.dumps(before | changed | settings, indent=2, ensure_ascii=False)
            write_whole(self.folder / "case.json", kept)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the case, since several pages may write it."""
        with filelock.FileLock(self.folder / ".lock", timeout=10.0, mode=FILE):
            yield

    @property
    def source_words(self) -> list[str]:
        return [write_word(name, True if value == "true" else value) for name, value in self.source.items()]

    def words(self, schema: Path | None = None) -> list[str]:
        """Return the words of a training, but for the folder of its run.

        Args:
            schema: the file of the schema; None for that of the case.

        Raises:
            UsageError: for a further setting that a page does not take.
        """
        words = ["data=table", *self.source_words, write_word("data.schema", schema or self.schema)]
        words += self._setting_words()
        if self.settings.get("privacy.study", "").strip():
            words.append(write_word("privacy.study_folder", self.folder.parent / STUDIES))
        return words + [_checked(line.strip()) for line in self.more.splitlines() if line.strip()]

    @property
    def check_words(self) -> list[str]:
        """The words of `dpgen check`: a file or a URL, its schema, and the settings of the data."""
        own = ("data.path", "data.url", "data.n", "data.discovery_share")
        words = [*self.source_words, *self._setting_words("data.")]
        place = self.source.get("data.path") or self.source["data.url"]
        return ["check", place, str(self.schema), *(word for word in words if name_of(word) not in own)]

    def _setting_words(self, begin: str = "") -> list[str]:
        """Return the words of the settings that have fields, and whose names begin so."""
        words, given = [], self.settings
        for setting in ALL_SETTINGS:
            if (text := given.get(setting.name, "").strip()) and setting.name.startswith(begin):
                if setting.choices and text not in setting.choices:
                    raise UsageError(f"{setting.name}={text}: expected one of {', '.join(setting.choices)}")
                bare = bool(setting.number or setting.choices) and _PLAIN.fullmatch(text)
                words.append(f"{setting.name}={text}" if bare else write_word(setting.name, text))
        return words

    @property
    def runs(self) -> list[Run]:
        """All runs, the newest first."""
        numbers = (path.parent.name.partition("run-")[2] for path in self.jobs.glob("run-*/commands.json"))
        return [Run(self, number) for number in sorted(map(int, filter(str.isdecimal, numbers)), reverse=True)]

    @property
    def next_run(self) -> Run:
        return Run(self, max((run.number for run in self.runs), default=0) + 1)

    def run(self, number: str) -> Run:
        """Return a run.

        Raises:
            NotThere: if there is none of this number.
        """
        for run in self.runs:
            if str(run.number) == number:
                return run
        raise NotThere

    def job(self, what: str) -> Job:
        """Return the job of a name.

        Raises:
            NotThere: for what is no name of a job.
        """
        if not _NAME.fullmatch(what):
            raise NotThere
        return Job(self.jobs / what)

    def start(self, what: str, *commands: list[str]) -> Job:
        """Start commands as a job of the case."""
        make_private(self.private)
        return start_job(self.jobs / what, commands)

    def begin_run(self, mark: str) -> Run:
        """Start the run that a page has shown.

        Args:
            mark: of that run.

        Raises:
            UsageError: if it would be another one now.
        """
        with self.locked():
            run = self.next_run
            if run.mark != mark:
                raise UsageError(
                    "the settings, the schema or the runs have changed since this page was shown: load it again, and look "
                    "at the plan before you start"
                )
            make_private(run.schema.parent)
            write_whole(run.schema, self.schema.read_text(encoding="utf-8-sig"))
            self.start(f"run-{run.number}", *run.commands)
        return run


@dataclass(frozen=True)
class Cases:
    """All cases of a studio, and the folders below which its pages may open files.

    Args:
        home: where cases are kept.
        roots: the folders that the curator has named, resolved.
    """

    home: Path
    roots: tuple[Path, ...]

    def __iter__(self) -> Iterator[Case]:
        kept = self.home.glob("*/case.json")
        yield from sorted(map(Case, (file.parent for file in kept)), key=lambda case: case.name)

    def __getitem__(self, name: str) -> Case:
        """Return a case by its name, which is no path.

        Raises:
            NotThere: if there is none.
        """
        case = Case(self.home / name)
        if not _NAME.fullmatch(name) or not (case.folder / "case.json").is_file():
            raise NotThere
        return case

    def begin(self, name: str, source: dict[str, str] | None = None) -> Case:
        """Make the folder of a case, and the case itself where it is known where its records are.

        Raises:
            UsageError: for a name that is none or taken.
            OSError: if it cannot be made; nothing of it stays then.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(f"name {name!r}: expected up to 60 letters, digits, - and _, as in visits-2024")
        case = Case(self.home / name)
        try:
            # It is this one's alone, so that a failure removes nothing of another.
            case.folder.mkdir(mode=FOLDER, parents=True)
        except FileExistsError:
            raise UsageError(
                f"name {name!r}: is taken; choose another one (without a case.json, {case.folder} is what is left of an "
                "upload that was cut off)"
            ) from None
        try:
            if source is not None:
                case.keep(source=source)
        except OSError:
            shutil.rmtree(case.folder, ignore_errors=True)
            raise
        return case

    def check_source(self, source: Mapping[str, str]) -> None:
        """Refuse records that lie where the curator has not named.

        Raises:
            UsageError: naming the place.
        """
        if (url := source.get("data.url")) is None:
            self.checked(source.get("data.path", ""))
        elif without_passwords(url) != url or "?" in url:
            raise UsageError(
                f"{without_passwords(url)}: expected the URL of a database without a password and without options behind a "
                "question mark, which are for a terminal"
            )
        elif url.partition("://")[0].partition("+")[0] not in _SYSTEMS or "://" not in url:
            systems = ", ".join(_SYSTEMS)
            raise UsageError(
                f"{without_passwords(url)}: expected the URL of a database on a network ({systems}); a file of SQLite or "
                "DuckDB is named by its path"
            )

    def checked(self, path: str) -> Path:
        """Return the file or folder that a page has named.

        Raises:
            UsageError: if it lies in no folder that the curator has named, or is not there.
        """
        named = place_of(path.strip())
        try:
            place = named.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            place = None
        # Both are one message: a page tells nothing of other folders.
        if not path.strip() or place is None or not any(place.is_relative_to(root) for root in self.roots):
            known = ", ".join(map(str, self.roots))
            raise UsageError(
                f"{path.strip() or 'no file'}: expected a file that is there, below {known}; name more folders to dpgen "
                "studio"
            )
        return place


def _checked(word: str) -> str:
    """Return a further setting, unless it opens what the curator has not named to the program."""
    if "=" not in word or not _FURTHER.fullmatch(name_of(word)) or not name_of(word) == word.partition("=")[0]:
        raise UsageError(
            f"{word}: expected NAME=VALUE of a setting of model, split or clipping, as in model.bins=20, one a line; "
            "others have a field of their own, or are set at a terminal"
        )
    return word
