"""Serving stacks: what each does with prompts and blocks, and at most three fitted figures of what it adds to kernels.

Fitted by ``benchmarks/fit_serving.py`` on one half of the configurations (model, chip, backend, precision, devices,
lengths; by a hash of their names) of the deployments in aiconfigurator's table (NVIDIA, Apache-2.0,
https://github.com/ai-dynamo/aiconfigurator, ``silicon_sample.csv`` of aiconfigurator-core 0.12.0); the ranges hold 80 %
of the rows of each left-out fifth of that half. ``benchmarks/serving_table.py`` judges on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass

from roofline.serving.loads import Stack


@dataclass(frozen=True)
class Backend:
    """A serving stack.

    Attributes:
        stack: What it does and adds.
        low: Low end of the time per output token, as a ratio.
        high: High end.
    """

    stack: Stack
    low: float
    high: float


#: vLLM V1 reads prompts in the steps that decode ("chunked prefill",
#: https://docs.vllm.ai/en/v0.10.0/configuration/optimization.html) and TensorRT-LLM batches in flight, with blocks for
#: all tokens of a request (``GUARANTEED_NO_EVICT``); SGLang runs prompts first, by themselves
#: (https://docs.sglang.ai/advanced_features/server_arguments.html, ``enable_mixed_chunk`` off).
BACKENDS = {
    "trtllm": Backend(Stack(whole=True, step=-1.49e-6, sequence=2.19e-5, request=0.121), 0.83, 1.18),
    "vllm": Backend(Stack(step=7.7e-6, sequence=1.55e-5, request=0.0512), 0.82, 1.21),
    "sglang": Backend(Stack(mixed=False, step=3.32e-6, sequence=2.66e-5, request=0.392), 0.84, 1.36),
}
