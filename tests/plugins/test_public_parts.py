"""All that is frozen is public at once: listed in the certificate, and refused if a fit has changed it."""

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn

from lightning_dpgen import Fixed, PrivateTraining, release_weights, verify
from lightning_dpgen.release import FrozenTensors

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec"),
    pytest.mark.filterwarnings("ignore:.*max_epochs"),
    pytest.mark.filterwarnings("ignore:GPU available"),
]
RECORDS = torch.randint(20, (200, 5), generator=torch.Generator().manual_seed(0)), torch.arange(200) % 2


class LowRank(nn.Module):
    """A frozen layer, and two small ones beside it that learn."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.down, self.up = nn.Linear(layer.in_features, 2, bias=False), nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm, self.mlp = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        mixed = nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.mlp(self.norm(x + mixed))


class Encoder(pl.LightningModule):
    """A pretrained encoder of four layers with low-rank adapters: 41 frozen parameters, and a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layers = nn.Embedding(20, 8), nn.Sequential(*(Layer(8) for _ in range(4)))
        self.register_buffer("scale", torch.tensor(2.0))
        self.requires_grad_(False)
        for layer in self.layers:
            layer.query, layer.value = LowRank(layer.query), LowRank(layer.value)
        self.head = nn.Linear(8, 2)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.head(self.scale * self.layers(self.words(x)).mean(dim=1)), y)

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


class Counting(Encoder):
    """A buffer that moves with each step."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.scale += 1


def _private(**changes):
    settings = {"n": 200, "epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.2, "steps": 4, "clipping": Fixed(1.0)}
    return PrivateTraining(RECORDS, **settings | {"public": "frozen"} | changes)


def _fitted(private, model, **options):
    options = {"enable_checkpointing": False, "max_epochs": 1} | options
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    path = options.pop("ckpt_path", None)
    trainer = pl.Trainer(callbacks=[private.callback()], accelerator="cpu", **quiet, **options)
    trainer.fit(model, private.loader(), ckpt_path=path)
    return trainer


def _frozen_names(model):
    return sorted({name for name, p in model.named_parameters() if not p.requires_grad} | {"scale"})


def test_all_that_is_frozen_is_named_at_once_and_the_certificate_lists_it(tmp_path):
    model, private = Encoder(), _private()
    assert len(_frozen_names(model)) == 1 + 4 * 10 + 1
    _fitted(private, model)
    certificate = private.release(model, tmp_path / "release")
    assert certificate["declared"]["public"] == _frozen_names(model)
    assert verify(tmp_path / "release").good


@pytest.mark.parametrize("later", [False, True], ids=["this program", "a later program"])
def test_what_a_fit_changes_is_refused_by_name(later, tmp_path):
    model, private = Counting(), _private(ledger=tmp_path / "ledger")
    _fitted(private, model)
    if later:
        private.account.ledger.close()
        private = _private(ledger=tmp_path / "ledger")
    with pytest.raises(ValueError, match="its parameters are not those" if later else "scale changed since the training"):
        private.release(model, tmp_path / "release")
    with torch.no_grad():
        model.scale.copy_(torch.tensor(2.0))
    private.release(model, tmp_path / "release")


def test_a_buffer_that_moves_with_steps_is_public_by_its_name(tmp_path):
    model = Counting()
    private = _private(public=_frozen_names(model))
    _fitted(private, model)
    assert "scale" in private.release(model, tmp_path / "release")["declared"]["public"]


def test_a_fit_that_goes_on_compares_with_the_first_one(tmp_path):
    private, first = _private(ledger=tmp_path / "ledger"), Counting()
    trainer = _fitted(private, first, max_steps=2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    again = _private(ledger=tmp_path / "ledger")
    with pytest.raises(MisconfigurationException, match="scale changed since the training began"):
        _fitted(again, Encoder(), ckpt_path=tmp_path / "two.ckpt")
    again.account.ledger.close()


def test_a_checkpoint_of_named_parts_does_not_say_how_they_were(tmp_path):
    model = Encoder()
    private = _private(ledger=tmp_path / "ledger", public=_frozen_names(model))
    _fitted(private, model, max_steps=2).save_checkpoint(tmp_path / "two.ckpt")
    again = _private(ledger=tmp_path / "ledger")
    with pytest.raises(MisconfigurationException, match="does not say what was frozen when its fit began: name it in"):
        _fitted(again, Encoder(), ckpt_path=tmp_path / "two.ckpt")
    again.account.ledger.close()


def test_a_loop_of_ones_own_compares_what_it_kept_before(tmp_path):
    model, private = Encoder(), _private()
    frozen = FrozenTensors.of(model)
    _fitted(private, model)
    certificate = release_weights(model, private.account, tmp_path / "one", data="rows", public=frozen)
    assert certificate["declared"]["public"] == _frozen_names(model)
    model.layers[0].key.weight.data += 1
    with pytest.raises(ValueError, match=r"layers\.0\.key\.weight changed since the training began"):
        release_weights(model, private.account, tmp_path / "two", data="rows", public=frozen)
