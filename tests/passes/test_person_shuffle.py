"""Persons over blocks: the rows of each that take part are those of all rows in memory, for any division and order."""

import contextlib
import datetime
import errno
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.persons import bounded, person_keys, row_hashes
from lightning_dpgen.data.reading import Numbering
from lightning_dpgen.passes import person_shuffle, private_sql
from lightning_dpgen.passes.person_shuffle import PersonShuffle, check_most_rows
from lightning_dpgen.passes.private_sql import add_function, insert, open_private_sql
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.errors import DamagedState
from lightning_dpgen.sampling.errors import BadRecords


def _rows(seed, n=600, persons=90, skew=0.1):
    """Return records with many equal ones, and names of persons, one of whom has a share of all rows."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, [4, 3, 300], (n, 3)).astype(np.int16)
    codes[random.random(n) < 0.3, 2] = 0
    names = random.integers(0, persons, n)
    names[random.random(n) < skew] = 0
    return Encoded(np.zeros((n, 0), np.float32), codes), names


def _blocks(n, seed):
    """Return a random division of shuffled rows into 1 to 8 blocks, some of them empty."""
    random = np.random.default_rng(seed)
    cuts = np.sort(random.integers(0, n + 1, random.integers(0, 8)))
    return np.split(random.permutation(n), cuts)


def _shuffle(folder, blocks, encoded, names, max_rows):
    shuffle = PersonShuffle(folder, max_rows)
    for i, rows in enumerate(blocks):
        if not shuffle.is_routed(f"f{i}"):
            shuffle.route(f"f{i}", names.take(pa.array(rows)), row_hashes(encoded[rows]))
    shuffle.bound(f"f{i}" for i in range(len(blocks)))
    return shuffle


def _all(shuffle, blocks):
    """Return the number of each row's person, and whether it is kept, over all blocks."""
    found = [shuffle.of(f"f{i}") for i in range(len(blocks))]
    return np.concatenate([one.numbers for one in found]), np.concatenate([one.kept for one in found])


def _kept(encoded, names, rows):
    """Return how often each person has each row among those."""
    return Counter(zip(names.take(pa.array(rows)).to_pylist(), map(tuple, encoded.codes[rows].tolist()), strict=True))


