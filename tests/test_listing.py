"""The listing of a graph: sums that equal the count, folding, and its forms as text, DOT and HTML."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest

import roofline as rl
from roofline.cli.output import plain
from roofline.ir.sizes import evaluate
from roofline.view.listing import fold
from roofline.view.listing import wording as words
from roofline.view.listing.edges import edges
from roofline.view.listing.listing import Listing
from roofline.view.listing.rows import Block, Row
from roofline.view.listing.text import WIDE, lines, text

PROGRAMS = [
    ("llama-3-8b", "decode"),
    ("llama-3-8b", "prefill"),
    ("gemma-3-1b", "prefill"),
    ("mixtral-8x7b", "decode"),
    ("deepseek-v2-lite", "decode"),
    ("gpt-oss-20b", "prefill"),
    ("gpt2", "forward"),
    ("t5-small", "decode"),
    ("bert-base-uncased", None),
    ("vit-b-16", None),
    ("convnext-tiny", None),
    ("resnet50", None),
    ("mobilenet-v2", None),
    ("unet", None),
]
SIZES = {"B": 3, "S": 128, "C": 256}
#: Programs whose bytes depend on how many experts are touched, which is no whole number.
INEXACT = {"mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b"}


def program(name: str, phase: str | None) -> rl.Graph:
    return rl.model(name, phase=phase)


def sizes_of(graph: rl.Graph) -> dict[str, int]:
    return {name: value for name, value in SIZES.items() if name in graph.symbols}


def parts(listed: Listing) -> list[tuple[Any, Any, Any]]:
    """FLOPs, vector FLOPs and bytes, each summed over rows, over kernels, and over the items of the tree."""
    rows = [(row.count, row.flops, row.vector, row.bytes) for row in listed.rows]
    kernels = [(row.count, row.flops, row.vector, row.bytes) for row in listed.kernels]
    items = [
        (item.launches if isinstance(item, Row) else item.times, item.flops, item.vector, item.bytes)
        for item in listed.items
    ]
    return [tuple(sum(one[0] * one[n] for one in each) for n in (1, 2, 3)) for each in (rows, kernels, items)]


def tiny(**names: str) -> rl.Graph:
    """A program with an operation without a rule and names from elsewhere."""
    b = rl.ops.Builder(names.get("graph", "tiny"), "bf16")
    x = b.input(names.get("x", "x"), (32, 64))
    y = b.op("linear", x, b.weight("w", (128, 64)), name=names.get("node", "up"))
    y = b.op("unknown", y, what=names.get("what", "aten::odd"), shape=(32, 128), name="strange")
    return b.graph([b.op("relu", y)])


# --- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True], ids=["as built", "fused"])
@pytest.mark.parametrize(("name", "phase"), PROGRAMS)
def test_rows_kernels_and_modules_sum_to_the_count(name: str, phase: str | None, fused: bool) -> None:
    graph = rl.passes.fuse(program(name, phase)) if fused else program(name, phase)
    sizes = sizes_of(graph)
    wanted = rl.count(graph, **sizes)
    for folded in (True, False):
        found = rl.listing(graph, fold=folded, **sizes)
        counts = found.counts
        assert (counts.flops, counts.vector_flops, counts.bytes) == (wanted.flops, wanted.vector_flops, wanted.bytes)
        assert (counts.launches, found.intensity) == (wanted.launches, wanted.intensity)
        for flops, vector, moved in parts(found):
            assert (flops, vector) == (wanted.flops, wanted.vector_flops)
            assert moved == (pytest.approx(wanted.bytes, rel=1e-12) if name in INEXACT else wanted.bytes)


@pytest.mark.parametrize(("name", "phase"), PROGRAMS)
def test_polynomials_sum_to_the_count_too(name: str, phase: str | None) -> None:
    graph = program(name, phase)
    sizes = sizes_of(graph)
    found, wanted = rl.listing(graph), rl.count(graph, **sizes)
    counts = found.counts
    for sums in parts(found):
        assert sums == (counts.flops, counts.vector_flops, counts.bytes)
        for value, number in zip(sums, (wanted.flops, wanted.vector_flops, wanted.bytes), strict=True):
            assert evaluate(value, sizes) == pytest.approx(number, rel=1e-12)


def test_some_sizes_stay_symbols() -> None:
    found = rl.listing(program("llama-3-8b", "decode"), S=2048)
    assert (found.sizes, found.symbols) == ({"C": 2048}, ("B",))
    assert evaluate(found.counts.bytes, {"B": 4}) == rl.count(found.graph, B=4, C=2048).bytes
    assert found.intensity is None


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"B": [1, 2]}, "one number"),
        ({"B": 0}, "from 1"),
        ({"B": 1.5}, "whole numbers"),
        ({"B": "x"}, "not a whole number"),
        ({"Q": 1}, "unknown size 'Q'"),
    ],
)
def test_sizes_that_cannot_be(sizes: dict[str, Any], words: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=words):
        rl.listing(program("gpt2", "decode"), **sizes)


def test_bytes_alone_are_those_without_the_kernel() -> None:
    graph = program("gpt2", "forward")
    found = rl.listing(graph, B=1, S=64)
    alone = rl.count(rl.passes.unfuse(graph), B=1, S=64).bytes
    assert sum(row.count * row.bytes_alone for row in found.rows) == alone > found.counts.bytes
    steps = [row for row in found.rows if row.steps > 1]
    assert [row.place for row in steps] == [f"{steps[0].number}.{n}" for n in (1, 2, 3)]
    assert sum(row.bytes for row in steps) == found.kernels[steps[0].number - 1].bytes


def test_a_row_says_what_its_node_is() -> None:
    row = next(row for row in rl.listing(program("resnet50", None), B=2).rows if row.name == "conv1")
    assert (row.op, row.title, row.index, row.count) == ("conv2d", "conv2d", 0, 1)
    assert [tensor.kind for tensor in row.inputs] == ["input", "weight"]
    assert row.outputs[0].shape == (2, 64, 112, 112)
    assert dict(row.options) == {"groups": 1, "padding": 3, "stride": 2}
    assert row.meaning.startswith("Direct convolution")


@pytest.mark.parametrize("op", rl.ops.OPS)
def test_every_operator_has_a_meaning_in_one_line(op: str) -> None:
    meaning = words.sentence(rl.ops.OPS[op].doc)
    assert 3 < len(meaning) < 160
    assert "``" not in meaning


def test_views_run_in_no_kernel() -> None:
    views = [row for row in rl.listing(program("gpt2", "forward")).rows if rl.ops.OPS[row.op].kind == "view"]
    assert views
    assert {(row.place, row.kernel, row.bytes, row.bytes_alone) for row in views} == {("-", "", 0, 0)}


# --- folding ----------------------------------------------------------------------------------------------------------


def folds(name: str, phase: str | None = None, **sizes: int) -> list[tuple[str, str, int]]:
    return [(block.path, block.last, block.times) for block in rl.listing(program(name, phase), **sizes).folds]


def test_equal_layers_are_one() -> None:
    assert folds("llama-3-8b", "decode") == [("layers.0", "31", 32)]
    assert folds("deepseek-v3", "decode") == [("layers.0", "2", 3), ("layers.3", "60", 58)]
    assert folds("t5-small", "forward") == [("encoder.layers.0", "5", 6), ("decoder.layers.0", "5", 6)]


def test_a_period_of_unlike_layers_is_one() -> None:
    found = folds("gemma-3-1b", "prefill")
    assert found[0] == ("layers.0", "23", 4)
    assert found[1] == ("layers.0", "4", 5)
    assert folds("gemma-2-2b", "prefill") == [("layers.0", "25", 13)]


def test_all_shows_every_node() -> None:
    graph = program("llama-3-8b", "decode")
    found = rl.listing(graph, fold=False)
    assert [row.name for row in found.rows] == [node.name for node in graph.nodes]
    assert not found.folds
    assert found.shown == tuple(range(len(graph.nodes)))


@pytest.mark.parametrize(("name", "phase"), PROGRAMS)
def test_every_hidden_node_is_like_the_one_that_stands_for_it(name: str, phase: str | None) -> None:
    found = rl.listing(program(name, phase))
    nodes = found.graph.nodes
    for node, at in zip(nodes, found.shown, strict=True):
        assert (node.op, node.attrs) == (nodes[at].op, nodes[at].attrs)
    often = Counter(found.shown)
    assert {row.index: row.count // row.launches for row in found.rows} == often


def test_equal_kernels_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    module = sys.modules["roofline.view.listing.listing"]
    real = module.shares
    monkeypatch.setattr(module, "shares", lambda scope, nodes: calls.append(nodes) or real(scope, nodes))
    graph = program("llama-3.1-405b", "decode")
    found = rl.listing(graph)
    assert len(calls) == len(found.kernels) < 30
    assert len(found.rows) < 50 < len(graph.nodes) // 50


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("a", [(0, 1, 1)]),
        ("aaaa", [(0, 1, 4)]),
        ("abab", [(0, 2, 2)]),
        ("xaaay", [(0, 1, 1), (1, 1, 3), (4, 1, 1)]),
        ("aabaab", [(0, 3, 2)]),
        ("abc", [(0, 1, 1), (1, 1, 1), (2, 1, 1)]),
    ],
)
def test_repeats(text: str, wanted: list[tuple[int, int, int]]) -> None:
    assert list(fold.repeats(text)) == wanted


def test_a_module_that_comes_back_is_listed_where_it_runs() -> None:
    found = fold.tree(["a.x", "b", "a.y"])
    assert [span.path for span in found] == ["a", "b", "a"]


def test_names_that_only_differ_in_words_are_not_folded() -> None:
    b = rl.ops.Builder("qk", "bf16")
    x = b.input("x", (4, 8))
    heads = [b.op("relu", x, name=f"{name}_norm") for name in "qkv"]
    assert [row.name for row in rl.listing(b.graph(heads)).rows] == ["q_norm", "k_norm", "v_norm"]


def test_a_chain_of_copies_is_folded() -> None:
    b = rl.ops.Builder("chain", "bf16")
    x = b.input("x", (4, 8))
    for _ in range(5):
        x = b.op("relu", x)
    found = rl.listing(b.graph([x]))
    assert [(row.name, row.count) for row in found.rows] == [("relu", 5)]
    assert "relu x5" in str(found)


def test_layers_that_differ_are_not_folded() -> None:
    b = rl.ops.Builder("wider", "bf16")
    x = b.input("x", (4, 8))
    for layer, width in enumerate((8, 16, 16)):
        with b.scope(f"layers.{layer}"):
            x = b.op("linear", x, b.weight("w", (width, b.shape(x)[-1])), name="up")
    found = rl.listing(b.graph([x]))
    assert not found.folds
    assert len(found.rows) == 3


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, WIDE, 200])
@pytest.mark.parametrize(("name", "phase"), PROGRAMS[::2])
def test_text_is_no_wider_than_asked(name: str, phase: str | None, width: int) -> None:
    graph = program(name, phase)
    for sizes in ({}, sizes_of(graph)):
        found = text(rl.listing(graph, **sizes), width)
        assert max(map(len, found.splitlines())) <= width
        assert found == "\n".join(line.rstrip() for line in found.splitlines())


def test_text_has_it_all() -> None:
    found = str(rl.listing(program("llama-3-8b", "decode"), B=8, C=2048))
    counts = rl.count(program("llama-3-8b", "decode"), B=8, C=2048)
    for word in ("0 ... 31", "x32", "rope_q", "attention_scores", "(8, 1, 4096)", "16.1", "739 kernels", "linear",
                 f"{counts.flops:,}", f"{counts.bytes:,}", "Root-mean-square"):  # fmt: skip
        assert word in found
    assert "16384*B*C" not in found
    assert "16.4k*B*C" in str(rl.listing(program("llama-3-8b", "decode")))


def test_operations_without_a_rule_are_marked() -> None:
    found = rl.listing(tiny())
    assert found.unknown == {"aten::odd": 1}
    marked = [line.text for line in lines(found) if line.mark == "unknown"]
    assert any("unknown: aten::odd" in line for line in marked)
    assert any("no rule for aten::odd (1 call)" in line for line in marked)
    assert "1 operation without a rule" in repr(rl.estimate(tiny(), "h100-sxm"))
    assert "without the arithmetic of aten::odd" in str(rl.check(tiny(), "h100-sxm", "1 s"))


NASTY = {
    "graph": 'g\x1b[31m"</title><script>alert(1)</script>\n&lt;',
    "x": "x\r\n\u202e<b>",
    "node": 'a"b\\N]; evil -> {\x07<img src=x onerror=alert(1)>',
    "what": "odd\x1b]0;title\x07</td>\u2028",
}


def test_control_characters_are_escaped() -> None:
    found = rl.listing(tiny(**NASTY))
    assert re.fullmatch(r"[\x20-\x7e\n]*", str(found))
    assert "\\x1b[31m" in str(found)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u2028\u202e]", found.html() + found.dot() + found._repr_html_())


# --- DOT --------------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|->|[{}\[\];=,]|[A-Za-z0-9_.#-]+)')


def check_dot(source: str) -> tuple[set[str], list[tuple[str, str]]]:
    """Parse the part of Graphviz's language that is written: the nodes declared and the edges."""
    tokens, at = [], 0
    source = source.strip()
    while at < len(source):
        match = _TOKEN.match(source, at)
        assert match, source[at : at + 60]
        tokens.append(match[1])
        at = match.end()
    assert tokens[0] == "digraph"
    assert tokens[1].startswith('"')
    depth, inside, declared, joined = 0, False, set(), []
    for n, token in enumerate(tokens):
        depth += (token == "{") - (token == "}")
        assert depth >= 0
        if token in "[]":
            assert inside == (token == "]")
            inside = token == "["
        if token == "[" and re.fullmatch(r"[nt]\d+", tokens[n - 1]) and tokens[n - 2] != "->":
            assert tokens[n - 1] not in declared
            declared.add(tokens[n - 1])
        if token == "->":
            joined.append((tokens[n - 1], tokens[n + 1]))
    assert (depth, inside) == (0, False)
    assert {end for pair in joined for end in pair} <= declared
    return declared, joined


