"""Schedules: published bubbles and ZeRO memory, and the closed forms against a simulation of each schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.cost.pipelines import SCHEDULES, bubble, check_pipeline, data_parallel, in_flight, pipeline, zero_memory

GB = 1e9

# --- published -------------------------------------------------------------------------------------------------------


def test_the_bubbles_of_narayanan_et_al() -> None:
    """arXiv 2104.04473, section 2.2: p 8, m 64, v 2 (golden topic 6)."""
    assert bubble(8, 64) == pytest.approx(0.109375, rel=1e-6)
    assert bubble(8, 64, 2) == pytest.approx(0.0546875, rel=1e-6)
    assert pipeline(1.0, 2.0, 8, 64, schedule="interleaved", interleave=2).bubble == pytest.approx(0.0546875, rel=1e-6)
    np.testing.assert_allclose(bubble(8, np.array([8, 64])), [0.875, 0.109375])


@pytest.mark.parametrize(("stage", "total"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_seven_and_a_half_billion_of_rajbhandari_et_al(stage: int, total: float) -> None:
    """arXiv 1910.02054, figure 1: psi 7.5e9 on 64 devices, 2 + 2 + 12 bytes per parameter, in GB, rounded there."""
    assert zero_memory(7.5e9, 64, stage).total / GB == pytest.approx(total, abs=0.05)


def test_megatrons_distributed_optimizer_is_stage_one() -> None:
    """18 bytes per parameter, or 6 + 12/dp (Megatron-LM, theoretical_memory_usage.py)."""
    assert zero_memory(1.0, 1, gradients=4).total == 18
    assert zero_memory(1.0, 8, 1, gradients=4).total == 6 + 12 / 8


def test_zero_moves_two_or_three_times_the_model() -> None:
    """Rajbhandari et al. 2020, section 7: 2 psi up to stage 2, 3 psi in stage 3."""
    moved = [step(stage, 1e9, layers=10**7).seconds for stage in range(4)]
    assert moved == pytest.approx([2, 2, 2, 3])


def test_the_first_stage_holds_what_korthikanti_et_al_say() -> None:
    """arXiv 2205.05198, section 4.2.3: L (1 + (p - 1) / (p v)) layers, interleaved; L otherwise."""
    for p, v in ((8, 2), (8, 3), (35, 3), (64, 1)):
        held = in_flight(0, p, 4 * p, "interleaved", v)
        assert held == pytest.approx(p * (1 + (p - 1) / (p * v)))
    assert in_flight(0, 8, 64) == 8


# --- the closed forms against a simulation ---------------------------------------------------------------------------


def order(stage: int, p: int, m: int, v: int, schedule: str) -> list[tuple[str, int, int]]:
    """What a device does in turn: (forward or backward, chunk of its layers, micro-batch), as in Megatron-LM."""
    if schedule == "gpipe":
        return [("f", 0, j) for j in range(m)] + [("b", 0, j) for j in range(m)]
    if v == 1 and schedule == "1f1b":
        units, warm = [(0, j) for j in range(m)], p - stage - 1
        back = units
    else:
        groups = [range(at, at + p) for at in range(0, m, p)]
        units = [(c, j) for group in groups for c in range(v) for j in group]
        back = [(c, j) for group in groups for c in reversed(range(v)) for j in group]
        warm = 2 * (p - stage - 1) + (v - 1) * p
    warm = min(warm, len(units))
    done: list[tuple[str, int, int]] = [("f", *unit) for unit in units[:warm]]
    for ahead, behind in zip(units[warm:], back, strict=False):
        done += [("f", *ahead), ("b", *behind)]
    return done + [("b", *unit) for unit in back[len(units) - warm :]]


def simulate(p: int, m: int, f: float, b: float, send: float, schedule: str, v: int = 1) -> tuple[float, list[float]]:
    """End of the last backward and the most micro-batches each device held, by running the schedule."""
    todo = [order(at, p, m, v, schedule) for at in range(p)]
    ready: dict[tuple[str, int, int, int], float] = {}
    clock, place, held, most = [0.0] * p, [0] * p, [0.0] * p, [0.0] * p

    def waits_for(way: str, at: int, chunk: int) -> tuple[str, int, int] | None:
        step = chunk * p + at
        if way == "f":
            return ("f", *reversed(divmod(step - 1, p))) if step else None  # type: ignore[return-value]
        last = p * v - 1
        return ("b", *reversed(divmod(step + 1, p))) if step < last else ("f", at, chunk)  # type: ignore[return-value]

    while any(at < len(each) for at, each in zip(place, todo, strict=True)):
        before = list(place)
        for at in range(p):
            while place[at] < len(todo[at]):
                way, chunk, j = todo[at][place[at]]
                need = waits_for(way, at, chunk)
                if need is not None and (*need, j) not in ready:
                    break
                hop = send if need is not None and need[1] != at else 0.0
                arrived = ready[(*need, j)] + hop if need is not None else 0.0
                clock[at] = max(clock[at], arrived) + (f if way == "f" else b) / v
                ready[way, at, chunk, j] = clock[at]
                held[at] += (1 if way == "f" else -1) / v
                most[at] = max(most[at], held[at])
                place[at] += 1
        assert place != before, "the schedule is stuck"
    return max(clock), most


CASES = [
    (p, m, schedule, v)
    for p in (1, 2, 3, 4, 8)
    for m in (1, 2, 3, 4, 8, 16, 24)
    for schedule, v in (("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3))
    if schedule != "interleaved" or (p > 1 and m % p == 0)
]


def test_time_and_what_is_held_without_sends() -> None:
    for p, m, schedule, v in CASES:
        time, most = simulate(p, m, 1.0, 2.0, 0.0, schedule, v)
        found = pipeline(1.0, 2.0, p, m, schedule=schedule, interleave=v)
        assert found.seconds == pytest.approx(time), (p, m, schedule, v)
        assert list(found.in_flight) == pytest.approx(most), (p, m, schedule, v)


@pytest.mark.parametrize("send", [0.01, 0.1])
def test_sends_are_waited_for_about_as_long_as_in_the_simulation(send: float) -> None:
    for p, m, schedule, v in CASES:
        bare, _ = simulate(p, m, 1.0, 2.0, 0.0, schedule, v)
        time, _ = simulate(p, m, 1.0, 2.0, send, schedule, v)
        found = pipeline(1.0, 2.0, p, m, send=send, schedule=schedule, interleave=v)
        # In 1F1B a whole number of sends is waited for, of which the closed form is the mean.
        tolerance = (2 if schedule == "1f1b" else 1e-9) * send
        assert found.sending == pytest.approx(time - bare, abs=tolerance), (p, m, schedule, v)


def test_blocking_sends_hold_up_every_micro_batch() -> None:
    found = pipeline(1.0, 2.0, 4, 16, send=0.1, blocking=True)
    assert found.sending == pytest.approx(2 * (3 + 15) * 0.1)
    assert found.sending > pipeline(1.0, 2.0, 4, 16, send=0.1).sending


def test_inference_has_one_way() -> None:
    found = pipeline(1.0, 0.0, 4, 8, send=0.5)
    assert (found.seconds, found.sending) == (8 + 3 + 3 * 0.5, 1.5)


def test_arrays_are_each_of_their_values() -> None:
    forward, send = np.array([[1.0], [2.0]]), np.array([0.0, 0.5, 5.0])
    found = pipeline(forward, 2 * forward, 4, 8, send=send)
    for i in range(2):
        for j in range(3):
            one = pipeline(float(forward[i, 0]), 2 * float(forward[i, 0]), 4, 8, send=float(send[j]))
            assert found.seconds[i, j] == pytest.approx(one.seconds)


def test_one_stage_is_no_pipeline() -> None:
    found = pipeline(1.0, 2.0, 1, 8, send=5.0)
    assert (found.seconds, found.idle, found.sending, found.in_flight) == (24.0, 0.0, 0.0, (1.0,))


# --- data parallelism ------------------------------------------------------------------------------------------------


def step(stage: int = 0, psi: float = 4e9, **options: Any) -> Any:
    """A step whose collectives run at 1 GB/s each way round, an all-reduce at half of that."""
    given: dict[str, Any] = {
        "forward": 3.0, "backward": 6.0, "all_reduce": lambda size: 2 * size / 1e9,
        "reduce_scatter": lambda size: size / 1e9, "all_gather": lambda size: size / 1e9, "bucket": 1e9,
    }  # fmt: skip
    return data_parallel(psi, psi, stage, **(given | options))


def test_the_last_bucket_is_always_waited_for() -> None:
    found = step(backward=1e9)
    assert (found.seconds, found.exposed, found.buckets) == (8.0, 2.0, 4)


def test_slow_collectives_queue_up_behind_the_backward() -> None:
    """Four buckets of 2 s, ready at 1.5, 3, 4.5 and 6 s: the last ends at 1.5 + 8."""
    assert step().exposed == pytest.approx(1.5 + 8 - 6)


def test_without_overlap_all_of_it_is_waited_for() -> None:
    for stage in range(4):
        found = step(stage, layers=4, overlap=False)
        assert found.exposed == found.seconds
        assert step(stage, layers=4).exposed <= found.exposed


def test_stage_one_gathers_what_stage_zero_gathers_in_one_go() -> None:
    zero, one, two = (step(stage) for stage in range(3))
    assert zero.seconds == one.seconds == two.seconds == 8.0
    # 1 s buckets: none queues behind the backward or the forward, and each collective's last is waited for.
    assert one.exposed == pytest.approx(1.0 + max(1.0, 4 - 3 * 3 / 4))


def test_stage_three_prefetches_layer_by_layer() -> None:
    """4 layers of 1 s to gather and 1 s to scatter; 0.75 s forward and 1.5 s backward each."""
    found = step(3, layers=4)
    assert found.seconds == 4 + 3 + 4
    assert found.exposed == pytest.approx((1 + 3 * (1 - 0.75)) + (3 * (2 - 1.5) + 1))
    assert step(3, layers=4, forward=8.0, backward=16.0).exposed == 2.0  # the first gather and the last scatter


def test_accumulated_gradients_are_reduced_once_except_where_they_are_divided() -> None:
    assert step(0, micro_batches=4).seconds == step(0).seconds
    assert step(1, micro_batches=4).seconds == step(1).seconds
    assert step(2, micro_batches=4).seconds == 4 * 4 + 4
    assert step(3, micro_batches=4, layers=4).seconds == 4 * step(3, layers=4).seconds


# --- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: check_pipeline(4, 6, "interleaved", 2), "allowed: multiples of 4; nearest 4 or 8"),
        (lambda: check_pipeline(4, 3, "interleaved", 2), "allowed: multiples of 4; nearest 4"),
        (lambda: pipeline(1, 2, 0, 4), "0 stages; allowed: 1 or more"),
        (lambda: pipeline(1, 2, 4, 0), "0 micro-batches; allowed: 1 or more"),
        (lambda: pipeline(1, 2, 4, 4, interleave=2), "2 chunks a device in 1f1b; allowed: 1, or schedule interleaved"),
        (
            lambda: pipeline(1, 2, 4, 4, schedule="gpip"),
            "unknown schedule 'gpip'; allowed: 1f1b, gpipe, interleaved; did",
        ),
        (lambda: in_flight(4, 4, 4), "stage 4; allowed: 0 to 3"),
        (lambda: zero_memory(1.0, 2, 4), "ZeRO stage 4; allowed: 0, 1, 2, 3; the nearest is 3"),
        (lambda: zero_memory(1.0, 2, -1), "the nearest is 0"),
        (lambda: step(5), "ZeRO stage 5"),
    ],
)
def test_what_cannot_be_says_the_nearest_that_can(build: Any, text: str) -> None:
    with pytest.raises(rl.errors.UsageError) as caught:
        build()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_schedule_is_tried_above() -> None:
    assert {schedule for *_, schedule, _ in CASES} == set(SCHEDULES)
