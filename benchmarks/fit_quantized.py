"""Fit what weight-only kernels cost to measured ones, and judge by the half of the rows that was not looked at.

    python benchmarks/fit_quantized.py [measurements/h100-sxm/quantized.csv] [--chip h100-sxm]

Fits ``dequantize``, ``dequantize_group`` and ``tinygemm`` of the group ``matmul`` to every second of tinygemm's rows,
chosen by a hash; the other half judges. All other rows (8-bit matmuls, quantising, dequantising) are only compared.
"""

from __future__ import annotations

import argparse
import csv
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import roofline as rl
from roofline import count
from roofline.cost import kernel_time
from roofline.passes.formats.quantize import quantize

FITTED = ("dequantize", "dequantize_group", "tinygemm")
#: Factors by which a parameter is tried around its best value, coarse first.
FACTORS = (4.0, 2.0, 1.4, 1.2, 1.1, 1.05, 1.02)


@dataclass(frozen=True)
class Row:
    """A measured operator and its program."""

    key: str
    graph: rl.Graph
    seconds: float

    @property
    def side(self) -> int:
        return zlib.crc32(self.key.encode()) & 1


def gemm(m: int, n: int, k: int) -> rl.Graph:
    b = rl.ops.Builder("gemm", "bf16")
    return b.graph([b.op("linear", b.input("x", (m, k)), b.weight("w", (n, k)), name="product")])


def activations(rows: int, cols: int, op: str, dtype: str) -> rl.Graph:
    b = rl.ops.Builder(op, "bf16")
    graph = b.graph([b.op(op, b.input("x", (rows, cols)), name="q")])
    stored = f"{dtype}-g{cols}-sym-s32" if op == "quantize_rows" else dtype
    return graph.with_tensors([type(graph.tensors["q"])("q", (rows, cols), stored)])


def only_dequantize(graph: rl.Graph) -> rl.Graph:
    node = next(node for node in graph.nodes if node.op == "dequantize")
    return rl.Graph("dequantize", graph.tensors, (node,), node.outputs)


def program(row: dict[str, str]) -> rl.Graph | None:
    """The graph of a row; ``None`` for kernels that the model does not speak of."""
    s, kernel, op = json.loads(row["shape"]), row["kernel"], row["op"]
    if op == "gemm":
        plain = gemm(s["m"], s["n"], s["k"])
        options = {
            "torch": {}, "tinygemm": {"weights": row["weights"], "dequantize": "tinygemm"},
            "scaled_mm": {"activations": "fp8", "scales": "static"}, "scaled_mm_row": {"activations": "fp8"},
            "int_mm": {"activations": "int8", "scales": "static"},
        }.get(kernel)  # fmt: skip
        if options is None:
            return None
        graph = quantize(plain, **options) if options else plain  # type: ignore[arg-type]
        product = [node for node in graph.nodes if node.op in ("linear", "dequantize")]
        tensors = {
            n: t if n != "x.quantize" else type(t)(n, t.shape, t.dtype, "input") for n, t in graph.tensors.items()
        }
        return rl.Graph("gemm", tensors, tuple(product), graph.outputs)
    if kernel == "eager":
        return None
    if op == "dequantize":
        return only_dequantize(quantize(gemm(1, s["n"], s["k"]), weights=row["weights"], dequantize="separate"))
    return activations(s["rows"], s["cols"], "quantize" if op == "quantize_static" else op, row["weights"])


def load(path: Path) -> list[Row]:
    found = []
    with path.open() as stream:
        for row in csv.DictReader(stream):
            graph = program(row)
            if graph is not None:
                key = f"{row['op']} {row['kernel']} {row['weights']} {row['shape']}"
                found.append(Row(key, graph, float(row["kernel_us"]) * 1e-6))
    return found


def predict(row: Row, chip: rl.Chip) -> float:
    return sum(r.kernel.count * float(kernel_time(r, chip, regime="cold").expected) for r in count(row.graph).rows)


def errors(rows: Sequence[Row], chip: rl.Chip) -> np.ndarray:
    """Predicted over measured, less one."""
    return np.array([predict(row, chip) / row.seconds - 1 for row in rows])


def with_parameters(chip: rl.Chip, values: dict[str, float]) -> rl.Chip:
    tables = {name: dict(table) for name, table in chip.efficiency.parameters.items()}
    tables["matmul"] = {**tables.get("matmul", {}), **values}
    return chip.replace(efficiency={**chip.efficiency.model_dump(), "parameters": tables})


def fit(rows: Sequence[Row], chip: rl.Chip) -> dict[str, float]:
    """The parameters that minimise the mean absolute logarithm, one at a time, coarse to fine."""
    from roofline.cost import GROUPS

    best = {name: GROUPS["matmul"][name].prior for name in FITTED}

    def loss(values: dict[str, float]) -> float:
        return float(np.abs(np.log1p(errors(rows, with_parameters(chip, values)))).mean())

    least = loss(best)
    for factor in FACTORS:
        for _ in range(3):
            for name in FITTED:
                for scale in (factor, 1 / factor):
                    tried = {**best, name: best[name] * scale}
                    if (found := loss(tried)) < least:
                        best, least = tried, found
    return best


def show(title: str, rows: Sequence[Row], error: np.ndarray) -> None:
    size = np.abs(error)
    print(f"{title:28} n {len(rows):3} mean {size.mean():6.1%} median {np.median(size):6.1%} worst {size.max():6.1%} "
          f"bias {error.mean():+.1%}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?", type=Path, default=Path("measurements/h100-sxm/quantized.csv"))
    parser.add_argument("--chip", default="h100-sxm")
    args = parser.parse_args()
    rows, chip = load(args.file), rl.chip(args.chip)
    tiny = [row for row in rows if " tinygemm " in row.key]
    halves = [[row for row in tiny if row.side == side] for side in (0, 1)]
    held = [errors(halves[1 - side], with_parameters(chip, fit(halves[side], chip))) for side in (0, 1)]
    show("tinygemm, held out", tiny, np.concatenate(held))
    everything = fit(tiny, chip)
    print("fitted to all:", {name: float(f"{value:.4g}") for name, value in everything.items()})
    for kind in dict.fromkeys(" ".join(row.key.split(" ")[:2]) for row in rows):
        some = [row for row in rows if row.key.startswith(f"{kind} ")]
        show(kind, some, errors(some, with_parameters(chip, everything)))
        for row, error in zip(some, errors(some, with_parameters(chip, everything)), strict=True):
            if abs(error) > 0.25:
                print(f"    {error:+6.0%} {row.key} {row.seconds * 1e6:.1f} us")


if __name__ == "__main__":
    main()
