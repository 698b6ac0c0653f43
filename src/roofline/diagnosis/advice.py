"""What would make a program faster: the table of causes read in the other direction.

First what the measured time was lost to, then changes of the program itself, each estimated alone and together with
those above it. Of changes that exclude each other (two formats, two ways to run) only the first counts towards the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from roofline.cost import COMPUTE
from roofline.diagnosis.causes import Advice, Cause
from roofline.diagnosis.reference import Meant, faster
from roofline.ir.errors import RooflineError
from roofline.ops.registry import OPS
from roofline.passes.formats.cast import retype
from roofline.passes.formats.quantize import quantize
from roofline.passes.fusion.flash import flash
from roofline.passes.rewriting.prune import prune

#: Savings below this share are not worth saying.
WORTH = 0.01
#: What compiling takes, for the steps after which it has paid [s]: medium models take half a minute (measurements/).
COMPILE_S = 30.0


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the table.

    Attributes:
        text: What to change.
        kind: Changes of one kind exclude each other.
        apply: The changed program, ``None`` where it does not apply.
        note: What to keep in mind.
    """

    text: str
    kind: str
    apply: Callable[[Meant], Meant | None]
    note: str = ""


def advice(meant: Meant, seconds: float, causes: Sequence[Cause] = ()) -> tuple[Advice, ...]:
    """Changes that save time, those of the measured time first, then most saving first.

    Changes of the program are counted from what is left of the measured time once its causes are gone, in the
    proportion that the estimates have; what is unknown stays.

    Args:
        meant: The program.
        seconds: The measured time [s].
        causes: What it was lost to.
    """
    found, left = [], seconds
    for cause in causes:
        if cause.label != "unknown" and cause.share >= WORTH:
            left -= cause.explains_s
            found.append(Advice(cause.fix, cause.expected_after_s, cause.explains_s, left, f"removes {cause.label}"))
    unknown = sum(cause.explains_s for cause in causes if cause.label == "unknown")
    own = seconds - sum(cause.explains_s for cause in causes)
    cured = _without(meant, {cause.label for cause in causes})
    scale = own / float(cured.expected.time)
    return (*found, *(_scaled(one, scale, unknown) for one in _changes(cured)))


def _scaled(one: Advice, scale: float, unknown: float) -> Advice:
    return replace(
        one,
        time_s=one.time_s * scale + unknown,
        saves_s=one.saves_s * scale,
        together_s=one.together_s * scale + unknown,
    )


def _without(meant: Meant, labels: set[str]) -> Meant:
    """The program once some causes are gone, so that no change promises the same again."""
    mode = "graph" if "launch_bound" in labels and meant.mode == "eager" else meant.mode
    return replace(meant, mode=mode, tf32=meant.tf32 or ("precision" in labels and meant.has_tf32))


def _changes(meant: Meant) -> Iterable[Advice]:
    """Changes of a program, in estimates."""
    time = float(meant.expected.time)
    options = []
    for change in CHANGES:
        after = _applied(change, meant)
        if after is not None and (took := _time(after)) < (1 - WORTH) * time:
            options.append((took, change))
    used: set[str] = set()
    together = meant
    for took, change in sorted(options, key=lambda option: option[0]):
        if (
            change.kind not in used
            and (more := _applied(change, together)) is not None
            and _time(more) < _time(together)
        ):
            together = more
        used.add(change.kind)
        yield Advice(change.text, took, time - took, _time(together), _note(change, time - took))
    half = _half_of_contractions(together) / _time(together) if meant.expected.bound == "compute" else 1.0
    yield from _less_work(meant, half * _time(together))
    yield from _other_batch(meant, lambda batch: half * float(together.estimate(B=batch).time))


def _applied(change: Change, meant: Meant) -> Meant | None:
    try:
        after = change.apply(meant)
        return after if after is not None and _time(after) > 0 else None
    except RooflineError:
        return None  # the chip has no figure for it


def _time(meant: Meant) -> float:
    return float(meant.expected.time)


def _note(change: Change, saves: float) -> str:
    if change.kind == "run" and "compile" in change.text:
        return f"pays after {ceil(COMPILE_S / saves):,} steps where compiling takes {COMPILE_S:g} s"
    return change.note


# --- changes ---


def _mode(mode: str, of: tuple[str, ...]) -> Callable[[Meant], Meant | None]:
    return lambda meant: replace(meant, mode=mode) if meant.mode in of else None


def _tf32(meant: Meant) -> Meant | None:
    allowed = not meant.tf32 and "fp32" in meant.contracts_in and meant.has_tf32
    return replace(meant, tf32=True) if allowed else None


