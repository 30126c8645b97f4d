// The drawing of a fabric: nodes and links up to 128 hosts, beyond that a matrix of domains and rails.
// Widths of links show traffic, dashes a missing carrier, dots what waits in a queue.

const SVG = "http://www.w3.org/2000/svg";
const MAX_DRAWN = 128;
const LABEL_PX = 34; // space that the name of a node needs

function make(name, attributes = {}, parent = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent?.append(element);
  return element;
}

/** Make an element of the drawing a button for mouse and keyboard. */
function makeButton(element, label, onSelect) {
  element.setAttribute("role", "button");
  element.setAttribute("tabindex", "0");
  element.setAttribute("aria-label", label);
  element.addEventListener("click", onSelect);
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      onSelect();
    }
  });
}

export class Drawing {
  /** `onSelect` gets {node} or {link: index}. */
  constructor(parent, onSelect) {
    this.parent = parent;
    this.onSelect = onSelect;
    this.fabric = null;
    this.selected = null;
    new ResizeObserver(() => this.width !== this.parent.clientWidth && this.draw()).observe(parent);
  }

  show(fabric) {
    this.fabric = fabric;
    this.selected = null;
    this.draw();
  }

  select(element) {
    this.selected = element;
    this.markSelected();
  }

  draw() {
    this.parent.replaceChildren();
    this.nodes = new Map();
    this.links = [];
    this.scores = new Map();
    this.width = this.parent.clientWidth;
    if (!this.fabric) {
      this.parent.textContent = "No fabric is up at the moment.";
      return;
    }
    const isMatrix = this.fabric.hosts.length > MAX_DRAWN && this.fabric.hosts.every((host) => host.place);
    if (isMatrix) this.drawMatrix();
    else this.drawGraph();
    this.markSelected();
    if (this.last) this.update(...this.last);
  }

  /** Place nodes in rows: spines, rail switches, optical switches, hosts, HB domains. */
  place() {
    const { hosts, switches, inner, links } = this.fabric;
    const hb = new Set(links.filter((link) => link.kind === "hb").map((link) => link.b));
    const role = (...roles) => switches.filter((s) => roles.includes(s.role)).map((s) => s.name);
    const others = inner.filter((name) => !hb.has(name) && !switches.some((s) => s.name === name));
    const optical = role("optical");
    const domains = inner.filter((name) => hb.has(name) && !optical.includes(name));
    const rows = [
      [role("spine"), 70],
      [[...role("rail", "single"), ...others], optical.length ? 80 : 150],
      [optical, 80],
      [hosts.map((host) => host.name), 60],
      [domains, 30],
    ].filter(([names]) => names.length);
    const at = new Map();
    let y = 26;
    for (const [names, below] of rows) {
      names.forEach((name, i) => at.set(name, { x: ((i + 0.5) * this.width) / names.length, y, room: this.width / names.length }));
      y += below;
    }
    return { at, height: y - 4 };
  }

  drawGraph() {
    const { at, height } = this.place();
    const svg = make("svg", { viewBox: `0 0 ${this.width} ${height}`, height, role: "group", "aria-label": "Drawing of the fabric" }, this.parent);
    const layer = make("g", {}, svg);
    this.fabric.links.forEach((link, index) => {
      const a = at.get(link.a), b = at.get(link.b);
      const group = make("g", { class: "link" }, layer);
      const ends = { x1: a.x, y1: a.y, x2: b.x, y2: b.y };
      make("line", { ...ends, class: "hit" }, group);
      const line = make("line", { ...ends, "stroke-width": 1 }, group);
      const queue = make("circle", { class: "queue", cx: b.x + (a.x - b.x) * 0.16, cy: b.y + (a.y - b.y) * 0.16, r: 0 }, group);
      makeButton(group, `link ${link.a} ${link.interface} to ${link.b}`, () => this.onSelect({ link: index }));
      this.links.push({ group, line, queue });
    });
    const domains = new Set(this.fabric.links.filter((link) => link.kind === "hb").map((link) => link.b));
    for (const [name, { x, y, room }] of at) {
      const hasLabel = room >= LABEL_PX;
      const width = domains.has(name) ? room * 0.9 : Math.min(hasLabel ? 56 : 16, room * 0.8);
      const tall = hasLabel ? 20 : Math.min(14, width);
      const group = make("g", { class: "node" }, svg);
      make("rect", { x: x - width / 2, y: y - tall / 2, width, height: tall, rx: 3 }, group);
      if (hasLabel) make("text", { x, y: y + 4 }, group).textContent = name;
      if (hasLabel) this.scores.set(name, make("text", { x, y: y - tall / 2 - 3, class: "score" }, group));
      makeButton(group, name, () => this.onSelect({ node: name }));
      this.nodes.set(name, group);
    }
  }

