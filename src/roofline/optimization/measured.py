"""A plan carried out on a PyTorch module, step by step: what each step gains as measured, beside what was predicted.

What PyTorch can do to a module by itself is done, and predicted without the steps that it cannot do: compilation, CUDA
graphs, formats of 16 bits, tf32, images channels last, batch norms folded into convolutions, larger batches. Formats
that need kernels of their own are rounded by :func:`roofline.quant.quantize_module`, which shows their error and no
time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from roofline.ir.errors import RooflineError, UsageError
from roofline.ir.graph import Graph
from roofline.ir.report import Report
from roofline.ir.units import format_si
from roofline.measurement.backends import first_line
from roofline.measurement.measuring import Measurement, measure, need_torch
from roofline.optimization.plans import Plan
from roofline.optimization.steps import RUN, State, Step
from roofline.optimization.target import Target
from roofline.quant.modules import quantize_module
from roofline.quant.recipes import Recipe

#: Steps that PyTorch has no switch for, and why.
CANNOT: Mapping[str, str] = {
    "shard": "needs the program on several devices",
    "merge_linears": "needs the module rewritten: one linear layer of both",
    "prune": "another module: prune and train it",
    "quantize": "needs kernels of its own; rounded, for the error, and not timed",
}


@dataclass(frozen=True)
class MeasuredStep:
    """A step of a plan on a module.

    One of :attr:`MeasuredPlan.rows`, of what :func:`roofline.optimize` returns.

    Attributes:
        step: The step; ``as given`` for the module as it is.
        measured: The module with it and those above it; ``None`` where it was not carried out.
        predicted_s: What that should take [s].
        gain: Time for the same items before over after, as measured.
        predicted_gain: The same as predicted.
        error: Noise over signal of the outputs against the module as given; ``None`` where they have other shapes.
        reason: Why it was not carried out, or not timed.
    """

    step: str
    measured: Measurement | None = None
    predicted_s: float | None = None
    gain: float | None = None
    predicted_gain: float | None = None
    error: float | None = None
    reason: str = ""


@dataclass(frozen=True, repr=False)
class MeasuredPlan(Report):
    """A plan on a module, from what :func:`roofline.optimize` returns, by its method ``measured``.

    Attributes:
        name: The module.
        chip: What was predicted for.
        device: Where it ran, in PyTorch's words.
        rows: The module as given, then a row per step.
    """

    schema = "measured_plan"

    name: str
    chip: str
    device: str
    rows: tuple[MeasuredStep, ...]

    @property
    def gain(self) -> float:
        """Time for the same items before over after all steps that were carried out, as measured."""
        return self._product("gain")

    @property
    def predicted_gain(self) -> float:
        """The same as predicted."""
        return self._product("predicted_gain")

    def _product(self, name: str) -> float:
        product = 1.0
        for row in self.rows:
            product *= getattr(row, name) or 1.0
        return product

    def subject(self) -> dict[str, Any]:
        """Return the module and where it ran."""
        return {"model": self.name, "chip": self.chip, "device": self.device}

    def summary(self) -> dict[str, Any]:
        """Return the gain of all that was carried out, measured and predicted."""
        return {"speedup": self.gain, "predicted_speedup": self.predicted_gain}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per step, the module as given first."""
        return [
            {"step": row.step, "measured_s": row.measured and row.measured.seconds,
             "measured_low_s": row.measured and row.measured.low, "measured_high_s": row.measured and row.measured.high,
             "unsteady": row.measured and row.measured.unsteady, "predicted_s": row.predicted_s, "speedup": row.gain,
             "predicted_speedup": row.predicted_gain, "noise": row.error, "reason": row.reason}
            for row in self.rows
        ]  # fmt: skip

    def __repr__(self) -> str:
        return (
            "\n".join([f"<MeasuredPlan {self.name} on {self.chip}:", *(f"  {_line(row)}" for row in self.rows)]) + ">"
        )


def _line(row: MeasuredStep) -> str:
    if row.measured is None or row.predicted_s is None:
        return f"{row.step}: {row.reason}"
    text = f"{row.step}: {format_si(row.measured.seconds, 's')}, predicted {format_si(row.predicted_s, 's')}"
    return text if row.gain is None else f"{text}; {row.gain:.2f}x, predicted {row.predicted_gain:.2f}x"


