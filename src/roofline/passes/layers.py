"""The layer that a node belongs to, by its name, for stages, recomputation and pruning alike."""

from __future__ import annotations

import re

#: ``layers.3.attn.q``, ``encoder.layer.3.output``, ``stage1.2.conv1``, ``3.linear``: a path and its first number.
NUMBERED = re.compile(r"(?:(.+?)\.)?(\d+)\.")


def layer_of(name: str) -> str:
    """The layer that a node belongs to by its name, empty for none.

    Example:
        >>> [layer_of(name) for name in ("encoder.layers.3.attn.out", "stage2.0.conv1.grad_w", "0.up", "embed")]
        ['encoder.layers.3', 'stage2.0', '0', '']
    """
    match = NUMBERED.match(name)
    return match[0].removesuffix(".") if match else ""
