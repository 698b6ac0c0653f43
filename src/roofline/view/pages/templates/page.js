"use strict";
// All that a page does by itself: tables that sort and search, a slider that moves texts and charts, colours of charts
// that follow the reader's. Texts come in as text and never as markup.
(() => {
const all = (query, root = document) => [...root.querySelectorAll(query)];

// --- tables ---------------------------------------------------------------------------------------------------------

const content = (row, column) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();

function sort(head, descending) {
  const body = head.closest("table").tBodies[0], sign = descending ? -1 : 1;
  const keys = new Map([...body.rows].map(row => [row, content(row, head.cellIndex)]));
  const order = (a, b) => {
    const x = keys.get(a), y = keys.get(b);
    if (x === "" || y === "") return (x === "") - (y === "");
    return sign * (Number(x) - Number(y) || (Number(x) === Number(y) ? 0 : x.localeCompare(y, "en", {numeric: true})));
  };
  all("th[aria-sort]", head.parentNode).forEach(other => other.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  body.append(...[...body.rows].sort(order));
}

for (const head of all("th[aria-sort]")) head.firstElementChild.addEventListener("click", () => {
  const now = head.getAttribute("aria-sort");
  sort(head, now === "none" ? head.classList.contains("n") : now === "ascending");
});

for (const field of all("input[type=search]")) field.addEventListener("input", () => {
  const rows = [...document.getElementById(field.getAttribute("aria-controls")).tBodies[0].rows];
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
  field.parentNode.nextElementSibling.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
});

// --- charts ---------------------------------------------------------------------------------------------------------

const source = document.getElementById("data");
if (!source) return;
const data = JSON.parse(source.textContent), boxes = all(".plot");
const scheme = matchMedia("(prefers-color-scheme: dark)");
const config = {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]};
const NARROW = 600, NARROW_TICKS = 4, LEGEND = 18, LINE = 13;  // pixels, but for the ticks along the bottom
let at = data.at, printing = false;

const switches = box => all(".toggles input", box.closest("figure"));

function figure(box) {
  const {moves, ...first} = data.pictures[box.id];
  const whole = JSON.parse(JSON.stringify(first));
  for (const [path, states] of moves) {
    const last = path.at(-1), holder = path.slice(0, -1).reduce((part, key) => part[key], whole);
    holder[last] = states[at];
  }
  const off = new Set(switches(box).filter(field => !field.checked).map(field => field.value));
  for (const trace of whole.data) trace.visible = off.has(trace.legendgroup) ? "legendonly" : true;
  whole.layout.uirevision = "zoomed";  // stays as the reader left it
  if (!scheme.matches || printing) return whole;
  const colours = /#[0-9a-f]{6}|rgba\(\d+,\d+,\d+/g;
  const darkened = JSON.parse(JSON.stringify(whole).replace(colours, colour => data.dark[colour] ?? colour));
  for (const {insidetextfont, marker} of darkened.data)
    if (insidetextfont) insidetextfont.color = [marker.color].flat().map(readable);
  return darkened;
}

// As charts.style.readable.
function readable(colour) {
  const [red, green, blue] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 128 ? "#111111" : "#ffffff";
}

// On a narrow screen there is no room for what is written in a chart and right of it, but for bars: touching a point says
// it. What stands above stands on lines of its own.
function narrowed({data: traces, layout}) {
  const bars = traces.some(trace => trace.type === "bar");
  const isLabel = trace => trace.mode === "text" || trace.mode === "lines" && trace.hoverinfo === "skip" && !trace.fill;
  layout.margin.r = bars ? 72 : 16;
  layout.annotations = layout.annotations?.filter(note => note.y === 1 && note.yanchor === "bottom");
  layout.annotations?.sort((a, b) => a.x - b.x).forEach((note, line) => { note.yshift = LINE * line; });
  const more = LINE * Math.max(0, (layout.annotations?.length ?? 0) - 2);
  layout.margin.t += more;
  layout.height += more;
  if (layout.showlegend) {  // it has more lines, and is below the name of the axis all the same
    layout.height += LEGEND * traces.filter(trace => trace.showlegend).length;
    layout.legend.y *= 1.3;
    for (const trace of traces) if (trace.type === "bar") delete trace.text;  // bars of several kinds share a row
    layout.margin.r = 16;
  }
  for (const trace of traces) if (trace.type === "bar") trace.textposition = "auto";  // behind a bar that is too short
  for (const key of Object.keys(layout).filter(key => key.startsWith("xaxis"))) {
    const axis = layout[key], every = Math.ceil((axis.tickvals?.length ?? 0) / NARROW_TICKS);
    for (const part of ["tickvals", "ticktext"]) axis[part] = axis[part]?.filter((_, number) => number % every === 0);
  }
  for (const key of Object.keys(layout).filter(key => key.startsWith("yaxis"))) {  // names on two lines where rows are high
    const axis = layout[key], [low, high] = axis.domain ?? [0, 1];
    if ((high - low) * layout.height > 3 * LINE * axis.ticktext?.length)
      axis.ticktext = axis.ticktext.map(text => text.replace(", ", "<br>"));
  }
  return {data: bars ? traces : traces.filter(trace => !isLabel(trace)), layout};
}

function draw(box) {
  const whole = figure(box), {data: traces, layout} = box.clientWidth < NARROW ? narrowed(whole) : whole;
  const isNew = !box.data;
  box.style.height = `${layout.height}px`;
  Plotly.react(box, traces, layout, config);
  if (isNew) heed(box);
}

let waiting = 0;
const redraw = () => boxes.forEach(draw);
const soon = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(redraw); };
addEventListener("resize", soon);
scheme.addEventListener("change", redraw);
for (const [event, state] of [["beforeprint", true], ["afterprint", false]])
  addEventListener(event, () => { printing = state; redraw(); });

for (const box of boxes) for (const field of switches(box)) field.addEventListener("change", () => draw(box));

// A click on a name of the legend is one on its switch.
function heed(box) {
  const click = name => switches(box).find(field => field.value === name)?.click();
  box.on("plotly_legendclick", event => click(event.data[event.curveNumber].legendgroup) ?? false);
  box.on("plotly_legenddoubleclick", () => false);
}

// --- the slider -----------------------------------------------------------------------------------------------------

const slider = document.getElementById("batch"), moved = all("[data-m]");

function move(to) {
  at = to;
  for (const element of moved) for (const number of element.dataset.m.split(" ")) {
    const [name, states] = data.moves[number];
    if (name === "text") element.textContent = states[at];
    else element.setAttribute(name, states[at]);
  }
  slider.setAttribute("aria-valuetext", `batch ${data.labels[at]}`);
  all("th[aria-sort$=scending]").forEach(head => sort(head, head.getAttribute("aria-sort") === "descending"));
}

slider?.addEventListener("input", () => { move(Number(slider.value)); soon(); });

for (const box of all(".scroll:has(.drawing)")) box.scrollLeft = (box.scrollWidth - box.clientWidth) / 2;

// The first chart at once, the others when the page is there to be read.
if (boxes.length) draw(boxes[0]);
boxes.slice(1).forEach(box => setTimeout(() => draw(box)));
})();
