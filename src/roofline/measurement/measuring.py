"""Run code at hand properly, capture what it does, and say whether its time makes sense.

The program runs ``warmup`` times, then as often as ``budget`` allows. Every timing ends with a synchronisation, so that
queued work counts; on an accelerator short runs are queued one after the other, as a program runs them. Random numbers
start at ``seed`` and the generator is put back afterwards. A recorded run on the same arguments tells which
operators it calls.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count as naturals
from typing import Any

import numpy as np

from roofline.analysis.estimates import Estimate, Mode
from roofline.cost.cpu import is_cpu
from roofline.diagnosis import Verdict, check
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import MissingExtra, RooflineError, UnknownChip, UsageError
from roofline.ir.graph import Graph
from roofline.ir.report import Report
from roofline.ir.units import format_si
from roofline.measurement.calibration.timing import timed_alone, undisturbed
from roofline.traces.events import Trace
from roofline.traces.reading import read_trace

#: Runs that are timed: at least, and at most.
LEAST, MOST = 5, 2000
#: Middle half of the runs, as a share of the median, from which a measurement is called unsteady.
UNSTEADY = 0.2

#: Runs that are shorter follow each other until they take this long together [s], and at most so many: an accelerator
#: has them queued, and on a CPU the clock and the account of other programs cost as much as a short run.
QUEUED, MOST_QUEUED = 5e-3, 100

Call = Callable[[], object]


@dataclass(frozen=True, repr=False)
class Measurement(Report):
    """What code took, what it should have taken, and the verdict.

    From :func:`roofline.measure`.

    Attributes:
        seconds: Median of the runs [s].
        low: Lower quartile [s].
        high: Upper quartile [s].
        runs: Timed runs, after warm-up.
        device: Where it ran, in PyTorch's words.
        graph: What it does.
        estimate: What it should take.
        verdict: Whether the two agree, and if not why.
    """

    schema = "measurement"

    seconds: float
    low: float
    high: float
    runs: int
    device: str
    graph: Graph
    estimate: Estimate
    verdict: Verdict

    @property
    def ok(self) -> bool:
        """Tell whether the time is as expected."""
        return self.verdict.ok

    @property
    def unsteady(self) -> bool:
        """Tell whether the middle half of the runs spreads over more than :data:`UNSTEADY` of the median."""
        return self.high - self.low > UNSTEADY * self.seconds

    def subject(self) -> dict[str, Any]:
        """Return the program, where and how it ran, and its sizes."""
        return {**self.verdict.subject(), "device": self.device}

    def summary(self) -> dict[str, Any]:
        """Return the figures of the verdict and of the measurement."""
        own = {"measured_low_s": self.low, "measured_high_s": self.high, "runs": self.runs}
        return {**self.verdict.summary(), **own}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per part of the measured time."""
        return self.verdict.records()

    def __str__(self) -> str:
        spread = f"{format_si(self.low, 's')} to {format_si(self.high, 's')} in the middle half of {self.runs} runs"
        warning = "; unsteady: is the machine doing other work?" if self.unsteady else ""
        return f"{self.graph.name}: {self.verdict} ({spread}{warning})"

    def __repr__(self) -> str:
        return f"<Measurement {self}>"


