"""What torch.compile buys: each backend's prediction, its measurement beside it, and when compiling has paid off.

A backend's prediction is the program's in one of the three ways that programs run (:data:`MODES_OF`): ``aot_eager``
runs the same kernels from the host, ``cudagraphs`` replays them, ``inductor`` and other compilers fuse them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.cost import REGIME
from roofline.counting.memory import RESERVE
from roofline.diagnosis.advice import BreakEven, break_even
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.ir.errors import RooflineError, UsageError, did_you_mean
from roofline.ir.numbers import as_list
from roofline.ir.report import Report
from roofline.ir.units import format_si, parse
from roofline.measurement.measuring import Measurement, measure, need_torch

#: The program as it is, without a compiler.
PLAIN = "eager"

#: How what a backend makes of a program runs; whatever is not named here is a compiler that fuses.
MODES_OF: dict[str, Mode] = {
    PLAIN: "eager",
    "aot_eager": "eager",
    "aot_eager_decomp_partition": "eager",
    "aot_ts": "eager",
    "ts": "eager",
    "cudagraphs": "graph",
}

#: Seconds that compiling took before the first call, by backend: ResNet-50, BERT base and GPT-2 small in bf16, of 150
#: to 230 kernels each, PyTorch 2.11 on the host of an H100 (measurements/h100-sxm/models.csv, ``compile_s``). Between
#: these programs the time does not follow the number of kernels; another host or a larger program may take a multiple.
COMPILE_SECONDS: dict[str, tuple[float, ...]] = {
    "inductor": (12.97, 10.35, 10.83, 10.85, 10.10),
    "aot_eager": (3.05, 1.99),
    "cudagraphs": (2.95, 1.81),
}


def mode_of(backend: str) -> Mode:
    """Return the mode in which a backend runs what it makes of a program.

    Example:
        >>> mode_of("cudagraphs"), mode_of("inductor:max-autotune")
        ('graph', 'compiled')
    """
    return MODES_OF.get(backend.partition(":")[0], "compiled")


Row = TypeVar("Row", "PredictedBackend", "BackendRun")

# --- predicted --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictedBackend:
    """What a backend is expected to buy.

    Attributes:
        backend: Its name.
        estimate: What a call takes then.
        compile_s: What compiling takes, the least, the middle and the most of what is known [s].
        pays_off: Against the program as it is, at the middle.
        earliest: Calls after which it has paid off where compiling takes least.
        latest: The same where it takes most.
    """

    backend: str
    estimate: Estimate
    compile_s: tuple[float, float, float]
    pays_off: BreakEven
    earliest: float
    latest: float

    def record(self) -> dict[str, Any]:
        """Plain numbers; calls are ``None`` where it never pays off."""
        est = self.estimate
        return {
            "backend": self.backend,
            "mode": est.mode,
            "time_s": float(est.time),
            "low_s": float(est.low),
            "high_s": float(est.high),
            "bound": est.bound,
            "kernels": est.launches,
            "speedup": self.pays_off.speedup,
            "compile_s": self.compile_s[1],
            "compile_low_s": self.compile_s[0],
            "compile_high_s": self.compile_s[2],
            "calls": _finite(self.pays_off.steps),
            "calls_low": _finite(self.earliest),
            "calls_high": _finite(self.latest),
        }


@dataclass(frozen=True, repr=False)
class PredictedCompile(Report):
    """What compiling a program is expected to buy, by backend.

    From :func:`roofline.measurement.predicted_compile`.

    Attributes:
        eager: The program as it is.
        rows: One a backend.
    """

    schema = "predicted_compile"

    eager: Estimate
    rows: tuple[PredictedBackend, ...]

    @property
    def best(self) -> PredictedBackend:
        """The backend with the fastest calls."""
        return min(self.rows, key=lambda row: float(row.estimate.time))

    def __getitem__(self, backend: str) -> PredictedBackend:
        """The row of a backend.

        Raises:
            UsageError: There is none.
        """
        return _row(self.rows, backend)

    def subject(self) -> dict[str, Any]:
        """Return the program as it is, where it runs, and its sizes."""
        return self.eager.subject()

    def summary(self) -> dict[str, Any]:
        """Return the time of the program as it is [s]."""
        return {"eager_s": self.eager.time, "eager_low_s": self.eager.low, "eager_high_s": self.eager.high}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per backend."""
        return [row.record() for row in self.rows]

    def __repr__(self) -> str:
        head = f"<PredictedCompile {self.eager.graph.name} on {self.eager.chip.name}: eager {_seconds(self.eager.time)}"
        return "\n".join([head, *(f"  {row.backend}: {row.pays_off}" for row in self.rows)]) + ">"


