"use strict";
const table = document.getElementById("nodes"), body = table.tBodies[0], rows = [...body.rows];
const texts = rows.map(row => row.textContent.toLowerCase());
const counter = document.getElementById("found");
document.getElementById("search").addEventListener("input", event => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  rows.forEach((row, n) => {
    row.hidden = !words.every(word => texts[n].includes(word));
    shown += row.hidden ? 0 : 1;
  });
  counter.textContent = shown + " of " + rows.length;
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
