"""A model as a server runs it: on which devices, in which number formats, with what cache and what overhead.

A deployment is ``tp * attention_dp * pp`` devices. Attention runs in ``attention_dp`` groups of ``tp`` devices, each
with sequences of its own; experts are spread over all devices of a stage, whole over ``ep`` of them and by their inner
width over the rest (the layout that TensorRT-LLM calls ``moe_ep`` and ``moe_tp``,
https://nvidia.github.io/TensorRT-LLM/advanced/expert-parallelism.html). A model without experts runs in
``attention_dp`` whole copies. Servers fuse as compilers do and replay CUDA graphs, and the regime ``warm`` has figures
measured on their own kernels, quantised activations included; both are the default.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from roofline.cost import checked_regime
from roofline.cost.scratch import memory_on
from roofline.counting.memory import RESERVE, Memory
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, check_positions
from roofline.ir.numbers import finite_number, whole_number
from roofline.passes.formats.quantize import formats_by_name, quantize
from roofline.passes.formats.scales import multiplied_as
from roofline.passes.fusion.all_reduce import fuse_all_reduce
from roofline.passes.fusion.fuse import fuse
from roofline.passes.parallel.shard import shard
from roofline.passes.parallel.stage import stages
from roofline.serving.backends import BACKENDS, Backend
from roofline.serving.kvcache import checked_layout, kv_cache
from roofline.serving.repeated import Depth, depth_of, layers_of
from roofline.serving.steady import Speculation, Work
from roofline.serving.steps import StepTimes, step_times

#: Formats that a stack quantises activations to where its weights have them: kernels of both operands in 8 or 4 bits.
#: https://docs.vllm.ai/en/latest/features/quantization/fp8.html and llm_compressor; int4 weights keep 16-bit ones.
ACTIVATIONS: Mapping[str, str] = MappingProxyType({
    "fp8": "fp8", "fp8-block": "fp8", "int8": "int8", "nvfp4": "nvfp4", "mxfp8": "mxfp8",
})  # fmt: skip
#: Share of a device's memory that a server uses: ``gpu_memory_utilization`` of vLLM,
#: https://docs.vllm.ai/en/v0.10.0/configuration/engine_args.html; TensorRT-LLM's is ``free_gpu_memory_fraction``.
MEMORY_SHARE = 0.9
#: Tokens of a block: vLLM's default, https://docs.vllm.ai/en/v0.10.0/configuration/engine_args.html.
BLOCK = 16
#: Tokens of a step at most: vLLM's default for a server, `max_num_batched_tokens`, on H100 and larger chips (8192),
#: https://github.com/vllm-project/vllm/blob/v0.10.0/vllm/engine/arg_utils.py.
CHUNK = 8192
#: Programs of one device of each stage: a decode step's and a prefill's.
Programs = tuple[tuple[Graph, Graph], ...]
#: Requests that run at a time at most: vLLM's `max_num_seqs` for a server there, in the same file.
MAX_SEQUENCES = 1024


@dataclass(frozen=True)
class Overhead:
    """Time that a server adds to its device's; nothing by default, for :func:`roofline.serving.deployment`.

    Attributes:
        step: Of each step: scheduling, sampling, sending inputs [s].
        request: Of each request before its first token: tokenising, queueing between processes [s].
        sequence: Of each running sequence in each step: its token's way out [s].
    """

    step: float = 0.0
    request: float = 0.0
    sequence: float = 0.0


@dataclass(frozen=True, repr=False)
class Deployment:
    """A model on some devices, in formats, with a cache: what the steps of a server are worked out for.

    From :func:`roofline.serving.deployment`, which checks what it is given.

    Attributes:
        model: A shipped name, or the path of a model file or config.
        chip: Each device.
        tp: Devices that share every layer of a group.
        pp: Stages of a pipeline.
        ep: Groups that the experts are spread over whole; the rest of ``tp * attention_dp`` shares their inner widths.
        attention_dp: Groups that attend to sequences of their own.
        dtype: Number format of everything.
        weights: Number format of the weights.
        activations: Number format that matmuls take their inputs in; that of the weights as stacks do when absent.
        cache: Number format of the KV cache.
        block: Tokens of a block of the cache.
        chunk: Tokens of a step of a group at most, of prompts and decoding sequences together.
        max_sequences: Requests that run at a time at most.
        mixed: Whether prompts are read in the steps that decode, or in steps of their own before those.
        backend: A serving stack, whose policy, overhead and range are taken; none by default.
        shared_prefix: First tokens that all prompts have in common; kept once.
        memory_share: Share of a device's memory that the server uses.
        reserve: Memory that driver and framework keep [byte].
        regime: Where operands lie, as for :func:`roofline.estimate`.
        fuse: A policy of :func:`roofline.passes.fuse`: how the server's kernels are fused.
        overhead: What the server adds to the device's time.
        options: Sizes and options of the model.
    """

    model: Program
    chip: Chip
    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1
    dtype: str | None = None
    weights: str | None = None
    activations: str | None = None
    cache: str | None = None
    block: int = BLOCK
    chunk: int = CHUNK
    max_sequences: int = MAX_SEQUENCES
    mixed: bool = True
    backend: str = ""
    shared_prefix: int = 0
    memory_share: float = MEMORY_SHARE
    reserve: float = RESERVE
    regime: str = "warm"
    fuse: str = "inductor"
    overhead: Overhead = Overhead()
    options: tuple[tuple[str, Any], ...] = field(default=())

    @property
    def stack(self) -> Backend | None:
        """The serving stack; ``None`` for no certain one."""
        return BACKENDS[self.backend] if self.backend else None

    @property
    def evicts(self) -> bool:
        """Tell whether requests are admitted with blocks for the tokens that they have."""
        return self.stack is not None and self.stack.evicts

    @cached_property
    def copy(self) -> Deployment:
        """One of the groups that have nothing to do with each other, those of a model without experts; else all."""
        return self if _routes(self.shown) or self.attention_dp == 1 else replace(self, attention_dp=1, ep=1)

    @property
    def devices(self) -> int:
        """All devices."""
        return self.tp * self.attention_dp * self.pp

    @property
    def budget(self) -> int:
        """Tokens of a step at most: each group, and each stage of a pipeline, has its own."""
        return self.chunk * self.attention_dp * self.pp

    @cached_property
    def decode_stages(self) -> tuple[Graph, ...]:
        """Programs of one device of each stage that decode a token of each sequence of its group."""
        return self._stages("decode")

    @cached_property
    def prefill_stages(self) -> tuple[Graph, ...]:
        """Programs of one device of each stage that read a prompt."""
        return self._stages("prefill")

    def _stages(self, phase: str, **changed: Any) -> tuple[Graph, ...]:
        layout = (self.tp, self.pp, self.attention_dp)
        formats = (self.dtype, self.weights, self.activations or _activations(self.weights), self.cache)
        options = tuple(sorted({**dict(self.options), **changed}.items()))
        policy = (self.fuse, self.stack is not None and self.stack.joins)
        return _programs(cast(Hashable, self.model), phase, layout, formats, policy, options)

    @property
    def _depth(self) -> Depth | None:
        return depth_of(cast(Hashable, self.model), self.dtype, self.options, self.pp)

    @cached_property
    def ends(self) -> tuple[Programs, ...]:
        """Programs of two shallow models on whose line this one lies; its own alone where there are none."""
        layers = ({"layers": n} for n in (self._depth.small, self._depth.large)) if self._depth else ({},)
        return tuple(
            tuple(zip(self._stages("decode", **some), self._stages("prefill", **some), strict=True)) for some in layers
        )

    @property
    def shown(self) -> Graph:
        """A program that has the name and the formats of all, of few layers where that will do."""
        return self.ends[-1][0][0]

    def _line(self, values: Iterable[Any]) -> Any:
        values = tuple(values)
        return self._depth.line(*values) if self._depth else values[0]

    def steps(self) -> StepTimes:
        """Return the seconds of an engine step, evaluated once for this deployment."""
        return self._steps

    @cached_property
    def _steps(self) -> StepTimes:
        each = self.overhead
        return step_times(self.ends[-1], self.chip, self.regime, attention_dp=self.attention_dp,
                          local_experts=self.ep / self.attention_dp, overhead=(each.step, each.sequence),
                          shallow=self.ends[0] if self._depth else (),
                          beyond=self._depth.beyond if self._depth else 0.0)  # fmt: skip

    # --- memory of a device [byte] ---

    @property
    def room(self) -> float:
        """Memory of a device that the server uses [byte].

        Raises:
            MissingFigure: The chip's memory has no size on file.
        """
        return self.chip.capacity * self.memory_share

    def memory(self, stage: int = 0) -> Memory:
        """Return what a device of a stage needs without any cache: weights, and activations of the largest step."""
        every = [self._memory(*programs[stage]).parts() for programs in self.ends]
        return Memory(**{name: self._line(parts[name] for parts in every) for name in every[0]})

    def _memory(self, decode: Graph, prefill: Graph) -> Memory:
        reading = memory_on(prefill, {"B": 1, "S": self.chunk}, self.chip, "", reserve=self.reserve)
        idle = memory_on(decode, {"B": 1, "C": 1}, self.chip, "", reserve=self.reserve)
        parts = {
            name: max(float(getattr(each, name)) for each in (reading, idle)) for name in ("inputs", "activations")
        }
        return replace(idle, **parts, kv_cache=0.0)

    def cache_bytes(self, context: Any) -> tuple[Any, Any]:
        """Return what a sequence takes in blocks on a device of the fullest stage, and what all share once [byte].

        Args:
            context: Positions that a sequence holds: a number or an array.
        """
        each, once = self._line(
            np.max([self._cache(decode, context) for decode, _ in programs], axis=0) for programs in self.ends
        )
        return each, once

    def _cache(self, graph: Graph, context: Any) -> tuple[Any, Any]:
        flat = np.unique(np.maximum(np.asarray(np.ceil(context), dtype=np.int64), 1))
        prefix = min(self.shared_prefix, int(flat.min()))
        cache = kv_cache(graph, flat.tolist(), batch=[1, 2], block=self.block, shared_prefix=prefix)
        one, two = np.asarray(cache.reserved, dtype=np.float64).reshape(2, -1)
        where = np.searchsorted(flat, np.maximum(np.ceil(context), 1))
        return (two - one)[where], (2 * one - two)[where]

    def sequences_that_fit(self, context: Any) -> Any:
        """Return how many sequences of a context fit, over all groups; 0 where not one does.

        Args:
            context: Positions that each holds, the longest that it comes to: a number or an array.
        """
        each, once = self.cache_bytes(context)
        fit = np.floor(np.maximum(_free(self) - once, 0.0) / np.maximum(each, 1.0))
        return self.attention_dp * fit

    def work(
        self, prompt: float, new_tokens: float, speculation: Speculation | None = None, spread: float = 0.0
    ) -> Work:
        """Return what the closed forms of a steady state take: requests, and what this server may do at a time.

        Args:
            prompt: Tokens of a prompt, on average, the shared prefix among them.
            new_tokens: Tokens that a request gets, on average.
            speculation: What is drafted.
            spread: How much lengths differ, as a share of the longest.

        Raises:
            UsageError: The model has fewer positions.
        """
        check_positions(self.shown, {"C": math.ceil(prompt + new_tokens) - 1})
        held = prompt + new_tokens / 2 if self.evicts else prompt + new_tokens
        fit = min(float(self.sequences_that_fit(held)), self.max_sequences)
        cached = self.shared_prefix // self.block * self.block
        return Work(prompt, new_tokens, self.budget, fit, min(cached, prompt - 1), self.mixed,
                    speculation or Speculation(), self.overhead.request, spread,
                    self.attention_dp * self.pp)  # fmt: skip

    def tokens_that_fit(self) -> float:
        """Tokens of the cache in blocks, over all groups."""
        each, _ = self.cache_bytes(np.asarray([1024 * self.block]))
        return float(self.attention_dp * max(_free(self), 0.0) / each[0] * 1024 * self.block)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave what was worked out behind where it goes to another process."""
        return type(self), tuple(getattr(self, one.name) for one in fields(self))

    def __repr__(self) -> str:
        return f"<Deployment {self.shown.title} on {self.devices} x {self.chip.name}: {self.layout}>"

    @property
    def layout(self) -> str:
        """The layout and the formats as text."""
        sizes = {"tp": self.tp, "pp": self.pp, "ep": self.ep, "attention_dp": self.attention_dp}
        shown = [f"{name} {value}" for name, value in sizes.items() if value > 1 or name == "tp"]
        formats = {"weights": _stored_weights(self), "cache": self.cache}
        return ", ".join([*shown, *(f"{name} {value}" for name, value in formats.items() if value)])


