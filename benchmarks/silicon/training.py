"""Measure training on an NVIDIA GPU: backward kernels one by one, and whole steps with their kernels.

    python benchmarks/silicon/training.py OUT_FOLDER [--seconds 480]

Writes three tables. ``train_ops.csv``: one operator, forwards or backwards, cold: columns of measure_ops.py.
``train_steps.csv``: one step each: wall time in a full queue, time of the device's kernels, peak memory.
``train_kernels.csv``: the kernels of those steps, by name: calls and time.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure_ops import DTYPES, kernels_of, rand
from torch import nn

Run = Callable[[], object]
BF16 = torch.bfloat16


# --- operators, forwards and backwards -------------------------------------------------------------------------------


def back(outputs: torch.Tensor, inputs: list[torch.Tensor]) -> Run:
    """The backward of something that has run already."""
    grad = torch.randn_like(outputs)
    return lambda: torch.autograd.grad(outputs, inputs, grad, retain_graph=True)


def leaf(*shape: int, dtype: str) -> torch.Tensor:
    return rand(*shape, dtype=DTYPES[dtype]).requires_grad_()


def attention(s: dict, dtype: str) -> tuple[Run, Run]:
    q = leaf(s["batch"], s["heads"], s["seq"], s["head_dim"], dtype=dtype)
    k, v = (leaf(s["batch"], s["kv_heads"], s["seq"], s["head_dim"], dtype=dtype) for _ in "kv")
    kwargs = {"is_causal": s["causal"], "dropout_p": s["dropout"], "enable_gqa": s["heads"] != s["kv_heads"]}

    def run() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, **kwargs)

    return run, back(run(), [q, k, v])


def norm(function: Callable, weights: int) -> Callable:
    def build(s: dict, dtype: str) -> tuple[Run, Run]:
        x = leaf(s["rows"], s["cols"], dtype=dtype)
        w = [leaf(s["cols"], dtype=dtype) for _ in range(weights)]

        def run() -> torch.Tensor:
            return function(x, (s["cols"],), *w)

        return run, back(run(), [x, *w])

    return build


def cross_entropy(s: dict, dtype: str) -> tuple[Run, Run]:
    x = leaf(s["rows"], s["cols"], dtype=dtype)
    labels = torch.randint(s["cols"], (s["rows"],), device="cuda")

    def run() -> torch.Tensor:
        return F.cross_entropy(x.float(), labels)

    return run, back(run(), [x])


def conv(s: dict, dtype: str) -> tuple[Run, Run]:
    torch.backends.cudnn.benchmark = True
    last = torch.channels_last
    x = rand(s["n"], s["c_in"], s["h"], s["w"], dtype=DTYPES[dtype]).to(memory_format=last).requires_grad_()
    w = rand(s["c_out"], s["c_in"], s["r"], s["s"], dtype=DTYPES[dtype]).to(memory_format=last).requires_grad_()

    def run() -> torch.Tensor:
        return F.conv2d(x, w, None, s["stride"], s["padding"])

    return run, back(run(), [x, w] if s["c_in"] > 3 else [w])


def batchnorm(s: dict, dtype: str) -> tuple[Run, Run]:
    x = rand(s["n"], s["c"], s["h"], s["w"], dtype=DTYPES[dtype]).to(memory_format=torch.channels_last)
    x.requires_grad_()
    layer = nn.BatchNorm2d(s["c"], device="cuda").train()
    return lambda: layer(x), back(layer(x), [x, layer.weight, layer.bias])


def maxpool(s: dict, dtype: str) -> tuple[Run, Run]:
    x = rand(s["n"], s["c"], s["h"], s["w"], dtype=DTYPES[dtype]).to(memory_format=torch.channels_last)
    x.requires_grad_()

    def run() -> torch.Tensor:
        return F.max_pool2d(x, 3, 2, 1)

    return run, back(run(), [x])


def embedding(s: dict, dtype: str) -> tuple[Run, Run]:
    table = leaf(s["vocab"], s["dim"], dtype=dtype)
    ids = torch.randint(s["vocab"], (s["tokens"],), device="cuda")

    def run() -> torch.Tensor:
        return F.embedding(ids, table)

    return run, back(run(), [table])


def pointwise(function: Callable) -> Callable:
    def build(s: dict, dtype: str) -> tuple[Run, Run]:
        x = leaf(s["n"], dtype=dtype)
        return lambda: function(x), back(function(x), [x])

    return build


def linear(s: dict, dtype: str) -> tuple[Run, Run]:
    """The two products of a backward, as autograd lays them out."""
    x, w, dy = (rand(*shape, dtype=DTYPES[dtype]) for shape in
                ((s["m"], s["k"]), (s["n"], s["k"]), (s["m"], s["n"])))  # fmt: skip
    return lambda: dy @ w, lambda: dy.t() @ x


def column_sum(s: dict, dtype: str) -> tuple[Run, Run]:
    x = rand(s["rows"], s["cols"], dtype=DTYPES[dtype])
    return lambda: x.sum(0), lambda: x.sum(0, dtype=torch.float32)


def update(s: dict, dtype: str) -> tuple[Run, Run]:
    """Fused AdamW, and SGD with momentum, over tensors of one size."""
    steps = []
    for make in (lambda p: torch.optim.AdamW(p, fused=True), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)):
        weights = [nn.Parameter(rand(s["n"], dtype=DTYPES[dtype])) for _ in range(s["tensors"])]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        optimizer = make(weights)
        optimizer.step()
        steps.append(optimizer.step)
    return steps[0], steps[1]


OPS: dict[str, Callable] = {
    "attention": attention, "layernorm": norm(F.layer_norm, 2), "rmsnorm": norm(F.rms_norm, 1),
    "cross_entropy": cross_entropy, "conv2d": conv, "batchnorm": batchnorm, "maxpool2d": maxpool,
    "embedding": embedding, "gelu": pointwise(F.gelu), "silu": pointwise(F.silu),
    "dropout": pointwise(lambda x: F.dropout(x, 0.1)), "linear_grad": linear, "column_sum": column_sum,
    "update": update,
}  # fmt: skip

ROWS: list[tuple[str, dict[str, Any]]] = [
    *(("attention", {"batch": b, "heads": h, "kv_heads": g, "seq": s, "head_dim": d, "causal": c, "dropout": p})
      for b, h, g, s, d, c, p in ((8, 12, 12, 1024, 64, True, 0.1), (8, 12, 12, 1024, 64, True, 0.0),
                                  (32, 12, 12, 128, 64, False, 0.1), (2, 32, 8, 4096, 128, True, 0.0),
                                  (4, 32, 8, 2048, 64, True, 0.0), (1, 32, 32, 8192, 128, True, 0.0),
                                  (16, 16, 16, 512, 64, False, 0.0), (4, 16, 16, 2048, 128, False, 0.0))),
    *((op, {"rows": r, "cols": c}) for op in ("layernorm", "rmsnorm")
      for r, c in ((8192, 768), (4096, 768), (8192, 4096), (16384, 2048), (32768, 1024))),
    *(("cross_entropy", {"rows": r, "cols": c}) for r, c in ((8192, 50257), (2048, 128256), (4096, 32000))),
    *(("conv2d", {"n": 64, "c_in": i, "h": e, "w": e, "c_out": o, "r": k, "s": k, "stride": t, "padding": k // 2})
      for i, e, o, k, t in ((3, 224, 64, 7, 2), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 64, 1, 1),
                            (128, 28, 128, 3, 1), (256, 56, 512, 1, 2), (256, 14, 256, 3, 1), (512, 7, 512, 3, 1),
                            (512, 7, 2048, 1, 1), (1024, 14, 256, 1, 1))),
    *(("batchnorm", {"n": 64, "c": c, "h": e, "w": e}) for c, e in ((64, 112), (64, 56), (256, 56), (512, 28),
                                                                    (256, 14), (2048, 7))),
    ("maxpool2d", {"n": 64, "c": 64, "h": 112, "w": 112}),
    *(("embedding", {"vocab": v, "dim": d, "tokens": t}) for v, d, t in ((50257, 768, 8192), (128256, 2048, 8192),
                                                                       (30522, 768, 4096))),
    *((op, {"n": n}) for op in ("gelu", "silu", "dropout") for n in (2**22, 2**25, 2**27)),
    *(("linear_grad", {"m": m, "n": n, "k": k}) for m, n, k in
      ((8192, 2304, 768), (8192, 3072, 768), (8192, 768, 3072), (8192, 50257, 768), (8192, 4096, 4096),
       (4096, 16384, 2048))),
    *(("column_sum", {"rows": r, "cols": c}) for r, c in ((8192, 768), (8192, 3072), (4096, 768), (8192, 50257))),
    *(("update", {"tensors": t, "n": n}) for t, n in ((148, 840_000), (16, 64_000_000), (160, 160_000))),
]  # fmt: skip


def operators(end: float) -> Iterator[dict[str, Any]]:
    flush = torch.zeros(64 * 2**20, dtype=torch.int32, device="cuda")
    for op, shape in ROWS:
        for dtype in (
            ("fp32",) if op == "update" else ("bf16", "fp32") if op in ("layernorm", "embedding") else ("bf16",)
        ):
            if time.time() > end:
                return
            for way, run in zip(("forward", "backward"), OPS[op](shape, dtype), strict=True):
                launches = kernels_of(run, flush, cold=True)
                sums = sorted(sum(us for _, us in launch) for launch in launches)
                names = "|".join(f"{name[:60]}={us:.1f}" for name, us in launches[-1])
                yield {"op": op, "way": way, "dtype": dtype, "shape": json.dumps(shape), "kernels": names,
                       "kernel_us": round(sums[len(sums) // 2], 2), "n_kernels": len(launches[-1])}  # fmt: skip
            torch.cuda.empty_cache()


# --- whole steps -----------------------------------------------------------------------------------------------------


def gpt2() -> tuple[nn.Module, Callable]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()), lambda b, s: {"input_ids": ids(b, s, 50257), "labels": ids(b, s, 50257)}


def bert() -> tuple[nn.Module, Callable]:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig()), lambda b, s: {
        "input_ids": ids(b, s, 30522), "labels": torch.randint(2, (b,), device="cuda")}  # fmt: skip


def llama() -> tuple[nn.Module, Callable]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                         intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True)  # fmt: skip
    return LlamaForCausalLM(config), lambda b, s: {"input_ids": ids(b, s, 128256), "labels": ids(b, s, 128256)}


def vision(name: str) -> Callable:
    def build() -> tuple[nn.Module, Callable]:
        import torchvision

        net = getattr(torchvision.models, name)().to(memory_format=torch.channels_last)
        return net, lambda b, s: {"x": rand(b, 3, 224, 224, dtype=torch.float32).to(memory_format=torch.channels_last)}

    return build


def ids(batch: int, length: int, vocab: int) -> torch.Tensor:
    return torch.randint(vocab, (batch, length), device="cuda")


MODELS: dict[str, Callable] = {
    "gpt2": gpt2, "bert-base-uncased": bert, "llama-3.2-1b": llama, "resnet50": vision("resnet50"),
    "vit-b-16": vision("vit_b_16"),
}  # fmt: skip

STEPS = [
    ("gpt2", "amp-bf16", 8, 1024), ("gpt2", "bf16", 8, 1024), ("gpt2", "amp-bf16", 16, 1024), ("gpt2", "fp32", 4, 1024),
    ("resnet50", "amp-bf16", 128, 0), ("resnet50", "amp-bf16", 256, 0), ("resnet50", "bf16", 128, 0),
    ("bert-base-uncased", "amp-bf16", 32, 128), ("bert-base-uncased", "amp-bf16", 32, 512),
    ("vit-b-16", "amp-bf16", 128, 0), ("llama-3.2-1b", "amp-bf16", 4, 1024), ("llama-3.2-1b", "bf16", 2, 2048),
]  # fmt: skip


def step_of(name: str, dtype: str, batch: int, seq: int) -> Run:
    torch.manual_seed(0)
    net, inputs = MODELS[name]()
    net = net.cuda().train().to(BF16 if dtype == "bf16" else torch.float32)
    given = inputs(batch, seq)
    labels = torch.randint(1000, (batch,), device="cuda")
    if dtype == "bf16" and "x" in given:
        given["x"] = given["x"].to(BF16)
    optimizer = (torch.optim.SGD(net.parameters(), 0.1, momentum=0.9) if name == "resnet50"
                 else torch.optim.AdamW(net.parameters(), fused=True))  # fmt: skip

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", BF16, enabled=dtype.startswith("amp")):
            out = net(**given)
            loss = F.cross_entropy(out, labels) if "x" in given else out.loss
        loss.backward()
        optimizer.step()

    return step


def steps(end: float) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    torch.backends.cudnn.benchmark = True
    for name, dtype, batch, seq in STEPS:
        if time.time() > end:
            return
        case = {"model": name, "phase": "train", "mode": "eager", "dtype": dtype, "batch": batch, "seq": seq or ""}
        try:
            run = step_of(name, dtype, batch, seq)
            for _ in range(3):
                run()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, begin = torch.cuda.memory_allocated(), time.perf_counter()
            for _ in range(10):
                run()
            torch.cuda.synchronize()
            wall = (time.perf_counter() - begin) / 10
            rows = kernels_by_name(run)
        except (RuntimeError, ImportError, torch.OutOfMemoryError) as error:
            print("failed", case, str(error)[:200], flush=True)
            continue
        device = sum(row["total_us"] for row in rows)
        print(case, f"{wall * 1e3:.2f} ms, device {device / 1e3:.2f} ms", flush=True)
        yield ({**case, "wall_us": round(wall * 1e6, 1), "device_us": round(device, 1),
                "n_kernels": sum(row["calls"] for row in rows), "allocated_before": before,
                "activation_bytes": torch.cuda.max_memory_allocated() - before},
               [{**case, **row} for row in rows])  # fmt: skip
        del run
        torch.cuda.empty_cache()


def kernels_by_name(run: Run) -> list[dict[str, Any]]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        run()
        torch.cuda.synchronize()
    calls: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for event in trace.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            calls[event.name[:200]] += 1
            total[event.name[:200]] += event.time_range.elapsed_us()
    return [{"kernel": name, "calls": calls[name], "total_us": round(us, 1)} for name, us in total.most_common()]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Measure the steps, then as many operators as there is time for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=480)
    args = parser.parse_args()
    end = time.time() + args.seconds
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    whole, parts = [], []
    for row, kernels in steps(end - args.seconds / 3):
        whole.append(row)
        parts.extend(kernels)
        write(args.out / "train_steps.csv", whole)
        write(args.out / "train_kernels.csv", parts)
    ops = []
    try:
        for row in operators(end):
            ops.append(row)
    finally:
        write(args.out / "train_ops.csv", ops)
        print(len(whole), "steps,", len(ops), "operators")


if __name__ == "__main__":
    main()
