"""Samples in the logs of a training, of each kind of records."""

import types

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.plugins import Previews
from lightning_dpgen.plugins.events import PublicEvents

# The words that a listing has, of records that are not drawn.
KINDS = {
    "pictures": (ImageSchema(4, 4, levels=16), ()),
    "series": (SeriesSchema(5, 0.0, 9.5), ()),
    "table": (
        TableSchema(
            (column_of("ward", {"type": "category", "values": ["<b>a|b</b>", "<b>c|d</b>"]}),), label=None, strip=False
        ),
        ("| ward |", r"\|"),
    ),
    "baskets": (BasketSchema(("milk", "bread"), max_items=2), ("-",)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_each_kind_are_drawn_or_listed_every_so_many_steps(kind, tmp_path):
    schema, words = KINDS[kind]
    network = StackedVAE(schema, 2, hidden=4, latent=2, generator=torch.Generator().manual_seed(0)).eval()
    module = types.SimpleNamespace(steps_taken=0, mixture=lambda: Mixture(network, torch.ones(2)))
    trainer = types.SimpleNamespace(is_global_zero=True, loggers=[PublicEvents(tmp_path)])
    previews = Previews(2)
    for module.steps_taken in range(1, 6):
        previews.on_train_batch_end(trainer, module)
    trainer.loggers[0].finalize("success")
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0, "tensors": 0})
    events.Reload()
    drawn, listed = events.Tags()["images"], events.Tags()["tensors"]
    assert (drawn, listed) == (([], ["public/samples/text_summary"]) if words else (["public/samples"], []))
    steps = [event.step for tag in (*drawn, *listed) for event in (events.Images(tag) if drawn else events.Tensors(tag))]
    assert steps == [2, 4]
    if words:
        text = events.Tensors(listed[0])[0].tensor_proto.string_val[0].decode()
        assert all(word in text for word in words), text
        assert "<b>" not in text
