"""Graph to graph: each pass is a plain function in a file of its own that leaves its entry in the graph's history.

| what changes | passes | what they share |
|---|---|---|
| ``fusion``: who shares a kernel | fuse, chains, inductor, flash, ideal, inline, megatron | inlining, order |
| ``rewriting``: what is computed in vain or twice | clean, batchnorm, linears, rewrite | ``ops.aliases`` |
| ``rewriting``: how large it is | prune (drop_layers), options | amounts |
| ``formats``: number formats | cast, quantize, sparsify, autocast | scales, conversions, keep |
| ``parallel``: what one of several devices runs | shard (plan, partitioner, sequence), stage, pipelined | axes |
| ``training``: what a training step adds | backward, mixed_precision, optimizer | tape, saved |

``axes`` finds which axes have their size for the same reason (axis_rules, ``ir.unify``), for prune and shard. Nodes are
written by :class:`roofline.ops.builder.Builder` alone.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
