"""A folder of synthetic records has the same bytes for any number of processes, in any order, and after an interrupt."""

import errno
import itertools
import json
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.models.forests import StackedProducts
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.drawing import draws
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.rows import folder_of_rows
from lightning_dpgen.release.rows.folder_of_rows import DrawSpec, OtherContent, RowsFolder

TABLE = parse_schema("""
constraints: [a <= b]
columns:
  a: {type: integer, low: 0, high: 99, bins: 5}
  b: {type: integer, low: 0, high: 99, bins: 5}
  sex: {type: category, values: [F, M]}
  key: {type: fake, fake: row_number}
""")
SCHEMAS = {
    "table": TABLE,
    "series": SeriesSchema(3, low=0.0, high=1.0, classes=("x", "y")),
    "pictures": ImageSchema(2, 2, levels=3),
}


def released(folder, schema, seed=0):
    folder.mkdir()
    network = StackedProducts(schema, 2)
    network.means.copy_(torch.rand(network.means.shape, generator=torch.Generator().manual_seed(seed)))
    for span in schema.layout.spans:
        network.means[:, span] /= network.means[:, span].sum(dim=1, keepdim=True)
    write_model(folder, Mixture(network, torch.tensor([0.3, 0.7])), private=False)
    return folder


@pytest.fixture
def small(monkeypatch):
    """Make blocks of 5 rows and files of 10."""
    monkeypatch.setattr(draws, "LARGEST_BLOCK", 5)
    monkeypatch.setattr(folder_of_rows, "ROWS_OF_A_FILE", 10)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("n", [0, 3, 34])
def test_rows_are_those_of_one_file_in_any_order(tmp_path, small, name, n):
    model = released(tmp_path / "model", SCHEMAS[name])
    rows = RowsFolder(tmp_path / "one", DrawSpec(model, n, 7))
    assert rows.write() == (min(n, 10), 0)
    whole = load_release(model).table(n, 7)
    files = sorted((tmp_path / "one").iterdir())
    tables = [pq.read_table(file) for file in files]
    assert [table.num_rows for table in tables] == [min(10, n - start) for start in range(0, max(n, 1), 10)]
    assert pa.concat_tables(tables).equals(whole)
    # Each file carries the mark of a release that is not private.
    assert all(pq.read_schema(file).metadata[b"private"] == b"false" for file in files)
    # Some files, and then the others.
    again = RowsFolder(tmp_path / "other", rows.draw)
    (tmp_path / "other").mkdir()
    for file in files[1:]:
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    assert again.write() == (min(n, 10), len(files) - 1)
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


@pytest.mark.parametrize("where", [(), ("sex=F", "a>=20")], ids=["all", "some"])
def test_any_blocks_are_the_same_without_the_others(tmp_path, small, where):
    release = load_release(released(tmp_path / "model", TABLE))
    whole = pa.Table.from_batches(release.sample_blocks(13, 2, list(where)))
    assert whole["key"].to_pylist() == list(range(1, 14))
    rows = whole.to_pylist()
    assert all(row["a"] <= row["b"] for row in rows) and (not where or {row["sex"] for row in rows} == {"F"})
    for start, stop in ((5, 10), (10, 13), (5, 5)):
        part = pa.Table.from_batches(release.sample_blocks(13, 2, list(where), range(start, stop)), release.schema.arrow)
        assert part.equals(whole.slice(start, stop - start))
    # Blocks have randomness of their own.
    assert str(whole.slice(0, 5).drop_columns("key").to_pylist()) != str(whole.slice(5, 5).drop_columns("key").to_pylist())
    for wrong in (range(1, 5), range(5, 3), range(0, 7), range(0, 40), range(-5, 5)):
        with pytest.raises(ValueError, match="expected whole blocks of 5 among 13 records"):
            next(release.sample_blocks(13, 2, None, wrong))


def test_seeds_and_blocks_have_streams_of_their_own():
    """False alarm below 1 in 10^12: 64 bits of each of 400 streams, seeds that 32 bits hold alike among them."""
    drawn = set()
    for seed, block in itertools.product((0, 1, 2**32, 2**63 - 1), range(100)):
        generator, random = draws.block_streams(seed, block)
        drawn |= {int(torch.randint(2**62, (1,), generator=generator)), int(random.integers(2**62))}
    assert len(drawn) == 800


def in_threads(workers, _, begin, arguments):
    """Return an executor with which no process is started."""
    return ThreadPoolExecutor(workers, initializer=begin, initargs=arguments)


def test_workers_write_the_same_files(tmp_path, small, monkeypatch):
    rows = RowsFolder(tmp_path / "one", DrawSpec(released(tmp_path / "model", TABLE), 34, 3))
    rows.write()
    monkeypatch.setattr(folder_of_rows, "ProcessPoolExecutor", in_threads)
    assert RowsFolder(tmp_path / "other", rows.draw).write(3) == (10, 0)
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


