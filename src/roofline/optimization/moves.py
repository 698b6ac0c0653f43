"""What may be changed about a program: a table of moves, by kind; of one kind a plan makes at most one.

A kind is a function from where a plan is to the moves that make sense there; whether a move applies, its pass says.
The order of the kinds is the order of the steps: how it runs first, since what else pays depends on it, then what is
shared, formats, layouts, kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from roofline.diagnosis.reference import faster, has_units, replays
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import RooflineError
from roofline.ir.graph import Graph, layer_of
from roofline.ops.registry import OPS
from roofline.optimization.steps import RUN, State, Step, applied
from roofline.optimization.target import Target
from roofline.passes.rewriting.amounts import prune_options
from roofline.passes.rewriting.layouts import images
from roofline.passes.training.backward import RECOMPUTE

EXACT = "nothing: the same numbers"
_WHOLE = "a program that a compiler takes whole"
#: What a move may change numerically, where it may.
ORDER, ROUNDED, CHANGED = "the order of sums", "rounds to {}", "the function: measure its accuracy"


@dataclass(frozen=True, slots=True)
class Move:
    """A change that a plan may make.

    Policies return them; :func:`roofline.optimize` tries them.

    Attributes:
        name: In words.
        kind: A plan makes one move of a kind at most.
        step: The pass and its options, or settings of the run.
        changes: What it may change numerically.
        needs: What must be there for the gain to be real.

    Example:
        >>> import roofline as rl
        >>> move = Move("weights in int8", "formats", rl.optimization.Step.of("quantize", weights="int8"))
        >>> move.applies(rl.model("gpt2")), move.applies(rl.workload([{"op": "relu", "n": 64}], dtype="bf16"))
        (True, False)
    """

    name: str
    kind: str
    step: Step
    changes: str = EXACT
    needs: str = ""

    def after(self, state: State, apply: Callable[[State, Step], State] = applied) -> State | None:
        """Return the plan with this move made; ``None`` where it does not apply or changes nothing."""
        with suppress(RooflineError):
            new = apply(state, self.step)
            same = new.graph is state.graph and new.run == state.run
            return None if same else new
        return None

    def applies(self, program: Graph) -> bool:
        """Tell whether it changes a program."""
        return self.after(State(program)) is not None


Kind = Callable[[State, Target], Iterable[Move]]


def _run(name: str, kind: str, changes: str = EXACT, needs: str = "", **settings: Any) -> Move:
    return Move(name, kind, Step.of(RUN, **settings), changes, needs)


def _modes(state: State, target: Target) -> Iterator[Move]:
    """Take the host out: replay launches where the chip can, or compile the whole; of inference kernels come later."""
    mode, can_replay = state.run.get("mode", "eager"), replays(target.chip)
    if mode == "eager" and can_replay:
        yield _run("replay as a CUDA graph", "run", needs="shapes that do not change", mode="graph")
    if target.training or not can_replay:
        yield from _compiled(state, "run")


def _compiled(state: State, kind: str) -> Iterator[Move]:
    if state.run.get("mode") != "compiled":
        yield _run("compile", kind, ORDER, _WHOLE, mode="compiled")


def _devices(state: State, target: Target) -> Iterator[Move]:
    """Share layers, or experts, among powers of two of the devices."""
    experts = any(OPS[node.op].kind == "moe" for node in state.graph.nodes)
    for number in _powers(target.devices)[1:]:
        yield Move(f"share layers among {number} devices", "devices", Step.of("shard", tp=number), ORDER,
                   f"{number} devices")  # fmt: skip
        if experts:
            yield Move(f"share experts among {number} groups", "devices", Step.of("shard", ep=number), ORDER,
                       f"{number} devices, each with a batch of its own")  # fmt: skip


def _powers(most: int) -> list[int]:
    return [2**k for k in range(most.bit_length()) if 2**k <= most]


def _wide(state: State, target: Target) -> Iterator[Move]:
    """Narrow a program in fp32: all of it, or its contractions."""
    formats = {tensor.dtype for tensor in state.graph.tensors.values() if tensor.kind == "weight"}
    if "fp32" not in formats:
        return
    yield from _tf32(state, target, "dtype")
    dtype = next((each for each in ("bf16", "fp16") if faster(target.chip, each, "fp32")), None)
    if dtype:
        yield Move(f"everything in {dtype}", "dtype", Step.of("cast", dtype=dtype), ROUNDED.format(dtype))


def _tf32(state: State, target: Target, kind: str) -> Iterator[Move]:
    if not state.run.get("tf32") and faster(target.chip, "tf32", "fp32"):
        yield _run("tf32 for fp32 contractions", kind, ROUNDED.format("tf32"), tf32=True)


def _batchnorm(_: State, __: Target) -> Iterator[Move]:
    yield Move("fold batch norms into convolutions", "batchnorm", Step.of("fold_batchnorm"), ORDER)


def _linears(_: State, __: Target) -> Iterator[Move]:
    yield Move("join linear layers of one input", "linears", Step.of("merge_linears"), needs="weights laid out anew")


#: Formats of weights alone, and of weights and what they are multiplied by; of two with 4 bits the one with units wins.
STORED, BOTH, CACHES = ("int8", "fp8", "int4-g128"), ("fp8", "int8", "mxfp8", "nvfp4", "mxfp4"), ("fp8", "int8", "int4")
_NARROW, _WIDER = "int4-g128", "int8"
_KERNEL = "a fused weight-only kernel"


def _formats(state: State, target: Target) -> Iterator[Move]:
    """Narrow the weights of matmuls, all or all but those of one class of layers, or what they multiply too."""
    for form in STORED:
        yield Move(f"weights in {form}", "formats", Step.of("quantize", weights=form), ROUNDED.format(form), _KERNEL)
    for pattern in classes(state.graph):
        step = Step.of("quantize", weights=f"{_NARROW},{pattern}={_WIDER}")
        yield Move(f"weights in {_NARROW}, {pattern} in {_WIDER}", "formats", step, ROUNDED.format(_NARROW), _KERNEL)
    formats = {tensor.dtype for tensor in state.graph.tensors.values() if tensor.kind == "weight"} - {"fp32", "fp64"}
    for form in BOTH:
        faster_in = (faster(target.chip, str(DTYPES[form].compute), than) for than in formats)
        if formats and has_units(target.chip, form) and all(faster_in):
            yield Move(f"matmuls in {form}", "formats", Step.of("quantize", activations=form), ROUNDED.format(form),
                       "scales of activations; check the quality")  # fmt: skip


#: Classes of layers that get formats of their own, at most.
MOST_CLASSES = 4


def classes(graph: Graph) -> list[str]:
    """Return patterns for the classes of layers whose weights are multiplied: modules of one name in every layer.

    Example:
        >>> import roofline as rl
        >>> classes(rl.model("llama-3-8b"))
        ['*.attn.*', '*.mlp.*']
    """
    scopes = (node.scope for node in graph.nodes if OPS[node.op].kind in ("matmul", "moe") and layer_of(node.scope))
    inner = (scope.removeprefix(layer_of(scope)).strip(".").partition(".")[0] for scope in scopes)
    names = dict.fromkeys(name for name in inner if re.fullmatch(r"\w+", name))
    return [f"*.{name}.*" for name in names][:MOST_CLASSES] if len(names) > 1 else []


def _cache(_: State, __: Target) -> Iterator[Move]:
    for form in CACHES:
        yield Move(f"cache in {form}", "cache", Step.of("quantize", cache=form), ROUNDED.format(form),
                   "attention that reads such a cache")  # fmt: skip


def _layouts(state: State, _: Target) -> Iterator[Move]:
    free = images(state.graph).free
    for way, last in (("channels_last", True), ("channels_first", False)):
        if any(now != last for now in free.values()):
            yield Move(f"images {way.replace('_', ' ')}", "layout", Step.of("layout", layout=way))


def _fusion(state: State, _: Target) -> Iterator[Move]:
    yield Move("one kernel for attention (flash)", "attention", Step.of("fuse", policy="flash"), ORDER)


def _kernels(state: State, _: Target) -> Iterator[Move]:
    """Compile: with just the kernels that torch.compile makes, replayed where launches are, or as mode compiled."""
    if not state.graph.info.grouped:
        yield Move("compile: kernels of torch.compile", "kernels", Step.of("fuse", policy="inductor"), ORDER, _WHOLE)
    yield from _compiled(state, "kernels")


def _precision(state: State, target: Target) -> Iterator[Move]:
    yield from _tf32(state, target, "precision")
    for name in ("amp-bf16", "mixed-bf16"):
        if faster(target.chip, "bf16", "fp32"):
            yield _run(f"train in {name}", "precision", ROUNDED.format("bf16"), precision=name)


def _recompute(_: State, __: Target) -> Iterator[Move]:
    for way in (way for way in RECOMPUTE if way != "none"):
        yield _run(f"recompute {'attention' if way == 'selective' else 'layers'} in the backward", "recompute",
                   recompute=way)  # fmt: skip


def _copies(_: State, target: Target) -> Iterator[Move]:
    """Lay a training step out over devices: replicas, what they divide, and devices that share layers."""
    for number in _powers(target.devices)[1:]:
        for tp in _powers(number):
            dp, shared = number // tp, {"tp": tp, "sp": True} if tp > 1 else {}
            for zero in (0, 1, 3) if dp > 1 else (0,):
                words = (
                    [f"{tp} devices a layer"] * (tp > 1) + [f"{dp} replicas"] * (dp > 1) + [f"ZeRO {zero}"] * bool(zero)
                )
                settings = {"dp": dp, **shared, **({"zero": zero} if zero else {})}
                yield _run(", ".join(words), "devices", ORDER, f"{number} devices", **settings)


def _micro_batch(state: State, target: Target) -> Iterator[Move]:
    for part in (2, 4, 8):
        each = target.batches[0] // state.run.get("dp", 1) // part
        if each and "micro_batch" not in state.run:
            yield _run(f"micro-batches of {each}", "micro_batch", ORDER, micro_batch=each)


#: Kinds of moves in the order of their steps; of a step of training the second table.
KINDS: Mapping[str, Kind] = {
    "run": _modes, "devices": _devices, "dtype": _wide, "batchnorm": _batchnorm, "layout": _layouts,
    "linears": _linears, "attention": _fusion, "formats": _formats, "cache": _cache, "kernels": _kernels,
}  # fmt: skip
TRAINING: Mapping[str, Kind] = {
    "run": _modes, "devices": _copies, "precision": _precision, "recompute": _recompute, "micro_batch": _micro_batch,
}  # fmt: skip


def pruned(amounts: Iterable[str]) -> Kind:
    """Return the kind of moves that prune, of amounts that somebody asked for.

    Args:
        amounts: Such as ``"heads=0.25"``.

    Raises:
        UsageError: No amount that pruning knows.
    """
    moves = [Move(f"prune {text}", "prune", Step.of("prune", **prune_options(text)), CHANGED) for text in amounts]
    return lambda state, target: moves
