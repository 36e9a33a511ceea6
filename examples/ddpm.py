"""A diffusion model of digits (DDPM): a small UNet is trained with privacy, draws samples, and is released."""

import tempfile

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import nn

from lightning_dpgen import Fixed, PrivateTraining

KEPT = torch.cumprod(1 - torch.linspace(1e-3, 0.3, 30), dim=0)  # the share of a picture that is left after each time


class UNet(pl.LightningModule):
    def __init__(self, width=16):
        super().__init__()
        self.time, self.first = nn.Linear(1, width), nn.Conv2d(1, width, 3, padding=1)
        self.down, self.up = nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.norm, self.last = nn.GroupNorm(4, 2 * width), nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x, kept):
        fine = torch.relu(self.first(x) + self.time(kept[:, None])[:, :, None, None])
        return self.last(torch.cat([fine, self.up(torch.relu(self.norm(self.down(fine))))], dim=1))

    def training_step(self, batch, batch_idx):
        x, noise = batch[0], torch.randn_like(batch[0])
        kept = KEPT[(torch.rand(len(x)) * len(KEPT)).long()]
        share = kept.view(-1, 1, 1, 1)
        return (self(share.sqrt() * x + (1 - share).sqrt() * noise, kept) - noise).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)

    def sample(self, count):
        x = torch.randn(count, 1, 8, 8)
        for kept, before in zip(KEPT.flip(0), [*KEPT.flip(0)[1:], torch.ones(())], strict=True):
            clean = ((x - (1 - kept).sqrt() * self(x, kept.expand(count))) / kept.sqrt()).clamp(-1, 1)
            x = before.sqrt() * clean + (1 - before).sqrt() * torch.randn_like(x)
        return x


records = (torch.tensor(load_digits().images[:, None] / 8 - 1, dtype=torch.float32),)
private = PrivateTraining(records, n=1800, epsilon=4, delta=1e-5, sample_rate=0.1, steps=40, clipping=Fixed(1.0))
model = UNet()
trainer = pl.Trainer(max_epochs=1, callbacks=[private.callback()], logger=False, enable_checkpointing=False)
trainer.fit(model, private.loader())
with torch.no_grad():
    print(f"samples from {float((samples := model.sample(16)).min()):.1f} to {float(samples.max()):.1f}")
print(f"epsilon {private.release(model, tempfile.mkdtemp() + '/release')['epsilon']:.3f}")
