"""The best batch by hand: which limit stops it, where the ridge is, and what to do when nothing fits."""

from __future__ import annotations

import numpy as np
import pytest

import roofline as rl
from roofline.counting.memory import RESERVE, WORKSPACE
from roofline.ir.sizes import symbol
from roofline.ops.builder import Builder

B = rl.ops.symbol("B")
CHIP = rl.Chip(
    name="hand",
    matrix={"bf16": "100 TFLOP/s"},
    vector={"fp32": "10 TFLOP/s"},
    memory_bandwidth="1 TB/s",
    memory_capacity="16 GB",
    efficiency={
        "compute": 0.5, "memory": 0.8, "launch": 0.0, "host": 0.0,
        # Tiles that are always fed: times differ from the roofs below by steps of tiles alone.
        "parameters": {
            "matmul": {
                "share": 0.5, "tile_half": 1.0, "step": 5e-9, "cache": 50.0, "store": 0.8, "throttle": 0.0, "knee": 8.0,
            }
        },
    },
)  # fmt: skip
WEIGHTS = 2 * 4096**2
#: Input and output of one more in the batch.
EACH = 2 * (2 * 4096)
FIXED = WEIGHTS + WORKSPACE + RESERVE


def layer() -> rl.Graph:
    b = rl.ops.Builder("layer", "bf16")
    y = b.op("linear", b.input("x", (B, 4096)), b.weight("w", (4096, 4096)), name="fc")
    return b.graph([y], items=B, item="token")


def seconds(batch: int) -> float:
    return float(rl.estimate(layer(), CHIP, B=batch).time)


def roofs(batch: int) -> float:
    return max(2 * batch * 4096**2 / 50e12, (WEIGHTS + EACH * batch) / 0.8e12)


#: First batch at which 2 B 4096^2 / 50e12 exceeds (w + 16384 B) / 0.8e12: 64.5, so 65.
RIDGE = 65


def test_the_ridge_is_where_compute_takes_over() -> None:
    choice = rl.best_batch(layer(), CHIP, memory_limit=FIXED + 200 * EACH)
    assert (choice.ridge, choice.ridge_by_kernel) == (RIDGE, {"fc": RIDGE})
    # At the datasheet's rates 2 B 4096^2 / 100e12 exceeds (w + 16384 B) / 1e12 from 105.2 on.
    assert choice.ridge_datasheet == 106
    bounds = choice.curve.bound
    assert (bounds[RIDGE - 2], bounds[RIDGE - 1]) == ("memory", "compute")


def test_memory_stops_it_below_the_ridge() -> None:
    choice = rl.best_batch(layer(), CHIP, memory_limit=FIXED + 40.5 * EACH)
    assert (choice.best, choice.largest, choice.limit, choice.ridge) == (40, 40, "memory", None)


def test_the_largest_batch_is_exact_at_the_edge() -> None:
    assert rl.best_batch(layer(), CHIP, memory_limit=FIXED + 40 * EACH).largest == 40
    assert rl.best_batch(layer(), CHIP, memory_limit=FIXED + 40 * EACH - 1).largest == 39


def test_latency_stops_it() -> None:
    limit = (seconds(30) + seconds(31)) / 2
    choice = rl.best_batch(layer(), CHIP, memory_limit=FIXED + 200 * EACH, latency_limit=limit)
    assert (choice.best, choice.limit) == (30, "latency")
    assert choice.estimate.time <= limit < choice.curve.time[choice.best]


def test_beyond_the_ridge_the_smallest_batch_of_the_best_throughput() -> None:
    choice = rl.best_batch(layer(), CHIP, memory_limit="10 GB")
    assert (choice.limit, choice.limit_batch) == ("memory", choice.largest)
    assert RIDGE <= choice.best < choice.limit_batch
    rates = choice.curve.throughput
    assert rates[choice.best - 1] >= 0.99 * rates.max()
    assert np.all(rates[RIDGE - 1 : choice.best - 1] < 0.99 * rates.max()), "none smaller is as good"


def test_shares_are_of_what_the_limits_allow() -> None:
    free = rl.best_batch(layer(), CHIP)
    choice = rl.best_batch(layer(), CHIP, latency_limit=float(free.at(64).time))
    assert choice.limit_batch < free.limit_batch
    rates = {batch: float(choice.at(batch).throughput) for batch in range(1, choice.limit_batch + 1)}
    assert choice.batch_for(0.8) == min(batch for batch, rate in rates.items() if rate >= 0.8 * max(rates.values()))