@pytest.mark.parametrize("as_text", [False, True], ids=["numbers", "text"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_the_rows_of_each_person_are_those_of_all_rows_in_memory(tmp_path, seed, as_text):
    encoded, whose = _rows(seed)
    names = pa.array([f"p{'é' * (i % 3)}{i}" for i in whose] if as_text else whose)
    max_rows = [1, 2, 3, 50][seed % 4]
    expected = _kept(encoded, names, bounded(encoded, whose, max_rows))
    for division in range(3):
        blocks = _blocks(len(whose), 100 * seed + division)
        shuffle = _shuffle(tmp_path / str(division), blocks, encoded, names, max_rows)
        order, (numbers, kept) = np.concatenate(blocks), _all(shuffle, blocks)
        assert _kept(encoded, names, order[kept]) == expected
        # One number a person, and one person a number, from 0 in the order in which they are met.
        pairs = set(zip(numbers.tolist(), whose[order].tolist(), strict=True))
        assert len(pairs) == len(set(whose)) == shuffle.persons
        assert list(dict.fromkeys(numbers.tolist())) == list(range(shuffle.persons))


def test_a_choice_by_another_rule_would_be_found(tmp_path, monkeypatch):
    """The first m of a person depend on the division; so does any rule that is not the person's rows alone."""
    encoded, whose = _rows(3)
    monkeypatch.setattr(person_shuffle, "priorities", lambda own, together: np.zeros(len(own), np.uint64))
    blocks = _blocks(len(whose), 1)
    shuffle = _shuffle(tmp_path / "s", blocks, encoded, pa.array(whose), 2)
    kept = _all(shuffle, blocks)[1]
    expected = _kept(encoded, pa.array(whose), bounded(encoded, whose, 2))
    assert _kept(encoded, pa.array(whose), np.concatenate(blocks)[kept]) != expected


def test_one_person_more_changes_no_row_of_another(tmp_path):
    encoded, whose = _rows(5)
    names, blocks = pa.array(whose), _blocks(len(whose), 5)
    full = _shuffle(tmp_path / "full", blocks, encoded, names, 2)
    without = [rows[whose[rows] != 0] for rows in blocks]
    less = _shuffle(tmp_path / "less", without, encoded, names, 2)
    both = [np.concatenate(own)[_all(shuffle, own)[1]] for own, shuffle in ((blocks, full), (without, less))]
    assert _kept(encoded, names, both[0][whose[both[0]] != 0]) == _kept(encoded, names, both[1])
    assert (whose[both[0]] == 0).sum() == 2


def test_little_memory_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(person_shuffle, "_COUNTED", 10)
    monkeypatch.setattr(private_sql, "MEMORY", "30MiB")
    test_the_rows_of_each_person_are_those_of_all_rows_in_memory(tmp_path, 1, False)


def test_what_does_not_fit_into_memory_is_private_and_leaves_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(private_sql, "MEMORY", "30MiB")
    spill, names = tmp_path / "spill", pa.table({"name": [os.urandom(100) for _ in range(100_000)]})
    spill.mkdir()
    (spill / "left by a killed process").write_text("name-1")
    for error in (None, KeyboardInterrupt, ValueError):
        with contextlib.suppress(KeyboardInterrupt, ValueError), open_private_sql(spill) as sql:
            for _ in range(4):
                insert(sql, "rows", names)
            files = list(spill.iterdir())
            assert files and (os.name != "posix" or spill.stat().st_mode & 0o777 == 0o700)
            assert "left by a killed process" not in [path.name for path in files]
            if error is not None:
                raise error
        assert not spill.exists()


def test_queries_read_no_file_and_their_settings_stay(tmp_path):
    (tmp_path / "other.csv").write_text("name\n1\n")
    with open_private_sql(tmp_path / "spill") as sql:
        for query in (
            f"FROM '{tmp_path / 'other.csv'}'",
            f"COPY (SELECT 1) TO '{tmp_path / 'new.csv'}'",
            "INSTALL httpfs",
            "LOAD httpfs",
            "SET threads = 4",
            "SET enable_external_access = true",
        ):
            with pytest.raises(duckdb.Error):
                sql.execute(query)
    assert not (tmp_path / "new.csv").exists()


@pytest.mark.skipif(os.name != "posix", reason="a signal is sent")
@pytest.mark.parametrize(
    "query", ["SELECT count(*) FROM range(1000000) a, range(1000000) b", "SELECT sleep(range) FROM range(9)"]
)
def test_a_signal_interrupts_a_query(tmp_path, query):
    def sleep(numbers):
        time.sleep(9)
        return numbers

    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), open_private_sql(tmp_path / "spill") as sql:
        add_function(sql, "sleep", sleep, ["BIGINT"])
        timer.start()
        sql.sql(query).fetchall()
    assert not (tmp_path / "spill").exists()


def test_too_little_memory_is_told_as_a_fault_of_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(private_sql, "MEMORY", "20MiB")
    with pytest.raises(OSError, match="too little memory") as told, open_private_sql(tmp_path / "spill") as sql:
        sql.sql("SELECT list(range) FROM range(100000000)").fetchall()
    assert told.value.filename == str(tmp_path / "spill")


def test_keys_are_equal_exactly_where_numbers_are():
    utc = datetime.UTC
    arrays = [
        pa.array(["1", "01", "x", "é", "i1", "2020-01-01"]),
        pa.array([1, 2, -5, 2**62]),
        pa.array([1, 2], pa.uint8()),
        pa.array([2**63 + 5, 1], pa.uint64()),
        pa.array([1.0, 2.5, 0.0, -0.0, 2.0**53, 1e300, float("inf"), 2.0**63]),
        pa.array([0.1, 2.5], pa.float32()),
        pa.array([0.1]),
        pa.array([True, False]),
        pa.array([Decimal("1.00"), Decimal("2.50")]),
        pa.array(["x", "1"]).dictionary_encode(),
        pa.array(["x"], pa.large_string()),
        pa.array([datetime.date(2020, 1, 1)]),
        pa.array([datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, 1)]),
        pa.array([datetime.datetime(2020, 1, 1, tzinfo=utc)], pa.timestamp("ns", "Europe/Zurich")),
        pa.array([datetime.datetime(2020, 1, 1, tzinfo=utc)], pa.timestamp("s", "UTC")),
        pa.array([datetime.datetime(2020, 1, 1)], pa.timestamp("ns")),
        pa.array([datetime.timedelta(seconds=1)]),
        pa.array([datetime.time(1)]),
    ]
    numbering, by_number, by_key = Numbering(), [], []
    for values in arrays:
        by_number += numbering.of(values).tolist()
        keys, of_row = person_keys(values)
        by_key += keys.take(pa.array(of_row)).to_pylist()
    pairs = set(zip(by_number, by_key, strict=True))
    assert len(pairs) == len(set(by_number)) == len(set(by_key))


