"""A folder of files is one table: of Parquet or text, in folders by the values of columns or not."""

import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.sampling.errors import BadRecords

SCHEMA = parse_schema(
    "columns: {age: {type: integer, low: 0, high: 9, bins: 10}, "
    "code: {type: category, values: ['01', '02'], missing: true}, sex: {type: category, values: [F, M]}}"
)
FRAME = pd.DataFrame({"age": [0, 1, 2, 3, 4, 5], "code": ["01", "02", None] * 2, "sex": list("FMFMMF")})


def _sorted(source):
    return sorted(map(tuple, read_table(source, SCHEMA).encoded.codes.tolist()))


def test_folders_named_by_values_are_columns(tmp_path):
    table = pa.Table.from_pandas(FRAME)
    kinds = pa.schema([("code", pa.string()), ("sex", pa.string())])
    pa.dataset.write_dataset(table, tmp_path, format="parquet", partitioning=pa.dataset.partitioning(kinds, flavor="hive"))
    assert (tmp_path / "code=01" / "sex=F").is_dir()
    assert _sorted(tmp_path) == _sorted(FRAME)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv"])
def test_files_of_text_are_one_table(tmp_path, ending):
    for i in range(3):
        FRAME[2 * i : 2 * i + 2].to_csv(tmp_path / f"{i}.{ending}", index=False, sep="\t" if ending == "tsv" else ",")
    (tmp_path / "_SUCCESS").touch()
    assert _sorted(tmp_path) == _sorted(FRAME)


def test_faults_name_the_file(tmp_path):
    with pytest.raises(MissingData, match=r"without .parquet files: .* or of files that end in .csv"):
        read_table(tmp_path, SCHEMA)
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    FRAME.rename(columns={"sex": "gender"}).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(BadRecords, match=r"b.csv has other columns than .*a.csv: 'gender' in place of 'sex'"):
        read_table(tmp_path, SCHEMA)
    FRAME.drop(columns="sex").to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(BadRecords, match=r"b.csv has other columns than .*a.csv: no sex; write"):
        read_table(tmp_path, SCHEMA)
    FRAME.assign(sex="X").to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(BadRecords, match=r"b.csv, line 2: column 'sex': 'X': expected one of"):
        read_table(tmp_path, SCHEMA)
    (tmp_path / "b.csv").unlink()
    (tmp_path / "sex=F").mkdir()
    FRAME.to_csv(tmp_path / "sex=F" / "b.csv", index=False)
    with pytest.raises(BadRecords, match=r"b.csv: two columns are named 'sex'"):
        read_table(tmp_path, SCHEMA)
    pq.write_table(pa.Table.from_pandas(FRAME), tmp_path / "c.parquet")
    with pytest.raises(BadRecords, match=r"'a.csv' lies beside the .parquet files"):
        read_table(tmp_path, SCHEMA)
