"""Trainings of experiments by `dpgen train`: each is done once, and one that was interrupted goes on."""

from __future__ import annotations

from pathlib import Path

from lightning_dpgen.cli.main import main as dpgen


def train(folder: Path, settings: list[str]) -> Path:
    """Return the run in `folder`, trained with these settings unless it was done before.

    Raises:
        SystemExit: if it did not end; with dpgen's status.
    """
    if not (folder / "release").is_dir():
        status = dpgen(["train", *settings, f"run_dir={folder}"])
        if status:
            raise SystemExit(status)
    return folder
