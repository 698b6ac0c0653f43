"""Experts in the spellings of Mixtral, Qwen, DeepSeek and others, and which layers have them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from roofline.programs.huggingface.groups import ACTIVATIONS
from roofline.programs.huggingface.keys import MAX_LAYERS, Keys

#: What DBRX's tables mean where they say nothing.
DBRX = {"kv_n_heads": 1, "ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1}


def _feeds(c: Keys, routed: Iterable[int]) -> list[str]:
    chosen = set(routed)
    return ["moe" if layer in chosen else "dense" for layer in range(c.needed("num_hidden_layers", MAX_LAYERS))]


def _layers(c: Keys) -> range:
    return range(c.needed("num_hidden_layers", MAX_LAYERS))


def _moe(c: Keys, experts: str, top_k: str, feeds: list[str], **more: Any) -> dict[str, Any]:
    """Options of routed experts, none where no layer has them."""
    number, chosen = c.size(experts, least=0), c.size(top_k, least=0)
    if not number or "moe" not in feeds:
        return {}
    if not chosen:
        c.fail(top_k, "missing")
    return {"experts": number, "top_k": chosen, **({} if set(feeds) == {"moe"} else {"feeds": feeds}), **more}


def mixtral(c: Keys) -> dict[str, Any]:
    """Experts in every layer, each as wide as ``intermediate_size``."""
    c.needed("num_local_experts"), c.needed("num_experts_per_tok")
    return _moe(c, "num_local_experts", "num_experts_per_tok", ["moe"])


def olmoe(c: Keys) -> dict[str, Any]:
    """The same under another name."""
    return _moe(c, "num_experts", "num_experts_per_tok", ["moe"])


def qwen(c: Keys) -> dict[str, Any]:
    """Experts in layer ``i`` when ``i + 1`` is a multiple of the step and ``i`` is not named as dense."""
    step = c.size("decoder_sparse_step") or 1
    dense = set(c.sizes("mlp_only_layers") or [])
    feeds = _feeds(c, (layer for layer in _layers(c) if (layer + 1) % step == 0 and layer not in dense))
    c.needed("num_experts"), c.needed("num_experts_per_tok")
    shared = c.size("shared_expert_intermediate_size", least=0) or 0
    found = _moe(c, "num_experts", "num_experts_per_tok", feeds, expert_intermediate=c.needed("moe_intermediate_size"))
    return {**found, "shared_intermediate": shared, "shared_gate": bool(shared)} if found else {}


def deepseek(c: Keys) -> dict[str, Any]:
    """Experts from layer ``first_k_dense_replace`` on, in every ``moe_layer_freq``-th; shared ones beside them."""
    first, step = c.size("first_k_dense_replace", least=0) or 0, c.size("moe_layer_freq") or 1
    listed = c.words("mlp_layer_types")
    if listed is not None and (len(listed) != len(_layers(c)) or set(listed) - {"dense", "sparse"}):
        c.fail("mlp_layer_types", f"wanted dense or sparse for each of {len(_layers(c))} layers, given {listed[:4]}")
    chosen = (i for i in _layers(c) if (listed[i] == "sparse" if listed else i >= first and i % step == 0))
    feeds = _feeds(c, chosen)
    c.get("topk_method"), c.get("scoring_func"), c.get("routed_scaling_factor")
    wide = c.size("moe_intermediate_size")
    shared = (c.size("n_shared_experts", least=0) or 0) * (wide or 0)
    found = _moe(c, "n_routed_experts", "num_experts_per_tok", feeds, expert_intermediate=wide)
    return {**found, "shared_intermediate": shared} if found else {}


def latent(c: Keys) -> dict[str, Any]:
    """Multi-head latent attention; a query rank that is null is one full projection."""
    c.get("head_dim"), c.get("num_key_value_heads"), c.get("qk_head_dim")
    return {
        "heads": c.needed("num_attention_heads"),
        "mla": True,
        "q_lora": c.size("q_lora_rank", least=0) or 0,
        "kv_lora": c.needed("kv_lora_rank"),
        "nope_dim": c.needed("qk_nope_head_dim"),
        "rope_dim": c.needed("qk_rope_head_dim"),
        "value_dim": c.needed("v_head_dim"),
        "qkv_bias": c.switch("attention_bias"),
        "out_bias": c.switch("attention_bias"),
    }


def index(c: Keys) -> dict[str, Any]:
    """A small attention that picks the positions to attend to."""
    c.used |= {"layer_types"}
    chosen = c.needed("index_topk")
    c.notes.append(f"index_topk = {chosen}: the scores that pick positions are counted, and attention to all of them")
    return {"index_heads": c.needed("index_n_heads"), "index_dim": c.needed("index_head_dim")}


def index_shared(c: Keys) -> dict[str, Any]:
    """The same in the layers that do not take the choice of one before: listed, in letters, or every so-manieth."""
    words = {"full": True, "shared": False, "F": True, "S": False}
    letters = c.get("index_topk_pattern")
    listed = c.words("indexer_types") or (list(letters) if isinstance(letters, str) else c.words("index_topk_pattern"))
    step, offset = c.size("index_topk_freq", least=0) or 1, c.get("index_skip_topk_offset")
    offset = 2 if offset is None else c.size("index_skip_topk_offset", least=0) or 0
    if listed is not None and (len(listed) != len(_layers(c)) or set(listed) - set(words)):
        c.fail("indexer_types", f"wanted full or shared for each of {len(_layers(c))} layers, given {listed[:4]}")
    every = [max(layer - offset + 1, 0) % step == 0 for layer in _layers(c)]
    return {**index(c), "index_pattern": [words[word] for word in listed] if listed else every}


def _flags(c: Keys, key: str, value: Any, words: tuple[str, str]) -> list[str] | None:
    """A list of zeros and ones as the words that they stand for."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) > MAX_LAYERS or not set(map(str, value)) <= {"0", "1"}:
        c.fail(key, f"wanted a list of zeros and ones, given {str(value)[:60]!r}")
    return [words[int(flag)] for flag in value]


