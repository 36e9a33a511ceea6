"""Files that a run keeps private are its owner's alone, under any umask, and survive a crash of the machine."""

import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from marks import but

from lightning_dpgen.common.folders import make_folder, make_private, owner_only, publish
from lightning_dpgen.metrics.evaluation import Evaluation
from lightning_dpgen.release.against_real import write_evaluation
from lightning_dpgen.runs import run_folder
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.specs.usage_error import UsageError

pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = ["model.steps=3", "model.hidden=4", "model.latent=2", "split.k=2", "split.iterations=1", "split.features=8",
         "rows=9"]  # fmt: skip
PROJECT = ["project.radius=10", "data.n=50", "data.d=9", "project.k=3"]
SELECTION = ["model.lr=1e-3,1e-2", "privacy.selection=logarithmic", "privacy.selection_score=fidelity",
             "privacy.fidelity_share=0.1", "privacy.selection_mean=2"]  # fmt: skip
COMMANDS = {
    "train": ["train", *QUICK],
    "measured": ["train", "model=measured", "rows=9"],
    "cells": ["train", "model=measured", "data.classes=0", "rows=9", "model.cells=2"],
    "counted": ["train", "model=measured", "rows=9", "data.n=null", "data.n_share=0.1"],
    "project": ["project", *PROJECT],
    "sweep": ["train", "-m", *QUICK, "privacy.epsilon=1,2"],
}


@pytest.fixture
def open_umask():
    """Set a umask that takes no right away."""
    before = os.umask(0)
    yield
    os.umask(before)


def _errors(err):
    """Return the lines that are no warnings of what the settings mean."""
    return [line for line in err.splitlines() if not line.startswith("dpgen: warning:")]


def _study(folder):
    total = ["privacy.study_epsilon=20", "privacy.study_delta=1e-6"]
    return ["privacy.study=census", f"privacy.study_folder={folder}", *total]


def _rights(folder):
    return {path: stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}


def _assert_owned(folder):
    for path, mode in _rights(folder).items():
        assert mode == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("words", but(COMMANDS, "measured", "cells", "sweep"))
