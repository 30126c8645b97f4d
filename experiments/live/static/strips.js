// Time strips: traffic of each rail or layer, queues and drops over the samples that the page has.

const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]];
const MAX_SERIES = 8;

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Return the groups of links whose traffic is one series: those of a switch, or of an HB domain. */
export function seriesOf(fabric) {
  const groups = new Map();
  fabric.links.forEach((link, i) => {
    if (link.kind === "uplink") return;
    if (!groups.has(link.b)) groups.set(link.b, []);
    groups.get(link.b).push(i);
  });
  const all = [...groups].map(([name, links]) => ({ name, links }));
  const rails = all.filter((group) => !group.name.startsWith("hb"));
  return rails.length <= MAX_SERIES ? rails : [{ name: "all rails", links: rails.flatMap((group) => group.links) }];
}

export class Strips {
  constructor(parent, onTime) {
    this.parent = parent;
    this.onTime = onTime;
    this.plots = [];
    new ResizeObserver(() => this.resize()).observe(parent);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.fabric && this.show(this.fabric));
  }

  show(fabric) {
    for (const plot of this.plots) plot.plot.destroy();
    this.parent.replaceChildren();
    this.fabric = fabric;
    this.plots = [];
    if (!fabric) return;
    const groups = seriesOf(fabric);
    this.add("Traffic into the rails, Mbit/s", groups.map((group) => ({
      label: group.name,
      of: (sample) => group.links.reduce((sum, i) => sum + sample.links[1][i] * fabric.links[i].rate, 0) / 1e9,
    })), "--traffic");
    this.add("Queues at the network's ends, KB", [{ label: "queues", of: (sample) => sample.links[3].reduce((a, b) => a + b, 0) / 1000 }], "--queue");
  }

  add(title, series, colour) {
    const box = document.createElement("div");
    const heading = document.createElement("h3");
    heading.textContent = title;
    box.append(heading);
    this.parent.append(box);
    const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") }, font: "11px system-ui" };
    const plot = new uPlot({
      width: Math.max(200, this.parent.clientWidth),
      height: 130,
      scales: { x: { time: false } },
      axes: [axis, { ...axis, size: 52 }],
      cursor: { drag: { x: false, y: false } },
      legend: { live: false },
      series: [{ label: "s" }, ...series.map(({ label }, i) => ({ label, stroke: style(colour), width: 1.5, dash: DASHES[i % DASHES.length] }))],
      hooks: { ready: [(u) => u.over.addEventListener("click", () => u.cursor.idx != null && this.onTime(u.data[0][u.cursor.idx]))] },
    }, series.length > 0 ? [[], ...series.map(() => [])] : [[]], box);
    this.plots.push({ plot, series });
  }

  /** Draw the samples; `x` is their time in s. */
  update(samples, x) {
    for (const { plot, series } of this.plots) plot.setData([x, ...series.map(({ of }) => samples.map(of))]);
  }

  resize() {
    for (const { plot } of this.plots) {
      const width = Math.max(200, this.parent.clientWidth);
      if (plot.width !== width) plot.setSize({ width, height: 130 });
    }
  }
}
