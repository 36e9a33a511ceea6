"""Persons of a table that is read in blocks: the same records take part as when all are in memory."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from slices import Slices

from lightning_dpgen.data.persons import bounded
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.measure.gaussians import label_components
from lightning_dpgen.measure.tables import TableRecipe
from lightning_dpgen.measure.workload import StatisticSums
from lightning_dpgen.passes import encoded_blocks
from lightning_dpgen.passes.encoded_blocks import EncodedBlockStore
from lightning_dpgen.passes.reduce import reduce
from lightning_dpgen.passes.table_blocks import TableBlocks
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.data import TableSpec
from lightning_dpgen.specs.source import source_of

SCHEMA = parse_schema(
    "{label: sex, columns: {age: {type: integer, low: 0, high: 99, bins: 7}, sex: {type: category, values: [F, M]}, "
    "city: {type: category, values: [a, b, c]}}}"
)


def _frame(n=120):
    random = np.random.default_rng(0)
    who = random.integers(0, 30, n)
    who[::7] = 0
    cities = random.choice(list("abc"), n)
    return pd.DataFrame(
        {"age": random.integers(0, 100, n), "sex": random.choice(["F", "M"], n), "city": cities, "who": who}
    )


def _write(folder, frame, files=3, ending="parquet", seed=0):
    folder.mkdir(exist_ok=True)
    for i, part in enumerate(np.array_split(np.random.default_rng(seed).permutation(len(frame)), files)):
        own = frame.iloc[part].reset_index(drop=True)
        if ending == "parquet":
            pq.write_table(pa.Table.from_pandas(own, preserve_index=False), folder / f"{i}.parquet", row_group_size=13)
        else:
            own.to_csv(folder / f"{i}.csv", index=False)


def _kept(source, folder, max_rows=2):
    kept = EncodedBlockStore(TableBlocks(str(source), SCHEMA, values=True, person="who"), folder, max_rows)
    kept.fill()
    kept.close()
    return kept


def _by_person(parts):
    """Return for each person the records that take part."""
    found = {}
    for codes, persons in parts:
        for code, person in zip(map(tuple, codes.tolist()), persons.tolist(), strict=True):
            found.setdefault(person, []).append(code)
    return Counter(tuple(sorted(codes)) for codes in found.values())


def _parts(kept):
    return [(part.encoded.codes, part.persons) for part in map(kept.read, kept.keys)]


def _in_memory(max_rows=2):
    read = read_table(_frame(), SCHEMA, person="who")
    kept = bounded(read.encoded, read.persons, max_rows)
    return Records(SCHEMA, read.encoded[kept], read.persons[kept])


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("files", [1, 5])
def test_the_same_records_take_part_as_in_memory(tmp_path, monkeypatch, ending, files):
    monkeypatch.setattr(encoded_blocks, "_ROWS", 11)
    monkeypatch.setattr("lightning_dpgen.data.files.parquet._ROWS_AT_ONCE", 4)
    records = _in_memory()
    _write(tmp_path / "in", _frame(), files, ending, seed=files)
    kept = _kept(tmp_path / "in", tmp_path / "kept")
    parts = [kept.read(key) for key in kept.keys]
    assert len(kept) == len(records) == sum(map(len, parts)) and kept.counted == {
        encoded_blocks.MORE_ROWS: 120 - len(records)
    }
    assert all(len(part.values) == len(part) for part in parts)
    expected = _by_person([(records.encoded.codes, records.persons)])
    assert _by_person([(part.encoded.codes, part.persons) for part in parts]) == expected
    recipe = TableRecipe(SCHEMA, k=2, n=90)
    function = StatisticSums(recipe.tables, label_components)
    of_all = {name: table.of_all(records, label_components(records)) for name, table in recipe.tables.items()}
    for blocks in (kept, Slices(records, 7)):
        blocks.check_persons(2)
        found = reduce(blocks, function)
        assert all(torch.equal(found[name], of_all[name]) for name in of_all)
        with pytest.raises(BadRecords, match="max_rows=1"):
            blocks.check_persons(1)
    files = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    # Persons have numbers in the end, and no file holds what they are called.
    assert not list((tmp_path / "kept").rglob("block-*"))


def test_blocks_of_unknown_persons_are_refused_where_a_person_may_have_several(tmp_path):
    _write(tmp_path / "in", _frame().drop(columns="who"))
    kept = EncodedBlockStore(TableBlocks(str(tmp_path / "in"), SCHEMA), tmp_path / "kept")
    kept.fill()
    kept.check_persons(1)
    with pytest.raises(ValueError, match="up to max_rows=3 records, and these records name no persons"):
        kept.check_persons(3)


def test_other_files_or_another_bound_choose_anew(tmp_path):
    _write(tmp_path / "in", _frame())
    kept, folder = _kept(tmp_path / "in", tmp_path / "kept"), tmp_path / "kept"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")}
    again = _kept(tmp_path / "in", folder)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")} == before and len(again) == len(kept)
    (folder / "sums.pt").write_bytes(b"of other records")
    records = _in_memory(3)
    more = _kept(tmp_path / "in", folder, max_rows=3)
    assert len(more) == len(records) and not (folder / "sums.pt").exists()
    # Another file of the same table, with the rows in another order.
    _write(tmp_path / "in", _frame(), seed=1)
    other = _kept(tmp_path / "in", folder, max_rows=3)
    expected = _by_person([(records.encoded.codes, records.persons)])
    assert _by_person(_parts(other)) == expected


def test_persons_that_are_missing_name_file_and_column(tmp_path):
    _write(tmp_path / "in", _frame())
    _frame().drop(columns="who").to_parquet(tmp_path / "in" / "2.parquet", index=False)
    with pytest.raises(BadRecords, match=r"^[^\n]*2.parquet has other columns than [^\n]*0.parquet: no who[^\n]*$"):
        _kept(tmp_path / "in", tmp_path / "kept")
    bad = _frame()[80:].astype({"who": "Int64"}).reset_index(drop=True)
    bad.loc[5, "who"] = None
    pq.write_table(pa.Table.from_pandas(bad, preserve_index=False), tmp_path / "in" / "2.parquet")
    where = r"2.parquet, row group 0, row 5 \(from 0\): column 'who': a value is missing"
    with pytest.raises(BadRecords, match=rf"^[^\n]*{where}[^\n]*$"):
        _kept(tmp_path / "in", tmp_path / "kept")
    _write(tmp_path / "text", _frame(), ending="csv")
    _frame().assign(who="").to_csv(tmp_path / "text" / "1.csv", index=False)
    with pytest.raises(BadRecords, match=r"^[^\n]*1.csv, line 2: column 'who': a value is missing[^\n]*$"):
        _kept(tmp_path / "text", tmp_path / "kept")
    _write(tmp_path / "none", _frame().drop(columns="who"))
    with pytest.raises(BadRecords, match=r"0.parquet has no column person='who'"):
        _kept(tmp_path / "none", tmp_path / "kept")


def test_a_source_bounds_its_persons_over_all_blocks(tmp_path):
    """The settings data.person and data.max_rows reach the blocks, with a size above data.memory_gib=0."""
    _write(tmp_path / "in", _frame())
    given = {"path": str(tmp_path / "in"), "schema": str(tmp_path / "t.schema.yaml"), "person": "who", "max_rows": 2}
    (tmp_path / "t.schema.yaml").write_text(json.dumps(SCHEMA.as_json()))
    source = source_of(TableSpec(source="table", memory_gib=0.0, **given))
    blocks = source.blocks(SCHEMA, tmp_path / "kept")
    blocks.fill()
    assert source.in_blocks and len(blocks) == len(_in_memory()) == len(source.records(SCHEMA)[0])


def _damage(path, kind):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    other = next((other for other in sorted(path.parent.glob(f"*{path.suffix}")) if other != path), None)
    of = {"a bit": content, "cut": content[: len(content) // 2], "of another program": b"{}"}
    path.write_bytes((of | {"of another block": b"" if other is None else other.read_bytes()})[kind])


DAMAGES = ["a bit", "cut", "of another block", "of another program", "gone"]
DAMAGED = ["persons/persons-*", "persons/shuffle.json", "*.npy"]


# Each damage of one file, and one damage of each file, stand for all others.
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=() if name == DAMAGED[0] or kind == "cut" else pytest.mark.slow)
        for kind in DAMAGES
        for name in DAMAGED
    ],
)
def test_damage_changes_no_choice(tmp_path, name, kind):
    _write(tmp_path / "in", _frame())
    kept = _kept(tmp_path / "in", tmp_path / "kept")
    expected = _by_person(_parts(kept))
    damaged = sorted((tmp_path / "kept").glob(name))[-1]
    if kind == "gone":
        damaged.unlink()
    else:
        _damage(damaged, kind)
    if "shuffle" not in name:
        with pytest.raises(BadRecords, match="was damaged or removed while the run read it"):
            [kept.read(key) for key in kept.keys]
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept").glob("*.npy") if path != damaged}
    again = _kept(tmp_path / "in", tmp_path / "kept")
    assert _by_person(_parts(again)) == expected
    assert not list((tmp_path / "kept").rglob("block-*"))
    if name == "*.npy":
        # The choice of rows stands, so that no other block is encoded anew.
        after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept").glob("*.npy") if path != damaged}
        assert after == before


@pytest.mark.parametrize("damaged", ["persons/block-*", "persons/persons-*"])
def test_damage_in_an_interrupted_choice_changes_nothing(tmp_path, monkeypatch, damaged):
    _write(tmp_path / "in", _frame())
    write, written = encoded_blocks.PersonShuffle._write_result, []

    def interrupted(shuffle, *of, **results):
        written.append(of)
        if len(written) == 3:
            raise KeyboardInterrupt
        write(shuffle, *of, **results)

    with monkeypatch.context() as patch:
        patch.setattr(encoded_blocks.PersonShuffle, "_write_result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _kept(tmp_path / "in", tmp_path / "kept")
    assert not (tmp_path / "kept" / "persons" / "spill").exists()
    _damage(sorted((tmp_path / "kept").glob(damaged))[-1], "a bit")
    kept, records = _kept(tmp_path / "in", tmp_path / "kept"), _in_memory()
    expected = _by_person([(records.encoded.codes, records.persons)])
    assert _by_person(_parts(kept)) == expected
