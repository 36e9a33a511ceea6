"""Blocks are read and encoded once, into files of their owner, and a pass that stopped goes on with those there."""

import errno
import io
import os
import pickle
import shutil
from collections import Counter
from contextlib import closing

import filelock
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from slices import Slices

from lightning_dpgen.data.files import text as text_files
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.sources import table_files
from lightning_dpgen.measure.gaussians import label_components
from lightning_dpgen.measure.tables import TableRecipe
from lightning_dpgen.measure.workload import StatisticSums
from lightning_dpgen.passes import encoded_blocks
from lightning_dpgen.passes.encoded_blocks import EncodedBlockStore
from lightning_dpgen.passes.reduce import reduce
from lightning_dpgen.passes.table_blocks import TableBlocks
from lightning_dpgen.sampling.errors import BadRecords

SCHEMA = parse_schema(
    "columns: {age: {type: integer, low: 0, high: 99, bins: 7}, sex: {type: category, values: [F, M], missing: true}, "
    "city: {type: category, values: [a, b, c]}, pay: {type: number, low: 0, high: 9, bins: 3}, "
    "seen: {type: integer, low: 0, high: 9, encoding: scaled}}"
)
CHOICES = parse_schema(
    "{label: sex, columns: {age: {type: integer, low: 0, high: 99, bins: 7}, sex: {type: category, values: [F, M]}, "
    "city: {type: category, values: [a, b, c]}, pay: {type: number, low: 0, high: 9, bins: 3}, seen: {type: drop}}}"
)


def _frame(n=90):
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": random.integers(0, 100, n), "sex": random.choice(["F", "M"], n), "city": random.choice(list("abc"), n),
            "pay": random.uniform(0, 9, n), "seen": random.integers(0, 10, n),
        }
    )  # fmt: skip


def _write(folder, frame, files=3, ending="parquet"):
    folder.mkdir(exist_ok=True)
    for i, part in enumerate(np.array_split(np.arange(len(frame)), files)):
        own = frame.iloc[part]
        if ending == "parquet":
            pq.write_table(pa.Table.from_pandas(own), folder / f"{i}.parquet", row_group_size=13)
        else:
            own.to_csv(folder / f"{i}.csv", index=False)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("rows", [5, 1 << 18])
def test_blocks_hold_what_is_read_into_memory(tmp_path, monkeypatch, ending, rows):
    monkeypatch.setattr(encoded_blocks, "_ROWS", rows)
    monkeypatch.setattr("lightning_dpgen.data.files.parquet._ROWS_AT_ONCE", 4)
    _write(tmp_path / "in", _frame(), ending=ending)
    kept = EncodedBlockStore(TableBlocks(str(tmp_path / "in"), SCHEMA, values=True), tmp_path / "kept")
    kept.fill()
    read = read_table(tmp_path / "in", SCHEMA, values=True)
    parts = [kept.read(key) for key in kept.keys]
    assert len(kept) == len(read.encoded) == 90 and len(set(kept.keys)) == len(parts)
    assert all(part.encoded.codes.dtype == read.encoded.codes.dtype for part in parts)
    for name in ("codes", "units"):
        assert (np.concatenate([getattr(p.encoded, name) for p in parts]) == getattr(read.encoded, name)).all()
    assert np.array_equal(np.concatenate([p.values.numbers for p in parts]), read.values.numbers, equal_nan=True)
    assert (np.concatenate([p.values.codes for p in parts]) == read.values.codes).all()
    assert all(path.stat().st_mode & 0o077 == 0 for path in [tmp_path / "kept", *(tmp_path / "kept").iterdir()])
    # A copy in another process reads the same.
    other = pickle.loads(pickle.dumps(kept))
    assert (other.read(kept.keys[0]).encoded.codes == parts[0].encoded.codes).all()


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_one_large_file_of_text_is_many_blocks_with_the_same_rows(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(text_files, "_BYTES_OF_RANGE", 300)
    path, frame = tmp_path / f"in.{ending}", _frame()
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_json(path, orient="records", lines=True)
    cuts = tmp_path / "kept" / "cuts.json"
    with closing(EncodedBlockStore(TableBlocks(str(path), SCHEMA, cuts=cuts), tmp_path / "kept")) as kept:
        kept.fill()
        read = read_table(path, SCHEMA).encoded
        assert len(kept.keys) > 5 and len(kept) == 90
        assert (np.concatenate([kept.read(key).encoded.codes for key in kept.keys]) == read.codes).all()
    # The file is not searched again, by this process or another one; a wrong value is told with its line.
    source = TableBlocks(str(path), SCHEMA, cuts=cuts)
    with monkeypatch.context() as patch:
        patch.setattr(type(table_files(path, SCHEMA)[path.name]), "ranges", None)
        assert pickle.loads(pickle.dumps(source)).keys == source.keys
    assert cuts.stat().st_mode & 0o077 == 0
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:60], lines[60].replace(frame["city"][60 - (ending == "csv")], "Q"), *lines[61:]]))
    kept = EncodedBlockStore(TableBlocks(str(path), SCHEMA, cuts=cuts), tmp_path / "kept")
    with pytest.raises(BadRecords, match="line 61: column 'city': 'Q'"):
        kept.fill()