def test_all_of_a_private_folder_is_its_owners_and_a_release_is_as_any_folder(dpgen, tmp_path, open_umask, words):
    run, studies = tmp_path / "new" / "run", tmp_path / "studies"
    assert dpgen(*words, *_study(studies), f"run_dir={run}")[0] == 0
    private, releases = list(run.rglob("private")), list(run.rglob("release"))
    assert private and releases
    for folder in (*private, studies):
        _assert_owned(folder)
    for folder in releases:
        assert all(mode in (0o777, 0o666, 0o644) for mode in _rights(folder).values()), _rights(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o777
    if words == COMMANDS["train"]:
        assert (run / "private/tensorboard").is_dir() and (run / "private/checkpoint.ckpt").is_file()
        evaluation = Evaluation("images", {"columns": {"worst": 0.25}}, {}, {}, {}, "", {})
        write_evaluation(run / "private", evaluation, data="digits", facts={})
        assert (run / "private/report.html").is_file()
        _assert_owned(run / "private")


def test_an_interrupted_run_keeps_its_folder_to_itself(dpgen, tmp_path, open_umask, interrupted_when_kept):
    words = [*COMMANDS["measured"], f"run_dir={tmp_path / 'run'}"]
    with interrupted_when_kept(1):
        assert dpgen(*words)[0] == 130
    _assert_owned(tmp_path / "run/private")
    # Rights as an earlier version, or a copy, has left them.
    for path, mode in _rights(tmp_path / "run/private").items():
        path.chmod(mode | 0o055)
    assert dpgen(*words)[0] == 0
    _assert_owned(tmp_path / "run/private")


@pytest.mark.parametrize("words", [COMMANDS["train"], COMMANDS["project"], COMMANDS["sweep"]], ids=lambda w: w[0])
def test_a_private_folder_that_is_a_link_is_refused(dpgen, tmp_path, words):
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run/private").symlink_to(tmp_path / "elsewhere")
    status, _, err = dpgen(*words, f"run_dir={tmp_path / 'run'}")
    assert status == 2 and ("symbolic link" in err or "is not empty" in err) and len(_errors(err)) == 1
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_that_goes_on_through_a_link_is_refused(dpgen, tmp_path, interrupted_when_kept):
    words = [*COMMANDS["measured"], f"run_dir={tmp_path / 'run'}"]
    with interrupted_when_kept(1):
        assert dpgen(*words)[0] == 130
    shutil.move(tmp_path / "run/private", tmp_path / "elsewhere")
    (tmp_path / "run/private").symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere/ledger.jsonl").read_bytes()
    status, _, err = dpgen(*words)
    assert status == 2 and "symbolic link" in err and (tmp_path / "elsewhere/ledger.jsonl").read_bytes() == before


def test_folders_of_others_are_refused_and_left_alone(dpgen, tmp_path):
    """An empty folder is closed to others; one that holds other files is not the program's to close."""
    for name, words in (("private", ()), ("studies", (f"privacy.study_folder={tmp_path / 'run/studies'}",))):
        folder = tmp_path / "run" / name
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        (folder / "thesis.txt").write_text("x")
        study = ["privacy.study=a", "privacy.study_epsilon=9", "privacy.study_delta=1e-6", *words] if words else []
        status, _, err = dpgen(*COMMANDS["train"], *study, f"run_dir={tmp_path / 'run'}")
        assert status == 2 and "others may read this folder" in err and len(_errors(err)) == 1
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755 and [p.name for p in folder.iterdir()] == ["thesis.txt"]
        shutil.rmtree(folder)
        folder.mkdir()
        folder.chmod(0o755)
        make_private(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_file_behind_a_link_is_neither_read_nor_written(tmp_path):
    (tmp_path / "theirs").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    for mode in ("wb", "r+b", "ab", "rb"):
        with pytest.raises(OSError, match="symbolic links"), open(tmp_path / "link", mode, opener=owner_only):
            pass
    assert (tmp_path / "theirs").read_text() == "x"


def _make_a_dangling_link(path):
    path.symlink_to("nowhere")


def _make_a_link(path):
    target = path.with_name("theirs")
    target.mkdir() if "." not in path.name else target.write_text("x")
    path.symlink_to(target)


def _make_the_other_kind(path):
    path.write_text("x") if "." not in path.name else path.mkdir()


def _make_a_pipe(path):
    os.mkfifo(path)


IN_THE_WAY = (_make_a_dangling_link, _make_a_link, _make_the_other_kind, _make_a_pipe)
FILES = [
    "ledger.jsonl", "ledger.jsonl.heads", "ledger.part",
    *(f"{name}{end}" for name in ("split.pt", "checkpoint.ckpt", "measured.pt", "projected.pt", "bought.pt", "fidelity.pt",
      "selection.pt") for end in ("", ".part")),
]  # fmt: skip
FOLDERS = ["release-in-progress", "trials", "tensorboard"]


@pytest.mark.parametrize("make", IN_THE_WAY, ids=lambda make: make.__name__.strip("_"))
@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_what_stands_in_the_way_of_a_file_is_refused_before_anything_is_spent(tmp_path, name, make):
    (tmp_path / "run/private").mkdir(parents=True, mode=0o700)
    make(tmp_path / "run/private" / name)
    with pytest.raises(UsageError, match=rf"private/{name} is .*choose another run_dir$") as refused:
        run_folder.take(RunFolder(tmp_path / "run"))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("choose", [run_folder.choose, run_folder.choose_sweep])
def test_runs_of_one_second_take_folders_of_their_own(tmp_path, monkeypatch, choose):
    """All have chosen a default name before any creates it, as programs do that are started together."""
    monkeypatch.chdir(tmp_path)
    now = datetime(2026, 1, 1)
    monkeypatch.setattr(run_folder, "datetime", SimpleNamespace(now=lambda: now))
    folders = [choose(None) for _ in range(4)]
    assert len({folder.root for folder in folders}) == 1 and not (tmp_path / "runs").exists()
    run_folder.take(folders[0])
    folders[0].ledger.write_text('{"id": 1}')
    # Nobody goes on with another's run.
    assert folders[0].unfinished and not any(folder.unfinished or folder.finished for folder in folders[1:])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run_folder.take, folders))
    name = "2026-01-01_00-00-00"
    assert sorted(folder.root.name for folder in folders) == [name, *(f"{name}_{number}" for number in (2, 3, 4))]
    assert all(folder.private.is_dir() for folder in folders) and folders[0].root.name == name
    assert choose(None).root.name == f"{name}_5"