def deployment(
    model: Program, chip: AnyChip, *, tp: int = 1, pp: int = 1, ep: int | None = None, attention_dp: int = 1,
    block: int = BLOCK, chunk: int = CHUNK, max_sequences: int = MAX_SEQUENCES,
    mixed: bool | None = None, backend: str | None = None, shared_prefix: int = 0, memory_share: float = MEMORY_SHARE,
    regime: str = "warm", overhead: Overhead | None = None,
    dtype: str | None = None, weights: str | None = None, activations: str | None = None, cache: str | None = None,
    **options: Any,
) -> Deployment:  # fmt: skip
    """Describe how a server runs a model.

    Args:
        model: A shipped name, or the path of a model file or config.
        chip: A name or a chip: each device.
        tp: Devices that share every layer.
        pp: Stages of a pipeline.
        ep: Groups that the experts are spread over whole, a divisor of ``tp * attention_dp``; ``attention_dp`` when
            absent.
        attention_dp: Groups of ``tp`` devices that attend to sequences of their own.
        block: Tokens of a block of the cache.
        chunk: Tokens of a step of a group at most, of prompts and decoding sequences together.
        max_sequences: Requests that run at a time at most.
        mixed: Whether prompts are read in the steps that decode, or in steps of their own before those; as the backend
            does when absent, else in the steps that decode.
        backend: A serving stack, ``vllm``, ``sglang`` or ``trtllm``: how it treats prompts and blocks, what it adds to
            the device's time, and the range of its times per token. None, and no overhead, when absent.
        shared_prefix: First tokens that all prompts have in common.
        memory_share: Share of a device's memory that the server uses, such as 0.9.
        regime: As for :func:`roofline.estimate`.
        overhead: What the server adds to the device's time; as the backend does when absent.
        dtype: Number format of everything.
        weights: Number format of the weights; ``fp8`` and ``nvfp4`` are those of the activations, too.
        activations: Number format that matmuls take their inputs in.
        cache: Number format of the KV cache; ``own`` of any is the model's.
        options: Sizes and options of the model, such as ``layers=8``.

    Returns:
        The deployment, whose ``steps()`` say how long a step takes.

    Raises:
        UsageError: A layout that cannot be, or a model given as a graph.

    Example:
        >>> served = deployment("llama-3-70b", "h100-sxm", tp=4, weights="fp8")
        >>> served.devices, bool(served.sequences_that_fit(8192) > 50)
        (4, True)
        >>> bool(served.steps().decode(64, 4096) < 2 * served.steps().decode(1, 4096))
        True
    """
    sizes = tuple(sorted(options.items()))
    ways = _layout(model, tp, pp, ep, attention_dp, lambda: has_experts(cast(Hashable, model), dtype, sizes))
    block, shared_prefix, _ = checked_layout(block, shared_prefix)  # type: ignore[assignment]
    own, usual = _backend(backend, model, dtype, sizes)
    dtype, weights, activations, cache = (None if n == "own" else n for n in (dtype, weights, activations, cache))
    return Deployment(
        model, find_chip(chip), *ways, dtype, weights, activations, cache, block,
        whole_number("chunk", chunk, most=10**9), whole_number("max_sequences", max_sequences, most=10**5),
        own if mixed is None else bool(mixed), backend or "", shared_prefix,
        finite_number("memory_share", memory_share, 0, 1, above=True), regime=checked_regime(regime),
        overhead=overhead or usual, options=sizes,
    )  # fmt: skip


