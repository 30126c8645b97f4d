// The drawing of a fabric: nodes and links up to 128 hosts, beyond that a matrix of domains and rails.
// Colour and width of a link show its utilisation, dashes and a cross a missing carrier, a dot what waits in its queue.

const SVG = "http://www.w3.org/2000/svg";
const MAX_DRAWN = 128;
const NAME_PX = 34; // space that a host's name needs, and its rank alone
const RANK_PX = 17;
const RATE_PX = 62; // space that a switch's rate needs
const JOB_COLOURS = 8; // of page.css
const BESIDE_PX = 9; // between a link and the policy's path beside it
const SORTS = [["rail", "rail"], ["domain", "hb"], ["spine", "spine"]]; // of health scores, and the names of their nodes

function make(name, attributes = {}, parent = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent?.append(element);
  return element;
}

/** Make an element of the drawing a button. The drawing is one tab stop: arrow keys move in it (Drawing.move). */
function makeButton(element, label, onSelect) {
  element.setAttribute("role", "button");
  element.setAttribute("tabindex", "-1");
  element.setAttribute("aria-label", label);
  element.addEventListener("click", onSelect);
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      onSelect();
    }
  });
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const SAME_ROW_PX = 8;

/** Return the centre of an element on the screen. */
function centre(element) {
  const { left, top, width, height } = element.getBoundingClientRect();
  return [left + width / 2, top + height / 2];
}

/** Return the next element in a direction: in the same row, or the nearest of the next row; undefined without. */
function nearest(elements, from, [dx, dy]) {
  const [x, y] = centre(from);
  const places = elements.map((element) => {
    const [toX, toY] = centre(element);
    return { element, across: toX - x, down: toY - y };
  });
  if (dx) {
    const row = places.filter(({ across, down }) => Math.abs(down) < SAME_ROW_PX && across * dx > 1);
    return row.sort((a, b) => (a.across - b.across) * dx)[0]?.element;
  }
  const ahead = places.filter(({ down }) => down * dy >= SAME_ROW_PX);
  const next = Math.min(...ahead.map(({ down }) => down * dy));
  const row = ahead.filter(({ down }) => down * dy < next + SAME_ROW_PX);
  return row.sort((a, b) => Math.abs(a.across) - Math.abs(b.across))[0]?.element;
}

/** Return a line beside another one. */
function beside({ x1, y1, x2, y2 }) {
  const length = Math.hypot(x2 - x1, y2 - y1) || 1, dx = ((y2 - y1) / length) * BESIDE_PX, dy = ((x1 - x2) / length) * BESIDE_PX;
  return { x1: x1 + dx, y1: y1 + dy, x2: x2 + dx, y2: y2 + dy };
}

/** Return the class of a link's utilisation in per mille: u0 idle, then a class for each quarter. */
export function levelOf(perMille) {
  return perMille < 10 ? "u0" : `u${Math.min(4, Math.ceil(perMille / 250))}`;
}

/** Give an element the colour of a job, by its number; jobs of one colour have other edges: thin, dotted, thick. */
export function markJob(element, number) {
  element.style.setProperty("--job", number === undefined ? "" : `var(--s${number % JOB_COLOURS})`);
  const edge = Math.floor(number / JOB_COLOURS);
  element.classList.toggle("dotted", edge === 1);
  element.classList.toggle("thick", edge > 1);
}

/** Return the numbers of the jobs that use a link. */
export function jobsOfLink({ a, target, layer }, jobs) {
  return jobs?.links[`${layer === "uplink" ? a : target} ${layer}`] ?? [];
}

/** Return a rate with its unit, or that nothing flows. */
export function rateText(bps) {
  if (bps < 1000) return "idle";
  const [value, unit] = bps >= 1e9 ? [bps / 1e9, "Gbit/s"] : bps >= 1e6 ? [bps / 1e6, "Mbit/s"] : [bps / 1e3, "kbit/s"];
  return `${value >= 9.95 ? Math.round(value) : value.toFixed(1)} ${unit}`;
}

export class Drawing {
  /** `onSelect` gets {node} or {link: index}; `describe` returns the text of the tooltip `tip` for one of these. */
  constructor(parent, onSelect, tip, describe) {
    this.parent = parent;
    this.onSelect = onSelect;
    this.tip = tip;
    this.describe = describe;
    this.pointed = null; // the element of the tooltip
    parent.addEventListener("keydown", (event) => this.move(event));
    for (const kind of ["pointerover", "focusin"]) parent.addEventListener(kind, (event) => this.point(event.target));
    for (const kind of ["pointerleave", "focusout"]) parent.addEventListener(kind, () => this.point(null));
    addEventListener("keydown", (event) => event.key === "Escape" && this.point(null));
    this.fabric = null;
    this.selected = null;
    new ResizeObserver(() => this.width !== this.parent.clientWidth && this.draw()).observe(parent);
  }