FAULTS = {
    "another value": "5,F,q,1,1", "a field more": "5,F,a,1,1,8", "fields too few": "5,F", "an open quote": '5,F,"a,1,1',
    "no UTF-8": "5,F,\udcff,1,1", "nothing": "5,F,,1,1", "out of bounds": "500,F,a,1,1", "a word": "x,F,a,1,1",
    "two lines": '5,F,"a\nb",1,1', "another line end": "5,F,a,1,1\r5,F,q,1,1",
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("end", "head"), [("\n", ""), ("\r\n", "\r\n\r\n")])
def test_a_fault_in_a_range_is_told_as_in_the_whole_file(tmp_path, monkeypatch, fault, end, head):
    """The line is that of the file, wherever the file is cut."""
    path, lines = tmp_path / "in.csv", _frame(60).to_csv(index=False).splitlines()
    for at in (2, 31, 60):
        text = end.join([*lines[:at], FAULTS[fault], *lines[at + 1 :], ""])
        path.write_bytes((head + text).encode(errors="surrogateescape"))
        with pytest.raises(BadRecords) as whole:
            read_table(path, SCHEMA)
        with monkeypatch.context() as patch:
            patch.setattr(text_files, "_BYTES_OF_RANGE", 200)
            with pytest.raises(BadRecords) as ranged:
                blocks = TableBlocks(str(path), SCHEMA)
                [list(blocks.encoded(key, Counter())) for key in blocks.keys]
        # The lines before it are in ranges of their own.
        line = at + 1 + len(head) // 2 + (fault == "another line end")
        assert str(ranged.value) == str(whole.value) and f"in.csv, line {line}" in str(whole.value)
    with monkeypatch.context() as patch:
        patch.setattr(text_files, "_BYTES_OF_RANGE", 200)
        path.write_bytes((head + end.join([*lines, ""])).encode())
        assert len(TableBlocks(str(path), SCHEMA).keys) > 3


def test_sums_over_blocks_are_those_in_memory(tmp_path):
    for files, name in ((1, "one"), (2, "two"), (8, "eight")):
        _write(tmp_path / name, _frame(), files=files)
    records = Records(CHOICES, read_table(_frame(), CHOICES).encoded)
    recipe = TableRecipe(CHOICES, k=2, n=90, by_label=True)
    function = StatisticSums(recipe.tables, label_components)
    expected = {name: table.of_all(records, label_components(records)) for name, table in recipe.tables.items()}
    assert {name: int(sums.sum()) for name, sums in expected.items()} == {"singles": 270, "pairs": 270}
    for name in ("one", "two", "eight"):
        kept = EncodedBlockStore(TableBlocks(str(tmp_path / name), CHOICES), tmp_path / f"kept-{name}")
        kept.fill()
        for blocks in (kept, Slices(records, 7)):
            found = reduce(blocks, function)
            assert all(torch.equal(found[name], expected[name]) for name in expected)


