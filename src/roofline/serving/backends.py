"""Serving stacks: what each does with prompts and blocks, and at most three fitted figures of what it adds to kernels.

Fitted by ``benchmarks/fit_serving.py`` on one half of the configurations (model, chip, backend, precision, devices,
lengths; by a hash of their names) of the deployments in aiconfigurator's table (NVIDIA, Apache-2.0,
https://github.com/ai-dynamo/aiconfigurator, ``silicon_sample.csv`` of aiconfigurator-core 0.12.0); the ranges hold 80 %
of the rows of each left-out fifth of that half. ``benchmarks/serving_table.py`` judges on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Backend:
    """A serving stack.

    Attributes:
        mixed: Whether prompts are read in the steps that decode.
        evicts: Whether requests are admitted with blocks for the tokens that they have, instead of all they will get.
        static: Whether the share of memory that it uses is for weights and cache alone.
        joins: Whether an all-reduce runs in one kernel with the sum and norm that read it.
        step: Time of each step beside its kernels, for each layer [s].
        sequence: Time of each step for each sequence that runs: its token's way out [s].
        request: Time before a request is read [s].
        low: Low end of the time per output token, as a ratio.
        high: High end.
    """

    mixed: bool
    evicts: bool
    static: bool
    joins: bool
    step: float
    sequence: float
    request: float
    low: float
    high: float


#: vLLM V1 reads prompts in the steps that decode ("chunked prefill",
#: https://docs.vllm.ai/en/v0.10.0/configuration/optimization.html) and TensorRT-LLM batches in flight, with blocks for
#: all tokens of a request (``GUARANTEED_NO_EVICT``); SGLang runs prompts first, by themselves
#: (https://docs.sglang.ai/advanced_features/server_arguments.html, ``enable_mixed_chunk`` off), and its
#: ``mem_fraction_static`` is of "static allocation (model weights and KV cache memory pool)". All-reduces and norms
#: are one kernel in TensorRT-LLM and, up to some MiB, by default in vLLM on Hopper and Blackwell
#: (``fuse_allreduce_rms``, https://docs.vllm.ai/en/v0.18.2/design/fusions/, "5-20%"); SGLang asks for
#: ``--enable-flashinfer-allreduce-fusion``.
BACKENDS = {
    "trtllm": Backend(True, False, False, True, step=5.39e-6, sequence=3.12e-5, request=0.0659, low=0.87, high=1.21),
    "vllm": Backend(True, True, False, True, step=1.53e-5, sequence=3.92e-6, request=0.0372, low=0.83, high=1.24),
    "sglang": Backend(False, True, True, False, step=2.58e-6, sequence=2.33e-5, request=0.189, low=0.85, high=1.32),
}


def per_token_range(stack: Backend | None, factor: Any) -> tuple[Any, Any]:
    """Return low and high over expected of a time per token; of a serving stack as measured ones scatter.

    Args:
        stack: The serving stack; ``None`` for no certain one.
        factor: High over expected of the steps alone.
    """
    return (1 / factor, factor) if stack is None else (stack.low, stack.high)
