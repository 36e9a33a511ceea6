"""Tables of a database by URL and query: one record a row, no password in any file, and other records are noticed."""

import contextlib
import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st

from lightning_dpgen.api import fit
from lightning_dpgen.common.passwords import check_url, without_passwords
from lightning_dpgen.data.files.database import DatabaseQuery, Name, Unreadable, one_table
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.sampling.errors import BadRecords

SCHEMA = """
columns:
  age: {type: integer, low: 0, high: 99, bins: 10}
  sex: {type: category, values: [F, M]}
"""
SECRET = "s3/cr@t"
QUICK = ["model=measured", "split.k=1", "rows=40", "data.bins_share=0", "data.n=300", "privacy.epsilon=2"]
INDEPENDENT = "data.rows_independent=true"


@pytest.fixture
def database(tmp_path):
    """Return the URL of a file of SQLite with a table of 300 records and a view."""
    random = np.random.default_rng(0)
    with sqlite3.connect(tmp_path / "clinic.db") as connection:
        connection.execute("CREATE TABLE visits (age INTEGER, sex TEXT, ward INTEGER)")
        rows = zip(
            random.integers(18, 90, 300).tolist(), random.choice(["F", "M"], 300).tolist(), [1, 2] * 150, strict=True
        )
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows)
        connection.execute("CREATE VIEW adults AS SELECT sex, max(age) AS age FROM visits GROUP BY sex")
    connection.close()
    (tmp_path / "s.yaml").write_text(SCHEMA)
    return f"sqlite:///{tmp_path / 'clinic.db'}"


def train(dpgen, url, query, folder, *words):
    schema = f"data.schema={folder.parent / 's.yaml'}"
    return dpgen(
        "train", "data=table", f"data.url={url}", f"data.query={query}", schema, f"run_dir={folder}", *QUICK, *words
    )


def test_a_query_is_checked_against_its_schema(dpgen, database, tmp_path):
    words = [database, str(tmp_path / "s.yaml"), "data.query=select age, sex from visits"]
    status, out, err = dpgen("check", *words)
    assert (status, "300 records" in out) == (0, True), err
    (tmp_path / "s.yaml").write_text(SCHEMA.replace("[F, M]", "[F]"))
    status, out, _ = dpgen("check", *words)
    assert status == 2 and "sex" in out


def test_a_query_that_may_join_records_needs_the_curators_word(dpgen, database, tmp_path):
    query = "select age, sex from visits where ward >= 1 and sex in ('F', 'M') order by age limit 290"
    status, _, err = train(dpgen, database, query, tmp_path / "run")
    assert status == 2 and "has LIMIT or TOP (a row may depend on several records)" in err
    assert "declare data.rows_independent=true" in err and not (tmp_path / "run").exists()
    status, _, err = train(dpgen, database, query, tmp_path / "run", INDEPENDENT)
    assert status == 0, err
    certificate = (tmp_path / "run/release/privacy.json").read_text()
    assert '"rows_independent": true' in certificate and dpgen("verify", tmp_path / "run")[0] == 0
    assert "it is declared that one record more or less changes no row but its own" in certificate
    # Neither where records are nor what was asked of them is published.
    for path in (tmp_path / "run/release").rglob("*"):
        assert b"clinic.db" not in path.read_bytes() and b"ward" not in path.read_bytes(), path
    pd.DataFrame({"age": [30, 40] * 50, "sex": ["F", "M"] * 50}).to_csv(tmp_path / "held.csv", index=False)
    pd.DataFrame({"age": [30, 40] * 50, "sex": ["F", "M"] * 50}).to_parquet(tmp_path / "held.parquet")
    words = ["data=table", f"data.url={database}", f"data.query={query}", INDEPENDENT, "--seconds", "0.001", "--held-out"]
    others = "select age, sex from visits where ward = 2"
    for held_out in (tmp_path / "held.csv", tmp_path / "held.parquet", others):
        status, out, err = dpgen("evaluate", tmp_path / "run", *words, held_out)
        assert status == 0 and "columns:" in out, err
    refused = {database: "is a URL: expected a query of data.url (select ...), or a file", query: "is the data.query",
               f"{tmp_path}/hold.csv": f"there is no such file; did you mean {tmp_path}/held.csv?"}  # fmt: skip
    for held_out, said in refused.items():
        status, out, err = dpgen("evaluate", tmp_path / "run", *words, held_out)
        assert status == 2 and said in err and err.startswith("dpgen: --held-out ") and len(err.splitlines()) == 1, err


