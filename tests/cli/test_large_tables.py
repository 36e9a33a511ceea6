"""A table larger than `data.memory_gib` is trained on in blocks: the same release, and a stopped run goes on with them."""

import contextlib
import errno
import json
import re
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from marks import only

from lightning_dpgen.kinds import tables
from lightning_dpgen.passes import column_counts
from lightning_dpgen.passes import reduce as reducing
from lightning_dpgen.passes.encoded_blocks import EncodedBlockStore
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.chain import hold
from lightning_dpgen.runs import measure as measuring
from lightning_dpgen.runs import run as running

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA = (
    "columns: {age: {type: integer, low: 0, high: 99, bins: 5}, sex: {type: category, values: [F, M]}, "
    "city: {type: category, values: [a, b, c]}}"
)


@pytest.fixture
def words(tmp_path):
    """Return the settings of a run on four files."""
    folder, random = tmp_path / "in", np.random.default_rng(0)
    folder.mkdir()
    (tmp_path / "in.schema.yaml").write_text(SCHEMA)
    for i in range(4):
        columns = {"age": random.integers(0, 100, 500), "sex": random.choice(["F", "M"], 500)}
        columns["city"] = np.where(columns["age"] < 40, "a", random.choice(["b", "c"], 500))
        pd.DataFrame(columns).to_parquet(folder / f"{i}.parquet", row_group_size=300)
    return [
        "train", "data=table", f"data.path={folder}", f"data.schema={tmp_path / 'in.schema.yaml'}", "data.n=2000",
        "model=measured", "rows=50", "debug.private_seed=3", "data.memory_gib=0",
    ]  # fmt: skip


def _line(err):
    lines = [line for line in err.splitlines() if line.startswith("dpgen:") and "warning" not in line]
    assert len(lines) == 1 and "Traceback" not in err, err
    return lines[0]


def _release(folder):
    return (folder / "release" / "model.safetensors").read_bytes(), (folder / "release" / "privacy.json").read_text()


def _undisturbed(dpgen, words, folder, made=[]):  # noqa: B006 (made once for all tests: the noise is that of a seed)
    """Return what a run of these settings releases where nothing happens to it."""
    if not made:
        assert dpgen(*words, f"run_dir={folder}")[0] == 0
        made.append(_release(folder)[0])
    return made[0]


def _accesses(folder):
    return [line for line in (folder / "private" / "ledger.jsonl").read_text().splitlines() if '"id"' in line]


def test_the_release_is_the_one_of_records_in_memory(dpgen, words, tmp_path):
    assert dpgen(*words, f"run_dir={tmp_path / 'blocks'}")[0] == 0
    assert dpgen(*words[:-1], f"run_dir={tmp_path / 'memory'}")[0] == 0
    blocks, memory = _release(tmp_path / "blocks"), _release(tmp_path / "memory")
    assert blocks[0] == memory[0]
    assert "memory_gib" not in blocks[1] and not (tmp_path / "blocks" / "private" / "blocks").exists()
    assert json.loads(blocks[1])["declared"] == json.loads(memory[1])["declared"]


def test_a_label_is_drawn_as_of_records_in_memory(dpgen, words, tmp_path):
    """Its gradients are sums of whole numbers, and made at weights that depend on all sums before."""
    (tmp_path / "in.schema.yaml").write_text("label: city\n" + SCHEMA)
    found = []
    for i, limit in enumerate((0, 1)):
        folder = tmp_path / str(i)
        assert dpgen(*words, f"data.memory_gib={limit}", "model.label_share=0.3", f"run_dir={folder}")[0] == 0
        found.append(_release(folder)[0])
        # Two other columns are crossed without a choice.
        assert len(_accesses(folder)) == 6
    assert found[0] == found[1]


# Few trials on average: each is a whole measurement.
SELECTION = ["privacy.selection=logarithmic", "privacy.selection_mean=2", "privacy.selection_score=fidelity"]
FIGURES = {
    "tables of counts": [],
    "a network": ["model=vae", "split.k=1", "model.steps=3", "trainer.accelerator=cpu"],
    "a selection": ["model.components=2,3", *SELECTION],
}