@dataclass(frozen=True)
class _Module:
    """A module on its way through a plan.

    Attributes:
        module: It, not compiled.
        args: Its arguments.
        how: Settings: ``compiled``, ``graph`` and ``tf32``.
    """

    module: Any
    args: tuple[Any, ...]
    how: Mapping[str, bool] = field(default_factory=dict)

    def set(self, **how: bool) -> _Module:
        return replace(self, how={**self.how, **how})

    def mapped(self, module: Any, change: Callable[[Any], Any]) -> _Module:
        """The same with another module, and a change of all floating-point arguments."""
        import torch

        floating = (isinstance(arg, torch.Tensor) and arg.is_floating_point() for arg in self.args)
        args = (change(arg) if ok else arg for arg, ok in zip(self.args, floating, strict=True))
        return replace(self, module=module, args=tuple(args))


class _Left(Exception):
    """A step that is not carried out."""


def carried_out(target: Target, plan: Plan, module: Any, args: tuple[Any, ...], **how: Any) -> MeasuredPlan:
    """Carry a plan out on a module; :meth:`Optimization.measured` says more."""
    torch = need_torch("measured")
    _same_module(target.before, module)
    run = plan.start.get("mode", "eager")
    now = _Module(copy.deepcopy(module).eval(), args, {"compiled": run == "compiled", "graph": run == "graph"})
    state = State(target.before, dict(plan.start))
    chip = target.chip
    with torch.no_grad():
        before, first = _timed(torch, now, chip, how), _outputs(torch, now)
        figures, device = target.start(state), before.device
        rows = [MeasuredStep("as given", before, figures.time_s)]
        for step in plan.steps:
            try:
                new = _carried_out(torch, now, step, figures.batch)
                after, then = target.applied(state, step), _timed(torch, new, chip, how)
            except _Left as reason:
                rows.append(MeasuredStep(repr(step), reason=str(reason), error=_rounded(torch, now, step, first)))
                continue
            except Exception as error:  # a compiler or a kernel of PyTorch that fails says why, as a row
                rows.append(MeasuredStep(repr(step), reason=f"failed: {first_line(error)}"))
                continue
            own = target.start(after)
            share = (own.batch or 1) / (figures.batch or 1)
            gains = (share * before.seconds / then.seconds, share * figures.time_s / own.time_s)
            rows.append(MeasuredStep(repr(step), then, own.time_s, *gains, _noise(torch, first, _outputs(torch, new))))
            now, state, before, figures = new, after, then, own
    return MeasuredPlan(type(module).__name__, chip.name, device, tuple(rows))


def _same_module(program: Graph, module: Any) -> None:
    if not hasattr(module, "parameters"):
        raise UsageError(f"measured: expected a torch.nn.Module, got {type(module).__name__}")
    own, planned = sum(each.numel() for each in module.parameters()), program.parameters
    if own != planned:
        raise UsageError(f"measured: {type(module).__name__} has {own:,} parameters, the program of the plan "
                         f"{int(planned):,}; plan for rl.from_torch(module, *args)")  # fmt: skip


def _timed(torch: Any, now: _Module, chip: Any, how: Mapping[str, Any]) -> Measurement:
    mode = "graph" if now.how.get("graph") else "compiled" if now.how.get("compiled") else "eager"
    with _tf32(torch, now.how.get("tf32")):
        return measure(_program(torch, now), *now.args, chip=chip, mode=mode, **how)  # type: ignore[arg-type]


def _program(torch: Any, now: _Module) -> Any:
    return torch.compile(now.module) if now.how.get("compiled") else now.module


@contextmanager
def _tf32(torch: Any, on: bool | None) -> Iterator[None]:
    was = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if on else was)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(was)