#: MiniMax-M3's keys, and what they are called in the table of the published checkpoint.
_M3_TABLE = {"index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
             "index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks"}  # fmt: skip


def minimax_m3(c: Keys) -> dict[str, Any]:
    """Experts as wide as ``intermediate_size``, dense layers and shared ones of their own size, a choice of blocks."""
    table, layers = c.mapping("sparse_attention_config"), len(_layers(c))
    c = replace(c, table={**c.table, **{key: table[own] for key, own in _M3_TABLE.items() if own in table}})
    kinds = c.words("mlp_layer_types") or _flags(c, "moe_layer_freq", c.get("moe_layer_freq"), ("dense", "sparse"))
    frequent = table.get("sparse_attention_freq")
    mixers = c.words("layer_types") or _flags(c, "sparse_attention_config", frequent,
                                              ("full_attention", "minimax_m3_sparse"))  # fmt: skip
    for key, words, allowed in (("mlp_layer_types", kinds, {"sparse", "dense"}),
                                ("layer_types", mixers, {"full_attention", "minimax_m3_sparse"})):  # fmt: skip
        if words is not None and (len(words) != layers or set(words) - allowed):
            c.fail(key, f"wanted one of {', '.join(sorted(allowed))} for each of {layers} layers, given {words[:4]}")
    feeds = _feeds(c, (i for i in _layers(c) if kinds is None or kinds[i] == "sparse"))
    picks = [word == "minimax_m3_sparse" for word in mixers or ()]
    c.used |= {"swiglu_alpha", "swiglu_limit", "hidden_act", "index_local_blocks"}
    block, chosen = c.needed("index_block_size"), c.needed("index_topk_blocks")
    picked = {"index_heads": c.needed("index_n_heads"), "index_dim": c.needed("index_head_dim"), "index_kind": "heads",
              "index_pattern": picks}  # fmt: skip
    if any(picks):
        said = f"index_topk_blocks = {chosen} of {block} positions"
        c.notes.append(f"{said}: the scores that pick blocks are counted, and attention to all of them")
    found = _moe(c, "num_local_experts", "num_experts_per_tok", feeds,
                 expert_intermediate=c.needed("intermediate_size"))  # fmt: skip
    return {"intermediate": c.needed("dense_intermediate_size"), **(picked if any(picks) else {}), **found,
            "shared_intermediate": c.size("shared_intermediate_size", least=0) or 0}  # fmt: skip


def laguna(c: Keys) -> dict[str, Any]:
    """Experts where ``mlp_layer_types`` says, and a shared block of its own size."""
    found = deepseek(c)
    return {**found, "shared_intermediate": c.size("shared_expert_intermediate_size", least=0) or 0} if found else {}


def mimo(c: Keys) -> dict[str, Any]:
    """The same without a shared block, in a later spelling or an earlier one."""
    c.used |= {"topk_method", "scoring_func", "routed_scaling_factor", "n_shared_experts"}
    kinds = c.words("mlp_layer_types") or _flags(c, "moe_layer_freq", c.get("moe_layer_freq"), ("dense", "sparse"))
    if kinds is not None and (len(kinds) != len(_layers(c)) or set(kinds) - {"dense", "sparse"}):
        c.fail("mlp_layer_types", f"wanted dense or sparse for each of {len(_layers(c))} layers, given {kinds[:4]}")
    feeds = _feeds(c, (layer for layer in _layers(c) if (kinds[layer] == "sparse" if kinds else layer)))
    return _moe(c, "n_routed_experts", "num_experts_per_tok", feeds,
                expert_intermediate=c.needed("moe_intermediate_size"))  # fmt: skip


