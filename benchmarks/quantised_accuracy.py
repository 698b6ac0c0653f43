"""What rounding and pruning cost two networks that are trained here: digits, and a small language model.

    python benchmarks/quantised_accuracy.py [digits] [pruning] [language] [--write]

prints the tables of docs/quantized-accuracy.md; ``--write`` puts them there. Seeds are fixed.
"""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from small_networks import Text, digits, digits_net, language_net, text, train_digits, train_language
from torch import Tensor, nn
from torch.nn import functional as F

import roofline as rl
from roofline.quant import QuantizedModel, Recipe

PAGE = Path(__file__).parent.parent / "docs" / "quantized-accuracy.md"
Row = tuple[str, ...]

#: Groups that divide the rows of all layers but the first, which are 9 long.
INT3 = {"*": "int3-g64-z3", "3.weight": "int3-g72-z3", "0.weight": "int4"}
DIGITS: dict[str, dict[str, Any]] = {
    "int8, weights and activations": {"weights": "int8", "activations": "int8"},
    "int4, nearest": {"weights": "int4"},
    "int4, GPTQ": {"weights": "int4", "method": "gptq"},
    "int3 (g64, g72), nearest": {"weights": INT3},
    "int3 (g64, g72), GPTQ": {"weights": INT3, "method": "gptq"},
}
LANGUAGE: dict[str, dict[str, Any]] = {
    "int8": {"weights": "int8"},
    "int8, weights and activations": {"weights": "int8", "activations": "int8"},
    "the same, smoothed": {"weights": "int8", "activations": "int8", "smooth": 0.5},
    "int4-g32, nearest": {"weights": "int4-g32"},
    "int4-g32, GPTQ": {"weights": "int4-g32", "method": "gptq"},
    "int4-g128, nearest": {"weights": "int4-g128"},
    "int4-g128, GPTQ": {"weights": "int4-g128", "method": "gptq"},
    "mxfp4": {"weights": "mxfp4"},
    "nvfp4": {"weights": "nvfp4"},
    "mxfp4, weights and activations": {"weights": "mxfp4", "activations": "mxfp4"},
    "nvfp4, weights and activations": {"weights": "nvfp4", "activations": "nvfp4"},
}
CACHES = ("int8", "fp8", "int4")


def rounded(net: nn.Module, batches: Sequence[Any], recipe: dict[str, Any]) -> QuantizedModel:
    """Round a network by a recipe."""
    return rl.quant.quantize_module(net, batches, Recipe(**recipe))


def kilobytes(net: nn.Module, small: QuantizedModel | None = None) -> str:
    """Return what all parameters take to store."""
    layers = small.weights if small else {}
    bits = sum(32 * each.numel() for name, each in net.named_parameters() if name not in layers)
    return f"{(bits + sum(each.bits for each in layers.values())) / 8e3:,.1f} kB"


# --- digits ----------------------------------------------------------------------------------------------------------


@functools.cache
def trained_digits() -> tuple[Any, nn.Module]:
    """Train the network of all rows, once."""
    data, net = digits(), digits_net()
    train_digits(net, data)
    return data, net


def digits_rows() -> Iterator[Row]:
    """Yield accuracy, loss and size in each format."""
    data, net = trained_digits()

    def row(name: str, module: nn.Module, size: str) -> Row:
        return name, f"{data.accuracy(module):.1%}", f"{data.loss(module):.4f}", size

    yield row("fp32", net, kilobytes(net))
    for name, recipe in DIGITS.items():
        small = rounded(net, [data.images], recipe)
        yield row(name, small.module, kilobytes(net, small))
    words = ["int8", "int4", "int3-g64-z3", "int3-g72-z3"]
    costs = rl.quant.sensitivity(net, [data.images], words, evaluate=loss_of_digits(data))
    best = rl.quant.mixed(costs, "h100-sxm", against="memory", error_limit=0.004, plans=2).best
    assert best is not None
    small = rounded(net, [data.images], {"weights": dict(best.formats)})
    yield row(f"mixed, nearest: {formats(best)}", small.module, kilobytes(net, small))


def loss_of_digits(data: Any) -> Callable[[nn.Module], float]:
    """Return what a network loses on the images that it was trained on."""

    def loss(net: nn.Module) -> float:
        with torch.no_grad():
            return float(F.cross_entropy(net(data.images), data.labels))

    return loss


def formats(plan: Any) -> str:
    """Return how many layers have each format, as text."""
    words = list(plan.formats.values())
    return ", ".join(f"{words.count(word)} in {word}" for word in dict.fromkeys(words))


