"""A Parquet file holds the same records however they come, in few row groups."""

import pyarrow as pa
import pyarrow.parquet
import pytest

from lightning_dpgen.release.rows import tables


@pytest.mark.parametrize("sizes", [[], [0], [7], [3, 0, 4], [1] * 7, [2, 5]])
def test_records_are_the_same_in_whatever_chunks_they_come(sizes, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_ROW_GROUP", 3 * 8)
    schema = pa.schema([("a", pa.int64())])
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    chunks = [
        pa.RecordBatch.from_pydict({"a": list(range(end - size, end))}, schema)
        for size, end in zip(sizes, ends, strict=True)
    ]
    tables.write_table(tmp_path / "t.parquet", chunks, schema)
    file = pa.parquet.ParquetFile(tmp_path / "t.parquet")
    assert file.read()["a"].to_pylist() == list(range(sum(sizes)))
    groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert all(rows >= 3 for rows in groups[:-1]) and len(groups) <= max(1, len(sizes))