  show(fabric) {
    this.fabric = fabric;
    this.selected = null;
    this.last = null;
    this.draw();
  }

  select(element) {
    this.selected = element;
    this.markSelected();
  }

  /** Make one node the drawing's tab stop: the selected one, else the first. */
  markStop(element) {
    for (const other of this.parent.querySelectorAll('[tabindex="0"]')) other.setAttribute("tabindex", "-1");
    (element ?? this.nodes.get(this.selected?.node)?.group ?? this.nodes.values().next().value?.group)?.setAttribute("tabindex", "0");
  }

  /** Go to the next node in the direction of an arrow key. */
  move(event) {
    const from = event.target.closest('[role="button"]');
    if (!from || !(event.key in ARROWS)) return;
    event.preventDefault();
    const next = nearest([...this.nodes.values()].map(({ group }) => group), from, ARROWS[event.key]);
    if (!next) return;
    this.markStop(next);
    next.focus();
  }

  /** Show the tooltip of what a shape belongs to; hide it without. */
  point(shape) {
    const target = shape?.closest?.('[role="button"]') ?? null;
    this.pointed = target && this.elementOf(target) ? target : null;
    this.tip.hidden = !this.pointed;
    if (!this.pointed) return;
    this.writeTip();
    const box = this.pointed.getBoundingClientRect(), frame = this.tip.offsetParent.getBoundingClientRect();
    const left = Math.min(box.left + box.width / 2 - frame.left, frame.width - this.tip.offsetWidth - 8);
    this.tip.style.left = `${Math.max(8, left)}px`;
    this.tip.style.top = `${(this.nodes.has(this.elementOf(target).node) ? box.bottom : box.top + box.height / 2) - frame.top + 8}px`;
  }

  writeTip() {
    if (this.pointed) this.tip.textContent = this.describe(this.elementOf(this.pointed));
  }

  /** Return {node} or {link: index} of a button of the drawing. */
  elementOf(button) {
    for (const [node, { group }] of this.nodes) if (group === button) return { node };
    const link = this.links.findIndex((shown) => shown && (shown.group ?? shown.cell) === button);
    return link < 0 ? null : { link };
  }

  draw() {
    this.point(null);
    this.parent.replaceChildren();
    this.nodes = new Map();
    this.links = [];
    this.halo = null;
    this.width = this.parent.clientWidth;
    if (!this.fabric) {
      this.parent.textContent = "No fabric is up at the moment.";
      return;
    }
    const isMatrix = this.fabric.hosts.length > MAX_DRAWN && this.fabric.hosts.every((host) => host.place);
    if (isMatrix) this.drawMatrix();
    else this.drawGraph();
    this.markSelected();
    this.markStop();
    if (this.last) this.update(...this.last);
  }

  /** Place nodes in rows: spines, rail switches, optical switches, hosts, HB domains. */
  place() {
    const { hosts, switches, inner, links } = this.fabric;
    const hb = new Set(links.filter((link) => link.kind === "hb").map((link) => link.b));
    const role = (...roles) => switches.filter((s) => roles.includes(s.role)).map((s) => s.name);
    const nics = [...new Set(links.filter((link) => link.kind === "nic").map((link) => link.b))];
    const others = inner.filter((name) => !hb.has(name) && !nics.includes(name) && !switches.some((s) => s.name === name));
    const optical = role("optical");
    const isHost = (name) => hosts.some((host) => host.name === name);
    const domains = inner.filter((name) => hb.has(name) && !optical.includes(name));
    const rows = [
      [role("spine", "core"), 86, 34],
      [[...role("rail", "single", "leaf"), ...others], optical.length ? 90 : 170, 34],
      [optical, 90, 24],
      [nics, 62, 22],
      [hosts.map((host) => host.name), 62, 24],
      [domains, 34, 30],
    ].filter(([names]) => names.length);
    const at = new Map();
    let y = 34;
    for (const [names, below, tall] of rows) {
      const room = this.width / names.length, widest = hb.has(names[0]) ? room : isHost(names[0]) ? 58 : 100;
      const width = Math.min(widest, room * 0.84), small = isHost(names[0]) && room < RANK_PX;
      names.forEach((name, i) => at.set(name, { x: (i + 0.5) * room, y, room, width, tall: small ? Math.min(14, width) : tall }));
      y += below;
    }
    return { at, height: y, domains };
  }