def test_a_latency_limit_that_does_not_bind_changes_nothing() -> None:
    free, loose = (rl.best_batch(layer(), CHIP, memory_limit="10 GB", latency_limit=limit) for limit in (None, "1 min"))
    assert (free.best, free.limit) == (loose.best, loose.limit)


def test_decode_is_stopped_by_memory() -> None:
    choice = rl.best_batch(rl.model("llama-3-8b", phase="decode"), "h100-sxm", S=8192, mode="graph")
    assert choice.limit == "memory"
    assert choice.best == choice.largest
    over = rl.estimate(rl.model("llama-3-8b", phase="decode"), "h100-sxm", B=choice.largest + 1, C=8192)
    assert choice.estimate.fits
    assert not over.fits


def test_convolutions_are_stopped_by_the_ridge() -> None:
    choice = rl.best_batch(rl.model("vit-b-16", dtype="bf16"), "h100-sxm", mode="graph", memory_limit="8 GiB")
    assert choice.ridge is not None
    assert choice.ridge < choice.best < choice.limit_batch == choice.largest


def test_gigabytes_are_not_gibibytes() -> None:
    small, large = (rl.best_batch(layer(), CHIP, memory_limit=text).largest for text in ("2 GB", "2 GiB"))
    assert small == (2e9 - FIXED) // EACH
    assert large == (2 * 2**30 - FIXED) // EACH


def test_the_curve_and_its_tables_agree() -> None:
    choice = rl.best_batch(layer(), CHIP, memory_limit=FIXED + 100 * EACH)
    frame = choice.curve.frame()
    assert list(frame["batch"]) == list(range(1, 101))
    assert list(frame["time_s"]) == pytest.approx([seconds(batch) for batch in range(1, 101)])
    assert all(time >= 0.999 * roofs(batch) for batch, time in enumerate(frame["time_s"], 1))
    assert np.all(np.diff(frame["memory_bytes_total"]) == EACH)
    assert {1, 2, 64, choice.ridge, choice.best, 100} <= set(choice.shown())
    record = choice.record()
    assert (record["best_batch"], record["ridge_batch"], record["limit"]) == (choice.best, choice.ridge, choice.limit)
    assert [point["batch"] for point in record["rows"]] == choice.shown()
    assert list(choice.frame()["batch"]) == choice.shown(), "the frame has the rows of the record"
    assert set(record["rows"][0]) - {"memory_bytes"} <= set(choice.frame().columns)


def test_both_ridges_of_one_layer_by_hand() -> None:
    # H100 SXM: 989.4e12 / 3.35e12 = 295.3 FLOP/byte; B 4096^2 * 2 / (2 (4096^2 + 8192 B)) = 295.3 at B = 345.1.
    choice = rl.best_batch(layer(), "h100-sxm", memory_limit="4 GB")
    assert (choice.ridge, choice.ridge_datasheet) == (277, 346)
    assert {277, 346} <= set(choice.shown())
    assert {"ridge_batch": 277, "ridge_batch_datasheet": 346}.items() <= choice.record().items()


def test_a_share_of_the_throughput_is_neither_the_ridge_nor_the_limit() -> None:
    free = rl.best_batch(layer(), CHIP, memory_limit=FIXED + 5000 * EACH)
    for share in ("90%", 0.9, "0.9"):
        choice = rl.best_batch(layer(), CHIP, memory_limit=FIXED + 5000 * EACH, near=share)
        assert choice.best == free.batch_for("90%") < free.best
        rates = choice.curve.throughput
        assert rates[choice.best - 1] >= 0.9 * rates.max() > rates[: choice.best - 1].max()
        assert (choice.near, choice.limit_batch, choice.ridge) == (0.9, free.limit_batch, free.ridge)
    record = free.record()
    assert record["batch_by_share"] == {"80%": free.batch_for(0.8), "90%": free.batch_for(0.9)}
    assert record["ridge_share"] == free.share(RIDGE) < 1


@pytest.mark.parametrize(("near", "fault"), [
    ("90", r"near='90' is no share above 0% up to 100%: 90% or 0.9\?"), (90, r"90% or 0.9\?"), (0, "is no share"),
    ("-5%", "is no share"), ("120%", "is no share"), ("most", "write it as 90% or 0.9"), (float("nan"), "is no share"),
    (True, "is no share"), ("90 ms", "is not a share"),
])  # fmt: skip
def test_what_is_no_share_is_refused(near: object, fault: str) -> None:
    with pytest.raises(rl.errors.UnitError, match=fault):
        rl.best_batch(layer(), CHIP, near=near)  # type: ignore[arg-type]


