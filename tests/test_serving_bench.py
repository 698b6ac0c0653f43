"""Tables of deployments: what a row says, what cannot be read, how near public rows are that nothing was fitted to."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roofline as rl

PUBLIC = Path(__file__).parent / "serving" / "deployments.csv"
ROW = {"model_path": "meta-llama/Llama-3.1-8B", "system": "h100_sxm", "backend": "vllm", "precision": "", "isl": "1000",
       "osl": "200", "batch_size": "8"}  # fmt: skip


def bench(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return rl.serving.bench([{**ROW, **row} for row in rows]).fillna({"error": ""}).to_dict("records")


def tpot(**row: Any) -> float:
    (found,) = bench(row)
    assert not found["error"], found["error"]
    return float(found["tpot_ms"])


@pytest.fixture(scope="module")
def public() -> Any:
    return rl.serving.bench(PUBLIC)


def test_public_rows_that_nothing_was_fitted_to(public: Any) -> None:
    """The stated errors of docs/serving.md, a little wider for so few rows."""
    assert public.error.isna().all()
    errors = {
        name: abs(public[f"{name}_ms"] / public[f"silicon_{name}_ms"].astype(float) - 1) for name in ("tpot", "ttft")
    }
    assert errors["tpot"].mean() < 0.12
    assert errors["tpot"].median() < 0.10
    assert errors["ttft"].median() < 0.30
    inside = public.silicon_tpot_ms.astype(float).between(public.tpot_low_ms, public.tpot_high_ms)
    assert inside.mean() >= 0.7


def test_rows_keep_their_columns_and_order(public: Any) -> None:
    with PUBLIC.open(newline="") as stream:
        given = list(csv.DictReader(stream))
    assert list(public.columns) == [*given[0], "ttft_ms", "tpot_ms", "tpot_low_ms", "tpot_high_ms", "error"]
    assert public.silicon_tpot_ms.tolist() == [row["silicon_tpot_ms"] for row in given]
    assert (public.tpot_low_ms < public.tpot_ms).all()
    assert (public.tpot_ms < public.tpot_high_ms).all()


def test_more_users_are_slower_and_more_devices_faster() -> None:
    times = [tpot(batch_size=users) for users in (1, 8, 64)]
    assert times == sorted(times)
    assert tpot(batch_size=64, tp_size=4) < times[-1]
    assert tpot(precision="fp8") < tpot() == tpot(precision="bf16", pp_size="0", moe_ep_size="nan")


def test_one_users_first_token_is_the_prefill() -> None:
    """A prompt that finds an idle server takes its prefill, and what the stack adds."""
    (found,) = bench({"batch_size": 1, "isl": 4000, "osl": 2})
    alone = rl.estimate("llama-3.1-8b", "h100-sxm", phase="prefill", mode="compiled", B=1, S=4000).time
    assert 0.7 * alone < found["ttft_ms"] / 1e3 < 1.5 * alone + 0.2


def test_flags_that_hold_side_by_side() -> None:
    """``tp 8, ep 8`` is 8 devices, whatever product is stated; requests are counted by group."""
    experts = {"model_path": "MiniMaxAI/MiniMax-M2.5", "system": "h200_sxm", "precision": "fp8"}
    eight, stated = (tpot(**experts, tp_size=tp, moe_tp_size=share, moe_ep_size=8) for tp, share in ((8, 1), (64, 8)))
    assert stated == eight
    apart = tpot(**experts, tp_size=4, attention_dp_size=4, moe_tp_size=1, moe_ep_size=16, batch_size=4)
    assert apart == tpot(**experts, tp_size=1, attention_dp_size=4, moe_tp_size=1, moe_ep_size=4, batch_size=4)


def test_requests_that_find_no_blocks_wait() -> None:
    few, many = bench({"batch_size": 32, "isl": 8000}, {"batch_size": 1024, "isl": 8000})
    assert many["ttft_ms"] > 10 * few["ttft_ms"]
    assert many["tpot_ms"] < 10 * few["tpot_ms"]


def test_rows_that_draft_tokens() -> None:
    """A step that verifies three tokens costs little more for a few users; a public recipe is known by its image."""
    few, plain = (tpot(batch_size=2, spec=spec) for spec in ("3:0.8", ""))
    assert plain / (1 + 0.8 + 0.8**2 + 0.8**3) < few < plain / 1.8
    assert tpot(batch_size=2, spec="1:0") > plain
    row = {"model_path": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm", "backend": "trtllm", "precision": "fp4",
           "isl": 1024, "osl": 1024, "batch_size": 4, "tp_size": 8}  # fmt: skip
    known = tpot(**row, backend_version="1.2.0rc6.post3")
    assert known == tpot(**row, backend_version="1.2.0rc6.post3", spec="3:0.85")
    assert known < tpot(**row, backend_version="1.2.0rc6.post2")
    assert known == pytest.approx(4.34, rel=0.3)  # as measured, with moe_tp_size 8


def test_servers_are_started_as_their_benchmark_did() -> None:
    """Measured times of rows whose scripts let prompts wait, look for requests rarely or give the cache more memory."""
    llama = {"model_path": "meta-llama/Llama-3.1-70B", "system": "b200_sxm", "backend": "trtllm", "precision": "fp8",
             "isl": 1024, "osl": 1024, "batch_size": 8, "tp_size": 2}  # fmt: skip
    deepseek = {"model_path": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm", "backend": "sglang", "precision": "fp8",
                "isl": 1024, "osl": 1024, "batch_size": 16, "tp_size": 8}  # fmt: skip
    mini = {"model_path": "MiniMaxAI/MiniMax-M2.5", "system": "b200_sxm", "precision": "fp8", "isl": 8192, "osl": 1024,
            "batch_size": 64, "tp_size": 2, "moe_tp_size": 2}  # fmt: skip
    waits, reads, polls, fits = (row["ttft_ms"] for row in bench(llama, {**llama, "osl": 8192}, deepseek, mini))
    assert waits == pytest.approx(272, rel=0.2)
    assert reads < waits - 20 * 0.8 * 9.78  # 20 steps, of nine requests in ten
    assert polls == pytest.approx(402, rel=0.2)
    assert fits == pytest.approx(915, rel=0.3)


def test_prompts_of_generated_servers_run_beside_answers() -> None:
    """From 0.5.3 on aiconfigurator's flags of SGLang mix them, so that nobody waits for all prompts of a wave."""
    row = {"system": "h200_sxm", "backend": "sglang", "precision": "fp8", "isl": 2000, "osl": 500, "batch_size": 208}
    mixed, turns = bench({**row, "backend_version": "0.5.6.post2"}, {**row, "backend_version": "0.5.1.post1"})
    assert mixed["ttft_ms"] == pytest.approx(833, rel=0.4)
    assert mixed["tpot_ms"] == pytest.approx(37.4, rel=0.2)
    assert turns["ttft_ms"] > 3 * mixed["ttft_ms"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"spec": "3"}, "expected K:ACCEPT"),
        ({"model_path": "meta-llama/Lama-3.1-8B"}, "llama-3.1-8b"),
        ({"model_path": ""}, "no model_path"),
        ({"system": "h100_sxn"}, "h100-sxm"),
        ({"backend": "vlm"}, "did you mean vllm"),
        ({"precision": "fp7"}, "allowed: bf16"),
        ({"isl": "0"}, "isl='0': expected a whole number from 1"),
        ({"batch_size": "many"}, "batch_size='many'"),
        ({"tp_size": "1e99"}, "tp_size='1e99'"),
        ({"tp_size": "3"}, "3 devices cannot share"),
        ({"model_path": "resnet50"}, "no decoder"),
    ],
)
def test_a_bad_row_says_why_and_the_others_go_on(row: dict[str, str], says: str) -> None:
    bad, good = bench(row, {})
    assert says in bad["error"]
    assert np.isnan(bad["tpot_ms"])
    assert not good["error"]
    assert good["tpot_ms"] > 0