  drawGraph() {
    const { at, height, domains } = this.place();
    const places = new Map(this.fabric.hosts.map((host) => [host.name, host.place]));
    const label = "Drawing of the fabric";
    const svg = make("svg", { viewBox: `0 0 ${this.width} ${height}`, height, role: "group", "aria-label": label }, this.parent);
    for (const name of domains) this.drawDomain(svg, at, name);
    this.halo = make("g", { class: "halo" }, svg);
    const layer = make("g", {}, svg);
    this.fabric.links.forEach((link, index) => {
      const a = at.get(link.a), b = at.get(link.b);
      const group = make("g", { class: "link" }, layer);
      const ends = { x1: a.x, y1: a.y, x2: b.x, y2: b.y };
      make("line", { ...ends, class: "hit" }, group);
      make("path", { d: `M${a.x} ${a.y}L${b.x} ${b.y}`, class: "fault" }, group);
      const line = make("line", ends, group);
      const along = (share) => [b.x + (a.x - b.x) * share, b.y + (a.y - b.y) * share];
      const outside = (size, distance) => (size / 2 + 8) / Math.abs(distance); // beyond the box of b
      const [cx, cy] = along(Math.min(0.5, outside(b.width, a.x - b.x), outside(b.tall, a.y - b.y)));
      const queue = make("circle", { class: "queue", cx, cy, r: 0 }, group);
      const [x, y] = along(0.55);
      const cross = make("path", { class: "cross", d: `M${x - 5} ${y - 5}l10 10m0 -10l-10 10` }, group);
      makeButton(group, `link ${link.a} ${link.interface} to ${link.b}`, () => this.onSelect({ link: index }));
      this.links.push({ group, line, queue, cross, ends });
    });
    for (const [name, { x, y, room, width, tall }] of at) {
      const isHost = places.has(name);
      const text = room >= NAME_PX ? name : isHost && room >= RANK_PX && places.get(name) ? `g${places.get(name)[1]}` : "";
      const group = make("g", { class: "node" }, svg);
      const box = { x: x - width / 2, y: y - tall / 2, width, height: tall, rx: isHost ? 3 : 6 };
      make("rect", { ...box, class: "box" }, group);
      make("rect", { x: box.x - 4, y: box.y - 4, width: width + 8, height: tall + 8, rx: box.rx + 4, class: "ring" }, group);
      const hasRate = !isHost && room >= RATE_PX && tall > 24;
      if (text) make("text", { x, y: y + (hasRate ? -2 : 4), class: "name" }, group).textContent = text;
      const rate = hasRate ? make("text", { x, y: y + 11, class: "rate" }, group) : null;
      const scoreY = domains.includes(name) ? y + tall / 2 + 11 : y - tall / 2 - 4;
      const score = isHost || room < RATE_PX ? null : make("text", { x, y: scoreY, class: "score" }, group);
      makeButton(group, name, () => this.onSelect({ node: name }));
      this.nodes.set(name, { group, rate, score, links: [] });
    }
    this.fabric.links.forEach((link, index) => this.nodes.get(link.b).links.push(index));
  }

  /** Draw the box of an HB domain around its GPUs. */
  drawDomain(svg, at, name) {
    const own = this.fabric.links.filter((link) => link.b === name).map((link) => at.get(link.a));
    if (!own.length) return;
    const left = Math.min(...own.map((gpu) => gpu.x - gpu.room / 2)), right = Math.max(...own.map((gpu) => gpu.x + gpu.room / 2));
    const gap = Math.min(8, (right - left) * 0.04), top = own[0].y - 24;
    make("rect", { class: "domain", x: left + gap / 2, y: top, width: right - left - gap, height: at.get(name).y + 33 - top, rx: 8 }, svg);
  }

