"""A case: one file of records, its schema, the settings of its runs, and the runs, in a folder on disk.

A case is nothing but files, most of which `dpgen` reads and writes itself: the schema, the runs, their releases. So a page
holds nothing that a killed server would lose, and each step can be made at a terminal as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import filelock

from lightning_dpgen.common.folders import FILE, make_private, place_of, read_plain, write_whole
from lightning_dpgen.release.files import read_certificate
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import name_of, write_word
from lightning_dpgen.studio.job import Job, start_job

if TYPE_CHECKING:
    from lightning_dpgen.runs.run_folder import RunFolder

# The folder of studies beside those of cases; no name of a case begins so.
STUDIES = "_studies"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
# Values that need no quotes.
_PLAIN = re.compile(r"[\w.+-]+", re.ASCII)
# The last parts of settings that name files, programs or addresses: a page opens only what the curator has named.
_PLACES = {
    "path", "schema", "url", "query", "target", "init", "held_out", "study_folder", "run_dir", "private_seed", "workload",
}  # fmt: skip
_LARGEST = 2**22


@dataclass(frozen=True)
class Setting:
    """A setting that has a field on the page of the budget.

    Args:
        choices: all values there are; none for any text.
        range: the least, the largest and the step of a slider.
        number: whether the value is a number.
    """

    name: str
    label: str
    hint: str = ""
    choices: tuple[str, ...] = ()
    range: tuple[float, float, float] | None = None
    number: bool = True


# The first ones stand open, others below a heading.
SETTINGS = {
    "": (
        Setting("data.n", "Number of records", "declared, as public knowledge: a round number near the true one"),
        Setting("privacy.epsilon", "Epsilon", "smaller protects more and adds more noise", range=(0.1, 10.0, 0.1)),
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
        return "interrupted, can go on" if self.folder.unfinished else "ended without a release"

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

    @property
    def place(self) -> str:
        """The records, as a command names them first."""
        return self.source.get("data.path") or self.source["data.url"]

    def keep(self, **changed: object) -> None:
        """Write source, settings or further ones."""
        with self.locked():
            before = self._kept if (self.folder / "case.json").exists() else {"settings": {}, "more": ""}
            write_whole(self.folder / "case.json", json.dumps(before | changed, indent=2))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the case, since several pages may write it."""
        with filelock.FileLock(self.folder / ".lock", timeout=10.0, mode=FILE):
            yield

    @property
    def source_words(self) -> list[str]:
        return [write_word(name, value) for name, value in self.source.items()]

    @property
    def words(self) -> list[str]:
        """The words of a training, but for the folder of its run.

        Raises:
            UsageError: for a further setting that a page does not take.
        """
        words = ["data=table", *self.source_words, write_word("data.schema", self.schema)]
        given = self.settings
        for setting in ALL_SETTINGS:
            if text := given.get(setting.name, "").strip():
                bare = bool(setting.number or setting.choices) and _PLAIN.fullmatch(text)
                words.append(f"{setting.name}={text}" if bare else write_word(setting.name, text))
        if given.get("privacy.study", "").strip():
            words.append(write_word("privacy.study_folder", self.folder.parent / STUDIES))
        return words + [_checked(line.strip()) for line in self.more.splitlines() if line.strip()]

    @property
    def data_words(self) -> list[str]:
        """The settings of the data, as `dpgen check` takes them after a file and its schema."""
        own = ("data.path", "data.schema", "data.url", "data.n", "data.discovery_share", "data.bins_share")
        return [word for word in self.words if name_of(word).startswith("data.") and name_of(word) not in own]

    @property
    def runs(self) -> list[Run]:
        """All runs, the newest first."""
        numbers = (path.name.partition("run-")[2] for path in self.jobs.glob("run-*"))
        return [Run(self, number) for number in sorted(map(int, filter(str.isdecimal, numbers)), reverse=True)]

    def run(self, number: int) -> Run:
        """Return a run.

        Raises:
            NotThere: if there is none of this number.
        """
        for run in self.runs:
            if run.number == number:
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

    def begin_run(self) -> Run:
        """Start a run with the settings as they are now; its release is verified at the end."""
        with self.locked():
            run = Run(self, max((run.number for run in self.runs), default=0) + 1)
            root = str(run.folder.root)
            self.start(f"run-{run.number}", ["train", *self.words, write_word("run_dir", root)], ["verify", root])
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

    def begin(self, name: str, source: dict[str, str]) -> Case:
        """Make a case.

        Raises:
            UsageError: for a name that is none or taken.
            OSError: if its folder cannot be made.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(f"name {name!r}: expected up to 60 letters, digits, - and _, as in visits-2024")
        case = Case(self.home / name)
        if case.folder.exists():
            raise UsageError(f"name {name!r}: is taken; choose another one")
        make_private(case.folder)
        case.keep(source=source)
        return case

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
                f"{path.strip() or 'no file'}: expected a file below {known}; name more folders to dpgen studio"
            )
        return place


def _checked(word: str) -> str:
    """Return a further setting, unless it opens what the curator has not named to the program."""
    name = name_of(word)
    if "=" not in word or word.startswith("-"):
        raise UsageError(f"{word}: expected NAME=VALUE, as in model.bins=20, one a line")
    known = {setting.name for setting in ALL_SETTINGS} | {"data"}
    if name.rpartition(".")[2] in _PLACES or name.startswith("hydra") or name in known:
        raise UsageError(f"{word}: is set by a field of its own, or at a terminal alone: leave it out here")
    return word
