"""Blocks, formats and places of a cache against counts by hand, the noise of rounding, and bytes over a link."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roofline as rl

TRACE = Path(__file__).parent / "request_traces" / "mooncake.jsonl"
#: Bytes of a token of Llama-3-8B: 32 layers x keys and values x 8 heads x 128 x 2 bytes.
TOKEN = 131072


@cache
def compared(**options: Any) -> Any:
    return rl.serving.cache_policies("llama-3-8b", "h100-sxm", **options)


def test_blocks_by_hand() -> None:
    """1,000 and 1,001 tokens in 63 blocks of 16 (PagedAttention), of a prefix of 100 tokens 4 in no whole block."""
    (none, _) = compared(prompt=1000, new_tokens=1, blocks=16, shared_prefix=100).policies
    assert none.waste == pytest.approx((8 / 1008 + 7 / 1008) / 2)
    assert (none.bytes_per_token, none.prefix_lost) == (TOKEN, 4)
    none, _ = compared(prompt=1000, new_tokens=1, blocks=64).policies
    assert none.waste == pytest.approx((24 / 1024 + 23 / 1024) / 2)


def test_what_is_there_is_not_read_and_comes_from_the_host_over_its_link() -> None:
    result = compared(prompt=8000, new_tokens=200, hit=0.5, host="256 GiB", concurrency=4)
    none, device, host = result.policies
    assert (none.place, device.place, host.place) == ("none", "device", "host")
    assert device.first_token < host.first_token < none.first_token == none.recompute
    steps = rl.serving.deployment("llama-3-8b", "h100-sxm").steps()
    assert device.first_token == pytest.approx(float(steps.prefill(4000, 4000)))
    assert host.first_token == pytest.approx(device.first_token + host.fetch)
    link = next(link for link in rl.chip("h100-sxm").links if link.kind == "host")
    assert 1 < host.fetch / (4000 * TOKEN / link.bandwidth) < 1.3  # of a copy from pinned memory
    assert host.room == pytest.approx(device.room + 256 * 2**30 / TOKEN)
    assert device.room == (none.sequences - 4) * 8200


def test_narrow_formats_hold_more_and_cost_accuracy() -> None:
    rows = compared(prompt=8000, new_tokens=200, caches=("bf16", "int8", "int4")).policies[::2]
    assert [row.bytes_per_token for row in rows] == [TOKEN, TOKEN / 2, TOKEN / 4]
    assert rows[1].sequences / rows[0].sequences == pytest.approx(2, rel=0.05)
    assert rows[0].sqnr_db is None
    assert rows[1].sqnr_db - rows[2].sqnr_db == pytest.approx(6.02 * 4, abs=1)  # 6 dB a bit


def test_a_slow_link_pays_from_a_longer_prefix_on() -> None:
    slow = rl.chip("h100-sxm").replace(host_bandwidth="8 GB/s")
    ends = [
        rl.serving.cache_policies("llama-3-8b", chip, prompt=8000, new_tokens=20, hit=0.5, host="9 GiB").policies[2]
        for chip in ("h100-sxm", slow, slow.replace(host_bandwidth="1 GB/s"))
    ]
    assert ends[0].break_even < ends[1].break_even
    assert ends[2].break_even is None  # 131 us a token, and reading takes 23
    assert ends[2].first_token > ends[2].recompute


def test_hits_of_a_trace_by_hand_and_over_room() -> None:
    """What came before of each prompt of the sample: blocks 0; 0; 0 1; 0 3; 0; 0 1 6; 0 3 8, of 512 tokens."""
    trace = rl.serving.read_requests(TRACE)
    curve = rl.serving.hit_curve(trace)
    assert curve.hits[-1] == pytest.approx(512 * (1 + 1 + 2 + 2 + 1 + 3 + 3) / trace.prompt.sum())
    assert (np.diff(curve.hits) >= 0).all()
    assert curve.at(curve.tokens[3]) == curve.hits[3]
    result = compared(prompt=2000, new_tokens=100, trace=str(TRACE), host="1 GiB")
    none, device, _ = result.policies
    assert device.device_hits == pytest.approx(float(curve.hits[-1]))
    assert none.device_hits == 0
    assert result.record()["hit_curve"][-1]["room_tokens"] == 512 * 15


def test_the_noise_of_rounded_values_is_that_of_a_uniform_step() -> None:
    """Keys of 0 attend to all alike, so the output errs as values do: a step of max / 127, its square over 12."""
    draw = np.random.default_rng(3)
    values = draw.standard_normal((8, 256, 128))
    noise = (np.abs(values).max(axis=-1) ** 2).mean() / 127**2 / 12
    error = rl.serving.cache_error("llama-3-8b", "int8", keys=np.zeros((8, 256, 128)), values=values)
    assert error.sqnr_db == pytest.approx(10 * np.log10(1 / noise), abs=0.7)


def test_a_large_channel_of_the_keys_costs_accuracy() -> None:
    """KIVI, arXiv:2402.02750, figure 2: keys have a few channels with large magnitudes, and share a scale with them."""
    keys = np.random.default_rng(3).standard_normal((8, 256, 128))
    plain = rl.serving.cache_error("llama-3-8b", "int4", keys=keys).sqnr_db
    keys[..., 5] = 30.0
    assert rl.serving.cache_error("llama-3-8b", "int4", keys=keys).sqnr_db < plain - 3


def test_a_latent_is_keys_and_values_at_once() -> None:
    assert 30 < rl.serving.cache_error("deepseek-v3", "int8").sqnr_db < 45


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hit": 0.5, "trace": str(TRACE)}, "hit and trace"),
        ({"hit": 2}, "hit=2: expected a number from 0 to 1"),
        ({"caches": "int9"}, "int9"),
        ({"caches": []}, "caches"),
        ({"blocks": [0]}, "block"),
        ({"host": "12"}, "has no unit"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"shared_prefix": 101}, "prefix=101: longer than the prompt of 100"),
        ({"blocks": 10**8}, "what would fit: --block 16 "),
    ],
)
def test_what_cannot_be_compared_is_said(options: dict[str, Any], says: str) -> None:
    with pytest.raises(rl.errors.RooflineError, match=says):
        rl.serving.cache_policies("llama-3-8b", "h100-sxm", **{"prompt": 100, "new_tokens": 2, **options})


def test_a_step_is_of_the_sequences_that_fit() -> None:
    sizes = {"prompt": 4000, "new_tokens": 100}
    most = rl.serving.cache_policies("llama-3-8b", "h100-sxm", concurrency=800, **sizes).policies[0]
    fits = rl.serving.cache_policies("llama-3-8b", "h100-sxm", concurrency=most.sequences, **sizes).policies[0]
    assert most.sequences < 800
    assert most.step == fits.step


def test_a_prompt_beyond_a_table_of_positions_is_refused() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"1,?024"):
        rl.serving.cache_policies("gpt2", "h100-sxm", prompt=2000, new_tokens=2)
    with pytest.raises(rl.errors.UsageError, match=r"1,?024"):
        rl.serving.simulate(rl.serving.deployment("gpt2", "h100-sxm"), prompt=2000, new_tokens=2, concurrency=1)


def test_arrays_without_heads_are_refused() -> None:
    with pytest.raises(rl.errors.UsageError, match="three axes"):
        rl.serving.cache_error("llama-3-8b", "int8", keys=np.zeros((4, 4)))
    with pytest.raises(rl.errors.ShapeError):
        rl.serving.cache_error("llama-3-8b", "int8", keys=np.zeros((3, 4, 4)))