def test_other_records_are_noticed_and_another_order_is_none(dpgen, database, tmp_path, interrupted_when_kept):
    """A run of the program goes on by `fit`."""
    query = "select age, sex from visits"
    with interrupted_when_kept(1):
        assert train(dpgen, database, query, tmp_path / "run")[0] == 130
    with sqlite3.connect(tmp_path / "clinic.db") as connection:
        connection.execute("CREATE TABLE other AS SELECT * FROM visits ORDER BY age")
        connection.execute("UPDATE other SET age = age + 1 WHERE rowid = 7")
    connection.close()
    status, _, err = train(dpgen, database, "select age, sex from other", tmp_path / "run")
    assert status == 2 and "holds an unfinished run on other records" in err
    given = {"epsilon": 2.0, "n": 300, "progress": False, "run_dir": tmp_path / "run"}
    given["overrides"] = [word for word in QUICK if not word.startswith(("data.n=", "privacy.epsilon="))]
    with pytest.raises(BadRecords, match=r"DISTINCT .* or declare rows_independent=[Tt]rue"):
        fit(DatabaseQuery(database, "select distinct age, sex from visits"), tmp_path / "s.yaml", **given)
    fitted = fit(DatabaseQuery(database, f"{query} order by age desc"), tmp_path / "s.yaml", **given)
    assert fitted.certificate["epsilon"] <= 2.0


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select age, sex from adults", "'adults' is a view, so a row may depend on several records"),
        ("select age, sex from wards", "has no table 'wards': it has visits"),
        ("select age, gender from visits", "no such column:"),
        ("select age, sex, ward from visits", "has ward, not in the schema"),
        ("select sex as age, sex from visits", "row 0 (from 0): column 'age': 'F': expected a whole number"),
        ("delete from visits", "has DELETE"),
        ("select age, sex from visits; drop table visits", "has several statements (2): give one"),
        ("selec age from visits", "expected select COLUMNS from TABLE where CONDITION"),
        ("select age, myfun(sex) as sex from visits", "has the function 'myfun'"),
    ],
)
def test_queries_that_cannot_be_read(dpgen, database, tmp_path, query, words):
    before = (tmp_path / "clinic.db").read_bytes()
    for more in ([], [INDEPENDENT]) if words.startswith(("no such", "has several", "has DELETE")) else ([],):
        status, _, err = train(dpgen, database, query, tmp_path / "run", *more)
        assert status == 2 and words in err and len(err.splitlines()) == 1, err
    assert (tmp_path / "clinic.db").read_bytes() == before and not (tmp_path / "run").exists()


REFUSED = [
    f"postgresql://ann:{SECRET}@host/db", f"postgresql://host/db?user=ann&password={SECRET}", f"mysql://ann:{SECRET}@[::1/db",
    f"mssql+pyodbc://?odbc_connect=DRIVER%3Dx%3BPWD%3D{SECRET}", f"snowflake://ann@x/db?token={SECRET}",
    f"postgresql://a@b:{SECRET}@host/db", f"postgresql://ann:?#{SECRET}@host/db", f"postgresql://:{SECRET}@host/db",
]  # fmt: skip


@pytest.mark.parametrize("url", REFUSED)
def test_a_password_is_refused_and_not_repeated(url):
    with pytest.raises(ValueError, match="expected") as told:
        check_url(url)
    assert SECRET not in str(told.value) + without_passwords(f"data.url={url}: {told.value}")
    with pytest.raises(ValueError, match="expected"):
        DatabaseQuery(url, "select age from visits")


def test_a_password_is_neither_kept_nor_repeated(dpgen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCHEMA)
    url = REFUSED[0]
    said = [
        train(dpgen, url, "select age, sex from visits", tmp_path / "run"),
        train(dpgen, f"'{url}'", "select age, sex from visits", tmp_path / "run", "split.k=1,2", "-m"),
        dpgen("schema", url, "--query", "select age from visits"),
        dpgen("train", "data=table", f'data.url={url} "', "data.query=x"),
    ]
    for status, out, err in said:
        assert status == 2 and SECRET not in out + err, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.yaml"]


