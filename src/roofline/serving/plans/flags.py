"""Launch flags of vLLM, SGLang and TensorRT-LLM for a deployment, and what each of them cannot do.

Sources, by backend; the words are those of these versions:

- vLLM 0.12: https://docs.vllm.ai/en/v0.12.0/serving/data_parallel_deployment/ (each rank of ``--data-parallel-size`` is
  an engine of its own, so its limits hold for each rank) and
  https://docs.vllm.ai/en/v0.12.0/serving/expert_parallel_deployment/ (``--enable-expert-parallel`` spreads experts over
  all devices of tensor times data parallelism; without it they share them by width); the other options:
  https://docs.vllm.ai/en/v0.10.0/configuration/engine_args.html; the way of a cache and its ports:
  https://docs.vllm.ai/en/v0.12.0/features/nixl_connector_usage/.
- SGLang: https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/
  server_arguments.md; ``--tp-size`` counts all devices of a stage, and with ``--enable-dp-attention`` the limits on
  requests and on tokens of a chunk are divided by ``--dp-size`` (``_handle_data_parallelism`` of its server_args.py).
- TensorRT-LLM: https://github.com/NVIDIA/TensorRT-LLM/blob/00209af149e7774406881a37283dce303571eb11/tensorrt_llm/
  commands/serve.py; attention either shares all devices of a stage or has one for each sequence
  (https://nvidia.github.io/TensorRT-LLM/features/parallel-strategy.html), and the limits hold for each rank; its
  formats: https://nvidia.github.io/TensorRT-LLM/features/quantization.html.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from roofline.ir.sizes import one_of

#: Formats of weights by backend: the option that loads them, ``""`` for one of the checkpoint's own, ``None`` where the
#: backend has none; of others nothing is on file.
_WEIGHTS: Mapping[str, Mapping[str, str | None]] = {
    "vllm": {"fp8": "fp8", "fp8-block": "", "int8": "compressed-tensors", "nvfp4": "modelopt_fp4", "mxfp4": "mxfp4",
             "int4-g128": "awq"},
    "sglang": {"fp8": "fp8", "fp8-block": "", "int8": "w8a8_int8", "nvfp4": "modelopt_fp4", "mxfp4": "mxfp4",
               "int4-g128": "awq"},
    "trtllm": {"fp8": "", "fp8-block": "", "nvfp4": "", "mxfp4": "", "int4-g128": "", "int8": None},
}  # fmt: skip
#: Formats of the cache, likewise.
_CACHES: Mapping[str, Mapping[str, str | None]] = {
    "vllm": {"fp8": "fp8", "int8": None}, "sglang": {"fp8": "fp8_e4m3", "int8": None},
    "trtllm": {"fp8": "fp8", "nvfp4": "nvfp4", "int8": None},
}  # fmt: skip
#: Tokens of a block that a backend may have; SGLang takes any. vLLM: ``BlockSize`` of
#: https://github.com/vllm-project/vllm/blob/v0.12.0/vllm/config/cache.py; TensorRT-LLM: powers of two
#: (https://nvidia.github.io/TensorRT-LLM/features/kvcache.html), here from its default on.
_BLOCKS = {"vllm": (1, 8, 16, 32, 64, 128, 256), "trtllm": (32, 64, 128, 256, 512, 1024)}
#: Columns of a line of a command.
WIDTH = 77
#: Formats that a server makes of a checkpoint in 16 bits while it loads it.
_ONLINE = frozenset({"fp8"})


@dataclass(frozen=True)
class Server:
    """One server of a plan, in our words.

    Attributes:
        model: The checkpoint.
        tp: Devices that share every layer of a group.
        pp: Stages.
        ep: Groups that the experts are spread over whole; 0 for a model without experts.
        attention_dp: Groups that attend to sequences of their own.
        weights: Format of the weights; ``None`` for the checkpoint's.
        cache: Format of the cache.
        chunk: Tokens of a step of a group at most.
        running: Requests that run at a time at most, over all groups.
        context: Positions of a sequence at most.
        block: Tokens of a block of the cache.
        memory_share: Share of a device's memory that it uses.
        static_share: Share for weights and cache.
        cache_share: Share of what is free beside the weights for the cache.
        mixed: Whether prompts are read in the steps that decode.
        role: ``prefill`` or ``decode`` of a split, ``both``.
        instances: How many such servers.
    """

    model: str
    tp: int = 1
    pp: int = 1
    ep: int = 0
    attention_dp: int = 1
    weights: str | None = None
    cache: str | None = None
    chunk: int = 8192
    running: int = 256
    context: int = 8192
    block: int = 16
    memory_share: float = 0.9
    static_share: float = 0.88
    cache_share: float = 0.9
    mixed: bool = True
    role: str = "both"
    instances: int = 1

    def each(self, total: int) -> int:
        """Return the part of a limit that each group has."""
        return max(-(-total // self.attention_dp), 1)


@dataclass(frozen=True)
class Launch:
    """Say how a backend starts a server; from ``launches`` of what :func:`roofline.serving.plan` returns.

    Attributes:
        backend: ``vllm``, ``sglang`` or ``trtllm``.
        command: Its words.
        config: What goes into its YAML file; empty for none.
        notes: What it cannot do, or what has to be done besides.
    """

    backend: str
    command: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The command as a shell reads it, its file before it."""
        words = [shlex.quote(word) for word in self.command]
        starts = [at for at, word in enumerate(words) if word.startswith("--")]
        groups = [" ".join(words[at:end]) for at, end in pairwise([0, *starts, len(words)])]
        lines = [groups[0]]
        for group in groups[1:]:  # a flag and its value stay together
            fits = len(lines[-1]) + len(group) < WIDTH
            lines = [*lines[:-1], f"{lines[-1]} {group}"] if fits else [*lines, f"  {group}"]
        command = " \\\n".join(lines)
        return command if not self.config else f"cat > config.yaml <<'EOF'\n{_yaml(self.config)}EOF\n{command}"

    def record(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"backend": self.backend, "command": list(self.command), "config": _yaml(self.config),
                "notes": list(self.notes)}  # fmt: skip