  drawMatrix() {
    const domains = 1 + Math.max(...this.fabric.hosts.map((host) => host.place[0]));
    const rails = 1 + Math.max(...this.fabric.hosts.map((host) => host.place[1]));
    const places = new Map(this.fabric.hosts.map((host) => [host.name, host.place]));
    const cell = Math.max(3, Math.min(22, (this.width - 40) / rails));
    const height = domains * cell + 24;
    const svg = make("svg", { viewBox: `0 0 ${this.width} ${height}`, height, role: "group", "aria-label": "Matrix of domains (rows) and rails (columns)" }, this.parent);
    make("text", { x: 34 + (rails * cell) / 2, y: 12 }, svg).textContent = `rails 0 to ${rails - 1}`;
    for (const domain of [0, domains - 1]) make("text", { x: 15, y: 24 + (domain + 0.5) * cell + 4 }, svg).textContent = `d${domain}`;
    this.fabric.links.forEach((link, index) => {
      if (link.kind !== "rail" || !places.has(link.a)) return;
      const [domain, rank] = places.get(link.a);
      const rect = make("rect", { class: "cell", x: 34 + rank * cell, y: 20 + domain * cell, width: cell, height: cell }, svg);
      makeButton(rect, `link ${link.a} ${link.interface}`, () => this.onSelect({ link: index }));
      this.links[index] = { cell: rect };
    });
  }

  /** Show a sample and the names of faulty nodes. */
  update(sample, faulty, health, path) {
    this.last = [sample, faulty, health, path];
    if (!this.fabric || !sample) return;
    const [up, to, from, queue] = sample.links;
    const onPath = new Set(path ?? []);
    this.links.forEach((shown, i) => {
      const load = Math.max(to[i], from[i]) / 1000;
      const share = Math.min(1, load);
      if (shown.cell) {
        shown.cell.style.fill = up[i] ? `color-mix(in srgb, var(--traffic) ${Math.round(share * 100)}%, var(--page))` : "var(--broken)";
        return;
      }
      shown.group.classList.toggle("onpath", onPath.has(i));
      shown.line.setAttribute("class", up[i] ? "" : "broken");
      shown.line.style.strokeWidth = up[i] ? 1 + 5 * share : 2;
      shown.line.style.stroke = up[i] && !onPath.has(i) ? `color-mix(in srgb, var(--traffic) ${Math.round(Math.min(1, share * 1.5) * 100)}%, var(--idle))` : "";
      shown.queue.setAttribute("r", queue[i] ? Math.min(7, 2 + Math.sqrt(queue[i] / 9000)) : 0);
    });
    for (const [name, group] of this.nodes) group.classList.toggle("faulty", faulty.has(name));
    for (const [sort, prefix] of [["rail", "rail"], ["domain", "hb"], ["spine", "spine"]]) {
      (health?.[sort] ?? []).forEach(([, score], i) => {
        const text = this.scores.get(`${prefix}${i}`);
        if (text) text.textContent = `health ${Math.round(score)}`;
      });
    }
  }

  markSelected() {
    for (const [name, group] of this.nodes) group.classList.toggle("selected", this.selected?.node === name);
    this.links.forEach((shown, i) => (shown.group ?? shown.cell).classList.toggle("selected", this.selected?.link === i));
  }
}
