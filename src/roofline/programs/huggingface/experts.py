"""Experts in the spellings of Mixtral, Qwen, DeepSeek and others, and which layers have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from roofline.programs.huggingface.keys import MAX_LAYERS, Keys


def routed(
    c: Keys, experts: str, top_k: str, feeds: Sequence[str] = ("moe",), inner: int | None = None,
    shared: int | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the options of routed experts, none where no layer has them.

    Args:
        c: The config.
        experts: The key of their number.
        top_k: The key of the experts per token.
        feeds: What follows the mixer in each layer, in turn.
        inner: Inner size of an expert.
        shared: Inner size of the shared experts together.
        more: Options that only a model with experts has.
    """
    number, chosen = c.size(experts, least=0), c.size(top_k, least=0)
    if not number or "moe" not in feeds:
        return {}
    if not chosen:
        c.fail(top_k, "missing")
    mixed = {} if set(feeds) == {"moe"} else {"feeds": list(feeds)}
    return {"experts": number, "top_k": chosen, **mixed, "expert_intermediate": inner, "shared_intermediate": shared,
            **more}  # fmt: skip


def sparse(c: Keys, has_experts: Callable[[int], bool]) -> list[str]:
    """Return what follows the mixer in each layer."""
    return ["moe" if has_experts(layer) else "dense" for layer in c.layers]


def mixtral(c: Keys) -> dict[str, Any]:
    """Experts in every layer, each as wide as ``intermediate_size``."""
    c.needed("num_local_experts"), c.needed("num_experts_per_tok")
    return routed(c, "num_local_experts", "num_experts_per_tok")


def olmoe(c: Keys) -> dict[str, Any]:
    """The same under another name."""
    return routed(c, "num_experts", "num_experts_per_tok")


def qwen(c: Keys) -> dict[str, Any]:
    """Experts in layer ``i`` when ``i + 1`` is a multiple of the step and ``i`` is not named as dense."""
    step, dense = c.size("decoder_sparse_step") or 1, c.sizes("mlp_only_layers") or ()
    feeds = sparse(c, lambda layer: (layer + 1) % step == 0 and layer not in dense)
    c.needed("num_experts"), c.needed("num_experts_per_tok")
    shared = c.size("shared_expert_intermediate_size", least=0) or 0
    return routed(c, "num_experts", "num_experts_per_tok", feeds, c.needed("moe_intermediate_size"), shared,
                  shared_gate=bool(shared))  # fmt: skip


def deepseek(c: Keys) -> dict[str, Any]:
    """Experts from layer ``first_k_dense_replace`` on, in every ``moe_layer_freq``-th; shared ones beside them."""
    first, step = c.size("first_k_dense_replace", least=0) or 0, c.size("moe_layer_freq") or 1
    listed = c.per_layer("mlp_layer_types", c.words("mlp_layer_types"), ("dense", "sparse"))
    feeds = sparse(c, lambda i: listed[i] == "sparse" if listed else i >= first and i % step == 0)
    c.ignore("topk_method", "scoring_func", "routed_scaling_factor")
    inner = c.size("moe_intermediate_size")
    shared = (c.size("n_shared_experts", least=0) or 0) * (inner or 0)
    return routed(c, "n_routed_experts", "num_experts_per_tok", feeds, inner, shared)


def mellum(c: Keys) -> dict[str, Any]:
    """Experts in the layers that are listed as sparse, all where none are."""
    return deepseek(c.having(n_routed_experts=c.size("num_experts", least=0)))


def after_dense(c: Keys) -> dict[str, Any]:
    """Experts after the first ``num_dense_layers``."""
    first, inner = c.size("num_dense_layers", least=0) or 0, c.needed("moe_intermediate_size")
    feeds = sparse(c, lambda layer: layer >= first)
    return routed(c, "num_experts", "num_experts_per_tok", feeds, inner, router="sigmoid")


