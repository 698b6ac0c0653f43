"""Draw operator shapes for the classes that the first measurements hold few of.

python benchmarks/silicon/make_rows.py > rows.csv
"""

from __future__ import annotations

import csv
import json
import random
import sys

draw = random.Random(20261128)


def log(low: int, high: int, step: int = 1) -> int:
    """A log-uniform whole number, rounded to a multiple of ``step``."""
    return max(step, round(2 ** draw.uniform(low.bit_length() - 1, high.bit_length() - 1) / step) * step)


def gemms() -> list[tuple[str, str, dict]]:
    found = []
    for dtype, count in (("bf16", 40), ("fp16", 15), ("fp8", 60), ("int8", 60), ("tf32", 40), ("fp32", 40)):
        while len([r for r in found if r[1] == dtype]) < count:
            step = 16 if dtype in ("fp8", "int8") else draw.choice((1, 8, 64))
            m = log(32, 8192, step) if dtype == "int8" else log(8, 16384, step)
            shape = {"m": m, "n": log(64, 32768, step), "k": log(64, 16384, step)}
            work = shape["m"] * shape["n"] * shape["k"]
            if work < (2**36 if dtype == "fp32" else 2**40):
                found.append(("gemm", dtype, shape))
    return found


def models() -> list[tuple[str, str, dict]]:
    """Weights of known models at decode and prefill sizes."""
    weights = [
        (4096, 6144),
        (4096, 28672),
        (14336, 4096),
        (8192, 10240),
        (8192, 57344),
        (2048, 16384),
        (5120, 27648),
        (768, 50257),
    ]
    return [("gemm", dtype, {"m": m, "n": n, "k": k}) for k, n in weights for m in (1, 8, 64, 256, 2048)
            for dtype in ("bf16", "fp8") if dtype == "bf16" or (n % 16 == 0 and m % 8 == 0)]  # fmt: skip


def streams() -> list[tuple[str, str, dict]]:
    found = []
    for op in ("add", "copy", "mul_scalar", "relu", "gelu", "silu", "exp", "fill", "cast_fp32"):
        found += [
            (op, dtype, {"n": log(2**10, 2**27, draw.choice((1, 8, 1024)))})
            for dtype in ("bf16", "fp32")
            for _ in range(3)
        ]
    for op in ("softmax", "layernorm", "rmsnorm", "sum", "argmax", "transpose_copy", "bias_add"):
        for dtype in ("bf16", "fp32"):
            for _ in range(4):
                cols = log(64, 65536, draw.choice((1, 8)))
                found.append((op, dtype, {"rows": log(4, max(8, 2**27 // cols)), "cols": cols}))
    return found


def moves() -> list[tuple[str, str, dict]]:
    found = []
    for dtype in ("bf16", "fp32"):
        for _ in range(6):
            found.append(("swiglu", dtype, {"rows": log(1, 8192), "cols": log(1024, 16384, 64)}))
            found.append(("rope", dtype, {"batch": log(1, 16), "heads": draw.choice((8, 16, 32)), "seq": log(16, 4096),
                                          "head_dim": draw.choice((64, 128))}))  # fmt: skip
            found.append(("gather", dtype, {"table": log(2**18, 2**27), "n": log(2**12, 2**24)}))
            found.append(("cat", dtype, {"rows": log(1, 8192), "cols_a": log(128, 8192), "cols_b": log(128, 8192)}))
            image = {"n": log(1, 128), "c": draw.choice((32, 64, 256)), "h": draw.choice((14, 28, 56)), "w": 56}
            found.append(("batchnorm2d", dtype, image))
            image = {"n": log(1, 128), "c": draw.choice((64, 128)), "h": 112, "w": 112, "r": draw.choice((2, 3))}
            found.append(("maxpool2d", dtype, {**image, "stride": 2}))
    found += [
        ("embedding", "bf16", {"vocab": 128256, "dim": d, "tokens": t})
        for d in (768, 4096)
        for t in (1, 64, 1024, 8192, 65536)
    ]
    return found


def main() -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(("op", "dtype", "shape"))
    for op, dtype, shape in [*gemms(), *models(), *streams(), *moves()]:
        writer.writerow((op, dtype, json.dumps(shape)))


if __name__ == "__main__":
    main()
