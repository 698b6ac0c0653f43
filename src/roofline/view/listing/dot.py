"""A listing for Graphviz: kernels of several nodes and folded layers as clusters, weights inside their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from roofline.ops.registry import OPS
from roofline.view.charts.style import COLOURS
from roofline.view.listing import wording as words
from roofline.view.listing.edges import Edge, edges
from roofline.view.listing.rows import STORED, Block, Item, Listed, Row

_HEAD = (
    "  rankdir=TB; labeljust=l; compound=true;",
    '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica", fontsize=10];',
    '  edge [fontname="Helvetica", fontsize=8, color="#666666"];',
)
#: Fill colour by operator class; all others stay white.
_FILL = {
    **dict.fromkeys(("matmul", "conv", "moe"), COLOURS["pale-blue"]),
    "attention": COLOURS["pale-violet"],
    "view": "#f4f4f4",
}


def dot(listed: Listed) -> str:
    """Return the whole graph in Graphviz's language.

    Example:
        >>> import roofline as rl
        >>> print(rl.listing(rl.model("gpt2", phase="forward")).dot().splitlines()[0])
        digraph "gpt2 forward" {
    """
    joined = edges(listed)
    lines = [f"digraph {quoted(listed.graph.name)} {{", *_HEAD]
    lines += _container(listed.items, "  ", "")
    lines += _sources(joined)
    lines += [_edge(edge) for edge in joined if edge.source is not None]
    return "\n".join([*lines, "}"])


def quoted(text: str) -> str:
    """Return a string of Graphviz that shows the text as it is: neither escapes nor entities are read into it.

    Example:
        >>> print(quoted('say &lt; twice'))
        "say &amp;lt; twice"
    """
    plain = words.safe(text).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
    return f'"{plain}"'


def _lines(parts: Iterable[str]) -> str:
    """Return a label of several lines."""
    return '"' + "\\n".join(quoted(part)[1:-1] for part in parts if part) + '"'


def _container(items: tuple[Item, ...], pad: str, path: str) -> Iterator[str]:
    """Yield the rows of a block and, as clusters, its kernels of several nodes and the folded blocks in it."""
    rows, blocks = _own(items)
    kernels: dict[str, list[Row]] = {}
    for row in rows:
        kernels.setdefault(row.kernel if row.steps > 1 else f"\0{row.index}", []).append(row)
    for label, group in kernels.items():
        nodes = [f"{pad}{'  ' * (len(group) > 1)}{_node(row, path)}" for row in group]
        yield from _cluster(f"k{group[0].index}", f"kernel {label}", "dotted", nodes, pad) if len(group) > 1 else nodes
    for block in blocks:
        title = f"{block.path} ... {block.last}  x{block.times}"
        inside = _container(block.items, f"{pad}  ", f"{block.path}.")
        yield from _cluster(f"b{next(block.rows()).index}_{block.times}", title, "rounded", inside, pad)


def _own(items: Iterable[Item]) -> tuple[list[Row], list[Block]]:
    """Return the rows of a block that are in no folded block inside it, and those blocks."""
    rows: list[Row] = []
    blocks: list[Block] = []
    for item in items:
        if isinstance(item, Row):
            rows.append(item)
        elif item.times > 1:
            blocks.append(item)
        else:
            more, deeper = _own(item.items)
            rows, blocks = rows + more, blocks + deeper
    return rows, blocks


def _cluster(name: str, label: str, style: str, inside: Iterable[str], pad: str) -> Iterator[str]:
    yield f"{pad}subgraph cluster_{name} {{"
    yield f'{pad}  label={quoted(label)}; style="{style}"; color="#888888"; fontname="Helvetica"; fontsize=10;'
    yield from inside
    yield f"{pad}}}"


def _node(row: Row, path: str) -> str:
    stored = [f"{t.kind} {words.tensor(t)}" for t in row.inputs if t.kind in STORED - {"cache"}]
    counts = [
        f"{words.amount(value)} {unit}"
        for value, unit in ((row.flops, "FLOP"), (row.vector, "vector"), (row.bytes, "bytes"))
        if value != 0
    ]
    times = f" x{row.launches}" if row.launches > 1 else ""
    about = [row.title + times, words.options(row.options) if not row.unknown else ""]
    where = f"kernel {row.place}" if row.number else ""
    label = _lines([row.name.removeprefix(path), *about, *stored, ", ".join(counts), where])
    colour = COLOURS["pale-red"] if row.unknown else _FILL.get(OPS[row.op].kind, "white")
    line = ' color="red",' if row.unknown else ""
    return f'n{row.index} [label={label},{line} fillcolor="{colour}", tooltip={quoted(row.meaning)}];'


def _sources(joined: Iterable[Edge]) -> Iterator[str]:
    """Yield inputs and caches, which come from outside and are no weights."""
    names = {edge.tensor.name: edge.tensor for edge in joined if edge.source is None}
    for at, tensor in enumerate(names.values()):
        shape = "cylinder" if tensor.kind == "cache" else "ellipse"
        label = _lines([tensor.name, f"{tensor.kind} {words.tensor(tensor)}"])
        yield f'  t{at} [label={label}, shape={shape}, style="filled", fillcolor="{COLOURS["pale-yellow"]}"];'
    position = {name: at for at, name in enumerate(names)}
    for edge in joined:
        if edge.source is None:
            yield f"  t{position[edge.tensor.name]} -> n{edge.target};"


def _edge(edge: Edge) -> str:
    label = words.shape(edge.tensor.shape)
    style = ', style="dashed", constraint=false' if edge.is_to_next else ""
    return f"  n{edge.source} -> n{edge.target} [label={quoted(label + ' to the next' * edge.is_to_next)}{style}];"
