"use strict";
// Tables: sort by a column, filter rows, copy as CSV.
const UNITS = {ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, B: 1, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12,
  "bit/s": 1, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "Tbit/s": 1e12,
  kbit: 1e3, Mbit: 1e6, Gbit: 1e9, Tbit: 1e12, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3, min: 60};
function key(text) {
  const found = text.replace(/[,≤≥]/g, "").trim().match(/^([-+]?[0-9.]+)[x%]?\s*([^\s]*)/);
  if (text === "never") return Infinity;
  return found ? Number(found[1]) * (UNITS[found[2]] ?? 1) : text === "–" || text === "" ? NaN : text;
}
function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return (Number.isNaN(a) - Number.isNaN(b)) || a - b || 0;
  return String(a).localeCompare(String(b));
}
function button(text, act) {
  const made = Object.assign(document.createElement("button"), {type: "button", textContent: text});
  made.addEventListener("click", () => act(made));
  return made;
}
function tools(after, ...parts) {
  const bar = Object.assign(document.createElement("div"), {className: "tools"});
  bar.append(...parts);
  after.after(bar);
}
for (const table of document.querySelectorAll(".wide > table")) {
  const body = table.tBodies[0], rows = [...body.rows];
  if (rows.length < 3) continue;
  const parts = [button("Copy as CSV", async made => {
    const lines = [...table.rows].filter(row => !row.hidden && row.className !== "groups").map(row =>
      [...row.cells].map(cell => `"${cell.textContent.replaceAll('"', '""')}"`).join(","));
    await navigator.clipboard.writeText(lines.join("\n"));
    made.textContent = "Copied";
  })];
  if (rows.length > 8) {
    const filter = Object.assign(document.createElement("input"), {type: "search", placeholder: "filter rows"});
    filter.setAttribute("aria-label", "Filter rows");
    filter.addEventListener("input", () => rows.forEach(row => {
      row.hidden = !row.textContent.toLowerCase().includes(filter.value.toLowerCase());
    }));
    parts.push(filter);
  }
  tools(table.parentElement, ...parts);
  if (rows.some(row => row.cells[0].textContent === "")) continue; // rows that continue the one above stay together
  for (const [number, head] of [...table.tHead.rows[table.tHead.rows.length - 1].cells].entries()) {
    if (head.textContent === "") continue;
    const sort = button("", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keys = new Map(rows.map(row => [row, key(row.cells[number].textContent)]));
      rows.sort((a, b) => (down ? -1 : 1) * compare(keys.get(a), keys.get(b)));
      body.append(...rows);
    });
    sort.append(...head.childNodes);
    head.append(sort);
  }
}
// Figures: hide series, and enlarge; in the enlarged figure the wheel zooms and dragging moves.
const dialog = document.querySelector("dialog");
function enlarge(svg) {
  const place = document.createComment(""), box = svg.getAttribute("viewBox");
  svg.before(place);
  dialog.replaceChildren(button("Close", () => dialog.close()), svg);
  dialog.onclose = () => { svg.setAttribute("viewBox", box); place.replaceWith(svg); svg.onwheel = svg.onpointermove = null; };
  const change = act => {
    const [x, y, w, h] = svg.getAttribute("viewBox").split(" ").map(Number);
    const unit = w / svg.clientWidth;
    svg.setAttribute("viewBox", act(x, y, w, h, unit).join(" "));
  };
  svg.onwheel = event => {
    event.preventDefault();
    const by = event.deltaY > 0 ? 1.2 : 1 / 1.2;
    change((x, y, w, h, unit) => {
      const left = event.offsetX * unit, top = event.offsetY * unit;
      return [x + left * (1 - by), y + top * (1 - by), w * by, h * by];
    });
  };
  svg.onpointermove = event => event.buttons && change((x, y, w, h, unit) =>
    [x - event.movementX * unit, y - event.movementY * unit, w, h]);
  dialog.showModal();
}
for (const holder of document.querySelectorAll("figure > div")) {
  const svg = holder.querySelector("svg"), names = new Set([...svg.querySelectorAll("[data-series]")].map(g => g.dataset.series));
  const toggles = names.size < 2 ? [] : [...names].map(name => button(name, made => {
    const shown = made.getAttribute("aria-pressed") === "false";
    made.setAttribute("aria-pressed", shown);
    for (const g of svg.querySelectorAll("[data-series]")) if (g.dataset.series === name) g.style.display = shown ? "" : "none";
  }));
  toggles.forEach(made => made.setAttribute("aria-pressed", "true"));
  tools(holder, button("Enlarge", () => enlarge(svg)), ...toggles);
}
// What scrolls sideways can be reached with the keyboard.
const resized = new ResizeObserver(entries => {
  for (const {target} of entries) {
    const scrolls = target.scrollWidth > target.clientWidth;
    target.classList.toggle("scrolls", scrolls);
    if (scrolls) target.tabIndex = 0; else target.removeAttribute("tabindex");
  }
});
for (const holder of document.querySelectorAll(".wide, figure > div, nav > div")) resized.observe(holder);
// Contents: mark the section in view. Printing opens what is folded.
const links = new Map([...document.querySelectorAll("nav a")].map(a => [a.hash.slice(1), a]));
const seen = new IntersectionObserver(entries => {
  for (const entry of entries) links.get(entry.target.id)?.classList.toggle("here", entry.isIntersecting);
}, {rootMargin: "-45px 0px -70% 0px"});
for (const section of document.querySelectorAll("section[id]")) seen.observe(section);
let folded = [];
addEventListener("beforeprint", () => { folded = [...document.querySelectorAll("details:not([open])")]; folded.forEach(d => d.open = true); });
addEventListener("afterprint", () => folded.forEach(d => d.open = false));