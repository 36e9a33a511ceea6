"""A character LSTM: it learns short private lines from scratch, writes one, and is released with a certificate."""

import tempfile

import pytorch_lightning as pl
import torch
from torch import nn

from lightning_dpgen import Fixed, PrivateTraining

LETTERS, LENGTH = " abcdefghijklmnopqrstuvwxyz", 16


def make_lines(count):
    words = ["sun", "rain", "wind", "snow"], ["falls", "comes", "goes"], ["today", "now", "late"]
    chosen = [[choice[i] for i in torch.randint(len(choice), (count,)).tolist()] for choice in words]
    return [" ".join(line) for line in zip(*chosen, strict=True)]


class CharLSTM(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(27, 16), nn.LSTM(16, 64, batch_first=True), nn.Linear(64, 27)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0])

    def training_step(self, batch, batch_idx):
        scores = self(batch[0][:, :-1]).transpose(1, 2)
        return nn.functional.cross_entropy(scores, batch[0][:, 1:])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-2)


lines = [line.ljust(LENGTH)[:LENGTH] for line in make_lines(2000)]
records = (torch.tensor([[LETTERS.index(c) for c in line] for line in lines]),)
private = PrivateTraining(records, n=2000, epsilon=4, delta=1e-5, sample_rate=0.1, steps=30, clipping=Fixed(1.0))
model = CharLSTM()
trainer = pl.Trainer(max_epochs=1, callbacks=[private.callback()], logger=False, enable_checkpointing=False)
trainer.fit(model, private.loader())
text = torch.tensor([[LETTERS.index("s")]])
for _ in range(LENGTH - 1):
    text = torch.cat([text, torch.multinomial(model.eval()(text)[:, -1].softmax(dim=1), 1)], dim=1)
print("".join(LETTERS[i] for i in text[0]))
print(f"epsilon {private.release(model, tempfile.mkdtemp() + '/release')['epsilon']:.3f}")