def _reads(source):
    """Count how often each block is read."""
    reads, encoded = Counter(), source.encoded

    def counted(key, changes):
        reads[key] += 1
        return encoded(key, changes)

    object.__setattr__(source, "encoded", counted)
    return reads


def test_a_block_that_cannot_be_read_loses_no_other(tmp_path):
    _write(tmp_path / "in", _frame())
    bad = _frame().iloc[30:60].reset_index(drop=True)
    bad.loc[20, "city"] = "x"
    pq.write_table(pa.Table.from_pandas(bad), tmp_path / "in" / "1.parquet", row_group_size=13)
    kept = EncodedBlockStore(TableBlocks(str(tmp_path / "in"), SCHEMA), tmp_path / "kept")
    with pytest.raises(BadRecords, match=r"in/1.parquet, row group 1, row 7 \(from 0\): column 'city': 'x'"):
        kept.fill()
    assert len(list((tmp_path / "kept").glob("*.json"))) == 4
    kept.close()
    # The same folder once it is right: blocks of other files are not read again, and the wrong file's are not kept.
    _write(tmp_path / "again", _frame())
    (tmp_path / "again" / "1.parquet").rename(tmp_path / "in" / "1.parquet")
    source = TableBlocks(str(tmp_path / "in"), SCHEMA)
    reads, kept = _reads(source), EncodedBlockStore(source, tmp_path / "kept")
    kept.fill()
    assert sorted(reads) == [key for key in source.keys if not key.startswith("0.")]
    assert len(kept) == 90 and len(list((tmp_path / "kept").glob("*.json"))) == len(source.keys)
    kept.close()
    with closing(EncodedBlockStore(source, tmp_path / "kept")) as again:
        again.fill()
    assert set(reads.values()) == {1}
    # So is a file whose size and time of writing are those of before.
    path = tmp_path / "in" / "1.parquet"
    before, name = path.stat(), next(key for key in source.keys if key.startswith("1."))
    identity, content = source.identity(name), path.read_bytes()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns and source.identity(name) != identity
    # Records that are read otherwise are others.
    other = EncodedBlockStore(TableBlocks(str(tmp_path / "in"), CHOICES), tmp_path / "kept")
    other.fill()
    assert other.read(other.keys[0]).encoded.codes.shape[1] == 4


def test_a_damaged_group_of_rows_is_named(tmp_path):
    _write(tmp_path / "in", _frame(40), files=1)
    path = tmp_path / "in" / "0.parquet"
    at = pq.read_metadata(path).row_group(2).column(0)
    content = bytearray(path.read_bytes())
    start = at.dictionary_page_offset or at.data_page_offset
    content[start : start + 20] = b"\xff" * 20
    path.write_bytes(content)
    kept = EncodedBlockStore(TableBlocks(str(path), SCHEMA), tmp_path / "kept")
    with pytest.raises(BadRecords, match=r"0.parquet cannot be read in row group 2 as Parquet") as told:
        kept.fill()
    assert len(str(told.value).splitlines()) == 1 and len(list((tmp_path / "kept").glob("*.json"))) == 2


def test_a_disk_that_is_full_keeps_what_is_there(tmp_path, monkeypatch):
    _write(tmp_path / "in", _frame())
    fsync, left = os.fsync, 9

    def full(file):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    kept = EncodedBlockStore(TableBlocks(str(tmp_path / "in"), SCHEMA), tmp_path / "kept")
    with pytest.raises(OSError, match="No space left"):
        kept.fill()
    assert list((tmp_path / "kept").glob("*.npy"))
    assert not list((tmp_path / "kept").glob("*.part"))
    monkeypatch.undo()
    kept.fill()
    assert len(kept) == 90


