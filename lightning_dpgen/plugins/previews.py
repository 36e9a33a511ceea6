"""Samples in the logs while a model trains."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lightning_dpgen.data.schema import kind_of
from lightning_dpgen.plugins.events import PublicEvents
from lightning_dpgen.plugins.lot_log import PUBLIC
from lightning_dpgen.plugins.namespaces import Callback, classes, pl
from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.release.pages.text import markdown, printable
from lightning_dpgen.release.rows.pictures import sheet

# The records that are listed, and the most columns.
_ROWS, _COLUMNS = 8, 20


class Previews(Callback):
    """The callback that writes samples to TensorBoard every so many steps.

    Pictures and series are drawn, as in a release; records of other kinds are listed. The samples are functions of released
    parameters, so they cost nothing and are public.

    Args:
        every: steps between two looks.
    """

    def __init__(self, every: int) -> None:
        self._every, self._shown = every, 0

    # Modules are a `PrivateMixture`.
    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if not trainer.is_global_zero or not trainer.loggers or module.steps_taken < self._shown + self._every:
            return
        step = self._shown = module.steps_taken
        release = Release(module.mixture())
        picture = _picture(release)
        text = "" if picture is not None else "\n\n".join(_listed(release.sample(_ROWS, seed=0)))
        loggers: list[Any] = trainer.loggers
        for logger in loggers:
            if isinstance(logger, PublicEvents):
                if picture is None:
                    logger.log_text("samples", text, step)
                else:
                    logger.log_picture("samples", picture, step)
            elif isinstance(logger, classes("loggers.TensorBoardLogger")):
                if picture is None:
                    logger.experiment.add_text(f"{PUBLIC}samples", text, step)
                else:
                    form = "HW" if picture.ndim == 2 else "HWC"
                    logger.experiment.add_image(f"{PUBLIC}samples", picture, step, dataformats=form)


def _picture(release: Release) -> np.ndarray | None:
    """Return samples as a picture (H, W) or (H, W, 3); None for records that are not drawn."""
    if release.schema.dimensions == 2:
        return sheet(release)
    draw = kind_of(release.schema).picture()
    if draw is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder) / "samples.png", release)
        content = (Path(folder) / "samples.png").read_bytes()
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def _listed(records: Any) -> Iterator[str]:
    """Yield samples in Markdown: a table for each frame, and a line for each record without columns."""
    if isinstance(records, Mapping):
        for name, frame in records.items():
            yield f"**{markdown(printable(name))}**"
            yield from _listed(frame)
    elif hasattr(records, "columns"):
        frame = records.iloc[:, :_COLUMNS]
        rows = [list(frame.columns), ["---"] * len(frame.columns), *frame.astype(object).to_numpy().tolist()[: 4 * _ROWS]]
        cells = [[cell if i == 1 else markdown(printable(cell)) for cell in row] for i, row in enumerate(rows)]
        yield "\n".join(f"| {' | '.join(row)} |" for row in cells)
    else:
        yield "\n".join(f"- {markdown(printable(record, 200))}" for record in records)
