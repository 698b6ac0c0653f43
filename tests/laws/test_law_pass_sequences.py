"""Passes in any order end in an error of ours that says why, or in a program that obeys the laws of an estimate."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

import roofline as rl
from roofline.ir.sizes import symbol
from roofline.ops.builder import Builder

#: Sequences of each seed, and passes of a sequence at most.
SEQUENCES, LONGEST = 12, 4

#: Passes and the options that they are drawn with; some of them are refused, each in words.
PASSES: dict[str, list[dict[str, Any]]] = {
    "cast": [{"dtype": "bf16"}, {"weights": "int8"}, {"cache": "fp8"}],
    "autocast": [{"dtype": "bf16"}, {"dtype": "fp16"}],
    "quantize": [{"weights": "int8"}, {"weights": "int4-g32"}, {"weights": "fp8", "activations": "fp8"}],
    "dequantize": [{}],
    "fuse": [{"policy": policy} for policy in ("eager", "chains", "ideal")],
    "inductor": [{}], "megatron_kernels": [{}], "unfuse": [{}],
    "shard": [{"tp": 2}, {"tp": 4, "sp": True}, {"ep": 2}, {"tp": 64}],
    "pipelined": [{"pp": 2}],
    "prune": [{"heads": 0.5}, {"channels": 0.5}, {"layers": 0.5}, {"sparsity": "2:4"}],
    "clean": [{}], "eliminate_dead": [{}], "fold_constants": [{}], "merge_equal": [{}], "merge_linears": [{}],
    "fold_batchnorm": [{}], "drop_mask": [{}],
    "backward": [{}, {"recompute": "selective"}, {"recompute": "full"}],
    "optimizer": [{"kind": "adamw"}, {"kind": "sgd", "clip": True}, {"kind": "adafactor", "master": True}],
    "training_graph": [{"precision": "amp-bf16"}, {"precision": "mixed-fp16", "micro_batches": 2, "clip": True}],
    "accumulate": [{"micro_batches": 2}],
}  # fmt: skip


def net() -> rl.Graph:
    b = Builder("net", "fp32")
    x = b.op("conv2d", b.input("x", (symbol("B"), 3, 8, 8)), b.weight("c", (8, 3, 3, 3)), padding=1, name="conv")
    x = b.op("mul", b.op("relu", x, name="relu"), b.weight("s", (8, 1, 1)), name="scaled")
    return b.graph([b.op("div", x, name="half")])


PROGRAMS = {
    "decode": lambda: rl.model("llama-3-8b", phase="decode", layers=2),
    "forward": lambda: rl.model("gpt2", phase="forward", layers=2),
    "train": lambda: rl.model("gpt2", phase="train", layers=2),
    "experts": lambda: rl.model("mixtral-8x7b", phase="prefill", layers=1),
    "net": net,
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_sequence_of_passes_is_refused_or_obeys(program: str, seed: int) -> None:
    rng = random.Random(f"{program} {seed}")
    for _ in range(SEQUENCES):
        graph, applied = PROGRAMS[program](), []
        for _ in range(rng.randint(1, LONGEST)):
            name = rng.choice(list(PASSES))
            applied.append((name, rng.choice(PASSES[name])))
            with contextlib.suppress(rl.RooflineError):  # refused in words; the program stays what it was
                graph = getattr(rl.passes, name)(graph, **applied[-1][1])
            _obeys(graph, applied)


@pytest.mark.parametrize(("name", "tp"), [("deepseek-v3", 64), ("gpt2", 4)])
def test_what_every_device_works_out_again_is_said(name: str, tp: int) -> None:
    """All devices together never run less than one alone; what they run more, one latent's projections, has a note."""
    graph = rl.model(name, phase="forward", layers=4)
    part = rl.passes.shard(graph, tp=tp)
    times = tp * rl.count(part, B=256, S=256).flops / rl.count(graph, B=256, S=256).flops
    said = [note for note in part.history[-1].notes if "together run" in note]
    assert times >= 1
    assert (times > 2) == (name == "deepseek-v3")
    assert [note.split(",")[0] for note in said] == (
        [f"{tp} devices together run {times:.2g} times the FLOPs of one"] if times > 1.1 else []
    )


def _obeys(graph: rl.Graph, applied: list[Any]) -> None:
    sizes = {name: {"B": 4}.get(name, 64) for name in graph.symbols}
    graph.validate()
    est = rl.estimate(graph, "h100-sxm", mode="graph", **sizes)
    assert est.floor * (1 - 1e-9) <= est.low <= est.time <= est.high, applied
    assert min(est.bytes, est.throughput) > 0, applied
    assert all(part >= 0 for part in est.memory.parts().values()), applied