@pytest.mark.parametrize("wrong", [pa.array([[1], [2]]), pa.array([b"x", b"y"]), pa.array(["x", None])])
def test_persons_that_cannot_be_told_apart_name_the_block(tmp_path, wrong):
    shuffle = PersonShuffle(tmp_path / "s", 2)
    with pytest.raises(BadRecords, match=r"^b.parquet, row group 3: [^\n]*$"):
        shuffle.route("b.parquet, row group 3", wrong, np.zeros(2, np.uint64))
    assert not shuffle.is_routed("b.parquet, row group 3")


def test_a_full_disk_leaves_nothing_in_part_and_the_same_call_goes_on(tmp_path, monkeypatch):
    encoded, whose = _rows(2)
    names, blocks = pa.array(whose), _blocks(len(whose), 2)
    expected = _all(_shuffle(tmp_path / "once", blocks, encoded, names, 2), blocks)[0]
    assert len(blocks) > 2
    replace, left = os.replace, [0]

    def fill(source, target):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        replace(source, target)

    shuffle = None
    for left[0] in [1, 2, 1, 3, 2, 1, 5, 20]:
        monkeypatch.setattr(durable.os, "replace", fill)
        try:
            shuffle = _shuffle(tmp_path / "full", blocks, encoded, names, 2)
            break
        except OSError as error:
            assert error.errno == errno.ENOSPC and str(tmp_path / "full") in str(error.filename)
            assert not list((tmp_path / "full").glob("*.part"))
    assert shuffle is not None
    monkeypatch.undo()
    assert (_all(shuffle, blocks)[0] == expected).all()


def _killed_after(folder, blocks, encoded, whose, writes):
    write, left = durable.write, [writes]

    def kill(path, content):
        if not left[0]:
            durable.partial_path(path).write_bytes(bytes(content)[:7])
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        write(path, content)

    durable.write = kill
    _shuffle(folder, blocks, encoded, pa.array(whose), 2)


@pytest.mark.skipif(os.name != "posix", reason="processes are forked")
def test_a_killed_process_is_taken_up_with_the_same_rows(tmp_path):
    encoded, whose = _rows(4)
    names, blocks = pa.array(whose), [*np.array_split(np.random.default_rng(4).permutation(600), 3)]
    expected = _kept(encoded, names, bounded(encoded, whose, 2))
    fork = multiprocessing.get_context("fork")
    # 3 blocks, 3 results, and the state: a kill in each phase.
    for writes in (0, 2, 3, 5, 6):
        killed = fork.Process(target=_killed_after, args=(tmp_path / str(writes), blocks, encoded, whose, writes))
        killed.start()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
        routed = PersonShuffle(tmp_path / str(writes), 2)
        assert [routed.is_routed(f"f{i}") for i in range(3)].count(True) == min(3, writes)
        shuffle = _shuffle(tmp_path / str(writes), blocks, encoded, names, 2)
        kept = _all(shuffle, blocks)[1]
        assert _kept(encoded, names, np.concatenate(blocks)[kept]) == expected


