"""Networks of the benchmark of a GPU, in plain torch as people write them; each takes the tensors of a lot to its losses.

Weights are random, nothing is downloaded, and there is no dropout. Attention is torch's own
(`F.scaled_dot_product_attention`).
"""

from __future__ import annotations

import peers
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Classifier(nn.Module):
    """A network that gives a score for each class."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x), labels, reduction="none")


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(16, outputs), nn.GroupNorm(16, outputs)])
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(hidden)) + self.skip(x))


def resnet18(width: int = 64) -> nn.Sequential:
    """Build ResNet-18 for pictures of 32 by 32 with group normalisation, as private training takes it (De et al. 2022)."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.GroupNorm(16, width), nn.ReLU()]
    inputs = width
    for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        layers += [_Block(inputs, outputs, stride), _Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class _Attention(nn.Module):
    """Attention of several heads, with one projection to queries, keys and values."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.into(x).chunk(3, dim=-1))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(found.transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    """A layer of a transformer, with norms in front."""

    def __init__(self, width: int, heads: int, *, causal: bool, gelu: str) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = _Attention(width, heads, causal=causal)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(gelu), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.wide(self.norms[1](x))


class GPT2(nn.Module):
    """GPT-2 with tied embeddings (Radford et al. 2019), and the mean loss of each text's next words; defaults are of 124 M.

    Args:
        words: the size of the vocabulary.
        length: the longest text that is read.
    """

    def __init__(
        self, words: int = 50_257, length: int = 1024, width: int = 768, layers: int = 12, heads: int = 12
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(_Layer(width, heads, causal=True, gelu="tanh") for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.apply(self._start)
        self.head.weight = self.words.weight

    @staticmethod
    def _start(layer: nn.Module) -> None:
        if isinstance(layer, nn.Linear | nn.Embedding):
            nn.init.normal_(layer.weight, std=0.02)
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)

    def forward(self, text: Tensor) -> Tensor:
        read, following = text[:, :-1], text[:, 1:]
        x = self.words(read) + self.places(torch.arange(read.shape[1], device=text.device))
        scores = self.head(self.norm(self.layers(x)))
        # Scores that are flattened first take half the time of transposed ones on a GPU.
        losses = F.cross_entropy(scores.flatten(0, 1), following.flatten(), reduction="none")
        return losses.view(len(text), -1).mean(dim=1)


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2021) with scores for ten classes; defaults are those of ViT-B/16."""

    def __init__(self, side: int = 224, patch: int = 16, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(_Layer(width, heads, causal=False, gelu="none") for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class Elbo(nn.Module):
    """An autoencoder with its negative ELBO, whose codes are drawn by torch."""

    def __init__(self, model: peers.VAE) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits, _, mean, log_variance = self.model(x, torch.randn(len(x), self.model.latent, device=x.device))
        return peers.negative_elbo(x, logits, mean, log_variance)
