"""Figures that others published, beside ours: training steps, attention kernels and decoding.

    python benchmarks/published.py

A ratio above 1 is a time of ours above theirs. Nothing is fitted to these rows. What a source does not say is taken
as written in the row: gpt-fast and llama.cpp decode about 128 tokens from a short prompt; decoding runs compiled, as
those systems do, without the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import roofline as rl


@dataclass(frozen=True)
class Row:
    """A published figure.

    Attributes:
        what: Program, layout and chip.
        published: The figure.
        unit: Its unit; a rate where it is not ``s``.
        ours: Our figure in that unit.
        source: Where it stands.
    """

    what: str
    published: float
    unit: str
    ours: Callable[[], float]
    source: str

    def ratio(self) -> float:
        """Time of ours to theirs."""
        return self.ours() / self.published if self.unit == "s" else self.published / self.ours()


def megatron(nodes: int, batch: int, recompute: str, **layout: int | bool) -> float:
    """Seconds of a step of the 530B GPT on DGX A100."""
    graph = rl.passes.megatron_kernels(rl.model("megatron-530b", phase="train"))
    return float(rl.training.train(
        graph, rl.cluster("dgx-a100").replace(nodes=nodes), batch=batch, micro_batch=1, recompute=recompute,
        mode="graph", S=2048, **layout,
    ).time)  # fmt: skip


def llama_405b(nodes: int, dp: int) -> float:
    """TFLOP/s of a device in a step of Llama-3.1-405B: 16M tokens, a layer at a time in turn down the pipeline."""
    graph = rl.model("llama-3.1-405b", phase="train")
    step = rl.training.train(
        graph, rl.cluster("dgx-h100").replace(nodes=nodes), batch=2048, micro_batch=1, tp=8, pp=16, dp=dp, sp=True,
        interleave=7, mode="compiled", S=8192,
    )  # fmt: skip
    return float(step.model_flops / step.time / (nodes * 8) / 1e12)


def attention(seq: int, causal: bool) -> float:
    """TFLOP/s of FlashAttention's forward: 16k tokens, width 2048, heads of 128."""
    sizes = {"batch": 16384 // seq, "heads": 16, "kv_heads": 16, "q_len": seq, "kv_len": seq, "head_dim": 128}
    est = rl.estimate(
        rl.workload([{"op": "attention", **sizes, "causal": causal}], dtype="fp16"), "h100-sxm", mode="graph"
    )
    flops = 4 * sizes["batch"] * 16 * seq * seq * 128 * (0.5 if causal else 1)
    return float(flops / est.time / 1e12)


def decode(model: str, chip: str, tp: int = 1, **formats: str) -> float:
    """Tokens a second of one sequence."""
    graph = rl.model(model, phase="decode", **formats)
    graph = rl.passes.shard(graph, tp=tp) if tp > 1 else graph
    return float(1 / rl.estimate(graph, chip, mode="compiled", B=1, C=128).time)


NLG, SEQUENCE, LLAMA = "arXiv 2201.11990 section 2.4", "arXiv 2205.05198 section 6.3", "arXiv 2407.21783 table 4"
FLASH, GPT_FAST = "arXiv 2407.08608", "github.com/pytorch-labs/gpt-fast README"
CPP, MLC = "github.com/ggml-org/llama.cpp issue 4766", "github.com/mlc-ai/llm-perf-bench issue 1"
ROWS = (
    Row("MT-NLG 530B, 280 DGX A100, dp 8", 60.1, "s", partial(megatron, 280, 1920, "full", tp=8, pp=35, dp=8), NLG),
    Row("MT-NLG 530B, 420 DGX A100, dp 12", 44.4, "s", partial(megatron, 420, 1920, "full", tp=8, pp=35, dp=12), NLG),
    Row("GPT 530B, 2240 A100, selective", 39.15, "s",
        partial(megatron, 280, 2240, "selective", tp=8, pp=35, dp=8, sp=True, interleave=3), SEQUENCE),
    Row("Llama-3.1-405B, 8192 H100", 430, "TFLOP/s", partial(llama_405b, 1024, 64), LLAMA),
    Row("Llama-3.1-405B, 16384 H100", 400, "TFLOP/s", partial(llama_405b, 2048, 128), LLAMA),
    *(Row(f"FlashAttention-3, {seq}{', causal' * causal}, H100", figure, "TFLOP/s", partial(attention, seq, causal),
          FLASH)
      for seq, causal, figure in ((512, False, 467), (2048, False, 625), (16384, False, 648), (512, True, 292),
                                  (2048, True, 521), (16384, True, 616))),
    Row("Llama-2-7B, A100", 104.9, "token/s", partial(decode, "llama-2-7b", "a100-80gb-sxm"), GPT_FAST),
    Row("Llama-2-7B int8, A100", 155.6, "token/s",
        partial(decode, "llama-2-7b", "a100-80gb-sxm", weights="int8"), GPT_FAST),
    Row("Llama-2-7B int4-g32, A100", 196.8, "token/s",
        partial(decode, "llama-2-7b", "a100-80gb-sxm", weights="int4-g32"), GPT_FAST),
    *(Row(f"Llama-2-7B, {tp} A100", figure, "token/s", partial(decode, "llama-2-7b", "a100-80gb-sxm", tp), GPT_FAST)
      for tp, figure in ((2, 168.8), (4, 254.0), (8, 328.4))),
    Row("Llama-2-7B fp16, RTX 4090", 61.0, "token/s", partial(decode, "llama-2-7b", "rtx-4090", dtype="fp16"), CPP),
    Row("Llama-2-7B q8_0, RTX 4090", 98.1, "token/s",
        partial(decode, "llama-2-7b", "rtx-4090", dtype="fp16", weights="q8_0"), CPP),
    Row("Llama-2-7B int4, RTX 4090", 191.0, "token/s",
        partial(decode, "llama-2-7b", "rtx-4090", dtype="fp16", weights="int4-g32"), MLC),
)  # fmt: skip


def table() -> Iterator[tuple[Row, float]]:
    """Each row with the ratio of the times."""
    for row in ROWS:
        yield row, row.ratio()


def main() -> None:
    """Print all rows, and how many lie how near."""
    ratios = []
    for row, ratio in table():
        ratios.append(ratio)
        print(
            f"{row.what:36} {row.published:8.2f} {row.unit:8} time ours/theirs {ratio:5.2f}  {row.source}", flush=True
        )
    for low, high in ((0.8, 1.25), (0.9, 1.1)):
        print(f"within {low} to {high}: {sum(low <= ratio <= high for ratio in ratios)} of {len(ratios)}")


if __name__ == "__main__":
    main()
