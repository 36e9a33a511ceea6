"""LoRA: products of low rank beside queries and values of a frozen encoder are trained with privacy, and a head on top."""

import tempfile

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn

from lightning_dpgen import Fixed, PrivateTraining


class LoRA(nn.Module):
    def __init__(self, frozen, rank=4):
        super().__init__()
        self.frozen, self.down = frozen, nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x):
        return self.frozen(x) + F.linear(self.down(x), self.up)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        q, k, v = (f(self.norm(x)).unflatten(-1, (2, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        return self.mlp(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Embedding(50, 32), Layer(32), Layer(32)).requires_grad_(False)  # public weights
        for layer in [m for m in self.encoder.modules() if hasattr(m, "query")]:  # as in a BERT of Hugging Face
            layer.query, layer.value = LoRA(layer.query), LoRA(layer.value)
        self.head = nn.Linear(32, 2)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.head(self.encoder(batch[0]).mean(dim=1)), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=1e-2)


model, words = Classifier(), torch.randint(50, (2000, 12))
records = words, (words < 25).sum(dim=1).gt(6).long()
private = PrivateTraining(
    records, n=2000, epsilon=4, delta=1e-5, sample_rate=0.1, steps=20, clipping=Fixed(1.0), public="frozen"
)
trainer = pl.Trainer(max_epochs=1, callbacks=[private.callback()], logger=False, enable_checkpointing=False)
trainer.fit(model, private.loader())
print(f"epsilon {private.release(model, tempfile.mkdtemp() + '/release')['epsilon']:.3f}")