def test_what_a_run_has_left_is_not_in_its_way(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.private.mkdir(parents=True, mode=0o700)
    for name in FILES:
        (folder.private / name).write_text("x")
    for path in (*(folder.private / name for name in FOLDERS), folder.public):
        path.mkdir()
    run_folder.take(folder)
    # Without its ledger it belongs to no run.
    folder.ledger.unlink()
    with pytest.raises(UsageError, match="release-in-progress is a folder, of a run whose ledger is not there: remove it"):
        run_folder.take(folder)


@pytest.mark.parametrize("make", IN_THE_WAY, ids=lambda make: make.__name__.strip("_"))
@pytest.mark.parametrize("name", ["release", "private/release-in-progress", "private/measured.pt.part", "public"])
def test_no_run_begins_where_it_could_not_end(dpgen, tmp_path, name, make):
    (tmp_path / "run/private").mkdir(parents=True, mode=0o700)
    make(tmp_path / "run" / name)
    if name == "public" and make is _make_a_link:
        # Its content is public wherever it is.
        run_folder.take(RunFolder(tmp_path / "run"))
        return
    for command in ("measured", "project", "train"):
        status, _, err = dpgen(*COMMANDS[command], f"run_dir={tmp_path / 'run'}")
        assert status == 2 and f" {name} is " in err and "run_dir" in err and len(_errors(err)) == 1, err
        assert "finished release already" not in err and "To go on" not in err
        assert not (tmp_path / "run/private/ledger.jsonl").exists()


def test_a_folder_that_is_there_and_no_release_is_said_to_be_none(dpgen, tmp_path):
    (tmp_path / "run/release").mkdir(parents=True)
    status, _, err = dpgen(*COMMANDS["measured"], f"run_dir={tmp_path / 'run'}")
    assert status == 2 and "release is a folder and no finished release" in err and len(_errors(err)) == 1
    (tmp_path / "run/release/privacy.json").write_text("{}")
    status, _, err = dpgen(*COMMANDS["measured"], f"run_dir={tmp_path / 'run'}")
    assert status == 2 and "holds a finished release already" in err


def test_a_place_below_no_folder_is_named(dpgen, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("nowhere")
    for place, said in (
        (tmp_path / "file/x/y", f"{tmp_path / 'file'} is a file"),
        (tmp_path / "link/x", f"{tmp_path / 'link'} is a symbolic link"),
        (tmp_path / "link", "link: is a symbolic link"),
        ("/dev/null/x", "run_dir=/dev/null/x: /dev/null is neither a file nor a folder"),
    ):
        status, _, err = dpgen(*COMMANDS["measured"], f"run_dir={place}")
        assert status == 2 and said in err and "expected a folder" in err and len(_errors(err)) == 1, err


def test_a_ledger_that_is_a_link_is_not_gone_on_with(dpgen, tmp_path, interrupted_when_kept):
    words = [*COMMANDS["measured"], f"run_dir={tmp_path / 'run'}"]
    with interrupted_when_kept(1):
        assert dpgen(*words)[0] == 130
    private = tmp_path / "run/private"
    shutil.move(private / "ledger.jsonl", tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    (private / "ledger.jsonl").symlink_to(tmp_path / "elsewhere")
    status, _, err = dpgen(*words)
    assert status == 2 and "private/ledger.jsonl is a symbolic link" in err and "put the file itself in its place" in err
    assert len(_errors(err)) == 1 and "To go on" not in err and (tmp_path / "elsewhere").read_bytes() == before
    (private / "ledger.jsonl").unlink()
    shutil.move(tmp_path / "elsewhere", private / "ledger.jsonl")
    assert dpgen(*words)[0] == 0


class _Disk:
    """The folders in which names were made or moved and are not yet durable."""

    def __init__(self, monkeypatch, root):
        self.root, self.waiting, self.seen = root, set(), 0
        for name, place in (("mkdir", 0), ("replace", 1), ("rename", 1)):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name), place))
        sync = os.fsync

        def fsync(descriptor):
            self.waiting.discard(os.readlink(f"/proc/self/fd/{descriptor}"))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    def _noting(self, call, place):
        def noted(*args, **kwargs):
            found = call(*args, **kwargs)
            path = Path(args[place]).absolute()
            # No run goes on from TensorBoard's logs; staged files are synced when they are complete.
            if path.is_relative_to(self.root) and not {"tensorboard", "public", ".rights"} & set(path.parts):
                self.seen += 1
                self.waiting |= {str(Path(args[at]).absolute().parent) for at in {place, 0}}
            return found

        return noted


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of open files are asked of Linux")
@pytest.mark.parametrize("name", ["train", "counted", "project"])
def test_the_folder_of_every_new_name_is_made_durable(dpgen, tmp_path, monkeypatch, name):
    disk = _Disk(monkeypatch, tmp_path)
    assert dpgen(*COMMANDS[name], *_study(tmp_path / "all" / "studies"), f"run_dir={tmp_path / 'new' / 'run'}")[0] == 0
    assert disk.seen > 5 and not disk.waiting
    # The watch does see a folder that is not synced.
    os.mkdir(tmp_path / "more")
    assert disk.waiting == {str(tmp_path)}


def test_a_published_folder_has_the_rights_that_the_umask_leaves(tmp_path):
    for umask, mode in ((0o022, 0o755), (0o077, 0o700), (0o007, 0o770)):
        before = os.umask(umask)
        try:
            make_folder(tmp_path / f"{umask}" / "staging", 0o700)
            publish(tmp_path / f"{umask}" / "staging", tmp_path / f"{umask}" / "release")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / f"{umask}" / "release").stat().st_mode) == mode
