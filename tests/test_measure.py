"""rl.measure: the run, the capture and the verdict together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fails

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import roofline as rl  # noqa: E402
from roofline.measurement import measuring  # noqa: E402


def machine(speed: float) -> rl.Chip:
    """A CPU so many times as fast as a plain one."""
    return rl.Chip(
        name="mine", matrix={"fp32": 100e9 * speed}, vector={"fp32": 50e9 * speed}, memory_bandwidth=20e9 * speed,
        memory_capacity="8 GB",
    )  # fmt: skip


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))


X = torch.zeros(64, 512)


def test_time_estimate_and_verdict_come_together() -> None:
    found = rl.measure(net(), X, chip=machine(1), budget=0.1)
    assert 0 < found.low <= found.seconds <= found.high
    assert found.runs >= 3  # of five or more, those that other programs did not disturb
    assert found.device == "cpu"
    assert rl.count(found.graph).flops == 2 * 2 * 64 * 512 * 2048
    assert found.verdict.measured == found.seconds
    assert found.estimate.graph.parameters == found.graph.parameters
    assert str(found).startswith("Sequential: ")
    assert "runs" in str(found)
    assert "\n" not in str(found)
    assert {"verdict", "measured_s", "measured_low_s", "runs", "device"} <= found.record().keys()


def test_tiny_runs_follow_each_other_and_share_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def tiny(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x + 1

    # A clock on which everything between two looks takes 10 us: 100 runs are timed together, and each is its share.
    monkeypatch.setattr(measuring, "timed_alone", lambda once: (once(), (1e-5, 0.0))[1])
    run = rl.measure(tiny, torch.zeros(4, 8), chip=machine(1), budget=0.01)
    assert run.seconds == pytest.approx(1e-5 / measuring.MOST_QUEUED)
    assert calls >= run.runs * measuring.MOST_QUEUED


def test_the_verdict_is_against_the_chip() -> None:
    rows = torch.zeros(2048, 512)  # long enough on any processor that launching does not count
    assert rl.measure(net(), rows, chip=machine(1e4), budget=0.05).verdict.verdict == "very_slow"
    assert rl.measure(net(), X, chip=machine(1e-4), budget=0.05).verdict.verdict == "impossible"


def test_backward_runs_and_is_counted() -> None:
    both = rl.measure(net(), X, chip=machine(1), budget=0.05, backward=True)
    first = 2 * 64 * 512 * 2048
    assert rl.count(both.graph).flops == 3 * 2 * 2 * 64 * 512 * 2048 - first
    assert both.graph.info.phase == "train"


def test_a_function_with_its_own_backward_and_no_change_to_random_numbers() -> None:
    layer, before = nn.Linear(8, 8), torch.random.get_rng_state()
    runs = []

    def step(x: torch.Tensor) -> None:
        runs.append(torch.rand(1).item())
        layer(x).sum().backward()

    found = rl.measure(step, torch.zeros(4, 8), chip=machine(1), budget=0.01, warmup=2)
    assert rl.count(found.graph).flops == 2 * 2 * 4 * 8 * 8
    assert len(runs) >= found.runs + 2
    assert torch.equal(before, torch.random.get_rng_state())
    assert runs[1] == torch.rand(1, generator=torch.Generator().manual_seed(0)).item()


def test_values_decide_as_they_do_when_it_runs() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x @ x if x.sum() > 0 else x

    assert rl.count(rl.measure(branch, torch.ones(8, 8), chip=machine(1), budget=0.01).graph).flops == 2 * 8**3


def test_an_operator_without_a_rule_is_reported() -> None:
    @torch.library.custom_op("roofline_tests::odd", mutates_args=())
    def odd(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    found = rl.measure(odd, torch.zeros(8), chip=machine(1), budget=0.01)
    assert "roofline_tests.odd" in found.estimate.not_modelled[0]


def raises(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("not today\nreally")


def late(after: int) -> Any:
    runs: list[int] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        if len(runs) > after:
            raise ValueError("too late\nreally")
        return x * 2

    return program


BAD: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], str]] = {
    "no chip": (net(), (X,), {}, r"which chip\?.*roofline calibrate"),
    "an unknown chip": (net(), (X,), {"chip": "h1000"}, "h1000"),
    "no time": (net(), (X,), {"chip": machine(1), "budget": 0}, r"budget=0"),
    "no warm-up": (net(), (X,), {"chip": machine(1), "warmup": 0}, r"warmup=0"),
    "a failing program": (raises, (X,), {"chip": machine(1)}, "ValueError: not today"),
    "no values": (net().to("meta"), (X.to("meta"),), {"chip": machine(1)}, "meta device have no values"),
    "a CUDA graph on a processor": (net(), (X,), {"chip": machine(1), "mode": "graph"}, "needs a CUDA device"),
    "no number of seconds": (net(), (X,), {"chip": machine(1), "budget": "1"}, "budget='1'"),
    "not a number": (net(), (X,), {"chip": machine(1), "budget": float("nan")}, "budget=nan"),
    "no seed": (net(), (X,), {"chip": machine(1), "seed": "a"}, "seed='a'; expected a whole number"),
    "no keywords": (net(), (X,), {"chip": machine(1), "kwargs": [1]}, r"kwargs='\[1\]'; expected a dictionary"),
    "a failure in a later run": (late(6), (X,), {"chip": machine(1)}, "ValueError: too late"),
    "wrong arguments": (net(), (), {"chip": machine(1)}, "arguments do not fit"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_line(what: str) -> None:
    program, args, options, message = BAD[what]
    with pytest.raises(rl.RooflineError, match=message) as caught:
        rl.measure(program, *args, **options)
    assert "\n" not in str(caught.value)


def test_what_was_compiled_is_a_function_or_a_module() -> None:
    plain, layer = torch.nn.functional.relu, net()
    for compiled in (torch.compile(lambda x: plain(x) + 1, backend="eager"), torch.compile(net(), backend="eager")):
        assert rl.measure(compiled, X, chip=machine(1), budget=0.01).estimate.mode == "compiled"
    layer.compile(backend="eager")
    assert rl.measure(layer, X, chip=machine(1), budget=0.01).estimate.mode == "compiled"


def test_backward_reaches_keyword_arguments() -> None:
    weight = torch.zeros(512, 8, requires_grad=True)
    found = rl.measure(lambda x, w: x @ w, X, w=weight, chip=machine(1), budget=0.01, backward=True)
    assert rl.count(found.graph).flops == 2 * 2 * 64 * 512 * 8


@pytest.mark.parametrize("layers", [1, 3])
def test_a_trace_recorded_while_measuring_says_where_the_time_went(layers: int) -> None:
    deep = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(layers)))
    found = rl.measure(deep, torch.randn(256, 512), chip=machine(10), budget=0.05, trace=True)
    verdict = found.verdict
    assert verdict.traced
    assert sum(seconds for _, seconds in verdict.waterfall) == pytest.approx(found.seconds)
    assert "wrong_device" not in {cause.label for cause in verdict.causes}, "the processor is where it was meant to run"


def test_a_script_is_measured_from_the_command_line(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text("import torch\nmodel = torch.nn.Linear(64, 64)\nexample_inputs = torch.zeros(8, 64)\nx = 3\n")
    machine(1).save(tmp_path / "mine.toml")
    chip = str(tmp_path / "mine.toml")
    result = run("measure", str(script), chip, "--budget", "20ms", "--json")
    assert result.data["runs"] >= 1
    assert result.data["device"] == "cpu"
    assert result.code == (0 if result.data["verdict"] == "as_expected" else 1)
    assert "where it went" in run("measure", str(script), chip, "--budget", "20ms").out
    fails(run("measure", str(script)), "which chip")
    fails(run("measure", str(script), chip, "--budget", "0s"), "budget")
    fails(run("measure", f"{script}:x", chip), "torch module")
    fails(run("measure", "gpt2", chip), "script")
