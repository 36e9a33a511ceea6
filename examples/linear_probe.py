"""A linear probe: the head of a frozen ResNet with batch norms is trained with privacy, and released with a certificate."""

import tempfile

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import nn

from lightning_dpgen import Fixed, PrivateTraining


class Block(nn.Sequential):
    def forward(self, x):
        return torch.relu(super().forward(x) + x)


class Probe(pl.LightningModule):
    def __init__(self):
        super().__init__()
        block = Block(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
        layers = nn.Conv2d(1, 16, 3, padding=1), block, nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        # Its weights and statistics are public: those of a pretrained network, or random as here. It stays in eval mode.
        self.backbone, self.head = nn.Sequential(*layers).eval().requires_grad_(False), nn.Linear(256, 10)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.head.parameters(), lr=1.0, momentum=0.5)


digits, model = load_digits(), Probe()
records = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target)
private = PrivateTraining(
    records, n=1800, epsilon=4, delta=1e-5, sample_rate=0.15, steps=20, clipping=Fixed(1.0), public="frozen"
)
trainer = pl.Trainer(max_epochs=1, callbacks=[private.callback()], logger=False, enable_checkpointing=False)
trainer.fit(model, private.loader())
print(f"epsilon {private.release(model, tempfile.mkdtemp() + '/release')['epsilon']:.3f}")
