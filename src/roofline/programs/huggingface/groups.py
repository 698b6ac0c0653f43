"""Groups of keys that many decoders share: transformers' words in, options of the decoder out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import UnknownDType
from roofline.programs.huggingface.keys import MAX_LAYERS, MAX_SIZE, Keys, Reader

#: Activations by their names in transformers.
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu", "gelu_python": "gelu", "relu2": "relu2",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "quick_gelu": "quick_gelu",
    "xielu": "xielu",
}  # fmt: skip


def body(c: Keys) -> dict[str, Any]:
    """Width, depth, vocabulary, and whether the head is the token table."""
    return {"layers": len(c.layers), **c.needs(hidden="hidden_size", vocab="vocab_size"),
            "tied": c.switch("tie_word_embeddings")}  # fmt: skip


def heads(c: Keys) -> dict[str, Any]:
    """Query heads, key-value heads (one number, or one a layer) and the width of a head."""
    sizes: dict[str, Any] = {"heads": c.needed("num_attention_heads"), "head_dim": c.size("head_dim")}
    if not isinstance(c.get("num_key_value_heads"), list | tuple):
        return {**sizes, "kv_heads": c.size("num_key_value_heads")}
    each, layers = c.sizes("num_key_value_heads") or [], c.needed("num_hidden_layers")
    if len(each) != layers or not all(each):
        c.fail("num_key_value_heads", f"expected {layers} numbers from 1, one per layer, given {str(each)[:60]}")
    return {**sizes, "kv_pattern": each}


def needs(**names: str) -> Reader:
    """Return a reader of sizes that must be there: options by the keys that hold them."""
    return lambda c: c.needs(**names)


def ignored(*names: str) -> Reader:
    """Return a reader of keys that nothing depends on, or only what is read in another way."""

    def read(c: Keys) -> dict[str, Any]:
        c.ignore(*names)
        return {}

    return read


#: Inner size of the feed-forward block.
inner = needs(intermediate="intermediate_size")
#: Rows of a learned table of positions.
positions = needs(positions="max_position_embeddings")


def inner_or_four(c: Keys) -> dict[str, Any]:
    """Inner size of the feed-forward block, four times the width where it is null."""
    return {"intermediate": c.size("intermediate_size")}


def activation(c: Keys) -> dict[str, Any]:
    """The activation of the feed-forward block, under either name."""
    c.get("hidden_act")
    key = "hidden_activation" if c.has("hidden_activation") else "hidden_act"
    if c.get(key) is None and c.defaults.get(c.name(key)):
        return {"activation": ACTIVATIONS[c.defaults[c.name(key)]]}
    return {"activation": c.one_of(key, ACTIVATIONS)}


def offset_positions(c: Keys) -> dict[str, Any]:
    """Rows of a learned table whose first two are kept for padding, as in fairseq."""
    return {"positions": c.needed("max_position_embeddings") + 2}


def rotary(c: Keys) -> dict[str, Any]:
    """The part of a head that is rotated: at the top, or in a rope dictionary, old or new."""
    tables = [c.mapping(key) for key in ("rope_parameters", "rope_scaling")]
    c.ignore("rope_theta", "rope_local_base_freq", "rotary_emb_base", "partial_rotary_factor", "rotary_pct")
    named = (c.table.get(key) for key in ("partial_rotary_factor", "rotary_pct"))
    inside = (table.get("partial_rotary_factor") for table in tables)
    usual = c.defaults.get("partial_rotary_factor", 1)
    share = next((value for value in (*named, *inside) if value is not None), usual)
    share = c.real("partial_rotary_factor", share)
    if share in (0, 1):
        return {}
    if share > 1:
        c.fail("partial_rotary_factor", f"expected a share up to 1, given {share}")
    width = c.size("head_dim") or c.needed("hidden_size") // c.needed("num_attention_heads")
    return {"rotary_dim": int(width * share)}


def rotary_dim(c: Keys) -> dict[str, Any]:
    """Columns of a head that are rotated, all where the key is null."""
    return {**rotary(c), "rotary_dim": c.size("rotary_dim") or 0}


def biases(c: Keys) -> dict[str, Any]:
    """One switch for all four projections of attention."""
    return c.switches(qkv_bias="attention_bias", out_bias="attention_bias")


def options(**names: str) -> Reader:
    """Return a reader of switches: options by the keys that hold them."""
    return lambda c: c.switches(**names)


#: A switch for the projections to queries, keys and values; the output has none.
input_biases = options(qkv_bias="attention_bias")
#: A switch for the feed-forward block.
mlp_bias = options(mlp_bias="mlp_bias")


def clip(c: Keys) -> dict[str, Any]:
    """A bound of queries, keys and values."""
    return {"qkv_clip": c.number("clip_qkv") > 0}


def state_format(c: Keys) -> dict[str, Any]:
    """The number format of the kept state of a scan, which need not be that of the cache."""
    keys = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype", "inference_state_dtype")
    named = [str(value)[:60] for key in keys if (value := c.get(key)) not in (None, "auto")]
    for name in named:
        try:
            number_format(name)
        except UnknownDType as error:
            c.fail(next(key for key in keys if c.get(key) is not None), str(error))
    return {"ssm_dtype": number_format(named[0]).name} if named else {}


def all_biases(key: str) -> Reader:
    """Return a reader of one switch for attention and feed-forward."""
    return options(qkv_bias=key, out_bias=key, mlp_bias=key)


def softcaps(c: Keys) -> dict[str, Any]:
    """Soft bounds of scores and logits."""
    return {
        "attention_softcap": c.number("attn_logit_softcapping"),
        "logit_softcap": c.number("final_logit_softcapping"),
    }


def multipliers(c: Keys) -> dict[str, Any]:
    """Granite's constants; one that is 1 costs nothing."""
    keys = {"embedding_multiplier": "embedding_scale", "logits_scaling": "logit_scale",
            "residual_multiplier": "residual_scale"}  # fmt: skip
    c.get("attention_multiplier")
    return {option: c.number(key) not in (0, 1) for key, option in keys.items()}


