"""How servers of public tables were started, where that is not as their stack does by default.

InferenceX has a script for each model, precision and chip (https://github.com/SemiAnalysisAI/InferenceX: ``benchmarks``
and ``benchmarks/single_node``, such as ``dsr1_fp8_b200.sh``). Rows of other lengths are aiconfigurator's own, whose
generator writes the flags by version of the stack (https://github.com/ai-dynamo/aiconfigurator,
``src/aiconfigurator/generator``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """How a server was started; None for what its stack does by default.

    Attributes:
        memory_share: Share of a device's memory that the server uses.
        chunk: Tokens of a step at most.
        cache: Number format of the KV cache.
        mixed: Whether prompts are read in the steps that decode.
        stream: Tokens of a sequence that are sent to its user at a time.
        polls: Decode steps from one look for new requests to the next.
        patience: Decode steps that a prompt waits for others that are read with it.
    """

    memory_share: float | None = None
    chunk: int | None = None
    cache: str | None = None
    mixed: bool | None = None
    stream: int = 1
    polls: int = 1
    patience: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """Return what differs for the deployment."""
        every = {name: getattr(self, name) for name in ("memory_share", "chunk", "cache", "mixed")}
        return {name: value for name, value in every.items() if value is not None}


#: As a stack does by default.
USUAL = Recipe()
#: ``--scheduler-recv-interval`` for fewer than 16 users, and for more.
_POLLS = (10, 30)
#: Settings by "backend version model system precision tp8 dp1 prompt/new"; later ones add to earlier ones.
_INFERENCEX: tuple[tuple[str, Mapping[str, Any]], ...] = (
    # stream_interval, and batch_wait_timeout_iters "for 1k/1k" on fewer than 8 devices: 70b_fp8_b200_trt_slurm.sh.
    # SGLang has --stream-interval, too; to share its time of a sequence out likewise is worse on the fitted half.
    ("trtllm * Llama-3.1-70B *", {"stream": 10}),
    ("trtllm * Llama-3.1-70B * tp[124] dp1 1024/1024", {"patience": 20}),
    # dsr1_fp4_b200_trt.sh, dsr1_fp8_h200_trt.sh: groups wait for each other's prompts, timeout_iters of
    # attention_dp_config; with multi-token prediction (dsr1_fp8_b200_trt_mtp.sh) max_num_tokens holds one prompt.
    ("trtllm * DeepSeek-* *", {"stream": 10}),
    ("trtllm * DeepSeek-* dp[2-9]* *", {"patience": 60}),
    ("trtllm 1.2.0rc6.post3 DeepSeek-R1 * 1024/*", {"chunk": 1600}),
    ("trtllm 1.2.0rc6.post3 DeepSeek-R1 * 8192/*", {"chunk": 8768}),
    ("trtllm * gpt-oss-* *", {"stream": 20, "chunk": 20_000}),  # gptoss_fp4_b200_trt.sh, gptoss_fp4_h200_trt.sh
    # --mem-fraction-static, --chunked-prefill-size, --kv-cache-dtype: dsr1_fp4_b200.sh, dsr1_fp8_b200.sh,
    # dsr1_fp8_h200.sh, qwen3.5_*_b200.sh, qwen3.5_*_b300.sh, qwen3.5_fp8_h200.sh, glm5_fp8_b200.sh, glm5_fp4_b200.sh
    ("sglang * DeepSeek-* b?00* fp4 *", {"polls": _POLLS, "memory_share": 0.85, "chunk": 16_384}),
    ("sglang * DeepSeek-* ?200* fp8 *", {"memory_share": 0.82, "chunk": 32_768}),
    ("sglang * DeepSeek-* b?00* fp8 *", {"polls": _POLLS, "cache": "fp8"}),
    ("sglang * DeepSeek-* b?00* fp8 tp4 dp1 *", {"polls": (10, 10), "memory_share": 0.95, "chunk": 8192}),
    ("sglang * Qwen3.5-* b?00* *", {"polls": _POLLS, "memory_share": 0.82, "chunk": 32_768}),
    ("sglang * Qwen3.5-* * fp8 *", {"cache": "fp8"}),
    ("sglang * Qwen3.5-* b200* fp4 *", {"polls": (30, 30)}),
    ("sglang * Qwen3.5-* b300* fp8 *", {"polls": (10, 10), "memory_share": 0.8, "chunk": 16_384}),
    ("sglang * Qwen3.5-* h200* fp8 *", {"memory_share": 0.8, "chunk": 16_384}),
    ("sglang * GLM-5 b?00* *", {"memory_share": 0.85, "chunk": 32_768, "cache": "fp8"}),
    ("sglang * GLM-5 b?00* fp4 *", {"polls": (10, 10), "memory_share": 0.9}),
    # --gpu-memory-utilization: minimaxm2.5_fp8_b200.sh, kimik2.5_int4_h200.sh
    ("vllm * MiniMax-M2.5 b200* fp8 *", {"memory_share": 0.95}),
    ("vllm * Kimi-K2.5 * int4 *", {"memory_share": 0.95}),
)
#: ``agg enable_mixed_chunk = true`` (rule_plugin/sglang.rule); the template of 0.5.1 asks for it by an unknown word,
#: those from 0.5.3 on by the right one (backend_templates/sglang/cli_args.0.5.1.post1.j2, cli_args.0.5.6.post2.j2).
_AICONFIGURATOR: tuple[tuple[str, Mapping[str, Any]], ...] = (("sglang 0.5.[3-9]* *", {"mixed": True}),)


def recipe(words: tuple[str, ...], users: float, inferencex: bool) -> Recipe:
    """Return how the server of a row was started.

    Args:
        words: Backend, its version, model, system, precision, sizes such as ``tp8 dp1``, tokens as ``prompt/new``.
        users: Requests at a time.
        inferencex: Whether the row is InferenceX's.
    """
    label = " ".join(words)
    settings: dict[str, Any] = {}
    for pattern, more in _INFERENCEX if inferencex else _AICONFIGURATOR:
        if fnmatchcase(label, pattern):
            settings |= more
    if "polls" in settings:
        settings["polls"] = settings["polls"][users >= 16]
    return Recipe(**settings)