def predicted_compile(
    program: Program,
    chip: AnyChip,
    *,
    backends: Sequence[str] = ("inductor", "cudagraphs", "aot_eager"),
    compile_s: str | float | Mapping[str, str | float] | None = None,
    tf32: bool | None = None,
    regime: str = REGIME,
    reserve: str | float = RESERVE,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: int,
) -> PredictedCompile:
    """Predict what compiling a program buys and after how many calls it has paid off; needs no PyTorch.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        chip: A name or a chip.
        backends: Which; a mode of torch.compile after a colon, as in ``inductor:reduce-overhead``.
        compile_s: Compile time, such as ``"40 s"``, for all backends or by name; :data:`COMPILE_SECONDS` where
            absent.
        tf32: As for :func:`roofline.estimate`.
        regime: As for :func:`roofline.estimate`.
        reserve: Memory that driver and framework keep [byte], a number or text such as ``"1 GiB"``.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        One row per backend: time, speed-up, and the calls after which compiling has paid off.

    Raises:
        UsageError: No backend, a size that is a list, or a backend whose compile time is not known and not given.

    Example:
        >>> import roofline as rl
        >>> found = predicted_compile("resnet50", "h100-sxm", dtype="bf16", batch=1)
        >>> found["inductor"].pays_off.speedup > 2, found["aot_eager"].pays_off.never
        (True, True)
    """
    graph, names = as_graph(program, phase, dtype), _named(backends)
    how: dict[str, Any] = {"tf32": tf32, "regime": regime, "reserve": reserve, **sizes}
    eager = estimate(graph, chip, mode="eager", **how)
    if eager.shape:
        raise UsageError("predicted_compile: compiling is predicted at one point; give one chip and single numbers")
    known = {name: _compile_seconds(name, compile_s) for name in names}
    runs = {mode: estimate(graph, chip, mode=mode, **how) for mode in dict.fromkeys(map(mode_of, names))}
    return PredictedCompile(eager, tuple(_predicted(name, eager, runs[mode_of(name)], known[name]) for name in names))


def _predicted(name: str, eager: Estimate, then: Estimate, known: tuple[float, float, float]) -> PredictedBackend:
    low, middle, high = (break_even(seconds, float(eager.time), float(then.time)) for seconds in known)
    return PredictedBackend(name, then, known, middle, low.steps, high.steps)


def _compile_seconds(
    name: str, compile_s: str | float | Mapping[str, str | float] | None
) -> tuple[float, float, float]:
    """The least, the middle and the most that compiling takes [s]."""
    stated = compile_s.get(name, compile_s.get(name.partition(":")[0])) if isinstance(compile_s, Mapping) else compile_s
    if stated is not None:
        seconds = parse(stated, "s", "compile_s")
        return seconds, seconds, seconds
    known = COMPILE_SECONDS.get(name.partition(":")[0])
    if known is None:
        raise UsageError(
            f"predicted_compile: how long {name} compiles is known for {', '.join(COMPILE_SECONDS)} only; "
            f"give compile_s={{{name!r}: '20 s'}}"
        )
    return min(known), median(known), max(known)


def _named(backends: Sequence[str]) -> list[str]:
    names = [backends] if isinstance(backends, str) else as_list("backends", backends)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"backends={backends!r}: name at least one, such as 'inductor'")
    return list(dict.fromkeys(names))


# --- measured beside predicted ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackendRun:
    """One backend: measured, predicted, or why it failed.

    Attributes:
        backend: Its name; ``eager`` is the program as it is.
        measured: The steady calls, ``None`` where it failed.
        predicted: What they should take, ``None`` where it failed.
        first_call_s: The first call, compiling included [s].
        pays_off: Steady calls after the first until it has paid off, as measured; ``None`` for the program as it is.
        expected: The same from the predicted times and the measured first calls.
        graph_breaks: Places where the compiler fell back to Python, ``None`` where PyTorch does not say.
        error: First line of what went wrong, empty where nothing did.
    """

    backend: str
    measured: Measurement | None = None
    predicted: Estimate | None = None
    first_call_s: float | None = None
    pays_off: BreakEven | None = None
    expected: BreakEven | None = None
    graph_breaks: int | None = None
    error: str = ""

    @property
    def compile_s(self) -> float | None:
        """Return what the first call took beyond a steady one [s]."""
        if self.measured is None or self.first_call_s is None:
            return None
        return max(self.first_call_s - self.measured.seconds, 0.0)

    def seconds(self) -> tuple[float, float]:
        """A steady call as measured and as predicted [s].

        Raises:
            UsageError: The backend failed.
        """
        if self.measured is None or self.predicted is None:
            raise UsageError(f"{self.backend} failed and has no time: {self.error}")
        return self.measured.seconds, float(self.predicted.time)

    def record(self) -> dict[str, Any]:
        """Plain numbers; what is not known is ``None``."""
        measured, predicted = self.measured, self.predicted
        return {
            "backend": self.backend,
            "mode": predicted.mode if predicted else mode_of(self.backend),
            "measured_s": measured.seconds if measured else None,
            "measured_low_s": measured.low if measured else None,
            "measured_high_s": measured.high if measured else None,
            "runs": measured.runs if measured else None,
            "unsteady": measured.unsteady if measured else None,
            "predicted_s": float(predicted.time) if predicted else None,
            "predicted_low_s": float(predicted.low) if predicted else None,
            "predicted_high_s": float(predicted.high) if predicted else None,
            "first_call_s": self.first_call_s,
            "compile_s": self.compile_s,
            "speedup": self.pays_off.speedup if self.pays_off else None,
            "predicted_speedup": self.expected.speedup if self.expected else None,
            "calls": _finite(self.pays_off.steps) if self.pays_off else None,
            "predicted_calls": _finite(self.expected.steps) if self.expected else None,
            "graph_breaks": self.graph_breaks,
            "error": self.error,
        }

    def __str__(self) -> str:
        if self.measured is None or self.predicted is None:
            return f"{self.backend}: failed: {self.error}"
        text = f"{self.backend}: {_seconds(self.measured.seconds)}, predicted {_seconds(self.predicted.time)}"
        if self.pays_off is None or self.expected is None:
            return text
        gain = f"{self.pays_off.speedup:.2f}x, predicted {self.expected.speedup:.2f}x"
        first = f"first call {_seconds(self.first_call_s or 0.0)}"
        calls = "never pays off" if self.pays_off.never else f"pays off after {math.ceil(self.pays_off.steps):,} calls"
        return f"{text}; {gain}; {first}, {calls}"


