"""Figures of a chip set by name, and sweeps over them."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.cli import options as opt
from roofline.cli.commands import app
from roofline.hardware.settings import with_settings

DECODE: dict[str, Any] = {"phase": "decode", "mode": "graph", "batch": 8, "context": 512}
H100 = rl.chip("h100-sxm")


# Setting a figure


@pytest.mark.parametrize(
    ("setting", "figure", "value"),
    [
        ("memory_bandwidth=4TB/s", lambda chip: chip.bandwidth, 4e12),
        ("memory_bandwidth = x2", lambda chip: chip.bandwidth, 2 * 3.35e12),
        ("memory_capacity=0.5x", lambda chip: chip.capacity, H100.capacity / 2),
        ("l2=64 MiB", lambda chip: chip.level("L2").capacity, 2**26),
        ("l2_bandwidth=7TB/s", lambda chip: chip.level("L2").bandwidth, 7e12),
        ("sram=4MiB", lambda chip: chip.level("SRAM").capacity, 2**22),
        ("cache_capacity=4MiB", lambda chip: chip.cache.capacity, 2**22),
        ("bf16=1200TFLOP/s", lambda chip: chip.peak("bf16"), 1.2e15),
        ("fp32=x3", lambda chip: chip.peak("fp32", "vector"), 3 * H100.peak("fp32", "vector")),
        ("peak=x2", lambda chip: chip.peak("fp8"), 2 * H100.peak("fp8")),
        ("matrix.bf16=x0.5", lambda chip: chip.peak("bf16"), H100.peak("bf16") / 2),
        ("vector.fp32.flops=1TFLOP/s", lambda chip: chip.peak("fp32", "vector"), 1e12),
        ("link_bandwidth=1TB/s", lambda chip: chip.links[0].bandwidth, 1e12),
        ("links.NVLink4.bandwidth=x2", lambda chip: chip.links[0].bandwidth, 9e11),
        ("memory.L2.capacity=1MiB", lambda chip: chip.level("L2").capacity, 2**20),
        ("cores=100", lambda chip: chip.cores, 100),
        ("cores=x1.5", lambda chip: chip.cores, 198),
        ("clock=1GHz", lambda chip: chip.clock, 1e9),
        ("tdp=300W", lambda chip: chip.tdp, 300),
        ("host=10us", lambda chip: chip.efficiency.host, 1e-5),
        ("efficiency.memory=0.5", lambda chip: chip.efficiency.memory, 0.5),
        ("efficiency.matmul.share=0.5", lambda chip: chip.efficiency.parameters["matmul"]["share"], 0.5),
        ("launch=x0.5", lambda chip: chip.efficiency.parameters["matmul"]["launch"],
         H100.efficiency.parameters["matmul"]["launch"] / 2),
    ],
)  # fmt: skip
def test_a_figure_is_set_by_its_name(setting: str, figure: Any, value: float) -> None:
    new = with_settings(H100, [setting])
    assert figure(new) == pytest.approx(value, rel=1e-12)
    assert new.name == "h100-sxm (what-if)"
    assert figure(H100) != figure(new)


def test_settings_follow_each_other_and_say_what_was() -> None:
    new = with_settings(H100, ["l2=64MiB", "l2=x2", "efficiency.memory=0.5", "efficiency.compute=0.4"])
    assert new.level("L2").capacity == 2**27
    assert new.level("L2").source.startswith("what-if: was 67.11 MB (was 52.43 MB")
    assert (new.efficiency.memory, new.efficiency.compute, new.efficiency.calibrated) == (0.5, 0.4, "prior")
    assert with_settings(H100, ["l2=64MiB"]) == H100.replace(l2="64 MiB")
    assert with_settings(H100, []) is H100


def test_sram_of_a_chip_without_such_a_level_is_what_all_cores_share() -> None:
    mine = rl.Chip(name="mine", matrix={"bf16": "100 TFLOP/s"}, memory_bandwidth="100 GB/s")
    assert with_settings(mine, ["sram=4MiB"]).cache.capacity == 2**22  # type: ignore[union-attr]
    assert with_settings(rl.chip("m1-max"), ["sram=4MiB"]).level("SLC").capacity == 2**22
    assert with_settings(rl.chip("tpu-v4"), ["vmem=4MiB"]).level("VMEM").capacity == 2**22


@pytest.mark.parametrize(
    ("setting", "error", "says"),
    [
        ("l2", rl.errors.UsageError, "expected NAME=VALUE, such as sram=4MiB"),
        ("=3", rl.errors.UsageError, "expected NAME=VALUE"),
        ("l2=", rl.errors.UsageError, "expected NAME=VALUE"),
        ("l2=5", rl.errors.UnitError, "has no unit: 5GiB, 5GB or 5MiB?"),
        ("l2=5 TB/s", rl.errors.UnitError, "unknown unit 'TB/s'; expected B"),
        ("l2=x0", rl.errors.ChipDataError, "too small"),
        ("l2=x1e400", rl.errors.UnitError, "expected a number"),
        ("memry_bandwidth=2TB/s", rl.errors.UsageError, "did you mean memory_bandwidth"),
        ("memory.L3.capacity=3MiB", rl.errors.UsageError, "did you mean memory"),
        ("efficiency.matmul.shar=3", rl.errors.ChipDataError, "did you mean share"),
        ("efficiency.matmull.share=3", rl.errors.UsageError, "did you mean efficiency.matmul.share"),
        ("name=3", rl.errors.UsageError, "has no such figure"),
        ("peak=3TFLOP/s", rl.errors.UsageError, "stands for matrix.fp64.flops"),
        ("int4=x2", rl.errors.MissingFigure, "lists no such figure"),
        ("cores=1.5", rl.errors.ChipDataError, "cores: input should be a valid integer"),
        ("cores=nan", rl.errors.UnitError, "expected a number, or a factor such as x2"),
        ("efficiency.memory=2", rl.errors.ChipDataError, "efficiency.memory"),
        ("__class__=3", rl.errors.UsageError, "has no such figure"),
        ("memory.0x=3", rl.errors.UsageError, "has no such figure"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_line(setting: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        rl.estimate("gpt2", with_settings(H100, [setting]), **DECODE)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_command_that_takes_a_chip_takes_settings() -> None:
    """Doctor looks at a chip file as it is, and the page of explore alters figures itself."""
    for registered in app.registered_commands:
        options = inspect.signature(registered.callback).parameters  # type: ignore[arg-type]
        if {"chip", "where", "ran_on"} & options.keys() and registered.name not in ("doctor", "explore", "calibrate"):
            assert "settings" in options, registered.name


@pytest.mark.parametrize(
    "words",
    [
        "estimate gpt2 h100-sxm --phase decode -S 512 --set memory_bandwidth=x2",
        "compare gpt2 h100-sxm,l4 --phase decode -S 512 --set memory_bandwidth=x2",
        "batch gpt2 h100-sxm --phase decode -S 512 --set memory_bandwidth=x2",
        "scaling llama-3-8b dgx-h100 --phase decode -B 8 -S 512 --devices 1,2 --set link_bandwidth=x2",
        "check gpt2 h100-sxm --phase decode -S 512 --measured 10ms --set memory_bandwidth=x2",
        "graph gpt2 h100-sxm --kernels --phase decode -S 512 --set memory_bandwidth=x2",
        "chips h100-sxm --set memory_bandwidth=x2",
    ],
)
def test_a_result_says_that_it_is_a_what_if(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rl_main(words) in (0, 1)
    out, err = capsys.readouterr()
    assert "(what-if)" in out
    assert "(was " in err


def test_a_setting_without_a_chip_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert rl_main("graph gpt2 --set l2=4MiB") == 2
    assert "--set l2=4MiB changes a chip, and none is named" in capsys.readouterr().err


def rl_main(words: str) -> int:
    import shlex

    from roofline.cli import main

    return main(shlex.split(words))


# Sweeps


@pytest.mark.parametrize("mode", ["eager", "graph", "compiled"])
@pytest.mark.parametrize(
    ("model", "chip", "sizes", "figures"),
    [
        ("gpt2", "h100-sxm", {"phase": "decode", "batch": 8, "context": 512},
         {"cache_capacity": "1MiB..64MiB", "memory_bandwidth": "1..8TB/s"}),
        ("resnet50", "h100-sxm", {"batch": 8, "dtype": "fp16"}, {"cores": "20..300", "fp16": "10..2000TFLOP/s"}),
        ("gpt2", "l4", {"phase": "prefill", "batch": 2, "seq": 300}, {"clock": "x0.3..x3", "peak": "x0.1..x10"}),
        ("mixtral-8x7b", "mi300x", {"phase": "decode", "batch": 4, "context": 64},
         {"tdp": "200..2000W", "efficiency.launch": "1..30us"}),
        ("bert-base-uncased", "xeon-8480", {"batch": 8, "seq": 128}, {"fp32": "1..10TFLOP/s", "host": "1..90us"}),
        ("resnet50", "tpu-v4", {"batch": 8}, {"vmem": "1..100MiB", "bf16": "x0.3..x3"}),
        ("gpt2", "wormhole-n150", {"phase": "prefill", "batch": 2, "seq": 300},
         {"sram": "20..200MB", "cores": "8..144"}),
    ],
)  # fmt: skip
def test_a_sweep_equals_estimates_of_each_chip_alone(
    model: str, chip: str, sizes: dict[str, Any], figures: dict[str, str], mode: Any
) -> None:
    swept = rl.sweep_chip(model, chip, figures, points=4, mode=mode, **sizes)
    for index in ((0, 0), (3, 3), (1, 2), (2, 0)):
        alone = rl.estimate(model, swept.chip_at(*index), mode=mode, **sizes)
        for name, values in swept.results.items():
            one, value = getattr(alone, name), values[index]  # sums of lanes add up in another order
            assert value == one or value == pytest.approx(one, rel=1e-12), (name, index)


def test_axes_are_in_the_order_of_the_figures() -> None:
    swept = rl.sweep_chip("gpt2", H100, {"l2": "1,2MiB", "memory_bandwidth": [2e12, 1e12, "4 TB/s"]}, **DECODE)
    assert swept.shape == (2, 3)
    assert swept.figures[1].values.tolist() == [1e12, 2e12, 4e12]
    assert (np.diff(swept.time, axis=1) < 0).all()
    rows = swept.records()
    assert rows[4]["value"] == {"l2": 2**21, "memory_bandwidth": 2e12}
    assert rows[4]["time_s"] == swept.time[1, 1]


def test_a_range_is_even_on_a_logarithmic_scale_and_has_both_ends() -> None:
    one = rl.sweep_chip("gpt2", H100, {"l2": "1MiB..64MiB"}, points=7, **DECODE).figures[0]
    assert one.values[[0, -1]].tolist() == [2**20, 2**26]
    assert one.values == pytest.approx(2.0 ** np.arange(20, 27))
    back = rl.sweep_chip("gpt2", H100, {"l2": "64..1MiB"}, points=7, **DECODE).figures[0]
    assert (back.values == one.values).all()
    cores = rl.sweep_chip("gpt2", H100, {"cores": "1..4"}, **DECODE).figures[0]
    assert cores.values.tolist() == [1, 2, 3, 4]
    rows = rl.sweep_chip("gpt2", "wormhole-n150", {"grid.rows": "1..3"}, **DECODE).figures[0]
    assert rows.values.tolist() == [1, 2, 3]


def test_words_follow_the_numbers() -> None:
    from roofline.analysis.chip_sweep import Swept, reading

    assert Swept("l2", (), np.array([1e6, 2e6]), "B", False).text(2e6) == "2 MB"
    figure = Swept("l2", (), np.array([1.0, 2.0, 4.0, 8.0]) * 2**20, "B", False)
    said = {
        (4.0, 2.0, 1.0, 1.0): "beyond 4.00 MiB nothing is gained",
        (8.0, 4.0, 2.0, 1.0): "a doubling still saves 50%",
        (1.0, 1.001, 1.0, 1.0): "makes no difference from 1.00 MiB to 8.00 MiB",
        (2.0, 1.0, 1.5, 1.6): "best at 2.00 MiB (1 s), 1.6 s at 8.00 MiB",
    }
    for times, words in said.items():
        assert words in reading(figure, np.array(times))


@pytest.mark.parametrize(
    ("figures", "error", "says"),
    [
        ({}, rl.errors.UsageError, "no figure to vary"),
        ({"l2": ""}, rl.errors.UsageError, "expected values"),
        ({"l2": []}, rl.errors.UsageError, "expected values"),
        ({"l2": 5}, rl.errors.UsageError, "expected values"),
        ({"l2": "1..8"}, rl.errors.UnitError, "has no unit"),
        ({"l2": "a..b"}, rl.errors.UnitError, "not a quantity"),
        ({"l2": "1MiB...64MiB"}, rl.errors.UnitError, "unknown unit"),
        ({"l2": "0..8MiB"}, rl.errors.UsageError, "above zero"),
        ({"l2": "x1..8MiB"}, rl.errors.UsageError, "give one kind"),
        ({"l2": [1e6, float("nan")]}, rl.errors.UnitError, "not a finite number"),
        ({"l2": "1B..8MiB"}, rl.errors.ChipDataError, "too small"),
        ({"memry_bandwidth": "1..8TB/s"}, rl.errors.UsageError, "did you mean memory_bandwidth"),
        (
            {"l2": "1..8MiB", "cores": "1..300", "memory_bandwidth": "1..8TB/s"},
            rl.errors.UsageError,
            "allowed: at most",
        ),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(figures: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        rl.sweep_chip("gpt2", H100, figures, points=300, **DECODE)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sweep_is_of_one_point() -> None:
    with pytest.raises(rl.errors.UsageError, match="chips are swept for one point"):
        rl.sweep_chip("gpt2", H100, {"l2": "1..8MiB"}, **{**DECODE, "batch": [1, 2]})


def test_the_command_prints_every_chip_and_draws_it(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    words = "sweep-chip gpt2 h100-sxm --phase decode -S 512 --mode graph --set memory_bandwidth=1..8TB/s --set l2=x1"
    assert rl_main(f"{words} --points 3 --plot {tmp_path / 'a.svg'}") == 0
    out = capsys.readouterr().out
    assert "2.828 TB/s" in out
    assert "on h100-sxm (what-if)" in out
    assert (tmp_path / "a.svg").stat().st_size > 1000
    assert rl_main(f"{words} --set cores=66,132 --points 3 --json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["figures"] == ["memory_bandwidth", "cores"]
    assert len(record["rows"]) == 6
    assert rl_main("sweep-chip gpt2 h100-sxm -S 512 --set l2=4MiB") == 2
    assert "no figure varies" in capsys.readouterr().err
    assert rl_main("sweep-chip gpt2 h100-sxm -S 512 --set l2=4..8MiB --set l2=1..2MiB") == 2
    assert "a figure varies twice" in capsys.readouterr().err


def test_ten_thousand_chips_are_worked_out_together() -> None:
    """One by one they take minutes; lanes part into no more than a few groups."""
    from roofline.analysis import chip_sweep

    calls = 0

    class Counted(chip_sweep.Points):
        def __post_init__(self) -> None:
            nonlocal calls
            calls += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chip_sweep, "Points", Counted)
        swept = rl.sweep_chip("gpt2", H100, {"l2": "1MiB..64MiB", "memory_bandwidth": "1..8TB/s"}, points=100, **DECODE)
    assert swept.time.size == 10_000
    assert calls < 100


def test_options_of_sweeps_are_those_of_the_chip() -> None:
    assert issubclass(opt.RunOptions, opt.ChipOptions)


@pytest.mark.parametrize("figure", ["peak", "bf16"])
def test_a_peak_by_a_factor_takes_its_sparse_one_along(figure: str) -> None:
    chip, pruned = rl.chip("h100-sxm"), rl.passes.prune(rl.model("gpt2", phase="prefill", dtype="bf16"), sparsity="2:4")
    sizes: dict[str, Any] = {"mode": "graph", "batch": 8, "seq": 1024}
    swept = rl.sweep_chip(pruned, chip, {figure: "x1,x2"}, **sizes)
    assert swept.time[0] == pytest.approx(rl.estimate(pruned, chip, **sizes).time)
    assert swept.time[1] == pytest.approx(rl.estimate(pruned, swept.chip_at(1), **sizes).time)
    assert swept.chip_at(1).sparse_peak("bf16") == pytest.approx(2 * chip.sparse_peak("bf16"))  # type: ignore[operator]