def latent(c: Keys) -> dict[str, Any]:
    """Multi-head latent attention; a query rank that is null is one full projection."""
    c.ignore("head_dim", "num_key_value_heads", "qk_head_dim")
    return {
        "mla": True,
        "q_lora": c.size("q_lora_rank", least=0) or 0,
        **c.needs(heads="num_attention_heads", kv_lora="kv_lora_rank", nope_dim="qk_nope_head_dim",
                  rope_dim="qk_rope_head_dim", value_dim="v_head_dim"),
        **c.switches(qkv_bias="attention_bias", out_bias="attention_bias"),
    }  # fmt: skip


# --- which layers attend to what -------------------------------------------------------------------------------------


def window(c: Keys) -> dict[str, Any]:
    """A window that is null, absent or switched off means full attention in all layers."""
    size, listed = c.size("sliding_window", least=0), c.words("layer_types")
    on = c.switch("use_sliding_window") if c.has("use_sliding_window") else True
    c.size("max_window_layers", least=0)
    if listed is not None:
        c.ignore("sliding_window_pattern", "_sliding_window_pattern")
        return layer_types(c, listed, size)
    pattern = c.kind.mixers(c) if c.kind.mixers else ["sliding"]
    if not size or not on:
        size, pattern = None, ["full" if kind == "sliding" else kind for kind in pattern]
    if set(pattern) == {"full"}:
        return {}
    return {"window": size, "pattern": pattern}


def layer_types(c: Keys, listed: list[str], size: int | None) -> dict[str, Any]:
    """The mixer of each layer from the list of their kinds."""
    kinds = {"sliding_attention": "sliding", "full_attention": "full", **c.kind.types}
    layers = len(c.layers)
    if len(listed) != layers:
        c.fail("layer_types", f"expected {layers} entries, one per layer (num_hidden_layers), given {len(listed)}")
    for kind in listed:
        if kind not in kinds:
            c.fail("layer_types", f"{kind!r} is not understood; allowed: {', '.join(kinds)}")
    mixers = [kinds[kind] for kind in listed]
    if "sliding" in mixers and not size:
        c.fail("sliding_window", "missing, and layer_types has sliding_attention")
    if set(mixers) == {"full"}:
        return {}
    return {"window": size or None, "pattern": mixers}