def _carried_out(torch: Any, now: _Module, step: Step, batch: int | None) -> _Module:
    """Return a module with one more step of a plan.

    Raises:
        _Left: PyTorch cannot do it; says why.
    """
    options = dict(step.options)
    if step.name == RUN:
        for key, value in options.items():
            if key not in _SETTINGS:
                raise _Left("a step of training, not of the module")
            now = _SETTINGS[key](torch, now, value, batch)
        return now
    if step.name not in _PASSES:
        raise _Left(CANNOT.get(step.name, "no switch of PyTorch does it"))
    return _PASSES[step.name](torch, now, options)


def _mode(torch: Any, now: _Module, mode: str, _: int | None) -> _Module:
    if mode == "graph" and not any(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in now.args):
        raise _Left("CUDA graphs need a CUDA device")
    return now.set(graph=mode == "graph", compiled=mode == "compiled")


def _batched(torch: Any, now: _Module, after: int, before: int | None) -> _Module:
    """Repeat the arguments along their first axis."""
    if not before or after % before:
        raise _Left(f"batch {after} is no multiple of {before}")
    times = after // before
    tensors = (isinstance(arg, torch.Tensor) and arg.dim() > 0 for arg in now.args)
    args = (arg.repeat(times, *[1] * (arg.dim() - 1)) if ok else arg for arg, ok in zip(now.args, tensors, strict=True))
    return replace(now, args=tuple(args))


_SETTINGS: Mapping[str, Callable[[Any, _Module, Any, int | None], _Module]] = {
    "mode": _mode, "batch": _batched, "tf32": lambda _, now, on, __: now.set(tf32=on),
}  # fmt: skip


def _cast(torch: Any, now: _Module, options: Mapping[str, Any]) -> _Module:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}.get(options["dtype"])
    if dtype is None:
        raise _Left(f"PyTorch has no modules in {options['dtype']}")
    return now.mapped(copy.deepcopy(now.module).to(dtype), lambda arg: arg.to(dtype))


def _layout(torch: Any, now: _Module, options: Mapping[str, Any]) -> _Module:
    form = torch.channels_last if options["layout"] == "channels_last" else torch.contiguous_format
    return now.mapped(copy.deepcopy(now.module).to(memory_format=form),
                      lambda arg: arg.contiguous(memory_format=form) if arg.dim() == 4 else arg)  # fmt: skip


def _fold(torch: Any, now: _Module, _: Mapping[str, Any]) -> _Module:
    from torch.fx.experimental.optimization import fuse

    return replace(now, module=fuse(now.module))


def _fuse(_: Any, now: _Module, options: Mapping[str, Any]) -> _Module:
    if options.get("policy") not in ("chains", "inductor"):
        raise _Left("the module decides it: call torch.nn.functional.scaled_dot_product_attention")
    return now.set(compiled=True)


_PASSES: Mapping[str, Callable[[Any, _Module, Mapping[str, Any]], _Module]] = {
    "cast": _cast, "layout": _layout, "fold_batchnorm": _fold, "fuse": _fuse,
}  # fmt: skip


def _rounded(torch: Any, now: _Module, step: Step, first: list[Any]) -> float | None:
    """Return the error of formats, where a module can be rounded to them."""
    options = dict(step.options)
    if step.name != "quantize" or not options.keys() & {"weights", "activations"}:
        return None
    try:
        made = quantize_module(now.module, [now.args], Recipe(**options))
    except (RooflineError, TypeError):
        return None
    return _noise(torch, first, _outputs(torch, replace(now, module=made.module)))


def _outputs(torch: Any, now: _Module) -> list[Any]:
    with _tf32(torch, now.how.get("tf32")):
        made = _program(torch, now)(*now.args)
    return [each.double() for each in torch.utils._pytree.tree_leaves(made) if isinstance(each, torch.Tensor)]


def _noise(torch: Any, before: list[Any], after: list[Any]) -> float | None:
    """Return noise over signal of the output that differs most; of a larger batch its first items."""
    if len(before) != len(after):
        return None
    pairs = [(one, other[: len(one)] if one.dim() else other) for one, other in zip(before, after, strict=True)]
    if any(one.shape != other.shape for one, other in pairs):
        return None
    return max((float((one - other).norm() / one.norm()) for one, other in pairs if float(one.norm())), default=0.0)
