"""Backends of torch.compile: predicted without PyTorch, measured beside the prediction with it."""

from __future__ import annotations

import builtins
import csv
import json
from pathlib import Path
from typing import Any

import pytest

import roofline as rl
from roofline.measurement.backends import COMPILE_SECONDS, mode_of

#: PyTorch's own compiler imports parts of PyTorch that it warns about.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

MEASURED = Path(__file__).parent.parent / "measurements" / "h100-sxm" / "models.csv"


def resnet() -> rl.Graph:
    return rl.model("resnet50", dtype="bf16")


# --- predicted --------------------------------------------------------------------------------------------------------


def test_the_table_of_compile_times_is_that_of_the_measurements() -> None:
    with MEASURED.open() as file:
        rows = [row for row in csv.DictReader(file) if row["compile_s"]]
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["mode"].removeprefix("compile-"), []).append(float(row["compile_s"]))
    assert {name: sorted(times) for name, times in COMPILE_SECONDS.items()} == {
        name: sorted(times) for name, times in found.items()
    }


def test_speedups_are_quotients_of_estimates() -> None:
    found = rl.measurement.predicted_compile(resnet(), "h100-sxm", B=1)
    times = {mode: rl.estimate(resnet(), "h100-sxm", mode=mode, B=1).time for mode in ("eager", "graph", "compiled")}  # type: ignore[arg-type]
    assert found["inductor"].pays_off.speedup == pytest.approx(times["eager"] / times["compiled"])
    assert found["cudagraphs"].pays_off.speedup == pytest.approx(times["eager"] / times["graph"])
    assert found["aot_eager"].pays_off.speedup == 1
    assert found["aot_eager"].pays_off.never
    assert found.best.backend == "inductor"


def test_calls_follow_the_compile_time() -> None:
    row = rl.measurement.predicted_compile(resnet(), "h100-sxm", B=64)["inductor"]
    saved = row.pays_off.before_s - row.pays_off.after_s
    assert row.pays_off.steps == pytest.approx(10.83 / saved)
    assert (row.earliest, row.latest) == pytest.approx((10.10 / saved, 12.97 / saved))
    told = rl.measurement.predicted_compile(resnet(), "h100-sxm", B=64, compile_s="60 s")["inductor"]
    assert told.pays_off.steps == pytest.approx(60 / saved)
    assert told.compile_s == (60, 60, 60)


def test_a_measured_speedup_is_foreseen() -> None:
    """ResNet-50 in bf16 at batch 64: 5.65 ms eager, 3.39 ms compiled (models.csv); the ranges allow the quotient.

    The host is that machine's: at batch 4 it sets the pace of the same network.
    """
    with MEASURED.open() as file:
        wall = {
            (row["mode"], row["batch"]): float(row["wall_us"])
            for row in csv.DictReader(file) if (row["model"], row["dtype"]) == ("resnet50", "bf16")
        }  # fmt: skip
    small = rl.estimate(resnet(), "h100-sxm", B=4)
    assert small.bound == "host"
    chip = rl.chip("h100-sxm")
    host = chip.efficiency.host * wall["eager", "4"] * 1e-6 / small.time
    row = rl.measurement.predicted_compile(resnet(), chip.replace(efficiency={"host": host}), B=64)["inductor"]
    assert row.pays_off.speedup == pytest.approx(wall["eager", "64"] / wall["compile-inductor", "64"], rel=0.1)


def test_other_compilers_need_a_time() -> None:
    with pytest.raises(
        rl.errors.UsageError, match=r"how long openxla compiles is known for inductor.*compile_s=\{'openxla'"
    ):
        rl.measurement.predicted_compile(resnet(), "h100-sxm", backends=["openxla"], B=1)
    row = rl.measurement.predicted_compile(
        resnet(), "h100-sxm", backends=["openxla"], compile_s={"openxla": "5 s"}, B=1
    )["openxla"]
    assert row.compile_s[1] == 5
    assert row.estimate.mode == "compiled"


def test_modes_of_backends() -> None:
    named = ("eager", "aot_eager", "cudagraphs", "inductor", "inductor:reduce-overhead", "openxla")
    assert [mode_of(name) for name in named] == ["eager", "eager", "graph", *["compiled"] * 3]


