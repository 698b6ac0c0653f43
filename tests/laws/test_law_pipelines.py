"""Laws of pipelines, data parallelism and ZeRO."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from roofline.cost.pipelines import data_parallel, in_flight, pipeline, zero_memory

LAW = settings(deadline=None, max_examples=examples(200), derandomize=True, database=None)
times, counts = st.floats(1e-6, 10.0), st.integers(1, 64)


@LAW
@given(times, times, times, counts, counts, st.integers(1, 8))
def test_a_step_takes_its_work_and_more_chunks_wait_less(
    forward: float, backward: float, send: float, p: int, groups: int, v: int
) -> None:
    m = p * groups
    one = pipeline(forward, backward, p, m, send=send)
    assert one.seconds >= one.ideal == m * (forward + backward)
    assert one.seconds >= pipeline(forward, backward, p, m).seconds
    assert pipeline(forward, backward, p, m, send=send, schedule="gpipe").seconds <= one.seconds
    many = pipeline(forward, backward, p, m, schedule="interleaved", interleave=v)
    assert many.idle <= one.idle * (1 + 1e-12)
    assert many.in_flight[0] >= one.in_flight[0]


@LAW
@given(counts, counts, times)
def test_more_micro_batches_take_longer_and_waste_a_smaller_share(p: int, m: int, forward: float) -> None:
    fewer, more = (pipeline(forward, 2 * forward, p, each) for each in (m, m + 1))
    assert more.seconds > fewer.seconds
    assert more.bubble <= fewer.bubble


@LAW
@given(counts, counts)
def test_later_stages_hold_no_more_and_none_more_than_the_step_has(p: int, m: int) -> None:
    for schedule in ("1f1b", "gpipe"):
        held = [in_flight(stage, p, m, schedule) for stage in range(p)]
        assert held == sorted(held, reverse=True)
        assert 1 <= min(held) <= max(held) <= m


def moved(size: float, dp: int, stage: int) -> Any:
    """Bytes that a device sends in a step: seconds at a byte a second."""
    share = (dp - 1) / dp
    return data_parallel(
        size, size, stage, forward=0.0, backward=0.0, layers=10, overlap=False,
        all_reduce=lambda n: 2 * n * share, reduce_scatter=lambda n: n * share, all_gather=lambda n: n * share,
    ).seconds  # fmt: skip


@LAW
@given(st.floats(1, 1e13), st.integers(1, 4096), st.integers(0, 2))
def test_a_higher_stage_never_needs_more_memory_nor_less_traffic(parameters: float, dp: int, stage: int) -> None:
    lower, higher = (zero_memory(parameters, dp, each).total for each in (stage, stage + 1))
    assert higher <= lower * (1 + 1e-12)
    assert zero_memory(parameters, dp + 1, stage).total <= zero_memory(parameters, dp, stage).total * (1 + 1e-12)
    low, high = (moved(2 * parameters, dp, each) for each in (stage, stage + 1))
    assert low * (1 - 1e-12) <= high <= 1.5 * low * (1 + 1e-12)
    assert moved(2 * parameters, 1, stage) == 0


@LAW
@given(
    st.floats(1e3, 1e12), st.integers(0, 3), st.floats(0, 10), st.floats(0, 10), st.integers(1, 100), st.integers(1, 8),
    st.floats(1e6, 1e10),
)  # fmt: skip
def test_what_is_waited_for_is_part_of_the_communication_and_shrinks_with_time_to_hide_it(
    size: float, stage: int, forward: float, backward: float, layers: int, micro_batches: int, bucket: float
) -> None:
    def step(slower: float, overlap: bool = True) -> Any:
        return data_parallel(
            size, size, stage, forward=slower * forward, backward=slower * backward, layers=layers, bucket=bucket,
            micro_batches=micro_batches, overlap=overlap, all_reduce=lambda n: 1e-5 + 2 * n / 1e11,
            reduce_scatter=lambda n: 1e-5 + n / 1e11, all_gather=lambda n: 1e-5 + n / 1e11,
        )  # fmt: skip

    found = step(1.0)
    assert 0 < found.exposed <= found.seconds * (1 + 1e-9)
    assert step(2.0).exposed <= found.exposed * (1 + 1e-9)
    assert step(1.0, overlap=False).exposed == found.seconds