@dataclass(frozen=True, repr=False)
class BackendComparison(Report):
    """Backends of torch.compile side by side, the program as it is first.

    From :func:`roofline.measurement.compare_backends`.

    Attributes:
        name: The program.
        chip: Where it ran.
        device: The same in PyTorch's words.
        rows: One a backend.
    """

    schema = "backends"

    name: str
    chip: Chip
    device: str
    rows: tuple[BackendRun, ...]

    @property
    def best(self) -> BackendRun:
        """The fastest as measured, once compiled."""
        return min((row for row in self.rows if row.measured), key=lambda row: row.measured.seconds)  # type: ignore[union-attr]

    def __getitem__(self, backend: str) -> BackendRun:
        """The row of a backend.

        Raises:
            UsageError: There is none.
        """
        return _row(self.rows, backend)

    def subject(self) -> dict[str, Any]:
        """Return the program and where it ran."""
        return {"model": self.name, "chip": self.chip.name, "device": self.device}

    def summary(self) -> dict[str, Any]:
        """Return the fastest backend."""
        return {"best_backend": self.best.backend}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per backend."""
        return [row.record() for row in self.rows]

    def __repr__(self) -> str:
        lines = [f"<BackendComparison {self.name} on {self.chip.name}:", *(f"  {row}" for row in self.rows)]
        return "\n".join(lines) + ">"


def compare_backends(
    module: Any,
    *args: Any,
    backends: Sequence[str] = (PLAIN, "inductor"),
    chip: AnyChip | None = None,
    budget: float = 1.0,
    warmup: int = 3,
    seed: int = 0,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> BackendComparison:
    """Measure a PyTorch program as it is and compiled by each backend, with the prediction beside each.

    Every backend compiles from scratch; its first call is timed, then its steady calls as by :func:`roofline.measure`.
    A backend that fails is a row that says why.

    Args:
        module: A ``torch.nn.Module`` or a function, not compiled.
        args: Its arguments, with values, on the device where it is to run.
        backends: Names of ``torch._dynamo.list_backends()``, with a mode after a colon where one is meant, as in
            ``inductor:max-autotune``; ``eager`` is the program as it is, and is measured in any case.
        chip: As for :func:`roofline.measure`: needed for a CPU, looked up for an accelerator.
        budget: Time for the timed calls of each backend [s].
        warmup: Calls of each before the first timed one, at least 1.
        seed: Of random numbers.
        kwargs: Keyword arguments of the program whose names are options of this function.
        options: Its other keyword arguments.

    Returns:
        A row per backend, the program without a compiler first.

    Raises:
        MissingExtra: PyTorch is not installed.
        UsageError: A backend that PyTorch does not know, a program that is compiled already, or one that fails by
            itself.
        UnknownChip: The device is none that ships.

    Example:
        >>> import torch
        >>> net, x = torch.nn.Linear(64, 64), torch.zeros(8, 64)
        >>> comparison = compare_backends(net, x, backends=["aot_eager"], chip="epyc-9654", budget=0.02)
        >>> [row.backend for row in comparison.rows]
        ['eager', 'aot_eager']
    """
    torch = need_torch("compare_backends")
    names = _checked(torch, module, backends)
    keywords = {**(kwargs or {}), **options}
    how = {"chip": chip, "budget": budget, "warmup": warmup, "seed": seed, "kwargs": keywords}
    torch._dynamo.reset()
    try:
        first = _first_call(torch, module, args, keywords)
    except Exception as error:
        raise UsageError(f"compare_backends: the program fails when it runs: {first_line(error)}") from error
    plain = measure(module, *args, mode="eager", **how)  # type: ignore[arg-type]
    own = BackendRun(PLAIN, plain, plain.estimate, first)
    others = [_run(torch, module, name, args, how, own) for name in names if name != PLAIN]
    torch._dynamo.reset()
    return BackendComparison(plain.graph.name, plain.estimate.chip, plain.device, (own, *others))


def _checked(torch: Any, module: Any, backends: Sequence[str]) -> list[str]:
    """The backends, each once.

    Raises:
        UsageError: PyTorch does not know one, or the program is compiled already.
    """
    if any(getattr(module, name, None) is not None for name in ("_orig_mod", "_torchdynamo_orig_callable")):
        raise UsageError("compare_backends: the program is compiled already; give the one that torch.compile was given")
    names = _named(backends)
    known = [PLAIN, *torch._dynamo.list_backends(exclude_tags=())]
    for name in names:
        base = name.partition(":")[0]
        if base not in known:
            listed = ", ".join(dict.fromkeys([PLAIN, *torch._dynamo.list_backends()]))
            raise UsageError(f"unknown backend {base!r}; allowed: {listed}{did_you_mean(base, known)}")
    return names


def _run(
    torch: Any, module: Any, backend: str, args: tuple[Any, ...], how: dict[str, Any], plain: BackendRun
) -> BackendRun:
    """One backend from scratch; what it raises becomes its row."""
    name, _, mode = backend.partition(":")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        compiled = torch.compile(module, backend=name, mode=mode or None)
        with _without_caches():
            first = _first_call(torch, compiled, args, how["kwargs"])
        breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
        fused = mode_of(backend) == "compiled"
        steady = measure(compiled, *args, mode="compiled" if fused else "eager", **how)
    except Exception as error:
        return BackendRun(backend, error=first_line(error))
    then = _foreseen(steady, backend)
    return BackendRun(backend, steady, then, first, *_paying(plain, steady, then, first), graph_breaks=breaks)


def _foreseen(steady: Measurement, backend: str) -> Estimate:
    """Predict a backend; a CPU has no graphs to replay, and its calls are the host's."""
    est, mode = steady.estimate, mode_of(backend)
    if mode != "graph" or steady.device == "cpu":
        return est
    return estimate(steady.graph, est.chip, mode=mode, tf32=est.tf32)


