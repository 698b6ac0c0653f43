"""``rl.advise``: what to do first without a measurement, gains that add up, and what the field does."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from command_line import Run, fails
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl


@cache
def program(name: str) -> rl.Graph:
    return rl.model(name, phase="decode", layers=2) if name != "resnet18" else rl.model(name)


def advised(name: str = "gpt2", chip: str = "h100-sxm", **options: Any) -> Any:
    sizes = {} if name == "resnet18" else {"context": 256}
    return rl.advise(program(name), chip, **{**sizes, "batch": 1, **options})


@settings(max_examples=examples(12), deadline=None)
@given(
    st.sampled_from(["gpt2", "resnet18", "mixtral-8x7b"]),
    st.sampled_from(["h100-sxm", "t4", "b200-sxm", "tpu-v5e", "epyc-9654", "l4"]),
    st.sampled_from([1, 16]),
    st.sampled_from(["eager", "graph", "compiled"]),
)
def test_gains_add_up_and_every_change_helps(name: str, chip: str, batch: int, mode: str) -> None:
    found = advised(name, chip, batch=batch, mode=mode)
    sizes = {} if name == "resnet18" else {"context": 256}
    assert found.before.time == rl.estimate(program(name), chip, mode=mode, batch=batch, **sizes).time
    assert len(found.first) <= 5
    assert sum(one.saves_s for one in found.first) == pytest.approx(found.together.saves_s, abs=1e-12)
    if found.first:
        left = float(found.before.time) - found.together.saves_s
        assert found.first[-1].together_s == pytest.approx(left)
    if found.before.fits:
        assert all(one.saves_s > 0 for one in found.first)
    assert all(one.low_s <= one.saves_s <= one.high_s for one in found.first)
    assert not {one.change for one in found.first} & set(found.idle)


def test_decode_of_a_small_batch_wants_a_cuda_graph_first_and_a_larger_batch() -> None:
    """Graphs where launches take the time (pytorch.org/blog/accelerating-pytorch-with-cuda-graphs)."""
    found = advised()
    assert found.first[0].change == "replay as a CUDA graph"
    assert found.first[-1].option.startswith("--batch")
    assert found.before.bound == "host"
    assert not any("CUDA graph" in one.change for one in advised(chip="tpu-v5e").first)


def test_what_does_not_fit_is_made_to_fit_first() -> None:
    part = rl.model("llama-3-70b", phase="decode", layers=10)
    found = rl.advise(part, "l4", batch=32, context=8192, mode="graph", first=2)
    assert not found.before.fits
    assert found.after.fits
    assert "fp8" in found.first[0].change or "int" in found.first[0].change
    large = rl.advise(part, "t4", batch=96, context=8192, mode="graph")
    assert any(one.option.startswith("--tp") or "run on" in one.change for one in large.first)


def test_blackwell_is_offered_four_bits_with_units_and_hopper_is_not() -> None:
    prefill = rl.model("llama-3-8b", phase="prefill", layers=2)
    b200, h100 = (rl.advise(prefill, chip, batch=4, seq=4096, mode="compiled") for chip in ("b200-sxm", "h100-sxm"))
    offered = [one.change + one.instead for one in (*b200.first, *h100.first)]
    assert any("nvfp4" in text for text in offered[: len(b200.first)])
    assert not any("nvfp4" in text for text in offered[len(b200.first) :])


def test_nothing_is_sure_on_a_chip_that_nobody_measured() -> None:
    found = advised("resnet18", "wormhole-n150")
    assert found.summary()["calibrated"] == "prior"
    assert {one.certainty for one in found.first} <= {"likely", "unsure"}


def test_memory_that_nobody_published_is_not_short() -> None:
    found = advised("resnet18", "epyc-9654")
    assert found.summary()["fits"] is None
    assert found.gain > 2
    assert not any(one.option.startswith("--tp") or "run on" in one.change for one in found.first)


#: Programs by their words on the command line, which together get every kind of change.
ADVISED = {
    "decode": ["gpt2", "h100-sxm", "--phase", "decode", "-S", "512"],
    "replayed": ["gpt2", "a100-80gb-sxm", "--phase", "prefill", "-B", "4", "-S", "333", "--mode", "graph"],
    "images": ["resnet18", "h100-sxm", "-B", "64", "--mode", "graph"],
    "step": ["gpt2", "h100-sxm", "--phase", "train", "-B", "8", "-S", "512"],
}  # fmt: skip


@pytest.mark.parametrize("words", list(ADVISED.values()), ids=list(ADVISED))
def test_what_is_printed_beside_advice_gives_the_time_that_it_says(words: list[str], run: Run) -> None:
    """In Python by its call where no option has it; a step adds the host's time of its update up by itself."""
    found, exact = run("advise", *words, "--json").data, 1e-9 if "train" not in words else 0.04
    options, batch = list[str](), int(words[words.index("-B") + 1]) if "-B" in words else 1
    assert found["rows"]
    for row in found["rows"]:
        if not row["option"]:
            break
        options += row["option"].split()
        made = run("estimate", *words, *options, "--json")
        took = made.data["time_s"] if "train" in words else made.row["time_s"]
        items = int(options[options.index("--batch") + 1]) if "--batch" in options else batch
        assert took * batch / items == pytest.approx(row["together_s"], rel=exact), row["change"]


def test_the_number_of_things_is_what_was_asked_for() -> None:
    assert len(advised(first=1).first) == 1
    with pytest.raises(rl.RooflineError, match="first"):
        advised(first=0)


def test_the_command_prints_a_table_of_80_columns(run: Run) -> None:
    shown = run("advise", "gpt2", "h100-sxm", "--phase", "decode", "-S", "256")
    assert "replay as a" in shown.out
    assert "no help" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    record = run("advise", "gpt2", "h100-sxm", "--phase", "decode", "-S", "256", "--json").data
    assert record["schema"]["name"] == "advise"
    assert record["rows"][0]["option"] == "--mode graph"
    fails(run("advise", "gpt2", "h100-sxm", "--phase", "decode"), "context")
