"""Two networks that train in seconds, on data that is at hand everywhere: digits, and text that Python ships with.

Seeds are fixed; the same versions of PyTorch on the same machine give the same networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

# --- digits ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """Images of 8 x 8 and their numbers: half to train on, half to judge by.

    Attributes:
        images: To train on, and to calibrate with.
        labels: Their numbers.
        test_images: To judge by.
        test_labels: Their numbers.
    """

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def accuracy(self, net: nn.Module) -> float:
        """Return the share of the test images that a network names right."""
        with torch.no_grad():
            return float((net(self.test_images).argmax(1) == self.test_labels).float().mean())

    def loss(self, net: nn.Module) -> float:
        """Return the mean cross-entropy on the test images."""
        with torch.no_grad():
            return float(F.cross_entropy(net(self.test_images), self.test_labels))


def digits() -> Digits:
    """Load the handwritten digits of scikit-learn (1,797 images; UCI, Alpaydin and Kaynak 1998)."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ImportError("the digits need scikit-learn: pip install scikit-learn")
    # The file that its load_digits reads; importing the package takes longer than training on it.
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    pixels, labels = table[:, :-1], table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.tensor(pixels[order] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(labels[order])
    half = len(y) // 2
    return Digits(x[:half], y[:half], x[half:], y[half:])


def digits_net(width: int = 16) -> nn.Sequential:
    """Return two convolutions and two linear layers without training."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10),
    )  # fmt: skip


def train_digits(net: nn.Module, data: Digits, epochs: int = 20, rate: float = 2e-3) -> None:
    """Train with Adam on batches of 64 images."""
    batches = (part for epoch in range(epochs) for part in _shuffled(len(data.labels), 64, epoch))
    _train(
        net, (lambda part=part: F.cross_entropy(net(data.images[part]), data.labels[part]) for part in batches), rate
    )


def _shuffled(items: int, batch: int, seed: int) -> tuple[Tensor, ...]:
    return torch.randperm(items, generator=torch.Generator().manual_seed(seed)).split(batch)


def _train(net: nn.Module, losses: Iterator[Callable[[], Tensor]], rate: float) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), rate)
    for loss in losses:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


# --- language --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """The language reference that ships with Python, in characters.

    Attributes:
        train: Characters to train on, as numbers.
        test: The last tenth.
        symbols: How many different ones there are.
    """

    train: Tensor
    test: Tensor
    symbols: int

    def batches(self, steps: int, batch: int, context: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Draw pieces of the text, and the same pieces a character later."""
        dice = torch.Generator().manual_seed(0)
        for _ in range(steps):
            starts = torch.randint(len(self.train) - context - 1, (batch,), generator=dice)
            pieces = torch.stack([self.train[start : start + context + 1] for start in starts])
            yield pieces[:, :-1], pieces[:, 1:]

    def perplexity(self, net: nn.Module, context: int = 64, pieces: int = 256) -> float:
        """Return the perplexity per character on the first pieces of the test text."""
        count = min(pieces, (len(self.test) - 1) // context)
        x, y = (self.test[at : at + count * context].reshape(count, context) for at in (0, 1))
        with torch.no_grad():
            return math.exp(float(F.cross_entropy(net(x).flatten(0, 1), y.flatten())))


def text(most: int | None = None) -> Text:
    """Read the topics of ``pydoc`` (``help("topics")``), which every CPython carries: about 465,000 characters."""
    from pydoc_data.topics import topics

    whole = "\n".join(topics[name] for name in sorted(topics))[:most]
    alphabet = {character: number for number, character in enumerate(sorted(set(whole)))}
    numbers = torch.tensor([alphabet[character] for character in whole])
    cut = len(numbers) * 9 // 10
    return Text(numbers[:cut], numbers[cut:], len(alphabet))


class Block(nn.Module):
    """A layer of a transformer: attention, then a feed-forward, each after a norm.

    Attributes:
        cache: What is done to keys and values before attention reads them: nothing, or rounding.
    """

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.cache: Callable[[Tensor], Tensor] = lambda states: states

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream with what this layer adds."""
        q, k, v = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, self.cache(k), self.cache(v), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Language(nn.Module):
    """A decoder over characters."""

    def __init__(self, symbols: int, width: int = 128, layers: int = 2, head: int = 32, context: int = 64) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(symbols, width), nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Block(width, head) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the next character at each position."""
        x = self.embed(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.norm(self.layers(x)))


def language_net(data: Text, width: int = 128, layers: int = 2) -> Language:
    """Return a transformer without training."""
    torch.manual_seed(0)
    return Language(data.symbols, width, layers)


def train_language(net: Language, data: Text, steps: int = 400, batch: int = 32, rate: float = 3e-3) -> None:
    """Train with AdamW on random pieces of the text."""
    context = net.positions.num_embeddings
    draws = data.batches(steps, batch, context)
    _train(net, (lambda x=x, y=y: F.cross_entropy(net(x).flatten(0, 1), y.flatten()) for x, y in draws), rate)