def copies(one: Deployment) -> int:
    """Return how many servers a deployment is that have nothing to do with each other.

    Args:
        one: The deployment.
    """
    return one.devices // one.copy.devices


def _stored_weights(served: Deployment) -> str | None:
    """Return the format of the weights as asked for, unless what the model stores is as narrow already."""
    if served.weights not in DTYPES:
        return served.weights
    units = multiplied_as(served.weights)
    stored = {tensor.dtype for tensor in served.decode_stages[0].tensors.values() if tensor.kind == "weight"}
    return served.weights if units in map(multiplied_as, stored) else f"as the model's, not {served.weights}"


def transfer_seconds(reading: Deployment, engine: Deployment, prompt: int, link: float) -> float:
    """Return the time in which the cache of a prompt gets from a server that reads to one that decodes [s].

    Each device of the smaller server sends or gets its share at once.

    Args:
        reading: The server that reads.
        engine: The server that decodes.
        prompt: Tokens of the prompt.
        link: Way of each device [byte/s].
    """
    ends = engine.tp * engine.pp, reading.tp * reading.pp
    return float(engine.cache_bytes(prompt)[0]) * ends[0] / (min(ends) * link)


def _free(served: Deployment) -> float:
    """Return what is left for the cache on a device of the fullest stage [byte]; below 0 where nothing fits."""
    part = "weights" if served.stack is not None and served.stack.static else "total"
    return served.room - max(float(getattr(served.memory(i), part)) for i in range(served.pp))