def longcat(c: Keys) -> dict[str, Any]:
    """Each of its layers is two: one with a dense block beside the experts, on the same input, and one without experts.

    The experts' output joins the residual after the second, which costs as much.
    """
    if c.name("num_hidden_layers") == "num_hidden_layers":
        c.fail("num_hidden_layers", "twice num_layers; wanted num_layers itself")
    zero = c.size("zero_expert_num", least=0) or 0
    if zero:
        c.notes.append(f"zero_expert_num = {zero}: tokens are counted as sent to none of the experts that do nothing")
    found = _moe(c, "n_routed_experts", "num_experts_per_tok", ["moe", "dense"],
                 expert_intermediate=c.needed("moe_intermediate_size"))  # fmt: skip
    return {**found, "feeds": ["moe", "dense"], "layers": 2 * c.needed("num_hidden_layers"), "zero_experts": zero,
            "shared_intermediate": c.needed("intermediate_size"), "router_bias": c.switch("router_bias")}  # fmt: skip


def ernie(c: Keys) -> dict[str, Any]:
    """Experts in every ``moe_layer_interval``-th layer from a start to an end, with shared ones beside them."""
    last = c.get("moe_layer_end_index")
    last = len(_layers(c)) - 1 if last in (-1, None) else c.size("moe_layer_end_index", least=0)
    first, step = c.size("moe_layer_start_index", least=0) or 0, c.size("moe_layer_interval") or 1
    feeds = _feeds(c, (i for i in _layers(c) if (i + 1) % step == 0 and first <= i <= (last or 0)))
    wide = c.needed("moe_intermediate_size")
    shared = (c.size("moe_num_shared_experts", least=0) or 0) * wide
    found = _moe(c, "moe_num_experts", "moe_k", feeds, expert_intermediate=wide, score_bias=True)
    return {**found, "shared_intermediate": shared} if found else {}


def granite_shared(c: Keys) -> dict[str, Any]:
    """Experts beside a shared block of its own size; without experts the shared block is the dense one."""
    shared = c.size("shared_intermediate_size", least=0) or 0
    if not (c.size("num_local_experts", least=0) or 0):
        c.get("num_experts_per_tok"), c.get("intermediate_size")
        return {"intermediate": shared}
    return {**_moe(c, "num_local_experts", "num_experts_per_tok", ["moe"]), "shared_intermediate": shared}


def jamba(c: Keys) -> dict[str, Any]:
    """Experts in one layer of every ``expert_layer_period``; one expert alone is a dense block."""
    step, at = c.needed("expert_layer_period"), c.size("expert_layer_offset", least=0) or 0
    if (c.size("num_experts", least=0) or 0) <= 1:
        c.get("num_experts_per_tok")
        return {}
    feeds = _feeds(c, (layer for layer in _layers(c) if layer % step == at))
    return _moe(c, "num_experts", "num_experts_per_tok", feeds)


def shared_whole(c: Keys) -> dict[str, Any]:
    """As Qwen's, with a shared block that no gate scales."""
    found = qwen(c)
    return {**found, "shared_gate": False} if found else {}


def mellum(c: Keys) -> dict[str, Any]:
    """Experts in the layers that are listed as sparse, all where none are."""
    return deepseek(replace(c, table={**c.table, "n_routed_experts": c.size("num_experts", least=0)}))


def afmoe(c: Keys) -> dict[str, Any]:
    """Experts after the first ``num_dense_layers``, chosen with a learned bias, shared ones beside them."""
    first, wide = c.size("num_dense_layers", least=0) or 0, c.needed("moe_intermediate_size")
    shared = (c.size("num_shared_experts", least=0) or 0) * wide
    feeds = _feeds(c, (layer for layer in _layers(c) if layer >= first))
    found = _moe(c, "num_experts", "num_experts_per_tok", feeds, expert_intermediate=wide, score_bias=True,
                 router="sigmoid")  # fmt: skip
    return {**found, "shared_intermediate": shared} if found else {}


def cohere(c: Keys) -> dict[str, Any]:
    """Experts as wide as ``intermediate_size`` after first dense layers of a size of their own."""
    wide = c.needed("intermediate_size")
    c.get("shared_expert_combination_strategy")
    found = deepseek(replace(c, table={**c.table, "moe_intermediate_size": wide}))
    router = c.one_of("expert_selection_fn", {"softmax": "softmax", "sigmoid": "sigmoid"})
    return {**found, "router": router, "intermediate": c.size("prefix_dense_intermediate_size") or wide}


