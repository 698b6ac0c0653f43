"""Where a library looks at values unless it is traced, and a capture without data goes the way of an eager run.

transformers leaves causal masks to the attention kernel where positions show one sequence a row and a mask that nothing
is padding (``find_packed_sequence_indices`` and ``_ignore_causal_mask_sdpa`` of its masking_utils.py). On tensors
without data it takes itself for traced, writes masks out and repeats keys and values for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

_MASKS = "transformers.masking_utils"


def _one_sequence(original: Callable[..., Any], notes: dict[str, None]) -> Callable[..., Any]:
    def run(position_ids: Any) -> Any:
        packed = original(position_ids)
        if not isinstance(packed, FakeTensor):
            return packed
        (packed[:, -1] == 0).all()
        return None

    return run


def _no_padding(original: Callable[..., Any], notes: dict[str, None]) -> Callable[..., Any]:
    everywhere = original.__globals__.get("fast_all", torch.all) if "causal" in original.__name__ else torch.all

    def run(padding_mask: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(padding_mask, FakeTensor):
            notes["attention masks are taken to hide no padding, as for sequences of one length"] = None
            everywhere(padding_mask)
            padding_mask = None
        return original(padding_mask, *args, **kwargs)

    return run


_EAGER = {
    "find_packed_sequence_indices": _one_sequence,
    "_ignore_causal_mask_sdpa": _no_padding,
    "_ignore_bidirectional_mask_sdpa": _no_padding,
}


@contextmanager
def as_run(notes: dict[str, None]) -> Iterator[None]:
    """Let libraries that are loaded decide as in an eager run; what that takes for granted goes to the notes."""
    masks = sys.modules.get(_MASKS)
    with ExitStack() as stack:
        for name, wrapped in _EAGER.items():
            if hasattr(masks, name):
                stack.enter_context(mock.patch.object(masks, name, wrapped(getattr(masks, name), notes)))
        yield