  /** Draw a cell for each GPU, in it its links; switches and HB domains are the heads of columns and rows. */
  drawMatrix() {
    const { hosts, links, switches } = this.fabric;
    const places = new Map(hosts.map((host) => [host.name, host.place]));
    const domains = 1 + Math.max(...hosts.map((host) => host.place[0])), rails = 1 + Math.max(...hosts.map((host) => host.place[1]));
    const ranks = new Map(switches.map(({ name }) => [name, new Set()])), bridges = new Map();
    for (const { a, b, kind } of links) {
      if (!places.has(a)) continue;
      if (kind === "hb") bridges.set(b, places.get(a)[0]);
      else ranks.get(b)?.add(places.get(a)[1]);
    }
    const columns = switches.filter(({ name }) => ranks.get(name).size === 1).map(({ name }) => name); // the others have rows of their own
    const rows = switches.map(({ name }) => name).filter((name) => !columns.includes(name));
    const columnOf = (name) => [...(ranks.get(name) ?? [])][0];
    const heads = Array.from({ length: rails }, (_, rank) => columns.filter((name) => columnOf(name) === rank));
    const planes = Math.max(1, ...heads.map((names) => names.length));
    const left = 56, score = this.width > 520 ? 66 : 4;
    const cell = Math.max(4, Math.min(84, (this.width - left - score) / rails)), tall = Math.max(12, Math.min(24, cell));
    const top = 4 + rows.length * 22, begin = top + planes * 20, height = begin + domains * tall + 6;
    const svg = make("svg", { viewBox: `0 0 ${this.width} ${height}`, height, class: "matrix", role: "group", "aria-label": "Matrix of domains (rows) and rails (columns)" }, this.parent);
    const head = (name, x, y, width, tall, text, scoreX) => {
      const group = make("g", { class: "node head" }, svg);
      make("rect", { x, y, width, height: tall, class: "box frame" }, group);
      make("rect", { x: x + 2, y: y + 2, width: width - 4, height: tall - 4, class: "ring" }, group);
      if (text) make("text", { x: x + width / 2, y: y + tall / 2 + 4 }, group).textContent = text;
      const label = scoreX ? make("text", { x: scoreX, y: y + tall / 2 + 4, class: "score" }, group) : null;
      makeButton(group, name, () => this.onSelect({ node: name }));
      this.nodes.set(name, { group, rate: null, score: label, links: [] });
    };
    const showLink = (index, x, y, width, tall, parent) => {
      const rect = make("rect", { x, y, width, height: tall, class: "cell" }, parent);
      const cross = make("path", { class: "cross thin", d: `M${x + 1} ${y + 1}L${x + width - 1} ${y + tall - 1}M${x + width - 1} ${y + 1}L${x + 1} ${y + tall - 1}` }, parent);
      const queue = make("circle", { class: "queue", cx: x + width / 2, cy: y + tall / 2, r: 0 }, parent);
      this.links[index] = { cell: rect, cross, queue, room: Math.min(width, tall) / 2 - 1 };
      return rect;
    };
    rows.forEach((name, i) => head(name, 2, 4 + i * 22, left - 6, 19, name));
    const step = Math.ceil(16 / cell); // between two columns whose number is written
    heads.forEach((names, rank) => names.forEach((name, plane) => {
      const text = cell >= 42 && planes === 1 ? name : rank % step ? "" : plane ? `${rank}p${plane}` : `${rank}`;
      head(name, left + rank * cell, top + plane * 20, cell, 18, cell >= 24 || !plane ? text : "");
    }));
    make("text", { x: left - 8, y: top + 13, class: "axis" }, svg).textContent = "rail";
    for (const [name, domain] of bridges) {
      head(name, 2, begin + domain * tall, left - 6, tall, tall < 14 && domain % 2 ? "" : name, score > 4 ? left + rails * cell + score / 2 : 0);
    }
    for (const { name, place: [domain, rank] } of hosts) {
      const [x, y] = [left + rank * cell, begin + domain * tall];
      const group = make("g", { class: "node" }, svg);
      const own = links.map((link, i) => i).filter((i) => links[i].a === name);
      const hb = own.filter((i) => links[i].kind === "hb"), others = own.filter((i) => links[i].kind !== "hb");
      const upper = hb.length ? tall * 0.62 : tall;
      others.forEach((index, i) => showLink(index, x + (i * cell) / others.length, y, cell / others.length, upper, group));
      for (const index of hb) showLink(index, x, y + upper, cell, tall - upper, group);
      make("rect", { x: x + 0.5, y: y + 0.5, width: cell - 1, height: tall - 1, class: "box frame" }, group);
      make("rect", { x: x + 1.5, y: y + 1.5, width: cell - 3, height: tall - 3, class: "ring" }, group);
      makeButton(group, name, () => this.onSelect({ node: name }));
      this.nodes.set(name, { group, rate: null, score: null, links: [] });
    }
    links.forEach((link, index) => {
      if (places.has(link.a) || !rows.includes(link.b)) return; // an uplink, in the row of its spine
      const rank = columnOf(link.a), names = heads[rank] ?? [], plane = Math.max(0, names.indexOf(link.a));
      if (rank === undefined) return;
      const rect = showLink(index, left + rank * cell + (plane * cell) / names.length, 4 + rows.indexOf(link.b) * 22, cell / names.length, 19, svg);
      makeButton(rect, `link ${link.a} ${link.interface} to ${link.b}`, () => this.onSelect({ link: index }));
    });
  }

