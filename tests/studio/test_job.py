"""Commands in a process of their own: they outlive who started them, and their end is known to any other."""

import os
import signal
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.studio.job import Job, Progress, spell, start_job


def wait(job, seconds=60.0):
    deadline = time.monotonic() + seconds
    while job.running and time.monotonic() < deadline:
        time.sleep(0.02)
    return job.status


def test_commands_run_in_a_row_until_one_fails(tmp_path):
    folder = tmp_path / "jobs" / "one"
    assert not Job(folder).exists and Job(folder).status is None and not Job(folder).running
    job = start_job(folder, [["--version"], ["no-such-command"], ["--version"]])
    # Another server sees the same.
    assert Job(folder).running and Job(folder).commands == job.commands
    assert wait(Job(folder)) == 2
    text = "\n".join(job.lines)
    assert text.count("$ dpgen --version") == 1 and "unknown command 'no-such-command'" in text
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())} <= {0o700, 0o600}
    assert wait(start_job(folder, [["--version"]])) == 0
    assert "no-such-command" not in "\n".join(job.lines)


def test_those_who_look_see_no_job_and_a_second_start_is_refused(tmp_path):
    folder = tmp_path / "one"
    job = start_job(folder, [["--version"]] * 3)
    with pytest.raises(UsageError, match="running already"):
        start_job(folder, [["--version"]])
    wait(job)
    with ThreadPoolExecutor(10) as lookers:
        assert not any(lookers.map(lambda _: Job(folder).running, range(2000)))


def test_a_command_whose_runner_was_killed_still_is_the_job(tmp_path):
    folder = tmp_path / "one"
    job = start_job(folder, [["--version"]] * 50)
    process = int((folder / "process").read_text())
    # Its own process alone, once a command is running.
    while "dpgen 0" not in "\n".join(job.lines):
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    job.stop()
    wait(job)
    assert (job.running, job.status) == (False, None) and "\n".join(job.lines).count("$ dpgen") < 50


def test_a_terminal_gets_no_sign_that_moves_its_cursor():
    assert spell(["check", "a\x1b]0;x\x07.csv"]) == "dpgen check 'a?]0;x?.csv'"


def test_a_job_that_was_killed_has_no_status(tmp_path):
    folder = tmp_path / "one"
    wait(start_job(folder, [["--version"]]))
    (folder / "status").unlink()
    assert (Job(folder).running, Job(folder).status) == (False, None)


def test_the_pace_is_read_off_the_log(tmp_path):
    log = tmp_path / "log.txt"
    for text, progress in {
        "  fitting: 53% after 00:01, about 00:02 left\n": Progress("fitting", 53, "00:01", "00:02"),
        "  loading the program: after 00:03\n": Progress("loading the program", None, "00:03", None),
        "  training: 40% after 1:00:37, about 00:55 left, 950 of 2,350 steps\n": Progress(
            "training", 40, "1:00:37", "00:55"
        ),
        "  fitting: 53% after 00:01\nreading: 3 records\n": None,
        "": None,
    }.items():
        log.write_text(text)
        assert Job(tmp_path).progress == progress
    log.write_bytes(b"\xff\x00 not text\n  fitting: after 00:01\n")
    assert len(Job(tmp_path).lines) == 1
