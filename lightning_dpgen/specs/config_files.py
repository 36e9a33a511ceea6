"""Where files of settings are: those of the package in conf/, and those of a person, whom Hydra's flags name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hydra import version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType

import lightning_dpgen
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import write_word

GROUPS = ("data", "model", "clipping", "privacy", "split", "trainer", "compute", "experiment")


@dataclass(frozen=True)
class OwnFiles:
    """The files of settings that a person keeps; false where there are none.

    Args:
        folders: searched behind those of the package (`--config-dir`, `hydra.searchpath`).
        path: a folder that is searched before those of the package (`--config-path`).
        name: the file that is composed in place of the package's (`--config-name`).
    """

    folders: tuple[str, ...] = ()
    path: str | None = None
    name: str | None = None

    def __bool__(self) -> bool:
        return bool(self.folders or self.path or self.name)

    def __str__(self) -> str:
        return ", ".join([*([self.path] if self.path else []), *self.folders]) or str(conf_dir())

    def absolute(self) -> OwnFiles:
        """Return the same, by paths that hold wherever they are read."""
        return OwnFiles(tuple(map(_absolute, self.folders)), self.path and _absolute(self.path), self.name)

    def flags(self) -> list[str]:
        """Return the flags that name them."""
        words = [write_word("hydra.searchpath", list(self.folders))] if self.folders else []
        path = ["--config-path", self.path] if self.path else []
        return [*(["--config-name", self.name] if self.name else []), *path, *words]

    def check(self) -> None:
        """Refuse a folder that is not there.

        Raises:
            UsageError: naming the flag.
        """
        for flag, folder in [("--config-path", self.path), *(("--config-dir", folder) for folder in self.folders)]:
            if folder is None or "://" in folder:
                continue
            if (file := Path(folder)).is_file():
                raise UsageError(f"{flag} {file}: is a file: {flag} {file.parent} --config-name {file.stem}")
            if not file.is_dir():
                raise UsageError(f"{flag} {folder}: there is no such folder")

    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """Return all groups, also those within others (``model/parts``), with the names of their files."""
        if not self:
            folders = [conf_dir() / group for group in GROUPS]
            return {folder.name: tuple(sorted(path.stem for path in folder.glob("*.yaml"))) for folder in folders}
        with open_hydra(self) as hydra:
            loader = hydra.config_loader
            return {
                group: tuple(sorted(loader.get_group_options(group, ObjectType.CONFIG)))
                for group in hydra.list_all_config_groups()
                if group.partition("/")[0] != "hydra"
            }


NO_FILES = OwnFiles()


def conf_dir() -> Path:
    """Return the folder of the YAML files: inside an installed package, beside it in a checkout."""
    package = Path(lightning_dpgen.__file__).parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError("the configuration files of lightning_dpgen are missing: install it again")


@contextmanager
def open_hydra(files: OwnFiles) -> Iterator[Hydra]:
    """Yield Hydra's own object over the files of the package and those of a person, as `hydra.main` makes it."""
    # Within a sweep, Hydra has another configuration at hand.
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    version.setbase("1.3")
    files = files.absolute()
    try:
        search_path = create_config_search_path(_as_source(files.path) if files.path else str(conf_dir()))
        for folder in (*([str(conf_dir())] if files.path else []), *files.folders):
            search_path.prepend("command-line", _as_source(folder), SearchPathQuery(provider="schema"))
        yield Hydra.create_main_hydra2("dpgen", search_path)
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)


def _absolute(folder: str) -> str:
    return folder if "://" in folder else str(Path(folder).absolute())


def _as_source(folder: str) -> str:
    """Return the name of a folder as Hydra takes it; ``pkg://`` stays."""
    return folder if "://" in folder else f"file://{folder}"