def turns(*mixers: str) -> Callable[[Keys], list[str]]:
    """Return mixers in turn over the depth."""
    return lambda c: list(mixers)


def one_in(usual: int, key: str, other: str = "sliding") -> Callable[[Keys], list[str]]:
    """Return a pattern of full attention in every n-th layer, as a key says, and another mixer in the rest."""

    def pattern(c: Keys) -> list[str]:
        return [other] * ((c.size(key, most=MAX_LAYERS) or usual) - 1) + ["full"]

    return pattern


def every(usual: int) -> Callable[[Keys], list[str]]:
    """Return a pattern of full attention in every n-th layer and windows in the others."""

    def pattern(c: Keys) -> list[str]:
        letters = c.get("sliding_window_pattern")
        if isinstance(letters, str) and letters and set(letters) <= {"L", "G"}:
            return ["sliding" if letter == "L" else "full" for letter in letters[:MAX_LAYERS]]
        return one_in(usual, "sliding_window_pattern")(c)

    return pattern


def after_the_first(c: Keys) -> list[str]:
    """Full attention in the first ``max_window_layers``, windows in the others."""
    full = c.size("max_window_layers", least=0) or 0
    return ["full" if layer < full else "sliding" for layer in c.layers]


def no_rope(c: Keys) -> dict[str, Any]:
    """Layers that do not rotate: a list of zeros and ones, or every n-th."""
    listed = c.sizes("no_rope_layers")
    step = c.size("no_rope_layer_interval", least=0, most=MAX_LAYERS) or 0
    if listed:
        return {"rope_pattern": [bool(turn) for turn in listed]}
    return {"rope_pattern": [True] * (step - 1) + [False]} if step else {}


def thetas(c: Keys) -> dict[str, Any]:
    """A base for each layer; a layer whose base is 0 does not rotate."""
    listed = c.items("layer_rope_theta", "numbers", lambda theta: True)
    if listed == []:
        c.fail("layer_rope_theta", "expected a list of numbers, given '[]'")
    return {} if listed is None else {"rope_pattern": [c.real("layer_rope_theta", theta) > 0 for theta in listed]}


def rope_in_windows(c: Keys) -> dict[str, Any]:
    """Layers that attend to a window rotate, the others do not."""
    pattern = window(c).get("pattern")
    return {"rope_pattern": [mixer == "sliding" for mixer in pattern]} if pattern else {}


def chunks(c: Keys) -> dict[str, Any]:
    """Llama 4: layers that rotate attend inside chunks, counted as a window as long."""
    size = c.size("attention_chunk_size")
    listed = c.words("layer_types")
    if listed is not None:
        mixers = layer_types(c, listed, size)
    else:
        rotates = no_rope(c).get("rope_pattern") or [True]
        mixers = {"window": size, "pattern": ["sliding" if rotated and size else "full" for rotated in rotates]}
    if size and "sliding" in mixers.get("pattern", ()):
        c.notes.append(f"attention_chunk_size = {size}: chunks are counted as a window of that many positions")
    return mixers


def full_at(c: Keys, every_nth: int, at: int, other: str) -> list[str]:
    """Return full attention in one layer of every ``every_nth``, at ``at``, and another mixer in the rest."""
    if not 0 <= at < every_nth <= MAX_SIZE:
        c.fail("attn_layer_offset", f"expected one below the period {every_nth}, given {at}")
    return ["full" if layer % every_nth == at else other for layer in c.layers]


#: What decoders have in common, and those that are like Llama or GPT-2.
BASE: tuple[Reader, ...] = (body, heads, activation)
LLAMA: tuple[Reader, ...] = (*BASE, inner, rotary)
GPT2: tuple[Reader, ...] = (*BASE, inner_or_four)
GPT_FIXED: dict[str, Any] = {"norm": "layernorm", "gated": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True,
                             "rope": False, "tied": True}  # fmt: skip
GPT_NAMES = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions", "intermediate_size": "n_inner", "hidden_act": "activation_function",
}  # fmt: skip
#: Those with latent attention.
LATENT: tuple[Reader, ...] = (body, activation, inner, rotary, latent)
#: DeepSeek's experts in plainer words.
PLAIN_EXPERTS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