def measure(
    program: Any,
    *args: Any,
    chip: AnyChip | None = None,
    mode: Mode | None = None,
    backward: bool = False,
    budget: float = 1.0,
    warmup: int = 3,
    seed: int = 0,
    trace: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[float], None] | None = None,
    **options: Any,
) -> Measurement:
    """Time a PyTorch program, capture it, and judge the time.

    Args:
        program: A ``torch.nn.Module`` or a function, compiled or not.
        args: Its arguments, with values, on the device where it is to run.
        chip: Where it runs: a name, a file that ``roofline calibrate`` wrote, or a chip; by its name when absent.
        mode: ``eager``, ``compiled`` (the default of compiled programs) or ``graph`` (replayed as a CUDA graph).
        backward: Run the backward pass too, from gradients of ones.
        budget: Time for the timed runs [s].
        warmup: Runs before the first timed one, at least 1.
        seed: Of random numbers.
        trace: Record two more runs with ``torch.profiler``, so that causes are measured and not guessed.
        kwargs: Keyword arguments of the program whose names are options of this function.
        progress: Called with the share of the timed runs that is done.
        options: Its other keyword arguments.

    Returns:
        The median time with its quartiles, the prediction and the verdict.

    Raises:
        MissingExtra: PyTorch is not installed.
        UsageError: No chip is given for a CPU, or an option out of range.
        UnknownChip: The device is none that ships.
        ModelDataError: The program fails.

    Example:
        >>> import torch
        >>> run = measure(torch.nn.Linear(256, 256), torch.zeros(64, 256), chip="epyc-9654", budget=0.05)
        >>> run.seconds > 0
        True
    """
    torch = need_torch("measure")
    _sensible(budget, warmup, seed, kwargs)
    keywords = {**(kwargs or {}), **options}
    plain, is_compiled = _uncompiled(program)
    how: Mode = mode or ("compiled" if is_compiled else "eager")
    device = _device(torch, plain, args, keywords)
    where = _chip(torch, device, chip)
    with _seeded(torch, seed, device):
        graph = _captured(plain, args, keywords, how, backward)
        torch.manual_seed(seed)
        run = _runner(torch, program, args, keywords, backward)
        run = _replayed(torch, run, device) if how == "graph" else run
        seconds = _timings(torch, device, run, budget, warmup, progress)
        recorded = _recorded(torch, device, run) if trace else None
    return _judged(graph, where, how, seconds, str(device), _tf32(torch, device), recorded)


def _tf32(torch: Any, device: Any) -> bool | None:
    """Tell whether fp32 contractions run in tf32 as PyTorch is set: all, none, or (``None``) convolutions alone."""
    if device.type != "cuda":
        return False
    matmuls = torch.get_float32_matmul_precision() != "highest"
    return matmuls or (None if torch.backends.cudnn.allow_tf32 else False)