def _without_caches() -> Any:
    """Compile anew, whatever PyTorch has kept on disk from an earlier run."""
    import torch._inductor.config as config

    return config.patch(force_disable_caches=True) if hasattr(config, "force_disable_caches") else nullcontext()


def _paying(plain: BackendRun, steady: Measurement, then: Estimate, first: float) -> tuple[BreakEven, BreakEven]:
    """When the backend has paid off, as measured, and as predicted but for the time that compiling takes."""
    before, foreseen = plain.seconds()
    both = {"first_before": [plain.first_call_s or before], "first_after": [first]}
    measured = break_even(0.0, before, steady.seconds, **both)
    return measured, break_even(max(measured.overhead_s, 0.0), foreseen, float(then.time))


def _first_call(torch: Any, program: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> float:
    """The first call of all, until the device is done [s]."""
    leaves = torch.utils._pytree.tree_leaves((args, dict(keywords)))
    leaves += program.parameters() if isinstance(program, torch.nn.Module) else []
    kinds = {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)} - {"cpu", "meta"}
    finish = getattr(getattr(torch, next(iter(kinds), ""), None), "synchronize", lambda: None)
    finish()
    start = time.perf_counter()
    with torch.set_grad_enabled(torch.is_grad_enabled() and not isinstance(program, torch.nn.Module)):
        program(*args, **keywords)
    finish()
    return time.perf_counter() - start


def first_line(error: Exception) -> str:
    """Say in one line what went wrong: the cause that a compiler's error carries, where it does."""
    cause = getattr(error, "inner_exception", None) or error
    text = next((line.strip() for line in str(cause).splitlines() if line.strip()), "")
    return text[:300] if isinstance(cause, RooflineError) else f"{type(cause).__name__}: {text[:300]}"


def _row(rows: tuple[Row, ...], backend: str) -> Row:
    by_name = {row.backend: row for row in rows}
    if backend not in by_name:
        raise UsageError(f"no row {backend!r}; there are: {', '.join(by_name)}{did_you_mean(str(backend), by_name)}")
    return by_name[backend]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _seconds(value: Any) -> str:
    return format_si(float(value), "s")
