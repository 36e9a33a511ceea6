"""The logs of a run for TensorBoard: everything in private, and in public all that the ledger covers."""

import socket

import numpy as np
import pytest
from marks import only
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from lightning_dpgen.cli.main import main
from lightning_dpgen.plugins.events import PublicEvents

# A name that is in the bytes of no picture by chance.
MACHINE = "name-of-this-machine"
PUBLIC = ("bound", "epsilon", "learning_rate")
QUICK = ["model.steps=40", "model.hidden=8", "split.iterations=2", "split.features=16", "rows=50", "trainer.log_every=10"]


def _events(folder):
    (path,) = folder.rglob("*tfevents*")
    events = EventAccumulator(str(path))
    events.Reload()
    return events


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: MACHINE)
        assert main(["train", *QUICK, f"run_dir={folder}"]) == 0
    return folder


def test_the_private_log_has_what_one_wants_to_see(run):
    tags = _events(run / "private").Tags()
    private = {"lot_size", "loss", "loss/reconstruction", "loss/kl", "norm", "share_clipped"}
    private |= {"steps_per_second", "share_of_slack", "memory_gib"}
    assert set(tags["scalars"]) == {f"private/{name}" for name in private} | {f"public/{name}" for name in PUBLIC}
    assert tags["images"] == ["public/samples"]
    assert set(tags["histograms"]) == {"private/sizes_of_components", "public/weights_of_components"}


def _records(path):
    return [Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]


def test_the_public_log_does_not_say_when_where_or_by_which_process(run):
    """This holds for every event, the first too; TensorBoard's own writer puts all three into its name or its bytes."""
    (path,) = (run / "public").iterdir()
    assert path.name == "events.out.tfevents.0"
    events, raw = _records(path), path.read_bytes()
    assert events[0] == Event(file_version="brain.Event:2") and len(events) > 4
    for event in events[1:]:
        assert event == Event(wall_time=event.step, step=event.step, summary=event.summary)
    assert MACHINE.encode() not in raw
    # TensorBoard's own writer, of the private log, would have said it.
    (private,) = (run / "private").rglob("*tfevents*")
    assert MACHINE in private.name


def test_the_same_events_make_the_same_bytes(tmp_path):
    """In every run, on any machine, and where a run goes on."""

    def written(folder):
        events = PublicEvents(folder)
        for step in (1, 2):
            events.log_metrics({"public/bound": 3.0 / step, "private/loss": 2.0}, step=step)
            events.log_picture("samples", np.full((4, 4), 9, np.uint8), step)
            events.finalize("success")
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    first, second = written(tmp_path / "first"), written(tmp_path / "second")
    assert first == second and sorted(first) == ["events.out.tfevents.0", "events.out.tfevents.1"]
    scalars = EventAccumulator(str(tmp_path / "first")).Reload().Scalars("public/bound")
    assert [(event.step, event.value) for event in scalars] == [(1, 3.0), (2, 1.5)]


def test_the_public_log_has_nothing_else(run):
    events = _events(run / "public")
    tags = events.Tags()
    assert set(tags["scalars"]) == {f"public/{name}" for name in PUBLIC} and tags["images"] == ["public/samples"]
    assert tags["histograms"] == ["public/weights_of_components"]
    written = [*events.Images("public/samples"), *(event for name in tags["scalars"] for event in events.Scalars(name))]
    assert [event.wall_time for event in written] == [event.step for event in written]
    own = _events(run / "private")
    for name in tags["scalars"]:
        assert [e.value for e in own.Scalars(name)] == [e.value for e in events.Scalars(name)]


@pytest.mark.parametrize("setting", only(("privacy=off", "debug.private_seed=1"), "privacy=off"))
def test_a_run_that_protects_nobody_shows_nothing(tmp_path, setting):
    assert main(["train", *QUICK, setting, f"run_dir={tmp_path / 'run'}"]) == 0
    assert not (tmp_path / "run" / "public").exists()


def test_what_is_not_public_by_name_is_dropped(tmp_path):
    events = PublicEvents(tmp_path / "public")
    events.log_metrics({"private/loss": 1.0, "loss": 2.0}, step=1)
    assert not (tmp_path / "public").exists()
    events.log_metrics({"public/bound": 3.0}, step=7)
    events.log_picture("samples", np.zeros((4, 4), np.uint8), 7)
    events.finalize("success")
    assert _events(tmp_path / "public").Tags()["scalars"] == ["public/bound"]
