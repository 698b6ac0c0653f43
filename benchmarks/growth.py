"""How the CPU time of public passes and verbs grows with depth: ``python benchmarks/growth.py [--layers N] [NAME...]``.

The programs are transformers in which no two layers are alike, so nothing is counted once for many. Each function runs
on programs of N/4, N/2 and N layers; the exponent is that of the last doubling: 1 is linear, 2 quadratic. A function
that has taken longer than ``--limit`` seconds is not tried on a deeper program.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import roofline as rl
from roofline.ir.sizes import symbol

WIDTH = 256


def program(layers: int) -> rl.Graph:
    """A transformer whose heads and inner widths differ from layer to layer, for a symbolic batch and length."""
    b = rl.ops.Builder("deep", "bf16")
    x = b.input("x", (symbol("B"), symbol("S"), WIDTH))
    for at in range(layers):
        with b.scope(f"layers.{at}"):
            x = b.op("add", x, attention(b, norm(b, x, "attn.norm"), 16 + 2 * at), name="attn.residual")
            x = b.op("add", x, feed_forward(b, norm(b, x, "mlp.norm"), WIDTH + 16 * at), name="mlp.residual")
    return b.graph([x], items=symbol("B"))


def convolutions(layers: int) -> rl.Graph:
    """A chain of convolutions, batch norms and residual sums, none of the same width."""
    b = rl.ops.Builder("convolutions", "bf16")
    x = b.input("x", (symbol("B"), WIDTH, 56, 56))
    for at in range(layers):
        with b.scope(f"layers.{at}"):
            inner = WIDTH + 16 * at
            y = normed(b, b.op("conv2d", x, b.weight("a.weight", (inner, WIDTH, 1, 1)), name="a"), inner, "a.norm")
            y = b.op("conv2d", b.op("relu", y, name="act"), b.weight("b.weight", (WIDTH, inner, 1, 1)), name="b")
            x = b.op("add", x, normed(b, y, WIDTH, "b.norm"), name="residual")
    return b.graph([x], items=symbol("B"))


def normed(b: rl.ops.Builder, x: str, width: int, name: str) -> str:
    """A batch norm."""
    weights = [b.weight(f"{name}.{part}", (width,)) for part in ("weight", "bias")]
    statistics = [b.source(f"{b.prefix}.{name}.{part}", (width,), "buffer", "bf16") for part in ("mean", "var")]
    return b.op("batchnorm2d", x, *weights, *statistics, name=name)


def norm(b: rl.ops.Builder, x: str, name: str) -> str:
    weights = (b.weight(f"{name}.{part}", (WIDTH,)) for part in ("weight", "bias"))
    return b.op("layernorm", x, *weights, name=name)


def attention(b: rl.ops.Builder, x: str, width: int) -> str:
    """Eight heads of a width."""
    total, heads = 8 * width, {}
    qkv = b.op("linear", x, b.weight("qkv.weight", (3 * total, WIDTH)), name="qkv")
    for part in "qkv":
        own = b.op("slice", qkv, name=part, shape=(symbol("B"), symbol("S"), total))
        heads[part] = b.op("view", own, name=f"{part}_heads", shape=(symbol("B"), 8, symbol("S"), width))
    with b.kernel("sdpa"):
        scores = b.op("attention_scores", heads["q"], heads["k"], name="scores", causal=True, window=0)
        shares = b.op("attention_softmax", scores, name="softmax", causal=True, window=0)
        mixed = b.op("attention_values", shares, heads["v"], name="values", causal=True, window=0)
    merged = b.op("view", mixed, name="merge", shape=(symbol("B"), symbol("S"), total))
    return b.op("linear", merged, b.weight("out.weight", (WIDTH, total)), name="out")


def feed_forward(b: rl.ops.Builder, x: str, inner: int) -> str:
    """A gated feed-forward."""
    gate, up = (
        b.op("linear", x, b.weight(f"{name}.weight", (inner, WIDTH)), b.weight(f"{name}.bias", (inner,)), name=name)
        for name in ("gate", "up")
    )
    gated = b.op("mul", b.op("gelu", gate, name="gelu"), up, name="gated")
    return b.op("linear", gated, b.weight("down.weight", (WIDTH, inner)), name="down")


def written(graph: rl.Graph) -> rl.Graph:
    """The same with attention and GELU written out, as frameworks list it."""
    return rl.passes.unfuse(graph)


def estimate(mode: str) -> Callable[[rl.Graph], Any]:
    return lambda graph: rl.estimate(graph, "h100-sxm", mode=mode, B=4, S=128)


def fuse(policy: str) -> Callable[[rl.Graph], Any]:
    return lambda graph: rl.passes.fuse(written(graph), policy)


def drawn(graph: rl.Graph) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rl.charts.plot_roofline(rl.estimate(graph, "h100-sxm", mode="graph", B=4, S=128)).save(Path(folder, "a.svg"))


def trained(graph: rl.Graph) -> rl.Graph:
    return rl.passes.backward(graph)


#: Every public pass and verb that takes a program of any depth, by name.
FUNCTIONS: dict[str, Callable[[rl.Graph], Any]] = {
    "count": lambda graph: rl.count(graph, B=4, S=128),
    "estimate eager": estimate("eager"),
    "estimate graph": estimate("graph"),
    "estimate compiled": estimate("compiled"),
    **{f"fuse {policy}": fuse(policy) for policy in ("eager", "pointwise", "chains", "inductor", "flash", "ideal")},
    "megatron_kernels": rl.passes.megatron_kernels,
    "cast": lambda graph: rl.passes.cast(graph, "fp16"),
    "autocast": lambda graph: rl.passes.autocast(graph, "fp16"),
    "quantize": lambda graph: rl.passes.quantize(graph, weights="int8"),
    "dequantize": lambda graph: rl.passes.dequantize(rl.passes.quantize(graph, weights="int8")),
    "shard tp=2": lambda graph: rl.passes.shard(graph, tp=2),
    "shard tp=2 sp": lambda graph: rl.passes.shard(graph, tp=2, sp=True),
    "stages": lambda graph: rl.passes.stages(graph, 4),
    "pipelined": lambda graph: rl.passes.pipelined(graph, 4),
    "clean": rl.passes.clean,
    "merge_equal": rl.passes.merge_equal,
    "eliminate_dead": rl.passes.eliminate_dead,
    "fold_constants": rl.passes.fold_constants,
    "merge_linears": rl.passes.merge_linears,
    "drop_mask": rl.passes.drop_mask,
    "prune channels": lambda graph: rl.passes.prune(graph, channels=0.25),
    "prune heads": lambda graph: rl.passes.prune(graph, heads=0.25),
    "prune hidden": lambda graph: rl.passes.prune(graph, hidden=0.25),
    "prune layers": lambda graph: rl.passes.prune(graph, layers=0.25),
    "replace_op": lambda graph: rl.passes.replace_op(graph, "gelu", "relu"),
    "backward": trained,
    "training_graph": lambda graph: rl.passes.training_graph(graph),
    "accumulate": lambda graph: rl.passes.accumulate(trained(graph), 4),
    "saved": lambda graph: rl.passes.saved(trained(graph)),
    "estimate backward": lambda graph: estimate("compiled")(trained(graph)),
    "explain_fusion": lambda graph: rl.analysis.explain_fusion(graph, "layers.0.gelu", "layers.0.gated", B=4, S=128),
    "fusion": lambda graph: rl.analysis.fusion(graph, "h100-sxm", B=4, S=128),
    "pass_history": lambda graph: rl.analysis.pass_history(rl.passes.cast(graph, "fp16"), "h100-sxm", B=4, S=128),
    "compare": lambda graph: rl.compare(graph, ["h100-sxm", "l4"], B=4, S=128),
    "check": lambda graph: rl.check(graph, "h100-sxm", 1.0, B=4, S=128),
    "best_batch": lambda graph: rl.best_batch(graph, "h100-sxm", S=128),
    "what_if": lambda graph: rl.what_if(graph, tp=2, weights="int8"),
    "listing text": lambda graph: str(rl.listing(graph)),
    "listing dot": lambda graph: rl.listing(graph).dot(),
    "listing html": lambda graph: rl.listing(graph).html(),
    "listing html unfolded": lambda graph: rl.listing(graph, fold=False).html(),
    "plot": drawn,
    "fold_batchnorm": rl.passes.fold_batchnorm,
    "prune channels of convolutions": lambda graph: rl.passes.prune(graph, channels=0.25),
    "bind": lambda graph: graph.bind(B=4, S=128),
}


#: Those that run on convolutions.
OF_CONVOLUTIONS = frozenset(FUNCTIONS) & {"fold_batchnorm", "prune channels of convolutions"}


def seconds(name: str, layers: int) -> float:
    """CPU time of one run on a program that nothing is remembered of."""
    graph = (convolutions if name in OF_CONVOLUTIONS else program)(layers)
    gc.collect()
    gc.disable()  # passes over what lives already come at random
    start = time.process_time()
    FUNCTIONS[name](graph)
    taken = time.process_time() - start
    gc.enable()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=800)
    parser.add_argument("--limit", type=float, default=20.0)
    parser.add_argument("names", nargs="*", help="parts of the names of the functions; all by default")
    options = parser.parse_args()
    sizes = [options.layers // 4, options.layers // 2, options.layers]
    print(f"{'':32}" + "".join(f"{size:>9,}" for size in sizes) + " exponent")
    for name in FUNCTIONS:
        if options.names and not any(part in name for part in options.names):
            continue
        seconds(name, 8)  # imports
        times: list[float] = []
        for size in sizes:
            if not times or times[-1] < options.limit:
                times.append(seconds(name, size))
        exponent = math.log2(times[-1] / times[-2]) if len(times) > 1 else math.nan
        print(
            f"{name:32}"
            + "".join(f"{t:8.2f}s" for t in times)
            + f"{'':>{9 * (len(sizes) - len(times))}}{exponent:9.2f}"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
