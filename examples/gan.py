"""A GAN with two optimizers: the critic's is private, since it sees records, and the generator's is public."""

import tempfile

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import softplus

from lightning_dpgen import DataFree, Fixed, PerRecord, PrivateTraining


class GAN(pl.LightningModule):
    def __init__(self, code=8):
        super().__init__()
        self.code = code
        self.generator = nn.Sequential(nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())
        self.critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, count):
        return self.generator(torch.randn(count, self.code))

    def critic_loss(self, lot, noise):  # sees a record, and a generated one beside it
        return (softplus(-self.critic(lot.records[0])) + softplus(self.critic(self(len(lot.records[0])))))[:, 0]

    def generator_loss(self):  # sees none
        return softplus(-self.critic(self(100))).mean()

    def training_step(self, batch, batch_idx):  # one entry for each optimizer
        return PerRecord(self.critic_loss), DataFree(self.generator_loss) if batch_idx % 2 else None

    def configure_optimizers(self):
        private, public = self.critic.parameters(), self.generator.parameters()
        return torch.optim.Adam(private, lr=5e-3, betas=(0.5, 0.9)), torch.optim.Adam(public, lr=5e-3, betas=(0.5, 0.9))


records = (torch.tensor(load_digits().data / 16, dtype=torch.float32),)
private = PrivateTraining(records, n=1800, epsilon=4, delta=1e-5, sample_rate=0.1, steps=40, clipping=Fixed(1.0))
model = GAN()
trainer = pl.Trainer(max_epochs=1, callbacks=[private.callback()], logger=False, enable_checkpointing=False)
trainer.fit(model, private.loader())
with torch.no_grad():
    print(f"generated pictures {tuple(model(100).unflatten(1, (8, 8)).shape)}")
print(f"epsilon {private.release(model, tempfile.mkdtemp() + '/release')['epsilon']:.3f}")
