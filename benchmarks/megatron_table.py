"""Published steps of Megatron-LM beside ours.

    python benchmarks/megatron_table.py

Reads measurements/a100-80gb-sxm/megatron.csv (Korthikanti et al. 2022, arXiv 2205.05198, Table 5): GPTs of 22B to 1T
on 8 to 512 A100, with Megatron-LM's fused kernels and without fused attention, as they were run. Activation memory is
what one device keeps of a layer, against the paper's formulas (Table 2).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import roofline as rl

ROWS = Path(__file__).resolve().parents[1] / "measurements" / "a100-80gb-sxm" / "megatron.csv"


def rows() -> list[dict[str, str]]:
    """The published steps."""
    with ROWS.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def step(row: Mapping[str, str]) -> rl.training.TrainingStep:
    """Our prediction of one."""
    graph = rl.model(row["model"], phase="train", **json.loads(row["overrides"]))
    tp, pp = int(row["tp"]), int(row["pp"])
    return rl.training.train(
        rl.passes.megatron_kernels(graph), rl.cluster("dgx-a100").replace(nodes=tp * pp // 8), batch=int(row["batch"]),
        micro_batch=int(row["micro_batch"]), tp=tp, pp=pp, interleave=int(row["interleave"]), sp=row["sp"] == "1",
        recompute=row["recompute"], mode="graph", S=int(row["seq"]),
    )  # fmt: skip


def kept(row: Mapping[str, str]) -> tuple[float, float]:
    """Bytes that one device keeps of a layer: ours, and by the paper's Table 2."""
    graph = rl.model(row["model"], phase="train", **{**json.loads(row["overrides"]), "layers": 2})
    tp, sp = int(row["tp"]), row["sp"] == "1"
    both = rl.passes.backward(rl.passes.shard(graph, tp=tp, sp=sp), recompute=row["recompute"])
    s, b, h = int(row["seq"]), int(row["micro_batch"]), graph.tensors["embed.weight"].shape[1]
    ours = rl.passes.saved(both, B=b, S=s)["layers.1"]
    return ours, s * b * h * (2 if row["recompute"] == "full" else 34 / tp)


def table() -> Iterator[tuple[str, float, float, float, float, float]]:
    """For each row: what it is, time published and ours, MFU, memory by the paper and ours."""
    for row in rows():
        found, (ours, paper) = step(row), kept(row)
        name = f"{row['model']}, {row['recompute']}{', sp' * (row['sp'] == '1')}"
        yield name, float(row["time_s"]), found.time, found.mfu, paper, ours


def main() -> None:
    print(f"{'step':<32} {'published':>9} {'ours':>8} {'error':>7} {'MFU':>6} {'kept, paper':>12} {'ours':>9}")
    errors = []
    for name, published, ours, mfu, paper, kept_here in table():
        errors.append(ours / published - 1)
        print(f"{name:<32} {published:>7.2f} s {ours:>6.2f} s {errors[-1]:>+7.1%} {mfu:>6.1%} {paper / 1e6:>9.1f} MB "
              f"{kept_here / 1e6:>6.1f} MB")  # fmt: skip
    print(f"mean error {sum(map(abs, errors)) / len(errors):.1%}, largest {max(map(abs, errors)):.1%}")


if __name__ == "__main__":
    main()
