"""Event files of TensorBoard: one for the public, of what the ledger covers, and one that only the curator may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from lightning_dpgen.common.folders import restrict
from lightning_dpgen.plugins.lot_log import PUBLIC
from lightning_dpgen.plugins.namespaces import pl, rank_zero_only
from lightning_dpgen.privacy.extras import needing

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter
    from torch.utils.tensorboard import SummaryWriter

# TensorBoard looks for this in the name of a file; its own writer adds time, host and process.
NAME, _VERSION = "events.out.tfevents", "brain.Event:2"


class PublicEvents(pl.loggers.Logger):
    """The logger that writes values under ``public/`` (bounds, epsilon by the plan, samples), and drops all others.

    All of it follows from released parameters and noisy numbers, so it tells no more than the epsilon of the whole run
    allows. The time that steps take does depend on the records. So the time of an event is the number of its step, and no
    clock, host or process stands in the file or its name: the same events make the same bytes. A run that goes on writes
    beside the earlier files, in one with the next number.

    Args:
        folder: the folder of the event file.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> events = PublicEvents(folder)
        >>> events.log_metrics({"public/bound": 3.0, "private/loss": 2.0}, step=5)
        >>> events.finalize("success")
        >>> [path.name for path in folder.iterdir()]
        ['events.out.tfevents.0']
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._file: BinaryIO | None = None
        self._records: RecordWriter | None = None

    name, version = "public", ""

    def _write(self, event: Event) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is None or self._records is None:
            self._file = _new_file(self._folder)
            self._records = RecordWriter(self._file)
            self._records.write(Event(wall_time=0.0, file_version=_VERSION).SerializeToString(deterministic=True))
        self._records.write(event.SerializeToString(deterministic=True))
        self._file.flush()

    def _write_summary(self, what: Summary, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._write(Event(wall_time=float(step), step=step, summary=what))

    @rank_zero_only
    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: settings stand in the certificate."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        summary = _summaries()
        for name, value in metrics.items():
            if name.startswith(PUBLIC):
                self._write_summary(summary.scalar(name, value), step or 0)

    @rank_zero_only
    def log_picture(self, name: str, picture: np.ndarray, step: int) -> None:
        """Write a picture (H, W) or (H, W, 3) that follows from released parameters."""
        form = "HW" if picture.ndim == 2 else "HWC"
        self._write_summary(_summaries().image(f"{PUBLIC}{name}", picture, dataformats=form), step)

    @rank_zero_only
    def log_text(self, name: str, text: str, step: int) -> None:
        """Write text in Markdown that follows from released parameters."""
        self._write_summary(_summaries().text(f"{PUBLIC}{name}", text), step)

    @rank_zero_only
    def log_bars(self, name: str, values: Sequence[float], step: int) -> None:
        """Write released numbers of components 0 to k - 1, as a histogram with one bar for each."""
        self._write_summary(_summaries().histogram_raw(f"{PUBLIC}{name}", **bars(values)), step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._records = None


def _summaries() -> Any:
    """Return the module that makes what events hold; it is imported for the first one, since an engine needs none."""
    with needing("a file of TensorBoard's events"):
        import tensorboard  # noqa: F401
    from torch.utils.tensorboard import summary

    return summary


def bars(values: Sequence[float]) -> dict[str, Any]:
    """Return a histogram with one bar for each value, as TensorBoard's raw histograms take it.

    Example:
        >>> bars([3.0, 5.0])["bucket_limits"], bars([3.0, 5.0])["bucket_counts"]
        ([0.5, 1.5], [3.0, 5.0])
    """
    places = range(len(values))
    return {
        "min": -0.5,
        "max": len(values) - 0.5,
        "num": sum(values),
        "sum": sum(i * value for i, value in zip(places, values, strict=True)),
        "sum_squares": sum(i * i * value for i, value in zip(places, values, strict=True)),
        "bucket_limits": [i + 0.5 for i in places],
        "bucket_counts": list(values),
    }


def _new_file(folder: Path) -> BinaryIO:
    folder.mkdir(parents=True, exist_ok=True)
    for number in count():
        try:
            return open(folder / f"{NAME}.{number}", "xb")
        except FileExistsError:
            continue
    raise AssertionError("numbers do not end")


class PrivateEvents(pl.loggers.TensorBoardLogger):
    """Lightning's logger of all values, exact functions of records among them, in a folder and files that give no rights to
    others, under any umask."""

    @property
    def log_dir(self) -> str:
        """The folder as it was given: Lightning would put variables and the home folder in the place of ``$`` and ``~``."""
        return str(Path(self.root_dir, str(self.version)))

    @property
    def root_dir(self) -> str:
        """The folder above."""
        return str(Path(self.save_dir, self.name))

    @property
    def experiment(self) -> SummaryWriter:
        begins, writer = self._experiment is None, super().experiment
        if begins and self._experiment is not None:
            restrict(Path(self.log_dir))
        return writer

    def save(self) -> None:
        super().save()
        if self._experiment is not None:
            restrict(Path(self.log_dir))
