"""The power cap of a program: matmuls slow down where little else runs between them."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from profiles import examples

import roofline as rl
from roofline.cost import power

#: Seconds.
TIMES = st.floats(1e-6, 1e-2)


def matmul_us(rest: int) -> float:
    """Time of each of 48 matmuls among elementwise kernels of ``rest`` elements."""
    gemm = {"op": "gemm", "m": 4096, "n": 8192, "k": 2048, "count": 48}
    other = {"op": "add", "n": rest, "count": 24}
    est = rl.estimate(rl.workload([gemm, other], dtype="bf16"), "h100-sxm", mode="graph")
    return float(next(row["each_s"] for row in est.kernel_rows() if row["flops"])) * 1e6


@pytest.mark.parametrize(
    ("rest", "measured"),
    [
        (48 << 20, 214.3),  # OPT-1.3B, 4 x 1024 tokens, 78 % of the time in matmuls: measurements/h100-sxm/zoo/ops.csv
        (128 << 20, 181.8),  # Pythia-1B, 4 x 1024 tokens, 62 %
    ],
)
def test_the_same_matmul_is_slower_in_a_program_that_does_little_else(rest: int, measured: float) -> None:
    assert matmul_us(rest) == pytest.approx(measured, rel=0.13)


def test_the_device_works_faster_where_the_host_is_late() -> None:
    work = rl.workload([{"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "count": 24}], dtype="bf16")
    slow = rl.chip("h100-sxm").model_copy(
        update={"efficiency": rl.chip("h100-sxm").efficiency.model_copy(update={"host": 1e-3})}
    )
    late, replayed = (rl.estimate(work, slow, mode=mode) for mode in ("eager", "graph"))
    assert late.device_time < replayed.device_time < late.time


def run_seconds(counts: list[int], times: list[float], peaks: list[float], ratio: float, idle: float = 0.0) -> float:
    factors = power.slowed(counts, times, peaks, {"capped": 0.41, "ratio": ratio}, idle)
    return float(sum(count * time * factor for count, time, factor in zip(counts, times, factors, strict=True)))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), TIMES, st.floats(0, 1)), min_size=1, max_size=5),
    st.floats(0.1, 3.0),
    st.floats(1e-7, 1e-1),
)
def test_laws_of_the_power_cap(kernels: list[tuple[int, float, float]], ratio: float, idle: float) -> None:
    counts, times = [each[0] for each in kernels], [each[1] for each in kernels]
    peaks = [time * share for _, time, share in kernels]
    run = run_seconds(counts, times, peaks, ratio)
    assert run >= sum(np.multiply(counts, times)) * (1 - 1e-12)
    # A host that is late never makes the whole faster than a replay.
    assert max(run_seconds(counts, times, peaks, ratio, idle), idle) >= run * (1 - 1e-9)
    # More of anything takes longer.
    more = [*times[:-1], times[-1] * 1.5]
    assert run_seconds(counts, more, peaks, ratio) >= run * (1 - 1e-9)
    assert run_seconds(counts, more, [*peaks[:-1], peaks[-1] * 1.5], ratio) >= run * (1 - 1e-9)
    assert run_seconds([*counts[:-1], counts[-1] + 1], times, peaks, ratio) >= run * (1 - 1e-9)


def test_an_operator_that_launches_nothing_has_no_time_to_be_slowed() -> None:
    times, peaks = [np.float64(1e-3), np.float64(0.0)], [np.float64(9e-4), 0.0]
    factors = power.slowed([10, 3], times, peaks, {"capped": 0.41, "ratio": 1.0}, 0.0)
    assert factors[0] > 1
    assert factors[1] == 1
