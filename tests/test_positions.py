"""A model's own limit of positions: an error where each is a row of a table, a note where the model runs beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import roofline as rl

GPT2 = rl.model("gpt2", phase="decode")
TRAINED = rl.passes.backward(rl.model("gpt2", phase="train", layers=1))

#: gpt2 has 1,024 rows in its table (config.json of openai-community/gpt2), BERT 512.
BEYOND: dict[str, Callable[[], Any]] = {
    "estimate": lambda: rl.estimate("bert-base-uncased", "h100-sxm", batch=1, seq=[512, 4096]),
    "prefill": lambda: rl.estimate("gpt2", "h100-sxm", phase="prefill", batch=1, seq=2000),
    "count": lambda: rl.count(GPT2, batch=1, context=[1, 2000]),
    "bind": lambda: GPT2.bind(C=1025),
    "listing": lambda: rl.listing(GPT2, context=2000),
    "best_batch": lambda: rl.best_batch(GPT2, "t4", context=2000),
    "check": lambda: rl.check(GPT2, "t4", "20 ms", batch=1, context=2000),
    "check_sweep": lambda: rl.diagnosis.check_sweep([1, 2, 4], [1.0, 2.0, 3.0], GPT2, "t4", context=2000),
    "compare": lambda: rl.compare("gpt2", ["t4"], batch=1, seq=2000),
    "scaling": lambda: rl.scaling(GPT2, "h100-sxm", (1, 2), batch=1, context=2000),
    "fusion": lambda: rl.analysis.fusion(GPT2, "t4", batch=1, context=2000),
    "pass_history": lambda: rl.analysis.pass_history(GPT2, "t4", batch=1, context=2000),
    "largest_concurrency": lambda: rl.serving.largest_concurrency(GPT2, "t4", context=2000),
    "request": lambda: rl.serving.request("gpt2", "t4", prompt=1000, new_tokens=26),
    "train": lambda: rl.training.train("gpt2", "t4", batch=1, seq=2000),
    "saved": lambda: rl.passes.saved(TRAINED, B=1, S=2000),
    "workload": lambda: rl.workload([{"model": "gpt2", "phase": "prefill", "seq": 2000}]),
    "after passes": lambda: rl.estimate(
        rl.what_if(GPT2, tp=2, weights="int8", fuse="chains"), "t4", batch=1, context=2000),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_more_positions_than_rows_of_the_table_are_refused(name: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=r"(seq \(S\)|context \(C\))=[\d,]+: .* has (1,024|512) positions"):
        BEYOND[name]()


def test_a_row_that_goes_beyond_says_so_in_its_error() -> None:
    rows = [{"model": "gpt2", "phase": "prefill", "dtype": "bf16", "batch": 1, "seq": seq} for seq in (1024, 1025)]
    good, bad = rl.predict(rows, "t4")["error"]
    assert not isinstance(good, str)
    assert "gpt2 has 1,024 positions" in bad


def test_a_cache_is_counted_whatever_its_length_with_a_note() -> None:
    # 8,192 positions of GPT-2 in 16 bits: 2 x 12 layers x 768 x 2 bytes each, 288 MiB (mlxcel#927).
    cache = rl.serving.kv_cache("gpt2", 8192, dtype="fp16")
    assert cache.ideal == 8192 * 2 * 12 * 768 * 2 == 301_989_888
    assert cache.record()["notes"] == ["8,192 positions, where gpt2 is made for 1,024"]


def test_the_last_position_is_one() -> None:
    assert rl.estimate(GPT2, "t4", batch=1, context=1024).time > 0
    # The last of 25 new tokens is handed back, not read: position 1,024 is the last that is.
    assert rl.serving.request("gpt2", "t4", prompt=1000, new_tokens=25).new_tokens == 25
    longer = rl.model("gpt2", phase="decode", positions=4096)
    assert rl.estimate(longer, "t4", batch=1, context=2000).time > 0


def test_the_largest_context_is_the_models_own() -> None:
    found = rl.serving.largest_context(GPT2, "h100-sxm", batch=1)
    assert (found.value, found.limit, found.note) == (1024, "positions", "")
    many = rl.serving.largest_context(GPT2, "h100-sxm", batch=10_000)
    assert many.value < 1024
    assert many.limit == "memory"


def test_a_model_that_runs_beyond_its_training_gets_a_note() -> None:
    # Llama-3-8B: max_position_embeddings 8192, rotary.
    note = "9,000 positions, where llama-3-8b is made for 8,192"
    assert note in rl.estimate("llama-3-8b", "h100-sxm", phase="decode", batch=1, context=[8, 9000]).not_modelled
    assert note not in rl.estimate("llama-3-8b", "h100-sxm", phase="decode", batch=1, context=8192).not_modelled
    assert note in rl.serving.request("llama-3-8b", "h100-sxm", prompt=8990, new_tokens=11).not_modelled
    found = rl.serving.largest_context("llama-3-8b", "h100-sxm")
    assert found.value > 8192
    assert found.note == f"{found.value:,} positions, where llama-3-8b is made for 8,192"
    assert found.note in found.record()["notes"]