def _backend(
    name: str | None, model: Program, dtype: str | None, options: tuple[tuple[str, Any], ...]
) -> tuple[bool, Overhead]:
    """Return whether a stack reads prompts in the steps that decode, and what it adds.

    Raises:
        UsageError: No such stack.
    """
    if not name:
        return True, Overhead()
    if name not in BACKENDS:
        raise UsageError(f"backend {str(name)[:40]!r}; allowed: {', '.join(BACKENDS)}{did_you_mean(name, BACKENDS)}")
    stack = BACKENDS[name]
    layers = layers_of(cast(Hashable, model), dtype, options)
    return stack.mixed, Overhead(stack.step * layers, stack.request, stack.sequence)


def _layout(
    model: Program, tp: Any, pp: Any, ep: Any, attention_dp: Any, experts: Callable[[], bool]
) -> tuple[int, int, int, int]:
    """Return a layout as numbers of Python; refuse one that cannot be.

    Raises:
        UsageError: As :func:`deployment` does.
    """
    if isinstance(model, Graph):
        raise UsageError("a deployment needs a model by name or path: it runs both of its phases, a graph is one")
    if not isinstance(model, str | os.PathLike):
        as_graph(model)  # says what a program is
    tp, pp = whole_number("tp", tp), whole_number("pp", pp)
    attention_dp = whole_number("attention_dp", attention_dp)
    implied, ep = ep is None, attention_dp if ep is None else whole_number("ep", ep)
    if (tp * attention_dp) % ep:
        raise UsageError(f"ep={ep}: not a divisor of tp * attention_dp = {tp * attention_dp}")
    if ep > 1 and not experts():
        if not implied:
            raise UsageError(f"ep={ep}: {model} has no experts; leave --ep out, in Python ep")
        ep = 1
    return tp, pp, ep, attention_dp


