"""Calibration: known parameters are found again, a machine is measured, and its file is a chip."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import Run, fails

import roofline as rl
from roofline.analysis.fitting import Effort, Sample, fit, held_out, start, take_apart
from roofline.cost import cpu, values
from roofline.measurement.calibration import build, host, numpy_cpu, timing, torch_cpu, torch_cuda
from roofline.measurement.calibration.build import Measured
from roofline.measurement.calibration.host import Cache, Host
from roofline.measurement.calibration.timing import Task, Timing, undisturbed

pytest.importorskip("scipy")

#: The package; its name in ``roofline`` may be the function.
package = importlib.import_module("roofline.measurement.calibration")

MACHINE = Host("Example CPU", "Example", 2, (Cache(1, 2**15, 1), Cache(3, 2**23, 2)), 2**34, "Test")
FLAT = [2**n for n in range(10, 27, 2)]


@pytest.fixture
def chip() -> rl.Chip:
    return rl.Chip(
        name="example",
        cores=2,
        vector={"fp32": "200 GFLOP/s", "fp64": "100 GFLOP/s"},
        memory=[{"name": "DRAM", "capacity": "16 GB", "bandwidth": "20 GB/s"}],
        efficiency={"parameters": {"cpu_matmul": {}, "cpu_stream": {}}},
    )


def flat_samples() -> list[Sample]:
    return [Sample(op, "fp32", {"n": n}, 1.0) for op in ("copy", "add", "relu") for n in FLAT]


def timed(samples: list[Sample], chip: rl.Chip, group: str, noise: float = 0.0, **known: float) -> list[Sample]:
    """The samples with the times of a machine that has these parameters."""
    parameters = start(chip)
    parameters[group] |= known
    rng = np.random.default_rng(0)
    pieces = take_apart(samples, chip)
    seconds = pieces.predict(parameters) * np.exp(rng.normal(0, noise, len(samples)))
    return [replace(sample, seconds=float(value)) for sample, value in zip(samples, seconds, strict=True)]


# Fitting.


def stream_group(chip: rl.Chip) -> str:
    (group,) = take_apart(flat_samples(), chip).groups
    return group


def test_known_parameters_are_found_again(chip: rl.Chip) -> None:
    group = stream_group(chip)
    samples = timed(flat_samples(), chip, group, launch=7e-6, dram=0.55)
    found = fit(take_apart(samples, chip), chip, effort=Effort(only=frozenset({"launch", "dram"})))
    assert found[group]["launch"] == pytest.approx(7e-6, rel=0.05)
    assert found[group]["dram"] == pytest.approx(0.55, rel=0.03)


def test_outliers_do_not_rule(chip: rl.Chip) -> None:
    group = stream_group(chip)
    samples = timed(flat_samples(), chip, group, launch=7e-6, dram=0.55)
    samples[-1] = replace(samples[-1], seconds=20 * samples[-1].seconds)
    found = fit(take_apart(samples, chip), chip, effort=Effort(only=frozenset({"launch", "dram"})))
    assert found[group]["dram"] == pytest.approx(0.55, rel=0.1)


def test_held_out_error_is_the_noise(chip: rl.Chip) -> None:
    samples = timed(flat_samples(), chip, stream_group(chip), noise=0.05, launch=7e-6, dram=0.55)
    error = held_out(samples, chip, effort=Effort(only=frozenset({"launch", "dram"})))
    assert sorted(error) == list(range(len(samples)))
    assert 0.01 < np.mean(np.abs(list(error.values()))) < 0.1


def test_what_the_model_does_not_know_is_skipped(chip: rl.Chip) -> None:
    samples = [*flat_samples(), Sample("spell", "fp32", {"n": 1}, 1.0)]
    pieces = take_apart(samples, chip)
    assert list(pieces.skipped) == [len(samples) - 1]
    assert len(pieces.measured) == len(samples) - 1
    with pytest.raises(rl.errors.UsageError, match="nothing to fit"):
        fit(take_apart([samples[-1]], chip), chip)
    with pytest.raises(rl.errors.UsageError, match="unknown group"):
        fit(pieces, chip, ["magic"])


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(rl.errors.MissingExtra, match=r"pip install \"roofline\[calibrate\]\""):
        rl.calibrate("cpu", quick=True)


# The formulas of CPUs.


def test_a_cpu_packs_and_streams(chip: rl.Chip) -> None:
    def seconds(op: str, **shape: int) -> float:
        from roofline.analysis.bulk import group_rows
        from roofline.cost import launch

        (rows,), _ = group_rows([(op, "fp32", shape)])
        (row,) = rows.counts()
        group = cpu.MATMUL.name if row.flops_by else cpu.STREAM.name
        formula = cpu.matmul_seconds if row.flops_by else cpu.stream_seconds
        return float(np.ravel(formula(launch(row, chip, False, "cold"), values(chip, group)))[0])

    assert cpu.is_described(chip)
    assert seconds("gemm", m=1024, n=1024, k=1024) > 2 * 1024**3 / 200e9
    assert seconds("gemm", m=8, n=2048, k=2048) > 1.5 * seconds("gemm", m=1, n=2048, k=2048)
    assert seconds("gelu", n=2**22) > seconds("relu", n=2**22) > 2 * 4 * 2**22 / 20e9
    assert seconds("sum", rows=2**16, cols=16) > seconds("sum", rows=16, cols=2**16)


# Measuring.


def tiny(quick: bool = True) -> tuple[list[Task], list[str], float]:
    gemms = [numpy_cpu._gemm("fp32", n, n, n) for n in (8, 16, 24, 32, 48, 64)]
    rest = [task for task in numpy_cpu.streams(quick) if task.size <= 2**18]
    return [*gemms, *rest], ["numpy"], 1e-6


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "_tasks", tiny)
    monkeypatch.setattr(package, "this_host", lambda: MACHINE)
    monkeypatch.setattr(package, "QUICK", 0.3)
    monkeypatch.setattr(build, "EFFORT", Effort(most=2, tolerance=1e-2))
    # However busy the machine is that the tests run on; what is refused is tested below.
    monkeypatch.setattr(build.Calibration, "check", lambda self: None)


def test_a_machine_becomes_a_chip(small: None, tmp_path: Path) -> None:
    seen: list[float] = []
    path = tmp_path / "mine.toml"
    found = rl.calibrate("cpu", quick=True, output=path, progress=lambda share, what: seen.append(share))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    mine = rl.chip(path)
    assert mine.name == found.chip.name == "example-2-threads"
    assert mine.cores == 2
    assert mine.efficiency.calibrated == "measured"
    assert mine.efficiency.held_out_error == found.held_out_error > 0
    assert found.held_out_error == pytest.approx(np.mean(np.abs(list(found.error.values()))), abs=1e-3)
    assert mine.efficiency.parameters
    assert mine.vector_peak("fp32") > 1e6
    assert mine.cache is not None
    assert mine.cache.name == "L3"
    text = path.read_text()
    assert all(
        word in text for word in ("Example CPU", "2 threads", "numpy", "mean error", "roofline calibrate --quick")
    )
    matmul = rl.workload([{"op": "gemm", "m": 64, "n": 64, "k": 64}], dtype="fp32")
    assert rl.estimate(matmul, mine).time > 0


def test_the_command(small: None, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "mine.toml"
    done = run("calibrate", "--device", "cpu", "--quick", "-o", path)
    assert done.code == 0
    assert "held-out error" in done.out
    assert max(map(len, done.out.splitlines())) <= 80 + len(str(path))
    assert rl.chip(path).name == "example-2-threads"
    data = run("calibrate", "--device", "cpu", "--quick", "--json").data
    assert {"chip", "points", "peaks_flops_per_s", "bandwidth_bytes_per_s", "remarks", "rows"} <= set(data)
    fails(run("calibrate", "--device", "cpu", "-o", tmp_path / "mine.txt"), "a chip file ends in .toml")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(rl.errors.UsageError, match="allowed: auto, cpu, cuda"):
        rl.calibrate("gpu")


@pytest.mark.skipif(not torch_cpu.available(), reason="needs torch")
def test_cuda_needs_a_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(rl.errors.UsageError, match="sees no GPU"):
        rl.calibrate("cuda", quick=True)


@pytest.mark.skipif(torch_cpu.available(), reason="torch is here")
def test_cuda_needs_torch() -> None:
    with pytest.raises(rl.errors.MissingExtra, match="torch"):
        rl.calibrate("cuda", quick=True)


@pytest.mark.skipif(not torch_cpu.available(), reason="needs torch")
@pytest.mark.parametrize("op", [*torch_cpu.FLAT_OPS, *torch_cpu.ROW_OPS])
def test_torch_operators_run(op: str) -> None:
    import torch

    torch_cpu.inference(torch_cpu.caller(op, torch.full((4, 8), 0.5)))()
    assert torch_cpu._linear("bf16", 2, 3, 4).make()() is not None


def test_every_task_is_a_word_that_the_model_knows(chip: rl.Chip) -> None:
    tasks = [*numpy_cpu.matmuls(False), *numpy_cpu.streams(False)]
    tasks += torch_cpu.streams(False)
    pieces = take_apart([Sample(task.op, task.dtype, task.shape, 1.0) for task in tasks], chip)
    assert not pieces.skipped


@pytest.mark.parametrize("quick", [False, True])
def test_every_operator_of_a_gpu_is_a_word_that_the_model_knows(quick: bool) -> None:
    tasks = torch_cuda.operators(quick)
    pieces = take_apart([Sample(*task, 1.0) for task in tasks], rl.chip("h100-sxm"))
    assert not pieces.skipped
    assert {"gemm", "attention_sdpa", "conv2d", "softmax", "relu"} <= {op for op, _, _ in tasks}


@pytest.mark.skipif(not torch_cpu.available(), reason="needs torch")
def test_operators_of_a_gpu_return_what_their_shape_says() -> None:
    import torch

    def made(*size: int) -> torch.Tensor:
        return torch.randn(size)

    fused = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 3, "kv_len": 3, "head_dim": 8, "causal": True}
    assert torch_cuda._gemm({"m": 2, "n": 3, "k": 4}, made)().shape == (2, 3)
    assert torch_cuda._attention(fused, made)().shape == (2, 4, 3, 8)
    assert torch_cuda._convolution(torch_cuda._window(2, 4, 8, 6, 3, 2, 1), made)().shape == (2, 6, 4, 4)


def test_kernels_of_a_launch_are_summed_between_marks() -> None:
    mark = ("void bitwise_not_kernel", 70.0)
    launches = [[("a", 1.0), ("b", 2.0)], [("a", 1.0), ("b", 4.0)], [("a", 9.0)]]
    kernels = [("before", 500.0), *(kernel for launch in launches for kernel in (mark, *launch))]
    assert torch_cuda.launch_seconds(kernels) == pytest.approx(5e-6)
    with pytest.raises(rl.errors.UsageError, match="saw no kernel"):
        torch_cuda.launch_seconds([mark, mark])


@pytest.mark.skipif(not torch_cpu.available(), reason="needs torch")
def test_a_known_gpu_keeps_what_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H100 80GB HBM3")
    known, found = rl.chip("h100-sxm"), torch_cuda._chip([Sample("copy", "bf16", {"n": 8}, 2e-6)], 9e-6)
    assert found.name == "h100-sxm-calibrated"
    assert found.efficiency.parameters == known.efficiency.parameters
    assert (found.efficiency.launch, found.efficiency.host) == (2e-6, 9e-6)


def test_the_range_of_a_class_is_what_was_held_out() -> None:
    chip = rl.chip("h100-sxm")
    samples = [Sample("relu", "fp32", {"n": n}, 4.0 * n / 1e12 + 3e-6) for n in range(2**20, 2**25, 2**20)]
    found = build.finish(chip, samples, (), build.EFFORT)
    assert 1.1 <= found.chip.efficiency.parameters["spread"]["stream"] < 1.5
    assert found.chip.efficiency.parameters["spread"]["conv"] == chip.efficiency.parameters["spread"]["conv"]
    assert found.chip.efficiency.parameters["conv"] == chip.efficiency.parameters["conv"]


def test_sets_of_operands_overflow_the_cache() -> None:
    task = Task("relu", "fp32", {"n": 2**18}, lambda: lambda: None, 2**20, "numpy")
    assert timing.copies(task, 2**23) == 16
    assert timing.copies(replace(task, size=2**30), 2**23) == 1
    assert timing.copies(replace(task, size=4), 2**23) == timing.MOST_COPIES


def test_waits_for_other_programs_are_taken_off() -> None:
    assert undisturbed([(1.0, 0.0)] * 3 + [(9.0, 8.0)]) == [1.0] * 3
    assert undisturbed([(9.0, 5.0), (9.0, 8.9)]) == [4.0, 3.0]
    assert all(seconds >= 0 for seconds in timing.waits().values())


def test_bandwidth_of_a_level_is_positive() -> None:
    level = numpy_cpu.bandwidth(1, 2**14, 1, 0.02)
    assert level.bandwidth > 1e7
    assert level.kernel in numpy_cpu._STREAM


def test_this_machine_has_a_name_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.this_host().slug
    assert host.this_host().threads >= 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert host.threads() == 3
    assert host._listed("0-3,8") == 5


@pytest.mark.parametrize(("error", "busy", "why"), [
    (1.87, True, "other programs kept this machine busy"), (0.6, False, "the times do not repeat"),
])  # fmt: skip
def test_a_chip_that_predicts_nothing_is_refused(
    small: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run, error: float, busy: bool, why: str
) -> None:
    chip = rl.chip("epyc-9654").replace(efficiency={"held_out_error": error})
    bad = build.Calibration(chip, [], {0: error}, (), busy=busy)
    monkeypatch.undo()
    monkeypatch.setattr(package, "_on_cpu", lambda quick, progress: bad)
    path = tmp_path / "mine.toml"
    fails(run("calibrate", "--device", "cpu", "-o", path), f"{error:.0%} off", "allowed: 50%", why, "measure again")
    assert not path.exists()
    with pytest.raises(rl.errors.UsageError, match=why):
        rl.calibrate("cpu")
    build.Calibration(chip.replace(efficiency={"held_out_error": 0.5}), [], {0: 0.5}, ()).check()


def test_too_few_measurements_are_refused() -> None:
    few = Measured(MACHINE, [], [], [], 1e-6, [], True)
    with pytest.raises(rl.errors.UsageError, match="at least 8"):
        build.build_chip(few)


def test_peaks_are_the_best_that_was_measured() -> None:
    samples = [Sample("gemm", "fp32", {"m": n, "n": n, "k": n}, 1.0) for n in (10, 100)]
    rates = build.best_rates(samples, [Timing(1.0, 1.0), Timing(1.0, 1.0)])
    assert rates == {"fp32": (2e6, "m=100 n=100 k=100")}


# Files.


@pytest.mark.parametrize("name", ["h100-sxm", "epyc-9654", "tpu-v5e", "gaudi3"])
def test_a_written_chip_is_the_same_chip(name: str, tmp_path: Path) -> None:
    before = rl.chip(name)
    text = before.toml(["a\nremark"])
    path = before.save(tmp_path / f"{name}.toml", ["a\nremark"])
    after = rl.chip(path)
    assert text.startswith("# a remark\n")
    again = rl.chip(after.save(tmp_path / "again.toml"))
    assert again.toml() == after.toml()
    assert after.bandwidth == pytest.approx(before.bandwidth)
    assert set(after.matrix) == set(before.matrix)
    assert after.efficiency.parameters == before.efficiency.parameters


def test_text_is_quoted(tmp_path: Path) -> None:
    odd = rl.Chip(name='a "b"\n\\c µ', memory_bandwidth="1 TB/s", notes="x\u007fy")
    assert rl.chip(odd.save(tmp_path / "odd.toml")).name == odd.name


def test_the_host_alone_is_measured_for_any_chip(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "host.toml"
    seconds = rl.measurement.calibrate_host(path)
    est = rl.estimate("gpt2", "h100-sxm", phase="decode", batch=1, context=64, host=path)
    plain = rl.estimate("gpt2", "h100-sxm", phase="decode", batch=1, context=64)
    assert est.host_time / plain.host_time == pytest.approx(seconds / plain.chip.efficiency.host, rel=0.01)
    fails(run("calibrate", "--device", "host", "--json"), "no --json")


def test_the_host_is_not_measured_without_torch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.measurement.calibration.torch_cpu.available", lambda: False)
    fails(run("calibrate", "--device", "host"), 'pip install "roofline[torch]"')