def test_a_prediction_as_data() -> None:
    found = rl.measurement.predicted_compile(resnet(), "h100-sxm", B=1)
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert [row["backend"] for row in record["rows"]] == ["inductor", "cudagraphs", "aot_eager"]
    assert record["rows"][2]["calls"] is None
    assert list(found.frame()["backend"]) == ["inductor", "cudagraphs", "aot_eager"]
    assert "inductor: pays off after" in repr(found)
    with pytest.raises(rl.errors.UsageError, match=r"no row 'inductr'; there are: inductor, .*did you mean inductor"):
        found["inductr"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"B": [1, 2]}, "one point"),
        ({"backends": []}, "name at least one"),
        ({"backends": [7]}, "name at least one"),
        ({"compile_s": "-1 s"}, "compile_s"),
    ],
)
def test_predictions_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(rl.RooflineError, match=says):
        rl.measurement.predicted_compile(resnet(), "h100-sxm", **{"B": 1, **options})


# --- measured ---------------------------------------------------------------------------------------------------------


def processor() -> rl.Chip:
    """A chip of the size of a few cores; what it is called does not matter here."""
    return rl.Chip(name="mine", vector={"fp32": "100 GFLOP/s"}, matrix={"fp32": "100 GFLOP/s"},
                   memory_bandwidth="20 GB/s", memory_capacity="8 GB", form="CPU")  # fmt: skip


def measured(program: Any, *args: Any, **options: Any) -> Any:
    return rl.measurement.compare_backends(
        program, *args, **{"chip": processor(), "budget": 0.02, "warmup": 1, **options}
    )


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "torch":
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(rl.errors.MissingExtra, match=r"pip install 'roofline\[torch\]'"):
        rl.measurement.compare_backends(None)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_each_backend_has_its_row(torch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))
    found = measured(model, torch.randn(32, 64), backends=["aot_eager", "eager", "aot_eager"])
    plain, other = found.rows
    assert [row.backend for row in found.rows] == ["eager", "aot_eager"]
    assert plain.pays_off is None
    assert other.pays_off.before_s == plain.measured.seconds
    assert other.pays_off.after_s == other.measured.seconds
    assert other.pays_off.overhead_s == pytest.approx(other.first_call_s - plain.first_call_s)
    assert other.expected.speedup == pytest.approx(1), "the same kernels from the host"
    assert other.predicted.time == rl.estimate(rl.from_torch(model, torch.randn(32, 64)), processor()).time
    assert other.first_call_s > other.measured.seconds
    assert other.graph_breaks == 0


def test_a_fusing_backend_is_predicted_by_its_kernels(torch: Any) -> None:
    def chain(x: Any) -> Any:
        return ((x.sin() + 1) * 2).relu() - x

    from inductor_programs import uncompiled  # which needs PyTorch

    with uncompiled():
        found = measured(chain, torch.randn(1000, 1000), backends=["inductor"])
    row = found["inductor"]
    assert row.predicted.launches == 1
    assert row.predicted.mode == "compiled"
    assert row.expected.speedup > 3, "ten arrays moved, then two"


def test_a_backend_that_fails_is_a_row(torch: Any) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise ValueError("no such kernel\nsecond line")

    torch._dynamo.register_backend(broken, name="broken_for_a_test")
    found = measured(torch.nn.Linear(8, 8), torch.zeros(2, 8), backends=["broken_for_a_test"])
    row = found["broken_for_a_test"]
    assert row.error == "ValueError: no such kernel"
    assert row.measured is None
    assert "failed: ValueError: no such kernel" in repr(found)
    assert found.best.backend == "eager"
    with pytest.raises(rl.errors.UsageError, match="has no time"):
        row.seconds()
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert record["rows"][1]["measured_s"] is None
    assert list(found.frame()["error"]) == ["", "ValueError: no such kernel"]


def test_fallbacks_to_python_are_counted(torch: Any) -> None:
    def broken(x: Any) -> Any:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    assert measured(broken, torch.zeros(8), backends=["aot_eager"])["aot_eager"].graph_breaks == 1


def test_a_processor_replays_nothing(torch: Any) -> None:
    found = measured(torch.nn.Linear(8, 8), torch.zeros(2, 8), backends=["cudagraphs"])
    row = found["cudagraphs"]
    assert row.error or row.predicted.time == found["eager"].predicted.time


def test_what_cannot_be_measured_is_refused(torch: Any) -> None:
    model, x = torch.nn.Linear(8, 8), torch.zeros(2, 8)
    with pytest.raises(
        rl.errors.UsageError, match=r"unknown backend 'inductr'; allowed: eager, .*did you mean inductor"
    ):
        measured(model, x, backends=["inductr"])
    with pytest.raises(rl.errors.UsageError, match="compiled already"):
        measured(torch.compile(model), x)
    with pytest.raises(rl.errors.UsageError, match="name at least one"):
        measured(model, x, backends=[])
    with pytest.raises(rl.errors.UsageError, match="which chip"):
        rl.measurement.compare_backends(model, x)
    with pytest.raises(rl.errors.UsageError, match="fails"):
        measured(model, torch.zeros(2, 9))