  /** Show a sample, the active faults {kind, target, layer}, health scores, a pair's path: links, and the policy's; jobs. */
  update(sample, faults, health, path, jobs) {
    this.last = [sample, faults, health, path, jobs];
    this.writeTip();
    if (!this.fabric || !sample) return;
    const faulty = new Set(faults.map(({ target }) => target));
    const isFaulty = ({ layer, target }) => faults.some((fault) => fault.layer && fault.layer === layer && fault.target === target);
    const [up, to, from, queue] = sample.links;
    this.links.forEach((shown, i) => {
      const used = Math.max(to[i], from[i]);
      const level = up[i] ? levelOf(used) : "broken";
      shown.cross.style.display = up[i] ? "none" : "inline";
      const radius = queue[i] ? Math.min(shown.room ?? 8, 2 + Math.sqrt(queue[i] / 9000)) : 0;
      shown.queue.setAttribute("r", Math.max(0, radius));
      if (shown.cell) {
        shown.cell.setAttribute("class", `cell ${level}${this.selected?.link === i ? " selected" : ""}`);
        return;
      }
      shown.group.classList.toggle("faulty", isFaulty(this.fabric.links[i]));
      shown.line.setAttribute("class", level);
      shown.line.style.strokeWidth = up[i] ? 1 + 5 * Math.min(1, used / 1000) : 2;
    });
    this.colourJobs(jobs);
    const ends = (numbers) => new Set((numbers ?? []).filter((i) => this.links[i]).flatMap((i) => [this.fabric.links[i].a, this.fabric.links[i].b]));
    const onPath = ends(path?.links), onPolicy = ends(path?.policy_links);
    if (this.halo) {
      const drawn = (numbers) => (numbers ?? []).map((i) => this.links[i]?.ends).filter(Boolean);
      this.halo.replaceChildren(...drawn(path?.links).map((line) => make("line", line)), ...drawn(path?.policy_links).map((line) => make("line", { ...beside(line), class: "policy" })));
    }
    for (const [name, { group, rate, links }] of this.nodes) {
      group.classList.toggle("faulty", faulty.has(name));
      group.classList.toggle("onpath", onPath.has(name));
      group.classList.toggle("onpolicy", onPolicy.has(name));
      if (rate && faulty.has(name)) rate.textContent = "✕ faulty";
      else if (rate) rate.textContent = rateText(links.reduce((sum, i) => sum + (to[i] * this.fabric.links[i].rate) / 1000, 0));
    }
    for (const [sort, prefix] of SORTS) {
      (health?.[sort] ?? []).forEach(([, score], i) => {
        const text = this.nodes.get(`${prefix}${i}`)?.score;
        if (text) text.textContent = `health ${Math.round(score)}`;
      });
    }
  }

  /** Give GPUs the colour of their job. If a job is emphasised, pale the GPUs and links of all others. */
  colourJobs(jobs) {
    const emphasised = jobs?.names.indexOf(jobs.emphasised) ?? -1;
    const isPale = (users) => emphasised >= 0 && !users.includes(emphasised);
    for (const [name, { group }] of this.nodes) {
      const number = jobs?.gpus[name];
      const isHost = this.fabric.hosts.some((host) => host.name === name);
      group.classList.toggle("job", number !== undefined);
      group.classList.toggle("pale", isHost && isPale([number]));
      markJob(group, number);
    }
    this.links.forEach((shown, i) => (shown.group ?? shown.cell).classList.toggle("pale", isPale(jobsOfLink(this.fabric.links[i], jobs))));
  }

  markSelected() {
    for (const [name, { group }] of this.nodes) group.classList.toggle("selected", this.selected?.node === name);
    this.links.forEach((shown, i) => (shown.group ?? shown.cell).classList.toggle("selected", this.selected?.link === i));
  }
}
