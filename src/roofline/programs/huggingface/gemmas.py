"""Gemma 4: layers whose heads, key-value heads and inner sizes differ, shared caches, embeddings a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.programs.huggingface import groups
from roofline.programs.huggingface.keys import MAX_LAYERS, Keys


def gemma4(c: Keys) -> dict[str, Any]:
    """Which layers attend to what, with heads of which width, and whose keys and values."""
    layers = range(c.needed("num_hidden_layers", MAX_LAYERS))
    if c.switch("enable_moe_block"):
        c.fail("enable_moe_block", "experts beside a dense block are not understood yet; allowed: false")
    for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        c.get(key)
    pattern = _pattern(c)
    width, kv = c.needed("head_dim"), c.needed("num_key_value_heads")
    same = c.switch("attention_k_eq_v")
    wide = c.size("global_head_dim") or 512
    few = (c.size("num_global_key_value_heads") if same else None) or kv
    shapes = [(wide, few) if mixer == "full" else (width, kv) for mixer in pattern]
    shared = c.size("num_kv_shared_layers", least=0) or 0
    inner = c.needed("intermediate_size")
    double = c.switch("use_double_wide_mlp")
    shapes = _listed(c, shapes, (width, kv))
    if c.get("use_bidirectional_attention"):
        c.notes.append("use_bidirectional_attention: prefill is counted with causal attention")
    return {
        "head_dim": shapes[0][0],
        "width_pattern": [shape[0] for shape in shapes],
        "kv_pattern": [shape[1] for shape in shapes],
        "inner_pattern": [inner * (1 + (double and layer >= len(layers) - shared)) for layer in layers],
        "pattern": pattern,
        "window": c.size("sliding_window") or None,
        "keys_as_values": same,
        "shared_layers": shared,
        "layer_embed": c.size("hidden_size_per_layer_input", least=0) or 0,
        "layer_vocab": c.size("vocab_size_per_layer_input"),
    }


def _pattern(c: Keys) -> list[str]:
    """Five windows and full attention in turn, and always full attention at the end."""
    layers = c.needed("num_hidden_layers", MAX_LAYERS)
    listed = c.words("layer_types")
    if listed is None:
        usual = ["full" if (layer + 1) % 6 == 0 else "sliding" for layer in range(layers)]
    else:
        usual = groups.layer_types(c, listed, c.size("sliding_window")).get("pattern") or ["full"] * layers
    return [*usual[:-1], "full"]


def _listed(c: Keys, usual: list[tuple[int, int]], base: tuple[int, int]) -> list[tuple[int, int]]:
    """Head widths and key-value heads from a table of what differs in each layer, where there is one."""
    table = c.mapping("per_layer_config")
    if not table:
        return usual
    by_layer = {int(key): own for key, own in table.items() if str(key).isdecimal() and len(str(key)) < 6}
    found = []
    for layer in range(len(usual)):
        own = by_layer.get(layer) or {}
        if not isinstance(own, Mapping) or set(own) - {"head_dim", "num_key_value_heads"}:
            c.fail("per_layer_config", f"{str(own)[:60]!r} is not understood; allowed: head_dim, num_key_value_heads")
        inside = Keys(c.where, own, {"head_dim": base[0], "num_key_value_heads": base[1]}, c.kind)
        found.append((inside.needed("head_dim"), inside.needed("num_key_value_heads")))
    return found