def pruned_rows() -> Iterator[Row]:
    """Yield accuracy before and after retraining, and times on this machine, with 30 % of the channels gone."""
    data, net = trained_digits()
    chip, images = rl.calibrate("cpu", quick=True).chip, torch.cat([data.images] * 4)

    def times(module: nn.Module) -> Row:
        measured = rl.measure(module, images, chip=chip)
        return f"{measured.estimate.time * 1e3:.1f} ms", f"{measured.seconds * 1e3:.1f} ms"

    yield ("whole", f"{data.accuracy(net):.1%}", "", f"{rl.from_torch(net, images).parameters:,}", *times(net))
    for by in ("weight", "activation", "taylor"):
        small = rl.quant.prune(net, data.images, by=by, loss=losses_of_digits(data), channels=0.3)  # type: ignore[arg-type]
        before = data.accuracy(small.module)
        train_digits(small.module, data, epochs=3)
        after = data.accuracy(small.module)
        yield (
            f"30 % less, by {by}",
            f"{before:.1%}",
            f"{after:.1%}",
            f"{small.smaller.parameters:,}",
            *times(small.module),
        )


def losses_of_digits(data: Any) -> Callable[[nn.Module], list[Tensor]]:
    """Return losses of batches of 32 images."""
    parts = list(zip(data.images.split(32), data.labels.split(32), strict=True))
    return lambda net: [F.cross_entropy(net(images), labels) for images, labels in parts]


# --- language --------------------------------------------------------------------------------------------------------


def language_rows() -> Iterator[Row]:
    """Yield perplexity and size in each format."""
    data = text()
    net = language_net(data)
    train_language(net, data)
    whole = data.perplexity(net)
    batches = [x for x, _ in data.batches(8, 16, 64)]

    def row(name: str, module: nn.Module, size: str) -> Row:
        perplexity = data.perplexity(module)
        return name, f"{perplexity:.3f}", f"{perplexity / whole - 1:+.2%}", size

    yield row("fp32", net, kilobytes(net))
    for name, recipe in LANGUAGE.items():
        small = rounded(net, batches, recipe)
        yield row(name, small.module, kilobytes(net, small))
    recipe = Recipe(method="gptq")
    costs = rl.quant.sensitivity(
        net, batches, ["int8", "int4-g32", "int4-g128"], recipe=recipe, evaluate=loss_of_text(data)
    )
    best = rl.quant.mixed(costs, "h100-sxm", against="memory", error_limit=0.002, plans=2).best
    assert best is not None
    small = rounded(net, batches, {"weights": dict(best.formats), "method": "gptq"})
    yield row(f"mixed, GPTQ: {formats(best)}", small.module, kilobytes(net, small))
    for word in CACHES:
        yield row(f"fp32, cache in {word}", cached_in(net, word), kilobytes(net))


def loss_of_text(data: Text, pieces: int = 128, context: int = 64) -> Callable[[nn.Module], float]:
    """Return the loss per character on the first pieces of the text that was trained on."""
    x, y = (data.train[at : at + pieces * context].reshape(pieces, context) for at in (0, 1))

    def loss(net: nn.Module) -> float:
        with torch.no_grad():
            return float(F.cross_entropy(net(x).flatten(0, 1), y.flatten()))

    return loss


def cached_in(net: nn.Module, word: str) -> nn.Module:
    """Return the network with keys and values rounded: a scale for each token and head."""
    import copy

    small = copy.deepcopy(net)
    for layer in small.layers:  # type: ignore[union-attr]
        layer.cache = lambda states: rl.quant.fake(states, word)
    return small


# --- tables ----------------------------------------------------------------------------------------------------------

TABLES: dict[str, tuple[Callable[[], Iterator[Row]], Row]] = {
    "digits": (digits_rows, ("format", "accuracy", "loss", "parameters")),
    "pruning": (
        pruned_rows, ("channels", "accuracy", "retrained", "parameters", "predicted", "measured")
    ),
    "language": (language_rows, ("format", "perplexity", "change", "parameters")),
}  # fmt: skip


def table(name: str) -> str:
    """Make a table."""
    rows, head = TABLES[name]
    lines = [head, ("---",) * len(head), *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Print the tables that are asked for, and write them."""
    torch.set_num_threads(1)
    for name in [word for word in arguments if word in TABLES] or list(TABLES):
        start = time.perf_counter()
        made = table(name)
        print(f"{name}\n\n{made}\n{time.perf_counter() - start:.0f} s\n", flush=True)
        if "--write" in arguments:
            write(name, made)


def write(name: str, made: str) -> None:
    """Put a table between its marks."""
    page = PAGE.read_text(encoding="utf-8")
    marks = rf"(<!-- {name} -->\n\n).*?(\n<!-- end -->)"
    PAGE.write_text(re.sub(marks, lambda part: part[1] + made + part[2], page, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
