"""Trainings of experiments by `dpgen train`: done once, and gone on with where one was interrupted."""

from __future__ import annotations

from pathlib import Path

from lightning_dpgen.cli.main import main as dpgen


def train(folder: Path, settings: list[str]) -> Path:
    """The run in `folder`, trained with these settings unless it was done before.

    Raises:
        SystemExit: with dpgen's status, if it did not end.
    """
    if not (folder / "release").is_dir():
        status = dpgen(["train", *settings, f"run_dir={folder}"])
        if status:
            raise SystemExit(status)
    return folder
