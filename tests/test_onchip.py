"""Bytes at main memory and at the cache beside hardware counters of 66 kernels (measurements/h100-sxm/onchip)."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import onchip

from roofline.hardware.library import data_dir

#: Median and mean errors at main memory and at the cache, as they are and a little: by class, and of all.
REACHED = {
    "gemm, cuBLAS": (0.05, 0.08, 0.045, 0.05), "gemm, Triton": (0.06, 0.06, 0.05, 0.075),
    "attention_sdpa": (0.05, 0.055, 0.06, 0.07), "conv2d": (0.06, 0.14, 0.05, 0.05), "": (0.05, 0.065, 0.045, 0.06),
}  # fmt: skip


@cache
def cases() -> tuple[list[Any], Any]:
    some = onchip.cases(data_dir("measurements") / "h100-sxm" / "onchip" / "traffic.csv")
    return some, onchip.errors(some)


@pytest.mark.parametrize("kind", REACHED)
def test_bytes_are_as_near_to_the_counters_as_they_were(kind: str) -> None:
    some, errors = cases()
    own = errors[[kind in ("", case["class"]) for case in some]]
    reached = np.stack([np.median(own, axis=0), own.mean(axis=0)], axis=1).ravel()
    assert np.all(reached <= REACHED[kind]), reached


def test_orders_and_tiles_of_a_large_matmul_rank_as_measured() -> None:
    some, _ = cases()
    large = [case for case in some if case["name"].startswith("triton_8192_8192_8192")]
    measured, predicted = np.array([case["measured"] for case in large])[:, 0], onchip.predicted(large)[:, 0]
    assert list(np.argsort(measured)) == list(np.argsort(predicted))


def test_an_estimate_on_one_tensor_reads_it_once() -> None:
    row = {"op": "add", "dtype": "bf16", "shape": '{"n": 67108864}'}
    alone, shared = onchip.predicted([{"row": row}], as_run=False)[0], onchip.on_one_tensor(row)
    assert alone[0] - shared[0] > 0.9 * 2 * 67108864
