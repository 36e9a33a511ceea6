"""A normalizing flow: zuko's neural splines learn a small private table, draw records, and are released."""

import tempfile

import pytorch_lightning as pl
import torch
import zuko

from lightning_dpgen import Fixed, PrivateTraining

LOW, HIGH = torch.tensor([18.0, 40.0, 140.0]), torch.tensor([90.0, 160.0, 210.0])  # age, weight, height: public bounds


def make_table(count):
    age, height = 18 + 72 * torch.rand(count).square(), 172 + 9 * torch.randn(count)
    return torch.stack([age, 0.9 * (height - 100) + 0.1 * age + 8 * torch.randn(count), height], dim=1)


class Flow(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.flow = zuko.flows.NSF(3, bins=4, transforms=2, hidden_features=(32, 32))

    def training_step(self, batch, batch_idx):
        scaled = 6 * (batch[0].clamp(LOW, HIGH) - LOW) / (HIGH - LOW) - 3
        return -self.flow().log_prob(scaled)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)

    def sample(self, count):
        return ((self.flow().sample((count,)) + 3) / 6 * (HIGH - LOW) + LOW).clamp(LOW, HIGH)


table = (make_table(2000),)
model = Flow()
private = PrivateTraining(  # frozen are the masks of the autoregressive layers, which are public
    table, n=2000, epsilon=4, delta=1e-5, sample_rate=0.1, steps=40, clipping=Fixed(1.0), public="frozen"
)
trainer = pl.Trainer(max_epochs=1, callbacks=[private.callback()], logger=False, enable_checkpointing=False)
trainer.fit(model, private.loader())
with torch.no_grad():
    print(f"age, weight, height of a made-up person: {[round(x) for x in model.sample(1)[0].tolist()]}")
print(f"epsilon {private.release(model, tempfile.mkdtemp() + '/release')['epsilon']:.3f}")
