"""What does not fit says what would: every change that is named is applied, and counted again."""

from __future__ import annotations

import json
from typing import Any

import pytest

import roofline as rl
from roofline.analysis import would_fit
from roofline.analysis.remedies import remedies_text
from roofline.cli import main

DECODE = {"phase": "decode"}
SIZES = ("batch", "context", "seq")


def applied(program: Any, chip: str, change: dict[str, Any], mode: str = "eager", **sizes: int) -> float:
    """Return what the changed program needs, by the public way to change it [byte]."""
    formats = {name: value for name, value in change.items() if name not in SIZES}
    sizes |= {name: value for name, value in change.items() if name in SIZES}
    return float(rl.estimate(rl.what_if(program, **formats), chip, mode=mode, **sizes).memory.total)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize(
    ("name", "chip", "layers", "batch", "context"),
    [
        ("llama-3-8b", "rtx-4090", 32, 1, 120_000),
        ("llama-3-8b", "l4", 32, 64, 4096),
        ("gpt2", "h100-sxm", 12, 9999, 1024),
    ],
)
def test_a_change_that_is_named_fits_when_it_is_made(
    name: str, chip: str, layers: int, batch: int, context: int, mode: Any
) -> None:
    graph = rl.model(name, **DECODE, layers=layers)
    est = rl.estimate(graph, chip, mode=mode, batch=batch, context=context)
    named = [change for change in would_fit(est) if change.change]
    assert not est.fits
    assert named
    for one in named:
        assert one.fits
        assert one.need == pytest.approx(applied(graph, chip, dict(one.change), mode, batch=batch, context=context))
        assert one.need <= est.capacity
    for one in named:  # of a size the largest that fits
        if "batch" in one.change and len(one.change) == 1:
            more = {**one.change, "batch": one.change["batch"] + 1}
            assert applied(graph, chip, more, mode, batch=batch, context=context) > est.capacity


def test_what_was_sharded_and_quantised_is_made_anew() -> None:
    graph = rl.what_if(rl.model("llama-3-70b", **DECODE, dtype="fp16", layers=40), weights="int8", tp=2)
    est = rl.estimate(graph, "t4", batch=8, context=4096)
    (shared,) = [one for one in would_fit(est) if "tp" in one.change]
    whole = rl.what_if(
        rl.model("llama-3-70b", **DECODE, dtype="fp16", layers=40), weights="int8", tp=shared.change["tp"]
    )
    assert shared.change["tp"] > 2
    assert shared.need == float(rl.estimate(whole, "t4", batch=8, context=4096).memory.total)


def test_changes_are_tried_together_where_none_is_enough() -> None:
    graph, sizes = rl.model("llama-3-70b", **DECODE, dtype="fp16", layers=20), {"batch": 1, "context": 2048}
    est = rl.estimate(graph, rl.chip("t4").replace(memory_capacity="2 GiB"), **sizes)
    first, *rest = would_fit(est)
    assert {"weights", "tp"} <= first.change.keys()
    assert first.fits
    assert first.need == pytest.approx(applied(graph, "t4", dict(first.change), **sizes))
    for name in first.change:  # each of them is needed
        fewer = {other: value for other, value in first.change.items() if other != name}
        assert applied(graph, "t4", fewer, **sizes) > 2**31
    assert [one.change for one in rest] == [{}]
    assert "in host memory" in str(rest[0])


def test_no_driver_takes_memory_of_a_chip_that_has_sram_alone() -> None:
    assert rl.estimate("gpt2", "groq-lpu-v1", phase="decode", dtype="fp16", batch=1, context=64).memory.reserve == 0


def test_options_of_a_training_step_are_those_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "gpt2", "gtx-1650", "--phase", "train", "-B", "64", "-S", "1024"]) == 0
    assert "what would fit with roofline train  --micro-batch 1" in capsys.readouterr().out


def test_nothing_is_named_where_nothing_helps_and_for_what_fits() -> None:
    tiny = rl.chip("h100-sxm").replace(memory_capacity="0.9 GiB")  # less than the reserve
    assert would_fit(rl.estimate("gpt2", "h100-sxm", phase="decode", batch=1, context=64)) == ()
    est = rl.estimate("gpt2", tiny, phase="decode", batch=4, context=64)
    assert [one.fits for one in would_fit(est)] == [False]
    assert "nothing that was tried; the nearest is --weights int4-g128" in remedies_text(would_fit(est))
    with pytest.raises(rl.errors.UsageError, match="no result with a memory"):
        would_fit(3)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"batch": 96, "seq": 1024}, {"micro_batch", "zero"}),
        ({"batch": 8, "seq": 1024, "dp": 8, "reserve": "77.5 GiB"}, {"zero"}),
    ],
)
def test_a_step_of_training_says_what_would_fit(sizes: dict[str, Any], words: set[str]) -> None:
    chip = "rtx-4090" if "dp" not in sizes else "h100-sxm"
    graph = rl.model("gpt2", phase="train", layers=3)
    step = rl.training.train(graph, chip, **sizes)
    changes = [one for one in would_fit(step) if one.change]
    assert step.fits is False
    assert {name for one in changes for name in one.change} >= words
    for one in changes:
        again = rl.training.train(graph, chip, **{**sizes, **one.change})
        assert again.fits, one
        assert float(again.memory.total) == pytest.approx(one.need)


def test_a_request_says_what_would_fit() -> None:
    sizes = {"prompt": 4000, "new_tokens": 8, "batch": 128}
    models = {phase: rl.model("llama-3-8b", phase=phase, layers=8) for phase in ("prefill", "decode")}
    one = rl.serving.request(chip="rtx-4090", **models, **sizes)
    changes = [each for each in would_fit(one) if each.change]
    assert {name for each in changes for name in each.change} >= {"tp", "prompt", "batch"}
    for each in changes:
        formats = {name: value for name, value in each.change.items() if name not in sizes}
        phases = {phase: rl.what_if(graph, **formats) for phase, graph in models.items()}
        at = {**sizes, **{name: value for name, value in each.change.items() if name in sizes}}
        again = rl.serving.request(chip="rtx-4090", **phases, **at)
        assert again.fits
        assert again.peak == pytest.approx(each.need)


@pytest.mark.parametrize(
    "call",
    [
        "estimate gpt2 rtx-4090 --phase decode -B 1024 -S 1024",
        "request gpt2 rtx-4090 --prompt 1000 --new-tokens 2 -B 1024",
        "train gpt2 rtx-4090 -B 16 -S 1024",
        "memory-plan gpt2 rtx-4090 --phase decode -B 1024 -S 1024",
    ],
)
def test_commands_say_what_would_fit(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*call.split(), "--json", "-q"]) == 0
    changes = json.loads(capsys.readouterr().out)["would_fit"]
    assert main([*call.split(), "-q"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "what would fit" in shown
    assert all(one["options"] in shown for one in changes)


@pytest.mark.parametrize(
    "call",
    [
        "estimate llama-3-8b l4 --phase decode -B 1,64 -S 4096",
        "scaling llama-3-8b l4 --devices 1 --phase decode -B 64 -S 4096",
        "compare llama-3-8b --chips l4,h100-sxm --phase decode -B 64 -S 4096",
    ],
)  # fmt: skip
def test_commands_of_several_points_say_what_would_fit(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*call.split(), "-q"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "what would fit" in shown
    assert " --" in shown