@pytest.mark.parametrize("fused", [False, True], ids=["as built", "fused"])
@pytest.mark.parametrize(("name", "phase"), PROGRAMS)
def test_dot_is_valid(name: str, phase: str | None, fused: bool) -> None:
    graph = program(name, phase)
    found = rl.listing(rl.passes.fuse(graph) if fused else graph)
    declared, joined = check_dot(found.dot())
    assert len([node for node in declared if node.startswith("n")]) == len(found.rows)
    assert len(joined) == len(edges(found))


@pytest.mark.skipif(shutil.which("dot") is None, reason="no Graphviz here")
@pytest.mark.parametrize(
    "graph",
    [tiny(**NASTY), rl.model("gpt2", phase="decode"), rl.passes.fuse(rl.model("resnet18"))],
    ids=lambda g: "graph",
)
def test_graphviz_takes_it(graph: rl.Graph) -> None:
    source = rl.listing(graph).dot()
    ran = subprocess.run(["dot", "-Tplain"], input=source, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_dot_has_kernels_and_layers_as_clusters() -> None:
    found = rl.listing(program("gpt2", "forward")).dot()
    assert 'label="kernel layers.0.attn.sdpa"' in found
    assert 'label="layers.0 ... 11  x12"' in found
    assert "to the next" in found
    fused = rl.listing(rl.passes.fuse(program("llama-3-8b", "prefill"))).dot()
    assert fused.count("subgraph cluster_k") >= 3


def test_dot_of_nasty_names() -> None:
    source = rl.listing(tiny(**NASTY)).dot()
    declared, _ = check_dot(source)
    assert declared == {"n0", "n1", "n2", "t0"}


# --- HTML -------------------------------------------------------------------------------------------------------------

_VOID = {"meta", "input", "br", "hr", "img", "link"}
_SVG = {"path", "rect"}


class Page(HTMLParser):
    """Tags in balance, and the texts outside of style and script."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _SVG
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)


@pytest.mark.parametrize(("name", "phase"), PROGRAMS)
def test_page_is_well_formed_and_needs_nothing_else(name: str, phase: str | None) -> None:
    source = rl.listing(program(name, phase)).html()
    page = Page(source)
    assert not re.search(r"https?:|\bsrc\s*=|@import|url\(|<link|<img|<iframe", source)
    assert (page.tags["html"], page.tags["script"], page.tags["svg"], page.tags["table"]) == (1, 1, 1, 2)
    assert "prefers-color-scheme" in source
    assert "default-src 'none'" in source


def test_page_has_every_row_and_the_sums() -> None:
    found = rl.listing(program("resnet50", None), B=2, fold=False)
    page = Page(found.html())
    texts = set(page.texts)
    assert {row.name for row in found.rows} <= texts
    assert f"{found.counts.flops:,}" in texts
    assert page.tags["details"] == 4 + 16


def test_names_are_escaped_in_html() -> None:
    found = rl.listing(tiny(**NASTY))
    for source in (found.html(), found._repr_html_()):
        page = Page(source)
        assert (page.tags["img"], page.tags["b"]) == (0, 0)
        assert page.tags["script"] == ("<!doctype" in source)
        assert not [name for name, _ in page.attributes if name.startswith("on")]
        assert "<script>alert" not in source


def test_notebooks_get_a_fragment_without_scripts() -> None:
    source = rl.listing(program("gpt2", "forward"))._repr_html_()
    page = Page(source)
    assert page.tags["script"] == page.tags["html"] == 0
    assert page.tags["details"] > 2


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "phase"), PROGRAMS)
def test_record_is_json(name: str, phase: str | None) -> None:
    graph = program(name, phase)
    for sizes in ({}, sizes_of(graph)):
        found = json.loads(json.dumps(plain(rl.listing(graph, **sizes).record()), allow_nan=False))
        assert found["totals"]["nodes"] == len(graph.nodes)
        assert len(found["kernels"]) == max(node["kernel_number"] or 0 for node in found["rows"])
        assert isinstance(found["totals"]["flops"], int if sizes else str | int)


def test_record_of_folded_layers() -> None:
    found = rl.listing(program("gpt2", "forward"), B=1, S=8).record()
    (block,) = found["blocks"]
    assert (block["path"], block["last"], block["times"]) == ("layers.0", "11", 12)
    inside = [node for node in found["rows"] if node["index"] in block["nodes"]]
    assert {node["count"] for node in inside} == {12}


def test_the_function_is_public() -> None:
    assert rl.listing is rl.listing
    assert isinstance(rl.listing(tiny()), Listing)
    assert isinstance(rl.listing(program("gpt2", "forward")).items[-1], Row | Block)
