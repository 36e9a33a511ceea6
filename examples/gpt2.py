"""A GPT-2 from scratch: blocks of causal attention learn short private lines, and are released with a certificate."""

import tempfile

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn

from lightning_dpgen import Fixed, PrivateTraining

WORDS = ["<end>", "the", "a", "cat", "dog", "bird", "sees", "hears", "likes", "red", "small", "old"]


class Block(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = self.attention(self.first(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class GPT2(pl.LightningModule):
    def __init__(self, width=32, length=8):
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), width), nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks, self.norm = nn.Sequential(Block(width), Block(width)), nn.LayerNorm(width)

    def forward(self, x):
        # The table of words is that of scores, too.
        return F.linear(self.norm(self.blocks(self.words(x) + self.places[: x.shape[1]])), self.words.weight)

    def training_step(self, batch, batch_idx):
        scores = self(batch[0][:, :-1]).transpose(1, 2)
        return F.cross_entropy(scores, batch[0][:, 1:])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


SENTENCE = [(0,), (1, 2), (9, 10, 11), (3, 4, 5), (6, 7, 8), (1, 2), (3, 4, 5), (0,)]  # the words of each place
lines = torch.stack([torch.tensor(choice)[torch.randint(len(choice), (2000,))] for choice in SENTENCE], dim=1)
private = PrivateTraining((lines,), n=2000, epsilon=4, delta=1e-5, sample_rate=0.1, steps=30, clipping=Fixed(1.0))
model = GPT2()
trainer = pl.Trainer(max_epochs=1, callbacks=[private.callback()], logger=False, enable_checkpointing=False)
trainer.fit(model, private.loader())
text = torch.zeros(1, 1, dtype=torch.long)
for _ in range(7):
    text = torch.cat([text, torch.multinomial(model.eval()(text)[:, -1].softmax(dim=1), 1)], dim=1)
print(" ".join(WORDS[i] for i in text[0, 1:]))
print(f"epsilon {private.release(model, tempfile.mkdtemp() + '/release')['epsilon']:.3f}")
