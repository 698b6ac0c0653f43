"""Graph to graph: each pass is a plain function in a file of its own, and leaves its trail (``recorded``).

| what changes | passes | which share |
|---|---|---|
| which operators are one kernel | fuse, chains, inductor, flash, ideal, inline, megatron | inlining, order |
| what is computed in vain or twice | clean, batchnorm, linears, rewrite, pad, unmask | editing, storage |
| number formats | retype, quantize, autocast | scales, conversions, keep |
| how large it is | prune (droplayers, sparsify) | amounts |
| what one of several devices runs | shard (splits, ranks, sequence), stage, pipelined | layers |
| what training adds | backward, optimizer, training | tape |

``axes`` finds which axes have their size for the same reason (axis_rules, ir.unify), for prune and shard.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