def test_files_of_other_columns_are_refused_before_any_is_read(tmp_path):
    _write(tmp_path / "in", _frame())
    _frame().rename(columns={"age": "years"}).to_parquet(tmp_path / "in" / "3.parquet")
    with pytest.raises(BadRecords, match=r"3.parquet has other columns than .*0.parquet: 'years' in place of 'age'"):
        TableBlocks(str(tmp_path / "in"), SCHEMA)


def test_one_process_at_a_time_uses_the_folder(tmp_path):
    _write(tmp_path / "in", _frame())
    first, second = (EncodedBlockStore(TableBlocks(str(tmp_path / "in"), SCHEMA), tmp_path / "kept") for _ in range(2))
    first.fill()
    files = {path: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    for step in (lambda: None, first.fill, lambda: pickle.loads(pickle.dumps(first)).close()):
        step()
        with pytest.raises(filelock.Timeout):
            second.fill()
    # The lock outlasts the folder.
    shutil.rmtree(tmp_path / "kept")
    with pytest.raises(filelock.Timeout):
        second.fill()
    first.close()
    second.fill()
    assert {path: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == files


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _out_of_range(path):
    """Write a code that no column has, in a file that is right in itself."""
    arrays = io.BytesIO(path.read_bytes())
    codes, rest = np.load(arrays), arrays.read()
    codes[0] = 200
    with open(path, "wb") as file:
        np.save(file, codes)
        file.write(rest)


def _of_another(path):
    """Put the file of another block in the place of this one."""
    other = next((other for other in sorted(path.parent.glob(f"*{path.suffix}")) if other != path), path)
    path.write_bytes(other.read_bytes() if other != path else b"of another program")


DAMAGES = {"a bit": _flip, "cut": _cut, "empty": lambda path: path.write_bytes(b""), "gone": lambda path: path.unlink()}
DAMAGES["of another"] = _of_another
FILES = [(name, kind) for name in ("*.npy", "*.json", "sums.pt") for kind in DAMAGES]


@pytest.mark.parametrize(("name", "kind"), [*FILES, ("*.npy", "a code")], ids=str)
def test_what_is_damaged_is_made_anew_and_no_sum_changes(tmp_path, name, kind):
    _write(tmp_path / "in", _frame())
    function, folder = StatisticSums(TableRecipe(CHOICES, k=2, n=90).tables, label_components), tmp_path / "kept"
    with closing(EncodedBlockStore(TableBlocks(str(tmp_path / "in"), CHOICES), folder)) as kept:
        kept.fill()
        expected = reduce(kept, function, keep=folder / "sums.pt")
        damaged = sorted(folder.glob(name))[-1]
        (DAMAGES | {"a code": _out_of_range})[kind](damaged)
        if name == "*.npy":
            # It is noticed in a pass, too.
            with pytest.raises(BadRecords, match=r"^[^\n]*npy: was damaged or removed while the run read it[^\n]*$"):
                reduce(kept, function)
    source = TableBlocks(str(tmp_path / "in"), CHOICES)
    reads = _reads(source)
    with closing(EncodedBlockStore(source, folder)) as kept:
        kept.fill()
        found = reduce(kept, function, keep=folder / "sums.pt")
    assert sum(reads.values()) == (0 if name == "sums.pt" else 1)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_sums_whose_content_was_changed_are_not_used(tmp_path):
    """The file of a bit that was changed in a number can still be read."""
    _write(tmp_path / "in", _frame())
    function, keep = StatisticSums(TableRecipe(CHOICES, k=2, n=90).tables, label_components), tmp_path / "sums.pt"
    with closing(EncodedBlockStore(TableBlocks(str(tmp_path / "in"), CHOICES), tmp_path / "kept")) as kept:
        kept.fill()
        expected = reduce(kept, function, keep=keep)
        content, number = keep.read_bytes(), expected["singles"].numpy().tobytes()[:16]
        assert content.count(number)
        keep.write_bytes(content.replace(number, bytes([number[0] ^ 1]) + number[1:]))
        found = reduce(kept, function, keep=keep)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