def dbrx(c: Keys) -> dict[str, Any]:
    """Sizes in tables of their own for attention and for experts, in every layer."""
    attention, feed = c.mapping("attn_config"), c.mapping("ffn_config")
    inside = replace(c, table={**feed, **attention}, defaults=DBRX)
    act = inside.mapping("ffn_act_fn").get("name", "silu")
    return {
        "kv_heads": inside.needed("kv_n_heads"),
        "activation": replace(c, table={"ffn_act_fn": act}).one_of("ffn_act_fn", ACTIVATIONS),
        **_moe(inside, "moe_num_experts", "moe_top_k", ["moe"], expert_intermediate=inside.needed("ffn_hidden_size")),
    }


def lfm2(c: Keys) -> dict[str, Any]:
    """Experts after the first ``num_dense_layers``."""
    first = c.size("num_dense_layers", least=0) or 0
    c.get("use_expert_bias")
    feeds = _feeds(c, (layer for layer in _layers(c) if layer >= first))
    return _moe(c, "num_experts", "num_experts_per_tok", feeds,
                expert_intermediate=c.needed("moe_intermediate_size"), router="sigmoid")  # fmt: skip


def hunyuan(c: Keys) -> dict[str, Any]:
    """Experts in every layer and one shared block as wide as one of them."""
    found = _moe(c, "num_experts", "moe_topk", ["moe"])
    return {**found, "shared_intermediate": c.needed("intermediate_size")} if found else {}


def aria(c: Keys) -> dict[str, Any]:
    """Experts in every layer, each as wide as ``intermediate_size``, and so are the shared ones."""
    found = _moe(c, "moe_num_experts", "moe_topk", ["moe"])
    shared = c.size("moe_num_shared_experts", least=0) or 0
    return {**found, "shared_intermediate": shared * c.needed("intermediate_size")} if found else {}


def llama4(c: Keys) -> dict[str, Any]:
    """Experts in every ``interleave_moe_layer_step``-th layer or in those listed, with one shared expert."""
    step = c.needed("interleave_moe_layer_step")
    listed = c.sizes("moe_layers")
    feeds = _feeds(c, listed if listed is not None else (i for i in _layers(c) if (i + 1) % step == 0))
    wide = c.needed("intermediate_size")
    found = _moe(c, "num_local_experts", "num_experts_per_tok", feeds, expert_intermediate=wide)
    return {"intermediate": c.needed("intermediate_size_mlp"), **found, "shared_intermediate": wide}


def nemotron_h(c: Keys) -> dict[str, Any]:
    """Experts without gates, of their own size, and one shared block."""
    if "moe" not in nemotron_kinds(c):
        for key in ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
                    "moe_shared_expert_intermediate_size", "moe_latent_size"):  # fmt: skip
            c.get(key)
        return {}
    if c.size("moe_latent_size"):
        c.fail("moe_latent_size", "experts in a latent space are not understood yet; allowed: null")
    c.get("n_shared_experts")
    found = _moe(c, "n_routed_experts", "num_experts_per_tok", ["moe"], router="sigmoid",
                 expert_intermediate=c.needed("moe_intermediate_size"))  # fmt: skip
    return {**found, "shared_intermediate": c.size("moe_shared_expert_intermediate_size", least=0) or 0}


#: Letters of Nemotron-H's pattern, and words of its later list.
NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NEMOTRON_WORDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention",
                  "full_attention": "attention", "mlp": "mlp", "moe": "moe"}  # fmt: skip


def nemotron_kinds(c: Keys) -> list[str]:
    """What each layer of Nemotron-H is: a mixer or a feed-forward block, never both."""
    letters = c.get("hybrid_override_pattern")
    words = c.words("layers_block_type") or c.words("layer_types")
    c.used |= {"layer_types", "layers_block_type"}
    if words is None and letters is None:
        words = ["linear_attention", "moe", "full_attention", "mlp"]
    if words is None:
        if not isinstance(letters, str) or not 0 < len(letters) <= MAX_LAYERS or set(letters) - set(NEMOTRON_LETTERS):
            allowed = " ".join(NEMOTRON_LETTERS)
            c.fail("hybrid_override_pattern", f"{str(letters)[:60]!r} is not understood; allowed letters: {allowed}")
        words = [NEMOTRON_LETTERS[letter] for letter in letters]
    for word in words:
        if word not in NEMOTRON_WORDS:
            c.fail("layers_block_type", f"{word!r} is not understood; allowed: {', '.join(NEMOTRON_WORDS)}")
    layers = c.size("num_hidden_layers", most=MAX_LAYERS)
    if layers is not None and layers != len(words):
        c.fail("num_hidden_layers", f"{layers}, and the pattern has {len(words)} layers")
    return [NEMOTRON_WORDS[word] for word in words]