@pytest.mark.parametrize("more", only(FIGURES, "a network"))
@pytest.mark.parametrize("person", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_figure_is_that_of_records_in_memory(dpgen, words, tmp_path, more, person):
    (tmp_path / "in.schema.yaml").write_text("label: city\n" + SCHEMA)
    if person:
        for file in (tmp_path / "in").iterdir():
            frame = pd.read_parquet(file)
            frame.assign(id=np.arange(len(frame)) // 3).to_parquet(file, row_group_size=300)
        more = [*more, "data.person=id", "data.max_rows=2", "data.n=300"]
    found = []
    for limit in (0, 1):
        folder = tmp_path / str(limit)
        more_of_it = ["privacy.fidelity_share=0.1", f"data.memory_gib={limit}", f"run_dir={folder}"]
        status, _, err = dpgen(*words, *more, *more_of_it)
        assert status == 0, err
        found.append((_release(folder)[0], (folder / "release" / "fidelity.json").read_text()))
    assert found[0] == found[1]


def test_a_kill_within_the_pass_of_the_figure_costs_nothing(dpgen, words, tmp_path, monkeypatch):
    words = [*words, "privacy.fidelity_share=0.1"]
    folder, reduce = tmp_path / "run", reducing.InBlocks.reduce

    def killed(self, function, of=""):
        if type(function).__name__ == "FigureSums":
            raise KeyboardInterrupt
        return reduce(self, function, of)

    with monkeypatch.context() as patch:
        patch.setattr(reducing.InBlocks, "reduce", killed)
        assert dpgen(*words, f"run_dir={folder}")[0] == 130
    before = len(_accesses(folder))
    assert dpgen(*words, f"run_dir={folder}")[0] == 0 and len(_accesses(folder)) == before + 1
    assert (folder / "release" / "fidelity.json").exists() and not (folder / "private" / "blocks").exists()


OPEN = {
    "bins": (SCHEMA.replace(", bins: 5", ""), ["data.bins_share=0.1", "data.bins=3"]),
    "bounds and categories": (
        SCHEMA.replace("low: 0, high: 99, bins: 5", "low: private, high: private").replace("[a, b, c]", "private"),
        ["data.discovery_share=0.2", "data.outside=clamp", "data.bins_share=0.1"],
    ),
}


def _with_persons(words):
    folder = next(word for word in words if word.startswith("data.path=")).removeprefix("data.path=")
    for i, file in enumerate(sorted(Path(folder).iterdir())):
        frame = pd.read_parquet(file)
        frame.assign(id=np.arange(len(frame)) * (i + 1) // 3).to_parquet(file, row_group_size=300)
    return [*words, "data.person=id", "data.max_rows=2"]


@pytest.mark.parametrize(("schema", "more"), OPEN.values(), ids=OPEN)
@pytest.mark.parametrize("person", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_finds_of_a_first_pass_are_those_of_records_in_memory(dpgen, words, tmp_path, schema, more, person):
    (tmp_path / "in.schema.yaml").write_text(schema)
    words = [*(_with_persons(words) if person else words), *more, "data.n=null", "data.n_share=0.05", "privacy.epsilon=4"]
    found = []
    for limit in (0, 1):
        folder = tmp_path / str(limit)
        status, _, err = dpgen(*words, f"data.memory_gib={limit}", f"run_dir={folder}")
        assert status == 0, err
        found.append((_release(folder)[0], json.loads(_release(folder)[1])["declared"]))
        assert not (folder / "private" / "blocks").exists()
    assert found[0] == found[1]


@pytest.mark.parametrize("person", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_kill_within_a_first_look_costs_nothing(dpgen, words, tmp_path, monkeypatch, person):
    schema, more = OPEN["bounds and categories"]
    (tmp_path / "in.schema.yaml").write_text(schema)
    words, made = [*(_with_persons(words) if person else words), *more, "privacy.epsilon=4"], []
    assert dpgen(*words, f"run_dir={tmp_path / 'whole'}")[0] == 0
    read = column_counts._read_block

    def killed(*of):
        made.append(of[-1])
        if len(made) == 2:
            raise KeyboardInterrupt
        return read(*of)

    monkeypatch.setattr(column_counts, "_read_block", killed)
    words = [*words, f"run_dir={tmp_path / 'run'}"]
    status, _, err = dpgen(*words)
    assert status == 130 and _line(err).endswith(f"run_dir={tmp_path / 'run'} goes on with them; nothing was spent")
    assert not (tmp_path / "run" / "private" / "ledger.jsonl").exists()
    # Records that were encoded for other settings have left their persons there.
    persons = tmp_path / "run" / "private" / "blocks" / "persons"
    persons.mkdir()
    (persons / "0").touch()
    assert dpgen(*words)[0] == 0 and len(set(made)) == len(made) - 1
    assert _release(tmp_path / "run")[0] == _release(tmp_path / "whole")[0]
    assert len(_accesses(tmp_path / "run")) == len(_accesses(tmp_path / "whole"))


@pytest.mark.parametrize("limit", only({"blocks": 0, "memory": 1}, "blocks"))
@pytest.mark.parametrize("values", [[], ["data.bins_share=0.1"]], ids=["bounds", "bounds and bins"])
def test_bounds_that_do_not_stand_out_are_told_so(dpgen, words, tmp_path, limit, values):
    schema, _ = OPEN["bounds and categories"]
    (tmp_path / "in.schema.yaml").write_text(schema.replace("values: private", "values: [a, b, c]"))
    more = ["data.discovery_share=1e-9", "data.outside=clamp", *values, f"data.memory_gib={limit}"]
    assert "data.n=2000" in words
    for n, said in (("2000", "age: no bounds can be found with data.n=2000"), ("1000000", "age: no bounds stand out from")):
        declared = [word if word != "data.n=2000" else f"data.n={n}" for word in words]
        status, _, err = dpgen(*declared, *more, f"run_dir={tmp_path / n}")
        assert status == 3 and said in _line(err)
        # A search that can find nothing is not paid for.
        assert (tmp_path / n).exists() == (n != "2000")


FAULTS = {
    "damaged": (lambda blocks: next(blocks.glob("*-numbers")).unlink(), "-numbers: was damaged meanwhile."),
    "a disk": (lambda blocks: _raise(OSError(5, "Input/output error", "numbers")), "numbers: Input/output error."),
    "memory": (lambda blocks: _raise(MemoryError()), "there was not enough memory."),
    "a file": (lambda blocks: _raise(pa.ArrowInvalid("Smith is private")), "a file of the first look cannot be read."),
}


def _raise(error):
    raise error


@pytest.mark.parametrize(("fault", "said"), FAULTS.values(), ids=FAULTS)
def test_numbers_that_are_damaged_within_a_first_pass_are_told_as_lost(dpgen, words, tmp_path, monkeypatch, fault, said):
    """They were whole when the access was opened, and it is not made twice."""
    schema, more = OPEN["bounds and categories"]
    (tmp_path / "in.schema.yaml").write_text(schema)
    find = column_counts.ColumnCounts.find_values

    def damaged(seen, *of):
        fault(tmp_path / "run" / "private" / "blocks")
        return find(seen, *of)

    words = [*words, *more, "privacy.epsilon=4", f"run_dir={tmp_path / 'run'}"]
    with monkeypatch.context() as patch:
        patch.setattr(column_counts.ColumnCounts, "find_values", damaged)
        status, _, err = dpgen(*words)
    assert status == 2 and said in _line(err) and "goes on" not in _line(err) and "Smith" not in err
    assert (
        _line(err).endswith("(what that has cost adds to the cost of the new run)")
        and len(_accesses(tmp_path / "run")) == 1
    )
    status, _, err = dpgen(*words)
    assert status == 2 and "was interrupted in its first pass" in _line(err)


def test_a_fault_in_a_file_costs_nothing_and_the_same_command_goes_on(dpgen, words, tmp_path):
    words = [*words, f"run_dir={tmp_path / 'run'}"]
    right = pd.read_parquet(tmp_path / "in" / "2.parquet")
    right.replace({"city": {"c": "Q"}}).to_parquet(tmp_path / "in" / "2.parquet")
    status, _, err = dpgen(*words)
    assert status == 2 and re.search(r"2.parquet, row group 0, .*'Q'.*goes on with them; nothing was spent$", _line(err))
    assert not (tmp_path / "run" / "private" / "ledger.jsonl").exists()
    assert len(list((tmp_path / "run" / "private" / "blocks").glob("*.json"))) == 4
    right.to_parquet(tmp_path / "in" / "2.parquet")
    assert dpgen(*words)[0] == 0


def test_a_full_disk_is_told_in_one_line(dpgen, words, tmp_path, monkeypatch):
    words = [*words, f"run_dir={tmp_path / 'run'}"]
    write = durable.write
    for name in ("*.npy", "sums.pt"):

        def full(path, content, name=name):
            if path.match(name):
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            write(path, content)

        with monkeypatch.context() as patch:
            patch.setattr(durable, "write", full)
            status, _, err = dpgen(*words)
        assert status == 2 and "No space left" in _line(err) and f"run_dir={tmp_path / 'run'}" in err
        assert not (tmp_path / "run" / "private" / "ledger.jsonl").exists() or not _accesses(tmp_path / "run")
    assert dpgen(*words)[0] == 0 and len(_accesses(tmp_path / "run")) == 1


def test_one_run_at_a_time_uses_the_blocks(dpgen, words, tmp_path, monkeypatch):
    blocks, held, sum_block = tmp_path / "run" / "private" / "blocks", [], reducing._sum_block
    words = [*words, f"run_dir={tmp_path / 'run'}"]

    def refused(*of):
        held.append(dpgen(*words))
        return sum_block(*of)

    monkeypatch.setattr(reducing, "_sum_block", refused)
    assert dpgen(*words)[0] == 0 and len(held) == 8
    for status, _, err in held:
        # Nothing is drawn before the sums are there, so it is the blocks that keep the other run away.
        assert status == 2 and "another run is reading its records into it; one at a time" in _line(err)
    assert len(_accesses(tmp_path / "run")) == 1 and not blocks.exists()


def test_a_run_that_began_in_between_keeps_its_blocks(dpgen, words, tmp_path, monkeypatch):
    """The second run has looked before the first one began, and comes to the blocks when it has drawn, or ended."""
    words, hold = [*words, f"run_dir={tmp_path / 'run'}"], EncodedBlockStore.hold

    def late(kept):
        monkeypatch.setattr(EncodedBlockStore, "hold", hold)
        assert dpgen(*words)[0] == 0
        hold(kept)

    monkeypatch.setattr(EncodedBlockStore, "hold", late)
    status, _, err = dpgen(*words)
    assert status == 2 and "another run has just taken it" in _line(err)
    assert not (tmp_path / "run" / "private" / "blocks").exists() and len(_accesses(tmp_path / "run")) == 1


@pytest.mark.parametrize("name", only(("*.npy", "*.json", "sums.pt"), "*.npy", "sums.pt"))
def test_damaged_blocks_change_no_release(dpgen, words, tmp_path, monkeypatch, name):
    whole = _undisturbed(dpgen, words, tmp_path / "whole")
    words = [*words, f"run_dir={tmp_path / 'run'}"]

    def stop(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(reducing._Total, "sums", stop)
        assert dpgen(*words)[0] == 2
    damaged = sorted((tmp_path / "run" / "private" / "blocks").glob(name))[-1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert dpgen(*words)[0] == 0
    assert _release(tmp_path / "run")[0] == whole and len(_accesses(tmp_path / "run")) == 1


@pytest.mark.parametrize("gib", only({"blocks": 0, "memory": 1}, "blocks"))
def test_a_disk_that_is_full_before_the_noise_costs_nothing(dpgen, words, tmp_path, monkeypatch, gib):
    words = [*words, f"data.memory_gib={gib}", f"run_dir={tmp_path / 'run'}"]

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(measuring.durable, "reserve", full)
        status, _, err = dpgen(*words)
    assert status == 2 and "No space left on device, so what is measured next" in _line(err)
    assert "nothing was spent, and the same command goes on" in err and not _accesses(tmp_path / "run")
    assert dpgen(*words)[0] == 0 and len(_accesses(tmp_path / "run")) == 1


def test_room_for_what_is_measured_is_taken_before_each_access(dpgen, words, tmp_path, monkeypatch):
    (tmp_path / "in.schema.yaml").write_text("label: city\n" + SCHEMA)
    run, spent, save, reserve = tmp_path / "run", [], measuring.durable.save, measuring.durable.reserve

    def reserved(path, value):
        reserve(path, value)
        spent.append(len(_accesses(run)))

    def saved(path, value):
        room = measuring.durable.partial_path(path).stat().st_size if path.name == "measured.pt" else None
        save(path, value)
        assert room is None or path.stat().st_size <= room

    monkeypatch.setattr(measuring.durable, "reserve", reserved)
    monkeypatch.setattr(measuring.durable, "save", saved)
    assert dpgen(*words, "model.label_share=0.3", f"run_dir={run}")[0] == 0
    assert len(spent) == 6 and spent[0] == 0


@pytest.mark.parametrize("lost", [False, True], ids=["released", "lost"])
def test_encoded_records_do_not_outlive_a_run_that_has_ended(dpgen, words, tmp_path, monkeypatch, lost):
    words, blocks = [*words, f"run_dir={tmp_path / 'run'}"], tmp_path / "run" / "private" / "blocks"

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*(measuring, "_save", killed) if lost else (running, "remove_blocks", killed))
        assert dpgen(*words)[0] == 130
    assert list(blocks.glob("*.npy"))
    monkeypatch.setattr(EncodedBlockStore, "fill", None)
    for _ in range(2):
        status, _, err = dpgen(*words)
        said = (3, "had been measured and were lost") if lost else (2, "holds a finished release already")
        assert status == said[0] and said[1] in _line(err) and not blocks.exists()


def test_a_run_that_has_measured_reads_no_record_again(dpgen, words, tmp_path, monkeypatch):
    whole = _undisturbed(dpgen, words, tmp_path / "whole")
    words = [*words, f"run_dir={tmp_path / 'run'}"]

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(running, "write_release", killed)
        assert dpgen(*words)[0] == 130
    next((tmp_path / "run" / "private" / "blocks").glob("*.npy")).unlink()
    monkeypatch.setattr(EncodedBlockStore, "fill", None)
    assert dpgen(*words)[0] == 0
    assert _release(tmp_path / "run")[0] == whole and len(_accesses(tmp_path / "run")) == 1
    assert not (tmp_path / "run" / "private" / "blocks").exists()


@pytest.mark.parametrize("used", only({"left": False, "in use": True}, "in use"))
def test_blocks_of_a_run_that_goes_on_in_memory_are_removed_before_it_reads(dpgen, words, tmp_path, monkeypatch, used):
    words, blocks = [*words, f"run_dir={tmp_path / 'run'}"], tmp_path / "run" / "private" / "blocks"

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reducing._Total, "sums", killed)
        assert dpgen(*words)[0] == 130
    assert list(blocks.glob("*.npy"))
    monkeypatch.setattr(measuring.Recipe, "measure_state", killed)
    with hold(blocks) if used else contextlib.nullcontext():
        assert dpgen(*words, "data.memory_gib=1")[0] == 130
    assert blocks.exists() == used


def test_a_number_that_is_bought_is_not_said_before(dpgen, words, tmp_path):
    words = [word for word in words if word != "data.n=2000"]
    status, out, err = dpgen(*words, "data.n=null", "data.n_share=0.1", f"run_dir={tmp_path / 'run'}")
    said = [line for line in (out + err).splitlines() if "take part" in line]
    assert status == 0 and len(said) == 1 and re.search(r"2,000 records take part; data.n=[12],\d{3}$", said[0])
    assert "far from the number" not in err


def test_a_person_that_is_no_column_is_told_first(dpgen, words, tmp_path):
    for path in (tmp_path / "in").iterdir():
        pd.read_parquet(path).assign(who=1).to_parquet(path)
    for gib in (0, 1):
        more = ["data.person=nobody", "data.max_rows=2", f"data.memory_gib={gib}", f"run_dir={tmp_path / 'run'}"]
        status, _, err = dpgen(*words, *more)
        assert status == 2 and "has no column data.person='nobody': expected one of" in _line(err) and "drop" not in err


KILLED = """
import os, signal, sys
from lightning_dpgen.passes import encoded_blocks, reduce
from lightning_dpgen.cli.main import main
reduce._UNKEPT, encoded_blocks._ROWS, calls = -1.0, 64, []
def dying(function, after):
    def call(*words):
        found = function(*words)
        calls.append(1)
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return call
where, after = sys.argv[1], int(sys.argv[2])
if where == "encoding":
    encoded_blocks.checksummed_file.write = dying(encoded_blocks.checksummed_file.write, after)
if where == "measuring":
    reduce._Total.save = dying(reduce._Total.save, after)
main(sys.argv[3:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("where", "after"), [("encoding", 7), ("measuring", 3)])
def test_a_kill_changes_no_sum_and_draws_no_noise_twice(dpgen, words, tmp_path, where, after):
    whole = _undisturbed(dpgen, words, tmp_path / "whole")
    words = [*words, f"run_dir={tmp_path / 'run'}"]
    killed = subprocess.run([sys.executable, "-c", KILLED, where, str(after), *words], capture_output=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-500:]
    assert list((tmp_path / "run" / "private" / "blocks").glob("*.npy"))
    # Noise is that of a seed, so equal releases have equal sums behind them.
    assert dpgen(*words)[0] == 0
    assert _release(tmp_path / "run")[0] == whole
    assert len(_accesses(tmp_path / "run")) == 1


def test_no_step_of_a_run_holds_all_bytes_of_the_files(dpgen, words, tmp_path, monkeypatch):
    """A fingerprint takes them as they come, so that a few pieces are in memory at a time."""
    held, most, pieces = weakref.WeakSet(), [], tables._pieces

    class Piece(np.ndarray):
        __hash__ = object.__hash__
        __eq__ = object.__eq__

    def watched(path):
        for piece in pieces(path):
            own = piece.view(Piece)
            held.add(own)
            most.append(len(held))
            yield own

    monkeypatch.setattr(tables, "_pieces", watched)
    monkeypatch.setattr(tables, "_BYTES_AT_ONCE", 512)
    assert dpgen(*words, f"run_dir={tmp_path / 'run'}")[0] == 0
    assert len(most) > 30 and max(most) <= 4