@pytest.mark.slow
def test_processes_write_the_same_files(tmp_path):
    """Spawned processes know no patch: they write one file of blocks of the usual size, here under two names."""
    rows = RowsFolder(tmp_path / "rows", DrawSpec(released(tmp_path / "model", TABLE), 999, 3))
    rows.write()
    assert list(rows._made([(0, f"{number}.parquet") for number in range(2)], 2)) == [None, None]
    assert len(contents(rows.folder)) == 3 and len(set(contents(rows.folder).values())) == 1


def test_the_same_command_goes_on(dpgen, tmp_path, small, monkeypatch):
    model, out = released(tmp_path / "model", TABLE), f"{tmp_path}/out/"
    words = ["sample", model, "-n", 34, "-o", out]
    writer = folder_of_rows.write_table
    written = []

    def full(path, chunks, schema, **more):
        writer(path, chunks, schema, **more)
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_of_rows, "write_table", full)
    status, _, err = dpgen(*words)
    assert (status, len(err.splitlines())) == (2, 1), err
    assert "(No space left on device); files that are finished stay, and the same command goes on" in err
    kept = contents(tmp_path / "out")
    assert len(kept) == 2
    # A killed process leaves a part under another name.
    (tmp_path / "out" / f".{min(kept)}.01234567.part.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(folder_of_rows, "write_table", writer)
    status, said, err = dpgen(*words)
    assert status == 0 and "34 synthetic records" in said and "2 of the files were there" in said, err
    found = contents(tmp_path / "out")
    assert len(found) == 4 and kept.items() <= found.items()
    # The seed that was drawn stands in the names.
    seed = int(min(found).split("-")[5])
    assert dpgen(*words[:-1], f"{tmp_path}/again/", "--seed", seed)[0] == 0
    assert contents(tmp_path / "again") == found
    assert read_table(tmp_path / "out", TABLE).encoded.codes.shape == (34, 3)
    for other in (["--seed", seed + 1], ["-n", 35], ["--where", "sex=F"], ["--component", 1], ["--format", "csv"]):
        status, _, err = dpgen(*words, *other)
        assert status == 2 and "holds files of another draw" in err and len(err.splitlines()) == 1, err
    status, _, err = dpgen("sample", released(tmp_path / "other", TABLE, 1), *words[2:])
    assert status == 2 and "holds files of another draw" in err
    assert contents(tmp_path / "out") == found


def test_a_file_that_is_not_whole_is_written_again(dpgen, tmp_path, small):
    words = ["sample", released(tmp_path / "model", TABLE), "-n", 34, "-o", f"{tmp_path}/out/"]
    assert dpgen(*words)[0] == 0
    whole = contents(tmp_path / "out")
    first, second, third, _ = (tmp_path / "out" / name for name in whole)
    first.write_bytes(first.read_bytes()[:-100])
    second.write_bytes(b"")
    pq.write_table(pq.read_table(third)[:9], third)
    status, said, err = dpgen(*words)
    assert status == 0 and "1 of the files were there" in said, err
    assert contents(tmp_path / "out") == whole


def test_text_and_long_series_go_to_folders_too(dpgen, tmp_path, small):
    table, series = released(tmp_path / "t", TABLE), released(tmp_path / "s", SCHEMAS["series"])
    assert dpgen("sample", table, "-n", 23, "--seed", 1, "-o", f"{tmp_path}/csv/", "--format", "csv")[0] == 0
    assert dpgen("sample", table, "-n", 23, "--seed", 1, "-o", tmp_path / "whole.csv")[0] == 0
    lines = [path.read_text().splitlines() for path in sorted((tmp_path / "csv").iterdir())]
    assert [lines[0][0], *itertools.chain(*(own[1:] for own in lines))] == (tmp_path / "whole.csv").read_text().splitlines()
    words = ["-n", 23, "--seed", 1, "--form", "long", "-o"]
    assert dpgen("sample", series, *words, f"{tmp_path}/long/")[0] == 0
    assert dpgen("sample", series, *words, tmp_path / "long.parquet")[0] == 0
    parts = [pq.read_table(path) for path in sorted((tmp_path / "long").iterdir())]
    assert pa.concat_tables(parts).equals(pq.read_table(tmp_path / "long.parquet"))
    assert np.unique(parts[2]["series"].to_numpy()).tolist() == [21, 22, 23]


@pytest.mark.slow
def test_a_lost_process_is_told(tmp_path, monkeypatch):
    rows = RowsFolder(tmp_path / "rows", DrawSpec(released(tmp_path / "model", TABLE), 10, 1))
    monkeypatch.setattr(folder_of_rows, "_write_file", signal.raise_signal)
    # A function of another module is what spawned processes find by its name.
    with pytest.raises(folder_of_rows.LostProcess, match="use fewer --processes"):
        list(rows._made([(signal.SIGKILL,)] * 2, 2))


@pytest.mark.parametrize("name", ["mine.parquet", "part-000001-of-000001-seed-x-0.parquet", ".hidden"])
def test_files_of_others_are_left_alone(tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text(json.dumps(name))
    with pytest.raises(OtherContent, match="expected a new folder, or one that the same command has begun"):
        RowsFolder(tmp_path / "out", DrawSpec(released(tmp_path / "model", TABLE), 3)).write()
    assert contents(tmp_path / "out") == {name: json.dumps(name).encode()}
