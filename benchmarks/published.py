"""Figures that others published, beside ours: training steps, attention kernels and decoding.

    python benchmarks/published.py

A ratio above 1 is a time of ours above theirs. Nothing is fitted to these rows. What a source does not say is taken
as written here:

- gpt-fast decodes 200 tokens from 5, in a static cache, as torch.compile's kernels in a CUDA graph; int4 on tinygemm.
  Its cards were joined without a switch, and PyTorch's own all-reduces were on (``ENABLE_INTRA_NODE_COMM``).
- llama.cpp and MLC decode about 128 tokens from a short prompt, without a host; MLC's ``q4f16_1`` has no zero points.
- vLLM on the MI300X decodes 128 tokens from 128; its quoted pace has the prompt's time in it, a fiftieth.
- MT-NLG ran on DeepSpeed, which adds gradients up in a pass of its own after each micro-batch.
- The layout of Llama 2's training is not published: Megatron-LM's for such a model. PaLM computes three quarters of the
  forward again, by its HFU; here all of it. DeepSeek-V3 trains in fp8 in 2048 devices; here in bf16, since no backward
  of fp8 is known, with the all-to-alls overlapped as there, and under 1F1B instead of DualPipe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

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


def megatron(nodes: int, batch: int, recompute: str, **layout: int | bool | str) -> float:
    """Seconds of a step of the 530B GPT on DGX A100."""
    graph = rl.passes.megatron_kernels(rl.model("megatron-530b", phase="train"))
    return float(rl.training.train(
        graph, rl.cluster("dgx-a100").replace(nodes=nodes), batch=batch, micro_batch=1, recompute=recompute,
        mode="graph", S=2048, **layout,  # type: ignore[arg-type]
    ).time)  # fmt: skip


def llama_405b(nodes: int, dp: int) -> float:
    """TFLOP/s of a device in a step of Llama-3.1-405B: 16M tokens, a layer at a time in turn down the pipeline."""
    graph = rl.model("llama-3.1-405b", phase="train")
    step = rl.training.train(
        graph, rl.cluster("dgx-h100").replace(nodes=nodes), batch=2048, micro_batch=1, tp=8, pp=16, dp=dp, sp=True,
        interleave=7, mode="compiled", S=8192,
    )  # fmt: skip
    return float(step.model_flops / step.time / (nodes * 8) / 1e12)


def llama_2_70b() -> float:
    """Tokens a second of a device in pre-training: 4M tokens a step."""
    step = rl.training.train(
        rl.model("llama-2-70b", phase="train"), rl.cluster("dgx-a100").replace(nodes=256), batch=1024, tp=8, pp=4,
        dp=64, sp=True, zero=1, recompute="selective", mode="graph", S=4096,
    )  # fmt: skip
    return step.throughput / step.devices


def palm() -> float:
    """Seconds of a step of PaLM 540B: 4M tokens on two pods, each 12 devices a layer and 256 shares of the weights."""
    pods = rl.cluster("tpu-v5p-pod").replace(chip="tpu-v4", devices_per_node=3072, nodes=2)
    return float(rl.training.train(
        rl.model("palm-540b", phase="train"), pods, batch=2048, tp=12, dp=512, zero=3, recompute="full",
        optimizer="adafactor", mode="compiled", S=2048,
    ).time)  # fmt: skip


def deepseek_v3() -> float:
    """Tokens a second of a device in pre-training: 15360 sequences a step."""
    step = rl.training.train(
        rl.model("deepseek-v3", phase="train"), rl.cluster("dgx-h100").replace(chip="h800-sxm", nodes=256),
        batch=15360, micro_batch=1, pp=16, dp=128, ep=64, zero=1, precision="mixed-bf16", overlap_experts=True,
        mode="compiled", S=4096,
    )  # fmt: skip
    return step.throughput / step.devices


def attention(seq: int, causal: bool) -> float:
    """TFLOP/s of FlashAttention's forward: 16k tokens, width 2048, heads of 128."""
    sizes = {"batch": 16384 // seq, "heads": 16, "kv_heads": 16, "q_len": seq, "kv_len": seq, "head_dim": 128}
    est = rl.estimate(
        rl.workload([{"op": "attention", **sizes, "causal": causal}], dtype="fp16"), "h100-sxm", mode="graph"
    )
    flops = 4 * sizes["batch"] * 16 * seq * seq * 128 * (0.5 if causal else 1)
    return float(flops / est.time / 1e12)


def pace(graph: rl.Graph, chip: str, context: int = 128, mode: Literal["graph", "compiled"] = "compiled") -> float:
    """Tokens a second of one sequence, without a host."""
    return float(1 / rl.estimate(graph, chip, mode=mode, B=1, C=context).time)


def decode(chip: str, **formats: str) -> float:
    """Tokens a second of Llama-2-7B in fp16, weights in a format of their own."""
    return pace(rl.model("llama-2-7b", phase="decode", dtype="fp16", **formats), chip)


def prefill(chip: str, seq: int) -> float:
    """Tokens a second of a prompt of Llama-2-7B in fp16."""
    graph = rl.model("llama-2-7b", phase="prefill", dtype="fp16")
    return float(seq / rl.estimate(graph, chip, mode="compiled", B=1, S=seq).time)


def gpt_fast(model: str, tp: int = 1, chip: str = "a100-80gb-sxm", **formats: str) -> float:
    """Tokens a second of gpt-fast; formats as for :func:`roofline.passes.quantize`."""
    graph = rl.model(model, phase="decode")
    graph = rl.passes.shard(graph, tp=tp, algorithm="serving") if tp > 1 else graph
    graph = rl.passes.quantize(graph, keep=("*embed*",), **formats) if formats else graph  # type: ignore[arg-type]
    return pace(rl.passes.inductor(graph), chip, 205, mode="graph")


def llama_405b_decode(chip: str, tp: int) -> float:
    """Tokens a second of one sequence of Llama-3.1-405B in fp8."""
    graph = rl.passes.shard(rl.model("llama-3.1-405b", phase="decode"), tp=tp)
    return pace(rl.passes.quantize(graph, activations="fp8"), chip, 192)


NLG, SEQUENCE, LLAMA = "arXiv 2201.11990 section 2.4", "arXiv 2205.05198 section 6.3", "arXiv 2407.21783 table 4"
NLG_RUN = {"tp": 8, "pp": 35, "accumulation": "separate"}
FLASH, GPT_FAST = "arXiv 2407.08608", "github.com/pytorch-labs/gpt-fast README"
CPP, MLC = "github.com/ggml-org/llama.cpp issue 4766", "github.com/mlc-ai/llm-perf-bench issue 1"
CPP_TABLE, ORACLE = "github.com/ggml-org/llama.cpp discussion 15013", "blogs.oracle.com, Llama 3.1 405B on MI300X"
A100, TINY = "a100-80gb-sxm", {"weights": "int4-g32", "dequantize": "tinygemm"}
ROWS = (
    Row("MT-NLG 530B, 280 DGX A100, dp 8", 60.1, "s", partial(megatron, 280, 1920, "full", dp=8, **NLG_RUN), NLG),
    Row("MT-NLG 530B, 420 DGX A100, dp 12", 44.4, "s", partial(megatron, 420, 1920, "full", dp=12, **NLG_RUN), NLG),
    Row("GPT 530B, 2240 A100, selective", 39.15, "s",
        partial(megatron, 280, 2240, "selective", tp=8, pp=35, dp=8, sp=True, interleave=3), SEQUENCE),
    Row("Llama-3.1-405B, 8192 H100", 430, "TFLOP/s", partial(llama_405b, 1024, 64), LLAMA),
    Row("Llama-3.1-405B, 16384 H100", 400, "TFLOP/s", partial(llama_405b, 2048, 128), LLAMA),
    *(Row(f"FlashAttention-3, {seq}{', causal' * causal}, H100", figure, "TFLOP/s", partial(attention, seq, causal),
          FLASH)
      for seq, causal, figure in ((512, False, 467), (2048, False, 625), (16384, False, 648), (512, True, 292),
                                  (2048, True, 521), (16384, True, 616))),
    Row("Llama-2-70B training, A100", 323, "token/s", llama_2_70b, "Llama 2 model card"),
    Row("PaLM 540B, 6144 TPU v4", 17.6, "s", palm, "arXiv 2204.02311"),
    Row("DeepSeek-V3, 2048 H800, in bf16", 1543, "token/s", deepseek_v3, "arXiv 2412.19437"),
    Row("Llama-2-7B, A100", 104.9, "token/s", partial(gpt_fast, "llama-2-7b"), GPT_FAST),
    Row("Llama-2-7B int8, A100", 155.6, "token/s", partial(gpt_fast, "llama-2-7b", weights="int8"), GPT_FAST),
    Row("Llama-2-7B int4-g32, A100", 196.8, "token/s", partial(gpt_fast, "llama-2-7b", **TINY), GPT_FAST),
    *(Row(f"Llama-2-7B, {tp} A100", figure, "token/s", partial(gpt_fast, "llama-2-7b", tp), GPT_FAST)
      for tp, figure in ((2, 168.8), (4, 254.0), (8, 328.4))),
    *(Row(f"Llama-2-70B, {tp} A100", figure, "token/s", partial(gpt_fast, "llama-2-70b", tp), GPT_FAST)
      for tp, figure in ((2, 21.32), (4, 38.01), (8, 62.5))),
    Row("Llama-2-7B, MI250X GCD", 76.33, "token/s", partial(gpt_fast, "llama-2-7b", chip="mi250x-gcd"), GPT_FAST),
    Row("Llama-3.1-405B fp8, 8 MI300X", 36, "token/s", partial(llama_405b_decode, "mi300x", 8), ORACLE),
    Row("Llama-2-7B fp16, RTX 4090", 61.0, "token/s", partial(decode, "rtx-4090"), CPP),
    Row("Llama-2-7B q8_0, RTX 4090", 98.1, "token/s", partial(decode, "rtx-4090", weights="q8_0"), CPP),
    Row("Llama-2-7B fp16 prefill, RTX 4090", 11048, "token/s", partial(prefill, "rtx-4090", 512), CPP),
    *(Row(f"Llama-2-7B q4_0, {chip}", figure, "token/s", partial(decode, chip, weights="q4_0"), CPP_TABLE)
      for chip, figure in (("rtx-4090", 186.2), ("rtx-3090", 158.2), ("rtx-5090", 290.0), ("gb10", 57.2),
                           (A100, 190.9), ("h100-sxm", 267.8))),
    Row("Llama-2-7B int4, RTX 4090", 191.0, "token/s", partial(decode, "rtx-4090", weights="int4-g32-sym"), MLC),
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
            f"{row.what:37} {row.published:8.2f} {row.unit:8} time ours/theirs {ratio:5.2f}  {row.source}", flush=True
        )
    for low, high in ((0.8, 1.25), (0.9, 1.1)):
        print(f"within {low} to {high}: {sum(low <= ratio <= high for ratio in ratios)} of {len(ratios)}")


if __name__ == "__main__":
    main()