def launch(server: Server, backend: str) -> Launch:
    """Return how a backend starts a server.

    Args:
        server: In our words.
        backend: ``vllm``, ``sglang`` or ``trtllm``.

    Raises:
        UsageError: No such backend.

    Example:
        >>> launch(Server("meta-llama/Meta-Llama-3-70B", tp=4, weights="fp8"), "vllm").command[:5]
        ('vllm', 'serve', 'meta-llama/Meta-Llama-3-70B', '--tensor-parallel-size', '4')
    """
    one_of("backend", backend, BACKENDS)
    command, config, notes = BACKENDS[backend](server)
    parts = [*lacks(server, backend), *notes, *_formats(server, backend)]
    if server.block > min(_BLOCKS.get(backend, ()), default=server.block) and server.block != _block(server, backend):
        parts.append(f"blocks of {_block(server, backend)} tokens: it has none of {server.block}")
    if server.instances > 1:
        parts.append(f"{server.instances} of them behind a router")
    return Launch(backend, tuple(map(str, command)), config, tuple(parts))


def lacks(server: Server, backend: str) -> list[str]:
    """Say what a backend certainly cannot do: formats that it has not, and layouts that no option of it makes.

    Args:
        server: In our words.
        backend: ``vllm``, ``sglang`` or ``trtllm``; ``""`` for no certain one.

    Example:
        >>> lacks(Server("m", weights="int8"), "trtllm")
        ['has no weights in int8; it has fp8, fp8-block, nvfp4, mxfp4, int4-g128']
    """
    if not backend:
        return []
    formats = (("weights", server.weights, _WEIGHTS[backend]), ("cache", server.cache, _CACHES[backend]))
    notes = [
        f"has no {what} in {name}; it has {', '.join(one for one, word in known.items() if word is not None)}"
        for what, name, known in formats if name and known.get(name, "") is None
    ]  # fmt: skip
    stage = server.tp * server.attention_dp
    if backend == "vllm" and server.ep > 1 and server.ep != stage:
        notes.append(f"spreads experts over all {stage} devices of a stage or over none, not over {server.ep}")
    if backend == "trtllm" and server.attention_dp > 1 and server.tp > 1:
        notes.append(f"attention has {stage} groups of a device or one group of {stage}, not {server.attention_dp} of "
                     f"{server.tp}")  # fmt: skip
    return notes


def _formats(server: Server, backend: str) -> list[str]:
    """Say which formats a checkpoint must have, and of which no flag is on file."""
    weights = _WEIGHTS[backend]
    formats = (("weights", server.weights, weights), ("a cache", server.cache, _CACHES[backend]))
    notes = [f"no flag for {what} in {name} is on file" for what, name, known in formats if name and name not in known]
    flag = weights.get(server.weights or "")
    if flag == "" or (flag and server.weights not in _ONLINE):
        notes.append(f"needs a checkpoint whose weights are in {server.weights}")
    return notes