def afmoe(c: Keys) -> dict[str, Any]:
    """The same, chosen with a learned bias, with shared ones beside them."""
    shared = (c.size("num_shared_experts", least=0) or 0) * c.needed("moe_intermediate_size")
    experts = after_dense(c)
    return {**experts, "score_bias": True, "shared_intermediate": shared} if experts else {}


def ernie(c: Keys) -> dict[str, Any]:
    """Experts in every ``moe_layer_interval``-th layer from a start to an end, with shared ones beside them."""
    last = c.get("moe_layer_end_index")
    last = len(c.layers) - 1 if last in (-1, None) else c.size("moe_layer_end_index", least=0)
    first, step = c.size("moe_layer_start_index", least=0) or 0, c.size("moe_layer_interval") or 1
    feeds = sparse(c, lambda i: (i + 1) % step == 0 and first <= i <= (last or 0))
    inner = c.needed("moe_intermediate_size")
    shared = (c.size("moe_num_shared_experts", least=0) or 0) * inner
    return routed(c, "moe_num_experts", "moe_k", feeds, inner, shared, score_bias=True)


def granite(c: Keys) -> dict[str, Any]:
    """Experts beside a shared block of its own size; without experts the shared block is the dense one."""
    shared = c.size("shared_intermediate_size", least=0) or 0
    if not (c.size("num_local_experts", least=0) or 0):
        c.ignore("num_experts_per_tok", "intermediate_size")
        return {"intermediate": shared}
    return {**routed(c, "num_local_experts", "num_experts_per_tok"), "shared_intermediate": shared}


def jamba(c: Keys) -> dict[str, Any]:
    """Experts in one layer of every ``expert_layer_period``; one expert alone is a dense block."""
    step, at = c.needed("expert_layer_period"), c.size("expert_layer_offset", least=0) or 0
    if (c.size("num_experts", least=0) or 0) <= 1:
        c.ignore("num_experts_per_tok")
        return {}
    return routed(c, "num_experts", "num_experts_per_tok", sparse(c, lambda layer: layer % step == at))


def hunyuan(c: Keys) -> dict[str, Any]:
    """Experts in every layer and one shared block as wide as one of them."""
    if c.get("num_shared_expert") not in (None, 1):
        c.fail("num_shared_expert", "other than one shared block is not understood; allowed: 1")
    return routed(c, "num_experts", "moe_topk", shared=c.needed("intermediate_size"))


def aria(c: Keys) -> dict[str, Any]:
    """Experts in every layer, each as wide as ``intermediate_size``, and so are the shared ones."""
    shared = (c.size("moe_num_shared_experts", least=0) or 0) * c.needed("intermediate_size")
    return routed(c, "moe_num_experts", "moe_topk", shared=shared)


def llama4(c: Keys) -> dict[str, Any]:
    """Experts in every ``interleave_moe_layer_step``-th layer or in those listed, with one shared expert."""
    step, listed = c.needed("interleave_moe_layer_step"), c.sizes("moe_layers")
    feeds = sparse(c, lambda i: (i + 1) % step == 0 if listed is None else i in listed)
    inner = c.needed("intermediate_size")
    experts = routed(c, "num_local_experts", "num_experts_per_tok", feeds, inner)
    return {"intermediate": c.needed("intermediate_size_mlp"), **experts, "shared_intermediate": inner}


def listed(c: Keys) -> list[str] | None:
    """Return which layers are ``dense`` and which ``sparse``, in the later spelling or the earlier one."""
    words = ("dense", "sparse")
    kinds = c.words("mlp_layer_types") or flags(c, "moe_layer_freq", c.get("moe_layer_freq"), words)
    return c.per_layer("mlp_layer_types", kinds, words)


def flags(c: Keys, key: str, value: Any, words: tuple[str, str]) -> list[str] | None:
    """Return a list of zeros and ones as the words that they stand for."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) > MAX_LAYERS or not set(map(str, value)) <= {"0", "1"}:
        c.fail(key, f"expected a list of zeros and ones, given {str(value)[:60]!r}")
    return [words[int(flag)] for flag in value]