def _activations(weights: str | None) -> str | None:
    """Return the format that a stack quantises activations to, where it does."""
    known = formats_by_name(weights) if weights else None
    return ACTIVATIONS.get(known) if isinstance(known, str) else None


@lru_cache(maxsize=64)
def has_experts(model: Any, dtype: str | None, options: tuple[tuple[str, Any], ...] = ()) -> bool:
    """Tell whether a model has experts."""
    return _routes(as_graph(model, None, dtype, implied="decode", **dict(options)))


def _routes(graph: Graph) -> bool:
    return any(node.op == "expert_linear" for node in graph.nodes)


@lru_cache(maxsize=256)
def _programs(
    model: Any, phase: str, layout: tuple[int, int, int], formats: tuple[str | None, ...], policy: tuple[str, bool],
    options: tuple[tuple[str, Any], ...],
) -> tuple[Graph, ...]:  # fmt: skip
    """Return what one device of each stage runs; the same for every chip."""
    (tp, pp, groups), (dtype, weights, activations, cache) = layout, formats
    graph = as_graph(model, None, dtype, implied=phase, **dict(options))
    needed = {"B", "C"} if phase == "decode" else {"B", "S"}
    if graph.symbols != needed or graph.info.phase != phase:
        raise UsageError(f"{graph.name} is no language model whose {phase} depends on {' and '.join(sorted(needed))} "
                         f"alone; a deployment needs one by name or path, such as llama-3-8b")  # fmt: skip
    graph = shard(graph, tp=tp, ep=groups if _routes(graph) else 1)
    if weights or activations or cache:
        stored = formats_by_name(weights) if weights else None
        graph = quantize(graph, weights=stored, activations=activations, cache=cache, scales="static")
    fused = (fuse(part, policy[0]) for part in (stages(graph, pp) if pp > 1 else (graph,)))
    return tuple(fuse_all_reduce(part) if policy[1] else part for part in fused)