def test_what_is_there_is_used_only_for_the_same_blocks_and_no_key_stays(tmp_path):
    encoded, whose = _rows(6)
    names = pa.array([f"name-{i}" for i in whose])
    shuffle = _shuffle(tmp_path / "s", [np.arange(600)], encoded, names, 2)
    folder = tmp_path / "s"
    assert sorted(path.name[:8] for path in folder.iterdir()) == ["persons-", "shuffle."]
    assert not any(b"name-" in path.read_bytes() for path in folder.iterdir())
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600} or os.name != "posix"
    again = PersonShuffle(folder, 2)
    assert again.is_done(["f0"]) and (again.of("f0").kept == shuffle.of("f0").kept).all()
    for other, keys in ((again, ["f1"]), (again, ["f0", "f1"]), (PersonShuffle(folder, 3), ["f0"])):
        assert not other.is_done(keys) and not other.is_routed("f0")
        with pytest.raises(ValueError, match=r"block 'f[01]': expected one or more, and route"):
            other.bound(keys)
    assert again.is_done(["f0"])
    again.route("f1", pa.array([5]), np.zeros(1, np.uint64))
    again.bound(["f1"])
    assert again.is_done(["f1"]) and not again.is_done(["f0"]) and again.persons == 1
    assert len(list(folder.iterdir())) == 2


def test_damaged_files_are_told(tmp_path):
    shuffle = PersonShuffle(tmp_path / "s", 2)
    for key in ("f0", "f1"):
        shuffle.route(key, pa.array([1, 2]), np.zeros(2, np.uint64))
    first, second = (tmp_path / "s").glob("block-*")
    whole = first.read_bytes()
    # A file that was cut, and that of another block.
    for content in (whole[:-1], second.read_bytes()):
        first.write_bytes(content)
        with pytest.raises(DamagedState, match="block-"):
            shuffle.bound(["f0", "f1"])
        assert [shuffle.is_routed(key) for key in ("f0", "f1")].count(True) == 1
    first.write_bytes(whole)
    shuffle.bound(["f0", "f1"])


def test_no_rows(tmp_path):
    empty = PersonShuffle(tmp_path / "empty", 2)
    empty.route("f0", pa.array([], pa.string()), np.zeros(0, np.uint64))
    empty.bound(["f0"])
    assert empty.persons == 0 and len(empty.of("f0").numbers) == len(empty.of("f0").kept) == 0


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="max_rows=0"):
        PersonShuffle(tmp_path / "s", 0)
    shuffle = PersonShuffle(tmp_path / "s", 1)
    with pytest.raises(ValueError, match="hashes"):
        shuffle.route("f0", pa.array([1]), np.zeros(2, np.uint64))
    with pytest.raises(ValueError, match="block none"):
        shuffle.bound([])


def test_more_records_over_all_blocks_than_the_plan_says_are_refused(monkeypatch):
    monkeypatch.setattr(person_shuffle, "_COUNTED", 2)
    numbers = [np.array([0, 4, 3]), np.array([4, 1]), np.array([4])]
    check_most_rows(lambda: numbers, 5, 3)
    with pytest.raises(BadRecords, match="max_rows=2"):
        check_most_rows(lambda: numbers, 5, 2)
    with pytest.raises(ValueError, match="expected numbers from 0"):
        check_most_rows(lambda: numbers, 4, 3)
