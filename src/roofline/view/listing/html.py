"""A listing as one HTML page that needs nothing beside itself: a drawing, a tree, a table to search and sort."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from roofline.ir.graph import Tensor
from roofline.ir.sizes import Dim
from roofline.view.listing import wording as words
from roofline.view.listing.rows import Block, Item, KernelRow, Listed, Row
from roofline.view.listing.svg import drawing
from roofline.view.listing.text import faults, heading, notes, subheading

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

_STYLE = """
.roofline{--ink:#1c2430;--soft:#5d6878;--line:#d9dee6;--back:#fff;--band:#f5f7fa;--blue:#dbe9ff;--violet:#e8deff;
--warm:#fff4d6;--red:#b3261e;--pink:#ffd9d6;color:var(--ink);background:var(--back);
font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
@media (prefers-color-scheme:dark){.roofline{--ink:#e4e8ee;--soft:#9aa5b5;--line:#3a4350;--back:#14181e;--band:#1c222b;
--blue:#1f3554;--violet:#37294f;--warm:#423715;--red:#ff8a80;--pink:#4d2220}}
body.roofline{margin:0 auto;padding:1.5rem;max-width:1500px}
.roofline h1{font-size:1.5rem;margin:0}.roofline h2{font-size:1.1rem;margin:2rem 0 .5rem}
.roofline p{margin:.25rem 0;color:var(--soft)}
.roofline dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.5rem;margin:.75rem 0}
.roofline dt{color:var(--soft)}.roofline dd{margin:0;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.roofline .scroll{overflow:auto;max-height:80vh;border:1px solid var(--line);border-radius:6px}
.roofline .tree{border:1px solid var(--line);border-radius:6px;padding:.5rem;overflow-x:auto}
.roofline .tree details{margin-left:1.1rem}.roofline .tree>details{margin-left:0}
.roofline summary{cursor:pointer;list-style-position:outside;margin-left:1rem}
.roofline .r{display:grid;grid-template-columns:minmax(10rem,1.3fr) 9rem minmax(14rem,2.4fr) 7.5rem 7.5rem 7.5rem 4rem;
gap:.6rem;min-width:60rem;padding:.08rem .3rem;border-radius:4px}
.roofline .r.leaf{margin-left:2.1rem}.roofline .r:hover{background:var(--band)}
.roofline summary>.r{display:inline-grid;width:100%;box-sizing:border-box;font-weight:600;vertical-align:top}
.roofline .n{text-align:right;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.roofline .s,.roofline .x{color:var(--soft)}.roofline .x{font-weight:600}
.roofline .r>*{overflow-wrap:anywhere}
.roofline table{border-collapse:collapse;width:100%;font-size:13px}
.roofline th{position:sticky;top:0;background:var(--band);text-align:left;cursor:pointer;white-space:nowrap}
.roofline th,.roofline td{padding:.25rem .5rem;border-bottom:1px solid var(--line);vertical-align:top}
.roofline td{max-width:26rem;overflow-wrap:anywhere}.roofline td:first-child{max-width:none}
.roofline td.n{overflow-wrap:normal}.roofline th.n{text-align:right}
.roofline input{font:inherit;color:inherit;background:var(--back);border:1px solid var(--line);border-radius:6px;
padding:.35rem .6rem;width:min(28rem,100%);box-sizing:border-box;margin-bottom:.5rem}
.roofline .unknown,.roofline .unknown td,.roofline .bad{color:var(--red);font-weight:600}
.roofline svg{display:block;margin:auto}
.roofline svg text{font:11px system-ui,sans-serif;fill:var(--ink)}.roofline svg .l0{font-weight:600}
.roofline svg .l1,.roofline svg .l2{fill:var(--soft)}
.roofline svg rect{fill:var(--back);stroke:var(--soft)}.roofline svg .line{fill:none;stroke:var(--soft);opacity:.75}
.roofline svg .matmul rect,.roofline svg .conv rect,.roofline svg .moe rect{fill:var(--blue)}
.roofline svg .attention rect{fill:var(--violet)}.roofline svg .outside rect{fill:var(--warm)}
.roofline svg .unknown rect{fill:var(--pink);stroke:var(--red)}
"""

_SCRIPT = """
"use strict";
const table = document.getElementById("nodes"), body = table.tBodies[0], rows = [...body.rows];
const texts = rows.map(row => row.textContent.toLowerCase());
const found = document.getElementById("found");
document.getElementById("search").addEventListener("input", event => {
  const wanted = event.target.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0;
  rows.forEach((row, n) => {
    row.hidden = !wanted.every(word => texts[n].includes(word));
    shown += row.hidden ? 0 : 1;
  });
  found.textContent = shown + " of " + rows.length;
});
[...table.tHead.rows[0].cells].forEach((head, column) => head.addEventListener("click", () => {
  const down = head.getAttribute("aria-sort") === "descending";
  [...head.parentNode.cells].forEach(cell => cell.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "ascending" : "descending");
  const value = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
  const compare = (a, b) => {
    const x = value(a), y = value(b), difference = Number(x) - Number(y);
    return Number.isNaN(difference) ? x.localeCompare(y) : difference;
  };
  body.append(...[...rows].sort((a, b) => down ? compare(a, b) : compare(b, a)));
}));
"""


def page(listed: Listed) -> str:
    """The whole page."""
    title = _text(heading(listed))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f'<body class="roofline">\n<h1>{title}</h1>\n{"".join(_parts(listed))}'
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def fragment(listed: Listed) -> str:
    """For a notebook: the sums and the tree, without a script."""
    inside = [f"<h1>{_text(heading(listed))}</h1>", *_summary(listed), *_tree(listed)]
    return f'<style>{_STYLE}</style><div class="roofline">{"".join(inside)}</div>'


def _text(text: str) -> str:
    return escape(words.safe(text))


def _parts(listed: Listed) -> Iterator[str]:
    yield from _summary(listed)
    title, picture = drawing(listed)
    yield f'<h2>Drawing</h2><p>{_text(title)}; views are left out</p><div class="scroll">{picture}</div>\n'
    yield "<h2>Modules</h2>\n"
    yield from _tree(listed)
    yield "<h2>Nodes</h2>\n"
    yield '<input id="search" type="search" placeholder="Search: name, operation, shape" aria-label="Search nodes">'
    yield f' <span id="found" class="s">{len(listed.rows):,} of {len(listed.rows):,}</span>\n'
    yield from _nodes(listed)
    yield "<h2>Kernels</h2>\n"
    yield from _kernels(listed.kernels)
    yield "<h2>Operations</h2>\n"
    yield _facts((op, meaning) for op, meaning in listed.meanings.items())


def _summary(listed: Listed) -> Iterator[str]:
    counts = listed.counts
    yield f"<p>{_text(subheading(listed))}</p>\n"
    facts = [
        ("FLOPs", words.exact(counts.flops)), ("vector FLOPs", words.exact(counts.vector_flops)),
        ("bytes", words.exact(counts.bytes)), ("FLOP a byte", words.ratio(listed.intensity)),
    ]  # fmt: skip
    yield _facts(facts)
    yield from (f'<p class="bad">{_text(fault)}</p>\n' for fault in faults(listed))
    yield from (f"<p>{_text(note)}</p>\n" for note in notes(listed))


def _facts(pairs: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{_text(name)}</dt><dd>{_text(value)}</dd>' for name, value in pairs)}</dl>\n"


# --- tree -------------------------------------------------------------------------------------------------------------


def _tree(listed: Listed) -> Iterator[str]:
    heads = ("node", "operation", "shapes", "FLOP", "vector", "bytes", "kernel")
    cells = "".join(f'<span class="{"n" if 3 <= at <= 5 else ""}">{head}</span>' for at, head in enumerate(heads))
    yield f'<div class="tree"><div class="r leaf s">{cells}</div>'
    yield from _items(listed.items, 0)
    yield "</div>\n"


def _items(items: Iterable[Item], depth: int) -> Iterator[str]:
    for item in items:
        if isinstance(item, Row):
            yield _leaf(item)
        else:
            yield f"<details{' open' if depth < 3 else ''}><summary>{_module(item)}</summary>"
            yield from _items(item.items, depth + 1)
            yield "</details>\n"


def _module(block: Block) -> str:
    times = f' <span class="x">x{block.times}</span>' if block.times > 1 else ""
    return f'<span class="r"><span>{_text(block.title)}{times}</span><span></span><span></span>{_amounts(block)}</span>'


def _leaf(row: Row) -> str:
    name = _text(row.name.rpartition(".")[2] or row.name)
    options = f' <span class="s">{_text(words.options(row.options))}</span>' if row.options else ""
    times = f' <span class="x">x{row.launches}</span>' if row.launches > 1 else ""
    mark = " unknown" if row.unknown else ""
    return (
        f'<div class="r leaf{mark}" title="{_text(row.name)}"><span>{name}</span>'
        f'<span title="{_text(row.meaning)}">{_text(row.title)}{times}</span>'
        f"<span>{_text(_flow(row))}{options}</span>{_amounts(row)}<span>{_text(row.place)}</span></div>\n"
    )


def _flow(row: Row) -> str:
    return f"{', '.join(map(_operand, row.inputs))} \N{RIGHTWARDS ARROW} {', '.join(map(words.tensor, row.outputs))}"


def _operand(tensor: Tensor) -> str:
    return words.tensor(tensor) if tensor.kind == "activation" else f"{tensor.kind} {words.tensor(tensor)}"


def _amounts(item: Item) -> str:
    values = (item.flops, item.vector, item.bytes)
    return "".join(f'<span class="n" title="{_text(words.exact(value))}">{_amount(value)}</span>' for value in values)


def _amount(value: Any) -> str:
    return "" if isinstance(value, int | float) and value == 0 else _text(words.amount(value))


# --- tables -----------------------------------------------------------------------------------------------------------


#: Columns of numbers, whose heads stand to the right as well.
_NUMBERS = {"#", "FLOP", "vector", "bytes", "bytes alone", "runs", "FLOP a byte"}


def _table(name: str, heads: Sequence[str], rows: Iterable[str]) -> Iterator[str]:
    head = "".join(f"<th{' class=n' if head in _NUMBERS else ''}>{_text(head)}</th>" for head in heads)
    yield f'<div class="scroll"><table id="{name}"><thead><tr>{head}</tr></thead><tbody>\n'
    yield from rows
    yield "</tbody></table></div>\n"


def _cell(text: str) -> str:
    return f"<td>{_text(text)}</td>"


def _number(value: Any) -> str:
    order = "" if isinstance(value, Dim) else f' data-v="{float(value):.17g}"'
    return f'<td class="n"{order} title="{_text(words.exact(value))}">{_amount(value)}</td>'


def _nodes(listed: Listed) -> Iterator[str]:
    heads = ("#", "node", "operation", "what it does", "inputs", "options", "output", "FLOP", "vector", "bytes",
             "bytes alone", "kernel", "runs")  # fmt: skip
    yield from _table("nodes", heads, map(_node, listed.rows))


def _node(row: Row) -> str:
    named = ", ".join(f"{tensor.name} {_operand(tensor)}" for tensor in row.inputs)
    cells = [
        f'<td class="n">{row.index}</td>', _cell(row.name), _cell(row.title), _cell(row.meaning), _cell(named),
        _cell(words.options(row.options)), _cell(", ".join(map(words.tensor, row.outputs))),
        *map(_number, (row.flops, row.vector, row.bytes, row.bytes_alone)),
        f'<td title="{_text(row.kernel)}">{_text(row.place)}</td>', _number(row.count),
    ]  # fmt: skip
    return f"<tr{' class=unknown' if row.unknown else ''}>{''.join(cells)}</tr>\n"


def _kernels(rows: Iterable[KernelRow]) -> Iterator[str]:
    heads = ("kernel", "first called", "operations", "runs", "FLOP", "vector", "bytes", "FLOP a byte")
    yield from _table("kernels", heads, map(_kernel, rows))


def _kernel(row: KernelRow) -> str:
    cells = [_cell(str(row.number)), _cell(row.name), _cell(" + ".join(row.ops))]
    cells += map(_number, (row.count, row.flops, row.vector, row.bytes))
    return f'<tr>{"".join(cells)}<td class="n">{words.ratio(row.intensity)}</td></tr>\n'
