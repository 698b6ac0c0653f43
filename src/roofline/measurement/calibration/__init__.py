"""Measure the machine at hand, fit the time model to it, and describe it as a chip.

Without an accelerator that is the CPU: through numpy, and through PyTorch where that is installed. With CUDA
and PyTorch it is the GPU.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from roofline.analysis.fitting import Sample, need_scipy
from roofline.ir.errors import MissingExtra, UsageError, did_you_mean
from roofline.ir.files import whole_file
from roofline.measurement.calibration import numpy_cpu, torch_cpu
from roofline.measurement.calibration.build import Calibration, Measured, build_chip, error_figures
from roofline.measurement.calibration.host import Host, host_load, this_host
from roofline.measurement.calibration.timing import Budget, Task, Timing, copies, repeat

__all__ = ["Calibration", "calibrate", "calibrate_host", "error_figures"]

DEVICES = ("auto", "cpu", "cuda")
#: Time for the measurements; the fit comes on top [s].
QUICK, FULL = 8.0, 70.0
#: Share of it for the memory levels.
LEVELS = 0.15

Progress = Callable[[float, str], None]


def calibrate(
    device: str = "auto",
    quick: bool = False,
    output: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Measure this machine and describe it as a chip.

    Args:
        device: ``cpu``, ``cuda``, or ``auto``: the GPU where PyTorch sees one, else the CPU.
        quick: Measure less: 20 seconds rather than two minutes.
        output: Where to write the chip's TOML.
        progress: Called with the share that is done and what is going on.

    Returns:
        The chip, what it was fitted to, and how large the errors on held-out operators are.

    Raises:
        UsageError: An unknown device, ``cuda`` without a GPU, or a machine so busy that the error on held-out operators
            is above 50 % on average; nothing is written then.
        MissingExtra: scipy is not installed, or for ``cuda`` torch.

    Example:
        >>> import roofline as rl
        >>> rl.calibrate(device="abacus")
        Traceback (most recent call last):
            ...
        roofline.ir.errors.UsageError: device 'abacus'; allowed: auto, cpu, cuda
    """
    start = time.perf_counter()
    if device not in DEVICES:
        raise UsageError(f"device {device!r}; allowed: {', '.join(DEVICES)}" + did_you_mean(str(device), DEVICES))
    need_scipy()
    tell = progress or _silent
    calibration = (
        _on_cuda(quick, tell) if device == "cuda" or (device == "auto" and _has_cuda()) else _on_cpu(quick, tell)
    )
    calibration.check()
    done = replace(calibration, seconds=time.perf_counter() - start)
    if output is not None:
        done.chip.save(output, done.remarks)
    return done


def calibrate_host(output: str | os.PathLike[str] | None = None) -> float:
    """Measure how fast this machine's host runs eager PyTorch, in a second.

    Args:
        output: Where to write it as a TOML file, which ``host=`` and ``--host`` take with any chip.

    Returns:
        Time of a call of an operator within a program [s].

    Raises:
        MissingExtra: torch is not installed.

    Example:
        >>> import roofline as rl
        >>> 1e-7 < rl.measurement.calibrate_host() < 1e-2
        True
    """
    from roofline.measurement.calibration.launching import host_figure

    seconds = host_figure()
    if output is not None:
        with whole_file(output) as stream:
            stream.write(host_file(seconds))
    return seconds


def host_file(seconds: float) -> str:
    """Return the text of the file that ``--host`` takes."""
    return f'# a call of eager PyTorch on {this_host().name}\n[efficiency]\nhost = "{seconds * 1e6:.3g} us"\n'


def _silent(share: float, what: str) -> None:
    return None


def _has_cuda() -> bool:
    if not torch_cpu.available():
        return False
    import torch

    return bool(torch.cuda.is_available())


def _on_cuda(quick: bool, progress: Progress) -> Calibration:
    if not torch_cpu.available():
        raise MissingExtra('measuring a GPU needs torch: pip install "roofline[torch]"')
    if not _has_cuda():
        raise UsageError("device 'cuda': PyTorch sees no GPU; allowed here: cpu")
    from roofline.measurement.calibration import torch_cuda

    return torch_cuda.calibrate(quick, progress)


def _on_cpu(quick: bool, progress: Progress) -> Calibration:
    measured = measure_cpu(this_host(), quick, progress)
    progress(0.95, "fit")
    calibration = build_chip(measured)
    progress(1.0, "done")
    return calibration


def measure_cpu(machine: Host, quick: bool, progress: Progress = _silent, seconds: float | None = None) -> Measured:
    """Measure a CPU through numpy, and through PyTorch where it is installed.

    Args:
        machine: The machine.
        quick: Measure less.
        progress: Called with the share that is done and what is going on.
        seconds: Time for it; that of ``quick`` or of a full measurement when absent [s].
    """
    limit, load = seconds or (QUICK if quick else FULL), host_load()
    progress(0.0, "memory")
    levels = list(numpy_cpu.levels(machine, LEVELS * limit))
    tasks, software, overhead = _tasks(quick)
    samples, timings = measure(tasks, machine.last_level, (1 - LEVELS) * limit, progress)
    return Measured(machine, samples, timings, levels, overhead, software, quick, load)


def _tasks(quick: bool) -> tuple[list[Task], list[str], float]:
    """Return what to measure, with what software, and what the smallest operator costs with it [s].

    PyTorch runs elementwise operators on all threads and numpy on one, so only one of them can be described.
    """
    software = [f"numpy {np.__version__}", f"Python {platform.python_version()}"]
    if not torch_cpu.available():
        return [*numpy_cpu.matmuls(quick), *numpy_cpu.streams(quick)], software, numpy_cpu.overhead()
    tasks = [*numpy_cpu.matmuls(quick), *torch_cpu.matmuls(quick), *torch_cpu.streams(quick)]
    return tasks, [torch_cpu.version(), *software], torch_cpu.overhead()


def measure(
    tasks: Sequence[Task], cache: int, seconds: float, progress: Progress = _silent
) -> tuple[list[Sample], list[Timing]]:
    """Time tasks within a budget.

    Args:
        tasks: The tasks.
        cache: Of the last level, which operands are not to be found in [byte].
        seconds: Time for all of them [s].
        progress: Called with the share that is done and what is going on.
    """
    budget, samples, timings = Budget(seconds, len(tasks)), [], []
    for at, task in enumerate(tasks):
        progress(LEVELS + (0.95 - LEVELS) * at / len(tasks), f"{task.op} {task.dtype}")
        timing = repeat([task.make() for _ in range(copies(task, cache))], budget.share())
        samples.append(Sample(task.op, task.dtype, task.shape, timing.typical))
        timings.append(timing)
    return samples, timings