def test_addresses_without_a_password_pass():
    for url in (
        "postgresql://ann@host:5432/db?sslmode=require",
        "sqlite:////a/b.db",
        "postgresql:///db?host=/run&passfile=x",
    ):
        check_url(url)
        assert sqlalchemy.make_url(url).password is None
        assert without_passwords(f"{url}, a@b: c") == f"{url}, a@b: c"


@given(st.text("ab:/?#@[]%& .5", max_size=14))
def test_sqlalchemy_finds_no_password_in_what_passes(rest):
    """An independent oracle: the parser by which a URL is used."""
    url = f"postgresql://{rest}"
    try:
        check_url(url)
    except ValueError:
        return
    with contextlib.suppress(sqlalchemy.exc.ArgumentError, ValueError):
        assert sqlalchemy.make_url(url).password is None


MISTAKES = {
    "no query": (["data.url=sqlite:///x.db"], "data.query: must be given"),
    "no url": (["data.query=select 1"], "data.url: must be given"),
    "both": (["data.url=sqlite:///x.db", "data.query=select a from b", "data.path=a.csv"], "expected one of them"),
    "nothing declared": ([INDEPENDENT, "data.path=a.csv"], "leave it out where there is none"),
    "a URL as a path": ([f'data.path="postgresql://a:{SECRET}@h/d"'], "a:***@h/d: names a database: expected a file"),
    "neither": ([], "data.path: must be given, the file of the records"),
    "no file": (["data.url=sqlite:///x.db", "data.query=select age, sex from b"], "no file x.db"),
    "no URL": (["data.url=visits", "data.query=select age, sex from b"], "expected the URL of a database"),
    "no driver": (["data.url=nodb://h/d", "data.query=select age, sex from b"], "no driver of this kind"),
    "a system misspelled": (["data.url=mysqql://h/d", "data.query=select age from b"], "did you mean mysql?"),
    "another package": (["data.url=snowflake://h/d", "data.query=select age from b"], "pip install snowflake-sqlalchemy"),
    "a keyword misspelled": (["data.url=sqlite:///x.db", "data.query=selct age from b"], "is no SQL: 'from' cannot stand"),
    "no keyword": (["data.url=sqlite:///x.db", "data.query=age"], "does not begin with SELECT; expected select COLUMNS"),
    "driver missing": (["data.url=oracle://h/d", "data.query=select age, sex from b"], "is not installed: pip install"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(dpgen, tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCHEMA)
    status, _, err = dpgen("train", "data=table", "data.schema=s.yaml", "run_dir=run", *QUICK, *words)
    assert status == 2 and expected in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "x.db").exists() and not (tmp_path / "run").exists()


def test_a_query_is_drafted(dpgen, database, tmp_path):
    query = 'select age, sex as "sex, or so" from visits'
    status, out, err = dpgen("schema", database, "--query", query, "-o", tmp_path / "d.yaml")
    draft = (tmp_path / "d.yaml").read_text()
    assert (
        status == 0 and "age:\n    # decide: " in draft and "    type: integer" in draft and '"' + "sex, or so" not in err
    ), err
    assert f"'data.query={query}'" in out and f"data.url={database}" in out
    status, _, err = dpgen("schema", database, "--query", "select max(age) as age from visits", "-o", tmp_path / "e.yaml")
    assert status == 2 and "declare --rows-independent" in err
    assert dpgen("schema", database, "-o", tmp_path / "e.yaml")[0] == 2


KEYWORDS = {
    "selct age from t": "select", "select age frm t": "from", "select age form t": "from",
    "select age from t wher age > 1": "where", "select age from t where age > 1 adn b = 2": "and",
}  # fmt: skip


@pytest.mark.parametrize(("query", "near"), KEYWORDS.items())
def test_a_keyword_that_is_misspelled_is_asked_for(query, near):
    with pytest.raises(Unreadable, match="is no SQL: ") as told:
        one_table(query, "postgresql")
    assert told.value.near == f"; did you mean {near}?"
    with pytest.raises(Unreadable, match="is no SQL: is a quote or a bracket left open"):
        one_table("select age from 't", "postgresql")


# Parts by which a row may depend on several records, in the dialects that have them.
JOINING = [
    "select a from t limit 3", "select top 3 a from t", "select distinct a from t", "select a from t offset 2",
    "select a from t fetch first 3 rows only", "select count(*) from t", "select a from t group by a",
    "select a, row_number() over (order by a) from t", "select a from t, u", "select a from t join u using (x)",
    "select a from t union all select a from u", "with x as (select a from t) select a from x",
    "select a from (select a from t) x", "select a from t where a in (select a from u)",
    "select a from t where exists (select 1 from u)", "select (select max(a) from t) from t", "select unnest(a) from t",
    "select a from generate_series(1, 3) g(a)", "select a from t tablesample bernoulli (10)", "select a into u from t",
    "select a from t for update", "select random() from t", "select a from t where rownum < 3",
    "select @x := @x + 1 from t",
    "select max(a) filter (where a > 1) from t", "select * from t pivot (sum(a) for b in (1, 2))",
    "values (1)",
    "select a from t where a in u", "select a in u as b from t", "select a from t where -a in t",
    "select a from t /*!50000 limit 3 */", "select a from t -- x",
    "select level from t", "select oid from t", "select a from t settings limit = 3",
    "select a from t order by a limit all", "select nextval('s') from t", "select a from t except select a from u",
]  # fmt: skip


@pytest.mark.parametrize("system", ["postgresql", "mysql", "sqlite", "mssql", "oracle", "unheard_of"])
def test_no_query_passes_that_may_join_records(system):
    for query in JOINING:
        with pytest.raises(ValueError):
            print(query, one_table(query, system))
    query = "select lower(a) as b, case when a > 1 then 2 else c end as d from s.t where a between 1 and 3 or c like 'x%'"
    found = one_table(query, system)
    assert found.table.text == "t" and found.schema == "s" and {name.text for name in found.columns} == {"a", "c"}


def test_a_name_is_that_of_a_column_and_nothing_that_a_system_makes_of_it():
    """PostgreSQL takes v.count for count(v) where no column is called count; names may differ by case alone."""
    for name, names, system, known in [
        (Name("count", False), ["age"], "postgresql", False), (Name("count", False), ["Count"], "postgresql", False),
        (Name("Count", True), ["Count"], "postgresql", True), (Name("AGE", False), ["age"], "postgresql", True),
        (Name("AGE", True), ["age"], "postgresql", False), (Name("AGE", False), ["age"], "sqlite", True),
        (Name("age", False), ["age", "AGE"], "mysql", False),
    ]:  # fmt: skip
        assert name.is_one_of(names, system) is known


def test_rows_are_read_in_blocks(database, monkeypatch):
    """A block is all that is held of a query."""
    monkeypatch.setattr("lightning_dpgen.data.files.database.ROWS_AT_ONCE", 70)
    read = read_table(DatabaseQuery(database, "select age, sex from visits"), parse_schema(SCHEMA))
    assert len(read.encoded) == 300
    frame = pd.read_sql_query("select age, sex from visits", sqlite3.connect(database.removeprefix("sqlite:///")))
    assert (read.encoded.codes == read_table(frame, parse_schema(SCHEMA)).encoded.codes).all()


SERVER = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))