def need_torch(function: str) -> Any:
    """Import PyTorch for a function.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtra(f"{function} needs PyTorch: pip install 'roofline[torch]'") from None
    return torch


def _judged(
    graph: Graph, chip: Chip, mode: Mode, seconds: list[float], device: str, tf32: bool | None, trace: Trace | None
) -> Measurement:
    low, middle, high = (float(value) for value in np.quantile(seconds, [0.25, 0.5, 0.75]))
    if device == "cpu" and not is_cpu(chip):
        chip = chip.model_copy(update={"form": "CPU"})
    verdict = check(graph, chip, middle, trace=trace, mode=mode, tf32=tf32)
    return Measurement(middle, low, high, len(seconds), device, graph, verdict.estimate, verdict)


def _recorded(torch: Any, device: Any, run: Call) -> Trace:
    """Two runs as a profiler sees them."""
    from torch.profiler import ProfilerActivity, profile

    finish = _finisher(torch, device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with _one_line_errors(), profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(2):
            run()
        finish()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        return replace(read_trace(path), path="the recorded runs")


def _sensible(budget: Any, warmup: Any, seed: Any, kwargs: Any) -> None:
    """Refuse options that no measurement has."""
    timed = isinstance(budget, int | float) and isinstance(warmup, int) and budget > 0 and warmup >= 1
    if not timed:
        raise UsageError(f"budget={budget!r} and warmup={warmup!r}; allowed: more than 0 seconds and at least 1 run")
    if not isinstance(seed, int):
        raise UsageError(f"seed={seed!r}; expected a whole number")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise UsageError(f"kwargs={str(kwargs)[:60]!r}; expected a dictionary by name")


def _uncompiled(program: Any) -> tuple[Any, bool]:
    """Return the module or function behind ``torch.compile``, and whether the program is compiled at all."""
    for name in ("_orig_mod", "_torchdynamo_orig_callable"):
        if (plain := getattr(program, name, None)) is not None:
            return plain, True
    return program, getattr(program, "_compiled_call_impl", None) is not None


def _captured(program: Any, args: Any, keywords: Mapping[str, Any], how: str, backward: bool) -> Graph:
    """Record what the program really runs, on these tensors; a compiler traces it instead."""
    from roofline.frontends.torch import from_torch

    compiled = how == "compiled"
    return from_torch(
        program, *args, kwargs=keywords, backward=backward, unknown="report",
        method="auto" if compiled else "run", mode="compiled" if compiled else "eager",
    )  # fmt: skip


def _device(torch: Any, program: Any, args: Any, keywords: Mapping[str, Any]) -> Any:
    """The one device of the program's tensors.

    Raises:
        UsageError: There are several, or tensors have no values.
    """
    leaves = torch.utils._pytree.tree_leaves((args, dict(keywords)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if isinstance(program, torch.nn.Module):
        tensors += [*program.parameters(), *program.buffers()]
    devices = {tensor.device.type: tensor.device for tensor in tensors}
    if "meta" in devices:
        raise UsageError("measure: tensors on the meta device have no values to run on; from_torch takes them")
    busy = [device for kind, device in devices.items() if kind != "cpu"]
    if len(busy) > 1:
        raise UsageError(f"measure: tensors on {' and '.join(map(str, busy))}; expected one accelerator")
    return busy[0] if busy else torch.device("cpu")


def _chip(torch: Any, device: Any, chip: AnyChip | None) -> Chip:
    if chip is not None:
        return find_chip(chip)
    if device.type == "cpu":
        raise UsageError(
            "measure: which chip? A CPU has to be measured first: roofline calibrate -o my-chip.toml, "
            "then chip='my-chip.toml'"
        )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    try:
        return find_chip(name)
    except UnknownChip as error:
        raise UnknownChip(f"measure: the device's name is {name!r}; give chip=...: {error}") from None


def _runner(torch: Any, program: Any, args: Any, keywords: Mapping[str, Any], backward: bool) -> Call:
    """One run, with gradients or without."""
    if not backward:

        def forward() -> object:
            if not isinstance(program, torch.nn.Module):
                return program(*args, **keywords)  # a function says itself whether it wants gradients
            with torch.no_grad():
                return program(*args, **keywords)

        return forward

    def both() -> object:
        leaves = torch.utils._pytree.tree_leaves(program(*args, **keywords))
        ends = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        inputs = _needing_gradients(torch, program, (args, dict(keywords)))
        return torch.autograd.grad(ends, inputs, [torch.ones_like(end) for end in ends], allow_unused=True)

    return both


def _needing_gradients(torch: Any, program: Any, values: Any) -> list[Any]:
    own = list(program.parameters()) if isinstance(program, torch.nn.Module) else []
    leaves = [*own, *torch.utils._pytree.tree_leaves(values)]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def _timings(
    torch: Any, device: Any, run: Call, budget: float, warmup: int, progress: Callable[[float], None] | None
) -> list[float]:
    """Times of the runs after warm-up [s]."""
    finish, together = _finisher(torch, device), 1

    def once() -> None:
        for _ in range(together):
            run()
        finish()

    timings: list[tuple[float, float]] = []
    with _one_line_errors():
        for _ in range(warmup):
            once()
        together = _together(timed_alone(once)[0])
        began = time.perf_counter()
        for at in naturals(1):
            timings.append(timed_alone(once))
            spent = (time.perf_counter() - began) / budget
            if progress is not None:
                progress(min(spent, at / LEAST, 1.0))
            if at >= MOST or (at >= LEAST and spent > 1):
                break
    return [seconds / together for seconds in undisturbed(timings)]


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn what the program raises, in the first run or a later one, into one line."""
    try:
        yield
    except RooflineError:
        raise
    except Exception as error:
        text = (str(error).splitlines() or [""])[0][:300]
        raise UsageError(f"measure: the program fails when it runs: {type(error).__name__}: {text}") from error


def _together(seconds: float) -> int:
    """Short runs that follow each other before one wait for the device, so that start and end are shared out.

    Example:
        >>> _together(1.0), _together(1e-4), _together(1e-9)
        (1, 50, 100)
    """
    return int(min(max(-(-QUEUED // seconds), 1), MOST_QUEUED))


def _finisher(torch: Any, device: Any) -> Call:
    """Return the call that waits for the device."""
    if device.type == "cpu":
        return lambda: None
    module = getattr(torch, device.type, None)
    if module is None or not hasattr(module, "synchronize"):
        raise UsageError(f"measure: cannot wait for a device of the kind {device.type!r}")
    return lambda: module.synchronize(device)


def _replayed(torch: Any, run: Call, device: Any) -> Call:
    """The program as a CUDA graph."""
    if device.type != "cuda":
        raise UsageError(f"measure: mode='graph' needs a CUDA device; the program is on {device}")
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Call = graph.replay
    return replay


@contextmanager
def _seeded(torch: Any, seed: int, device: Any) -> Iterator[None]:
    """Random numbers from a seed inside, and the generators as they were outside."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