def _block(server: Server, backend: str) -> int:
    """Return the least block that a backend has from what is asked for on; its largest where none is so large."""
    return min((size for size in _BLOCKS[backend] if size >= server.block), default=_BLOCKS[backend][-1])


def _if(flag: str, value: Any, besides: bool = True) -> list[Any]:
    """Return a flag with its value, nothing where there is none."""
    return [flag, value] if value and besides else []


def _vllm(server: Server) -> tuple[list[Any], dict[str, Any], list[str]]:
    role = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    command = [
        "vllm", "serve", server.model, "--tensor-parallel-size", server.tp,
        *_if("--pipeline-parallel-size", server.pp, server.pp > 1),
        *_if("--data-parallel-size", server.attention_dp, server.attention_dp > 1),
        *(["--enable-expert-parallel"] if server.ep > 1 else []),
        "--max-num-seqs", server.each(server.running), "--max-num-batched-tokens", server.chunk,
        "--max-model-len", server.context, "--block-size", _block(server, "vllm"),
        "--gpu-memory-utilization", server.memory_share,
        *_if("--quantization", _WEIGHTS["vllm"].get(server.weights or "")),
        *_if("--kv-cache-dtype", _CACHES["vllm"].get(server.cache or "")),
        *(["--kv-transfer-config", json.dumps(role, separators=(",", ":"))] if server.role != "both" else []),
    ]  # fmt: skip
    notes = []
    if server.role != "both":
        notes.append(f"a proxy sends each request to the prefill servers first; this is a {server.role} server; those "
                     f"of one host need a --port and a VLLM_NIXL_SIDE_CHANNEL_PORT of their own")  # fmt: skip
    return command, {}, notes


def _sglang(server: Server) -> tuple[list[Any], dict[str, Any], list[str]]:
    shares = server.attention_dp > 1
    command = [
        "python", "-m", "sglang.launch_server", "--model-path", server.model,
        "--tp-size", server.tp * server.attention_dp,
        *_if("--pp-size", server.pp, server.pp > 1), *_if("--ep-size", server.ep, server.ep > 1),
        *(["--dp-size", server.attention_dp, "--enable-dp-attention"] if shares else []),
        "--max-running-requests", server.running, "--chunked-prefill-size", server.chunk * server.attention_dp,
        "--context-length", server.context, "--page-size", server.block,
        "--mem-fraction-static", round(server.static_share, 3),
        *_if("--quantization", _WEIGHTS["sglang"].get(server.weights or "")),
        *_if("--kv-cache-dtype", _CACHES["sglang"].get(server.cache or "")),
        *(["--enable-mixed-chunk"] if server.mixed and server.role == "both" else []),
        *_if("--disaggregation-mode", server.role, server.role != "both"),
    ]  # fmt: skip
    return (
        command,
        {},
        ["a router pairs it with the others"] if server.role != "both" else [],
    )


def _trtllm(server: Server) -> tuple[list[Any], dict[str, Any], list[str]]:
    config: dict[str, Any] = {"kv_cache_config": {"tokens_per_block": _block(server, "trtllm")}}
    if cache := _CACHES["trtllm"].get(server.cache or ""):
        config["kv_cache_config"]["dtype"] = cache
    if server.attention_dp > 1:
        config["enable_attention_dp"] = True
    if server.role != "both":
        config["cache_transceiver_config"] = {"backend": "UCX"}
    command = [
        "trtllm-serve", server.model, "--tp_size", server.tp * server.attention_dp,
        *_if("--pp_size", server.pp, server.pp > 1), *_if("--ep_size", server.ep, server.ep > 1),
        "--max_batch_size", server.each(server.running),
        "--max_num_tokens", server.chunk, "--enable_chunked_prefill", "--max_seq_len", server.context,
        "--kv_cache_free_gpu_memory_fraction", round(server.cache_share, 3),
        *_if("--server_role", {"prefill": "CONTEXT", "decode": "GENERATION"}.get(server.role)),
        "--config", "config.yaml",
    ]  # fmt: skip
    notes = []
    if server.role != "both":
        notes.append(f"`trtllm-serve disaggregated` joins both kinds; this is a {server.role} server")
    return command, config, notes


#: Backends by name.
BACKENDS: Mapping[str, Callable[[Server], tuple[list[Any], dict[str, Any], list[str]]]] = MappingProxyType({
    "vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm,
})  # fmt: skip


def _yaml(config: Mapping[str, Any], indent: str = "") -> str:
    """Write plain values as YAML."""
    lines = []
    for name, value in config.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{name}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {json.dumps(value) if not isinstance(value, str) else value}\n")
    return "".join(lines)