def _everything(dtype: str) -> Callable[[Meant], Meant | None]:
    """Another format for all tensors, where contractions run faster in it or fewer bytes move."""

    def apply(meant: Meant) -> Meant | None:
        wide = meant.contracts_in & {"fp32", "fp64"} or {t.dtype for t in meant.graph.tensors.values()} & {
            "fp32",
            "fp64",
        }
        slower = any(not faster(meant.chip, dtype, than) for than in meant.contracts_in)
        return None if not wide or slower else replace(meant, graph=retype(meant.graph, dtype))

    return apply


def _products(dtype: str) -> Callable[[Meant], Meant | None]:
    """Weights and activations of products in an 8-bit format that the chip multiplies faster."""

    def apply(meant: Meant) -> Meant | None:
        formats = meant.contracts_in
        if not formats or not all(faster(meant.chip, dtype, than) for than in formats):
            return None
        return replace(meant, graph=quantize(meant.graph, activations=dtype))

    return apply


def _stored(weights: str, cache: str) -> Callable[[Meant], Meant | None]:
    """Narrower weights, and cache where there is one; arithmetic stays."""

    def apply(meant: Meant) -> Meant | None:
        caches = any(tensor.kind == "cache" for tensor in meant.graph.tensors.values())
        return replace(meant, graph=quantize(meant.graph, weights=weights, cache=cache if caches else None))

    return apply


def _flash(meant: Meant) -> Meant | None:
    """Attention whose parts are kernels of their own, as one."""
    graph = flash(meant.graph)
    return replace(meant, graph=graph) if graph is not meant.graph else None


CHANGES: tuple[Change, ...] = (
    Change("replay as a CUDA graph", "run", _mode("graph", ("eager",)), "shapes must not change"),
    Change("compile: fuse elementwise chains", "run", _mode("compiled", ("eager", "graph"))),
    Change("allow tf32 for fp32 contractions", "math", _tf32, "10 bits of mantissa in products"),
    Change("everything in bf16", "math", _everything("bf16"), "keep an fp32 copy of weights where you train"),
    Change("everything in fp16", "math", _everything("fp16"), "narrow range: scale the loss where you train"),
    Change("products in fp8", "products", _products("fp8"), "scales a tensor or block; check the quality"),
    Change("products in int8", "products", _products("int8"), "activations quantised too; check the quality"),
    Change("weights in int8, cache in int8", "products", _stored(weights="int8", cache="int8"),
           "with a fused weight-only kernel; otherwise slower"),
    Change("weights in int4-g128, cache in int8", "products", _stored(weights="int4-g128", cache="int8"),
           "with a fused weight-only kernel; check the quality"),
    Change("one kernel for attention (flash)", "attention", _flash),
)  # fmt: skip


# --- less of it ---


def _half_of_contractions(meant: Meant) -> float:
    """The program's time with half the channels, or the layers of one without [s]; unchanged where contractions are not
    what takes it.

    A list of operators without weights has no channels to prune: half the time of its contractions stands for it.
    """
    est = meant.expected
    if est.bound != "compute":
        return _time(meant)
    halves: tuple[dict[str, Any], ...] = ({"channels": 0.5}, {"layers": 0.5})
    for half in halves:
        try:
            return _time(replace(meant, graph=prune(meant.graph, **half)))
        except RooflineError:
            continue
    pairs = zip(est.rows, est.times[0], strict=True)
    spent = sum(row.kernel.count * float(time.expected) for row, time in pairs
                if int(time.bound) == COMPUTE and OPS[row.kernel.main.op].kind != "pointwise")  # fmt: skip
    return float(est.time) - spent / 2


def _less_work(meant: Meant, together: float) -> Iterable[Advice]:
    """Half the contractions, where they are what takes the time."""
    time, half = _time(meant), _half_of_contractions(meant)
    if half < time:
        note = "single weights set to zero save nothing: dense kernels multiply them all the same"
        yield Advice("prune whole channels, or distil, to half the contractions", half, time - half, together, note)


def _other_batch(meant: Meant, together: Callable[[int], float]) -> Iterable[Advice]:
    """Twice the batch in less than twice the time, or half of it in half the time."""
    batch = meant.sizes.get("B")
    if not isinstance(batch, int):
        return
    time = float(meant.expected.time)
    twice = float(meant.estimate(B=2 * batch).time) / 2
    if twice < 0.9 * time:
        note = f"time of {batch} of {2 * batch}: for throughput, latency grows"
        yield Advice(f"batch {2 * batch}", twice, time - twice, together(2 * batch) / 2, note)
    elif batch > 1:
        half = float(meant.estimate(B=batch // 2).time)
        note = "latency; throughput is saturated and stays"
        yield Advice(f"batch {batch // 2} for latency", half, time - half, together(batch // 2), note)