def test_what_does_not_fit_is_itemised_with_what_would() -> None:
    with pytest.raises(rl.errors.DoesNotFit) as caught:
        rl.best_batch(rl.model("llama-3-8b", phase="decode"), CHIP, S=2048)
    text = str(caught.value)
    # 15 GiB of weights, 0.25 of cache, 1 of reserve: over 16 GB = 14.9 GiB.
    assert text.startswith("llama-3-8b decode on hand: batch 1 needs 16.")
    assert "14.90 GiB are allowed" in text
    for part in ("weights 14.96", "kv_cache 0.25", "activations", "workspace 0.03", "reserve 1.00"):
        assert part in text
    assert "what would fit: --weights int8 (" in text
    assert "--tp 2 (" in text
    assert "\n" not in text


def test_what_is_said_to_fit_does() -> None:
    graph = rl.model("llama-3-8b", phase="decode", weights="int8")
    assert rl.best_batch(graph, CHIP, S=2048).best >= 1


def test_nothing_helps_under_the_reserve() -> None:
    with pytest.raises(rl.errors.DoesNotFit, match="what would fit: nothing"):
        rl.best_batch(layer(), CHIP, memory_limit="1 MB")


def test_too_slow_at_batch_one_is_said() -> None:
    with pytest.raises(rl.errors.DoesNotFit, match=r"batch 1 takes 42(\.\d)? us, above the latency limit of 1 us"):
        rl.best_batch(layer(), CHIP, latency_limit="1 us")


def test_a_fixed_batch_leaves_nothing_to_choose() -> None:
    work = rl.workload([{"op": "gemm", "m": 8, "n": 8, "k": 8}])
    with pytest.raises(rl.errors.UsageError, match="has no symbol B: its batch is fixed"):
        rl.best_batch(work, CHIP)


@pytest.mark.parametrize(
    "limits", [{"memory_limit": 0}, {"memory_limit": "-1 GB"}, {"latency_limit": "0 ms"}, {"latency_limit": -1}]
)
def test_limits_are_positive(limits: dict[str, object]) -> None:
    with pytest.raises(rl.errors.UsageError, match="limits must be positive"):
        rl.best_batch(layer(), CHIP, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "limits", [{"memory_limit": "72 GiB/s"}, {"latency_limit": "50 mss"}, {"memory_limit": float("nan")}]
)
def test_limits_are_quantities(limits: dict[str, object]) -> None:
    with pytest.raises(rl.errors.UnitError):
        rl.best_batch(layer(), CHIP, **limits)  # type: ignore[arg-type]


def test_a_batch_is_chosen_for_one_context() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"chosen for one point; give context \(C\) one number"):
        rl.best_batch(rl.model("llama-3-8b", phase="decode", layers=1), CHIP, S=[1024, 2048])  # type: ignore[arg-type]


def test_a_missing_context_is_named() -> None:
    with pytest.raises(rl.errors.UnboundSize, match="needs a value for context"):
        rl.best_batch(rl.model("llama-3-8b", phase="decode", layers=1), CHIP)


def test_of_a_small_program_batches_are_looked_at_close_together_and_its_latency_limit_is_exact() -> None:
    b = Builder("small", "bf16")
    y = b.op("linear", b.input("x", (symbol("B"), 256)), b.weight("w", (256, 256)))
    graph, chip = b.graph([y]), "h100-sxm"
    free = rl.best_batch(graph, chip, mode="graph")
    assert (free.largest, free.limit) == (2**20, "size")
    assert float(free.at(8192).time) == float(rl.estimate(graph, chip, mode="graph", B=8192).time)
    for batch in (10_001, 0, 2**21):
        with pytest.raises(rl.errors.UsageError, match=f"batch={batch}: .* nearest"):
            free.at(batch)
    assert len(free.batches) < 12_000, "not a million"
    ratios = free.batches[1:] / free.batches[:-1]
    assert ratios[free.batches[:-1] >= 8192].max() < 1.014
    assert free.at(free.best).time == rl.estimate(graph, chip, mode="graph", B=free.best).time
    limit = float(rl.estimate(graph, chip, mode="graph", B=100_001).time)
    held = rl.best_batch(graph, chip, mode="graph", latency_limit=limit)
    around = rl.estimate(graph, chip, mode="graph", B=[held.limit_batch, held.limit_batch + 1]).time
    assert held.limit == "latency"
    assert around[0] <= limit < around[1]
