"""Records in files are the store that the same records in memory are, row for row, and what is damaged is noticed."""

import pickle
from contextlib import closing

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_dpgen.data.persons import bounded
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.passes import encoded_blocks
from lightning_dpgen.passes.encoded_blocks import EncodedBlockStore
from lightning_dpgen.passes.kept_records import DamagedBlocks, is_whole, row_type, to_rows
from lightning_dpgen.passes.table_blocks import TableBlocks
from lightning_dpgen.sampling.contents import content

SCHEMAS = {
    "choices": "sex: {type: category, values: [F, M], missing: true}, city: {type: category, values: [a, b, c]}",
    "scaled": "pay: {type: number, low: 0, high: 9, encoding: scaled}",
    "both": "age: {type: integer, low: 0, high: 999, bins: 400}, pay: {type: number, low: 0, high: 9, encoding: scaled}, "
    "sex: {type: category, values: [F, M], missing: true}",
}


@pytest.fixture(params=SCHEMAS)
def schema(request):
    return parse_schema(f"columns: {{{SCHEMAS[request.param]}}}")


@pytest.fixture(params=[1, 2, None], ids=["one row", "two rows", "no persons"])
def most(request):
    return request.param


@pytest.fixture
def table(tmp_path, schema):
    random, n = np.random.default_rng(0), 150
    rows = {"age": random.integers(0, 1000, n), "sex": random.choice(["F", "M", None], n)}
    rows |= {"city": random.choice(list("abc"), n), "pay": random.random(n) * 9, "who": random.integers(0, 60, n)}
    frame = pd.DataFrame(rows)[[*(column.name for column in schema.columns), "who"]]
    (tmp_path / "in").mkdir()
    for i, part in enumerate(np.array_split(np.arange(n), 3)):
        frame.iloc[part].to_parquet(tmp_path / "in" / f"{i}.parquet", row_group_size=20)
    return tmp_path / "in"


@pytest.fixture
def pair(table, schema, most, monkeypatch):
    """Return the same records in memory and in files, of which each holds a few."""
    monkeypatch.setattr(encoded_blocks, "_ROWS", 16)
    # A column of persons that protects no one is another one than the schema's.
    if most is None:
        for path in table.iterdir():
            pd.read_parquet(path).drop(columns="who").to_parquet(path, row_group_size=20)
    who = None if most is None else "who"
    read = read_table(str(table), schema, person=who)
    memory = Records(schema, read.encoded, read.persons)
    if most is not None:
        kept = bounded(read.encoded, read.persons, most)
        memory = Records(schema, read.encoded[kept], read.persons[kept])
    blocks = EncodedBlockStore(TableBlocks(str(table), schema, person=who), table.parent / "kept", most or 1, by_rows=True)
    with closing(blocks):
        blocks.fill()
        yield memory, blocks


def test_lots_are_those_of_memory_bit_for_bit(pair):
    memory, blocks = pair
    kept, n = blocks.store(), len(pair[0])
    assert len(kept) == n and kept.steps == memory.steps and len(kept.parts) > 3 and kept.is_there()
    random = np.random.default_rng(0)
    for positions in (np.arange(n), np.arange(0), random.permutation(n), np.sort(random.choice(n, 20, False))):
        own = kept.take(positions)
        assert own.dtype == torch.float32 and torch.equal(own, memory.take(positions))
    for rows in (slice(0, 0), slice(0, n), slice(13, 40)):
        assert torch.equal(kept.stretch(rows), memory.stretch(rows))
    # Ranks compare it, and a person is drawn by the number.
    assert content(kept) == content(memory)
    assert (kept.persons is None) == (memory.persons is None) and np.array_equal(kept.persons, memory.persons)
    other = pickle.loads(pickle.dumps(kept))
    assert torch.equal(other.take(np.arange(5)), memory.take(np.arange(5)))
    assert all(path.stat().st_mode & 0o077 == 0 for part in kept.parts for path in (part.path, part.path.parent))
    # Passes read the same files.
    codes = np.concatenate([blocks.read(key).encoded.codes for key in blocks.keys])
    assert np.array_equal(codes, memory.encoded.codes)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-60])


def _swap(path):
    rows = np.load(path)
    rows[[0, -1]] = rows[[-1, 0]]
    np.save(path, rows)


def _of_another(path):
    """Put the file of another block in the place of this one, with as many rows."""
    other = next(other for other in path.parent.glob("*.npy") if other != path)
    path.write_bytes(other.read_bytes())


DAMAGES = {
    "cut": _cut, "empty": lambda path: path.write_bytes(b""), "gone": lambda path: path.unlink(), "swapped": _swap,
    "of another block": _of_another,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_noticed_in_a_lot_and_made_anew(tmp_path, damage):
    schema = parse_schema(f"columns: {{{SCHEMAS['both']}}}")
    random = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"age": random.integers(0, 1000, 40), "pay": random.random(40), "sex": random.choice(["F", "M"], 40)}
    )
    frame.to_parquet(tmp_path / "in.parquet", row_group_size=20)
    for _ in range(2):
        with closing(
            EncodedBlockStore(TableBlocks(str(tmp_path / "in.parquet"), schema), tmp_path / "kept", by_rows=True)
        ) as blocks:
            blocks.fill()
            kept, everything = blocks.store(), np.arange(40)
            rows = kept.take(everything)
        assert torch.equal(rows, Records(schema, read_table(frame, schema).encoded).take(everything))
        path = kept.parts[1].path
        DAMAGES[damage](path)
        assert torch.equal(kept.take(np.arange(20)), rows[:20])
        with pytest.raises(DamagedBlocks, match=r"^[^\n]*npy: was damaged or removed while the run read it[^\n]*$"):
            kept.take(everything)


def test_every_bit_of_a_row_is_checked():
    schema = parse_schema(f"columns: {{{SCHEMAS['both']}}}")
    frame = pd.DataFrame({"age": [7, 8, 7], "pay": [0.0, 1.5, 0.0], "sex": ["F", None, "F"]})
    rows = to_rows(read_table(frame, schema).encoded, "a.npy")
    places = np.arange(3)
    assert is_whole(rows, places, "a.npy") and row_type(read_table(frame, schema).encoded) == rows.dtype
    for bit in range(8 * rows.nbytes):
        changed = bytearray(rows.tobytes())
        changed[bit // 8] ^= 1 << bit % 8
        assert not is_whole(np.frombuffer(changed, rows.dtype), places, "a.npy")
    # Equal records of two places, or of two files, are two rows.
    assert not is_whole(rows[[2, 1, 0]], places, "a.npy") and not is_whole(rows, places, "b.npy")


def test_blocks_of_columns_are_no_store(tmp_path):
    pd.DataFrame({"sex": ["F"], "city": ["a"]}).to_parquet(tmp_path / "in.parquet")
    schema = parse_schema(f"columns: {{{SCHEMAS['choices']}}}")
    source = TableBlocks(str(tmp_path / "in.parquet"), schema)
    for by_rows in (False, True):
        with closing(EncodedBlockStore(source, tmp_path / "kept", by_rows=by_rows)) as blocks:
            blocks.fill()
            if not by_rows:
                with pytest.raises(ValueError, match="by_rows=False: expected True for a store"):
                    blocks.store()
            else:
                # Those of another form are not taken for these.
                assert len(blocks.store()) == 1 and len(list((tmp_path / "kept").glob("*.npy"))) == 1