@pytest.fixture
def server():
    """Yield the URL of a PostgreSQL server of its own."""
    if not SERVER:
        pytest.skip("no server of PostgreSQL is installed (Debian: apt install postgresql)")
    # Folders of pytest are closed to all but their owner.
    folder = Path(tempfile.mkdtemp())
    programs, data, place = SERVER[-1].parent, folder / "data", folder / "socket"
    place.mkdir()
    (folder / "password").write_text(SECRET)
    # PostgreSQL refuses to run as root.
    as_user = {}
    if os.getuid() == 0:
        user = pwd.getpwnam("postgres")
        as_user = {"user": user.pw_uid, "group": user.pw_gid}
        for path in (folder, place, folder / "password"):
            os.chmod(path, 0o755 if path.is_dir() else 0o644)
        os.chown(place, user.pw_uid, user.pw_gid)
        data.mkdir()
        os.chown(data, user.pw_uid, user.pw_gid)
    run = {"check": True, "capture_output": True, "cwd": place, **as_user}
    words = ["-U", "ann", "--auth=scram-sha-256", f"--pwfile={folder / 'password'}", "-D", str(data), "-E", "UTF8"]
    made = subprocess.run([programs / "initdb", *words, "--no-sync"], **run | {"check": False})
    assert made.returncode == 0, made.stderr
    options = f"-c listen_addresses= -c unix_socket_directories={place} -c fsync=off"
    start = [programs / "pg_ctl", "-D", data, "-w", "-o", options, "-l", place / "log"]
    subprocess.run([*start, "start"], **run | {"capture_output": False, "stdout": subprocess.DEVNULL})
    try:
        yield f"postgresql+psycopg://ann@/postgres?host={place}"
    finally:
        subprocess.run([programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **run)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_table_of_postgresql(dpgen, server, tmp_path, monkeypatch):
    """From a table to a release: a cursor on the server, types of its own, and no password in any file."""
    monkeypatch.setenv("PGPASSWORD", SECRET)
    engine = sqlalchemy.create_engine(server)
    with engine.begin() as connection:
        connection.execute(
            sqlalchemy.text(
                "CREATE TABLE visits AS SELECT i::int AS id, (18 + i % 60)::smallint AS age, "
                "CASE WHEN i % 3 = 0 THEN 'F' ELSE 'M' END AS sex, (i % 100)::numeric(10, 2) / 4 AS cost, i % 2 = 0 AS ok, "
                "date '2020-01-01' + (i % 300) AS seen, gen_random_uuid() AS who FROM generate_series(1, 20000) i"
            )
        )
        connection.execute(sqlalchemy.text("CREATE SEQUENCE counter"))
        connection.execute(sqlalchemy.text("CREATE VIEW few AS SELECT * FROM visits LIMIT 10"))
    engine.dispose()
    (tmp_path / "s.yaml").write_text("""
columns:
  age: {type: integer, low: 18, high: 99, bins: 10}
  sex: {type: category, values: [F, M]}
  cost: {type: number, low: 0, high: 25, decimals: 2, bins: 10}
  ok: {type: boolean}
  seen: {type: date, low: 2020-01-01, high: 2020-12-31, bins: 12}
""")
    query = "select age, sex, cost, ok, seen from visits where id > 0 and sex like '%'"
    status, _, err = train(dpgen, server, query, tmp_path / "run")
    assert status == 0, err
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()
    for query, words in (
        ("select * from few", "'few' is a view"),
        ("select age from", "expected select"),
        ("select oops from visits", "'visits' has no such column: 'oops'"),
    ):
        status, _, err = train(dpgen, server, query, tmp_path / "other")
        assert status == 2 and words in err.splitlines()[-1] and SECRET not in err, err
    # And back into a table, once.
    for expected in (0, 2):
        status, out, err = dpgen("sample", tmp_path / "run", "-n", 500, "-o", server, "--table", "synthetic")
        assert status == expected and ("500 synthetic records" in out or "has a table 'synthetic' already" in err), err
    engine = sqlalchemy.create_engine(server)
    with engine.connect() as connection:
        text = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'synthetic'"
        kinds = dict(map(tuple, connection.execute(sqlalchemy.text(text))))
        assert connection.execute(sqlalchemy.text("SELECT count(*) FROM synthetic")).scalar() == 500
    engine.dispose()
    assert kinds == {
        "age": "bigint", "sex": "text", "cost": "double precision", "ok": "boolean", "seen": "date",
    }  # fmt: skip
    # Persons by a column of another type, of which a row of the cursor is a record.
    schema = parse_schema("columns: {age: {type: integer, low: 18, high: 99, bins: 10}}")
    read = read_table(DatabaseQuery(server, "select age, who from visits"), schema, person="who")
    assert len(read.encoded) == 20000 == len(set(read.persons.tolist()))
    # A transaction that only reads, even where a query is declared.
    with pytest.raises(BadRecords, match="read-only transaction"):
        read_table(DatabaseQuery(server, "select nextval('counter')::int as age", rows_independent=True), schema)
    monkeypatch.setenv("PGPASSWORD", f"{SECRET}!")
    status, _, err = train(dpgen, server, "select age from visits", tmp_path / "other")
    assert status == 2 and "password authentication failed" in err and SECRET not in err
