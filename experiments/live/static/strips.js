// Time strips: traffic of each rail and queues over the samples that the page has, with marks at faults and repairs.

const MAX_SERIES = 8;
const DASHES = [[], [8, 3], [2, 3], [10, 3, 2, 3]];
const HEIGHT = 140;

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Return the groups of links whose traffic is one series: those of a switch; all, if there are too many. */
function seriesOf(fabric) {
  const groups = new Map();
  fabric.links.forEach((link, i) => {
    if (["uplink", "hb", "nic"].includes(link.kind)) return;
    if (!groups.has(link.b)) groups.set(link.b, []);
    groups.get(link.b).push(i);
  });
  const all = [...groups].map(([name, links]) => ({ name, links }));
  return all.length <= MAX_SERIES ? all : [{ name: `all ${all.length} switches`, links: all.flatMap((group) => group.links) }];
}

/** Return what the switches of GPUs' cables are called: of a graph by their names without numbers, such as "leaf". */
function switchTitle(fabric) {
  const titles = fabric.switches
    .filter((each) => ["rail", "single", "leaf"].includes(each.role))
    .map((each) => (each.role === "rail" ? "rail switch" : each.name.replace(/\d+$/, "")));
  return [...new Set(titles)].join(" or ") || "switch";
}

/** Return a function from a sample to the strips' values: Mbit/s into each group of links, then KB in all queues. */
export function valuesOf(fabric) {
  const groups = seriesOf(fabric);
  return (sample) => [
    ...groups.map(({ links }) => links.reduce((sum, i) => sum + sample.links[1][i] * fabric.links[i].rate, 0) / 1e9),
    sample.links[3].reduce((a, b) => a + b, 0) / 1000,
  ];
}

export class Strips {
  constructor(parent, onTime) {
    this.parent = parent;
    this.onTime = onTime;
    this.plots = [];
    this.marks = [];
    new ResizeObserver(() => this.resize()).observe(parent);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.fabric && this.show(this.fabric, this.hasQueues));
  }

  show(fabric, hasQueues) {
    this.hasQueues = hasQueues;
    for (const plot of this.plots) plot.destroy();
    this.parent.replaceChildren();
    this.fabric = fabric;
    this.plots = [];
    if (!fabric) return;
    const groups = seriesOf(fabric);
    this.add(`Traffic into each ${switchTitle(fabric)}, Mbit/s`, groups.map(({ name }, i) => ({ label: name, stroke: style(`--s${i}`), dash: DASHES[i % DASHES.length] })));
    if (hasQueues) this.add("Bytes that wait in all queues, KB", [{ label: "queues", stroke: style("--ink") }]);
  }

  add(title, series) {
    const box = document.createElement("div");
    const heading = document.createElement("h3");
    heading.textContent = title;
    box.append(heading);
    this.parent.append(box);
    const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") }, font: "11px system-ui" };
    this.plots.push(new uPlot({
      width: Math.max(200, this.parent.clientWidth),
      height: HEIGHT,
      padding: [14, 12, 0, 0],
      scales: { x: { time: false }, y: { range: (u, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [{ ...axis, values: (u, ticks) => ticks.map((tick) => `${+tick.toFixed(3)} s`), space: 60, size: 30 }, { ...axis, size: 60 }],
      cursor: { drag: { x: false, y: false } },
      legend: { show: series.length > 1, live: false },
      series: [{}, ...series.map((one) => ({ width: 2, points: { show: false }, ...one }))],
      hooks: {
        draw: [(u) => this.mark(u)],
        ready: [(u) => u.over.addEventListener("click", () => u.cursor.idx != null && this.onTime(u.data[0][u.cursor.idx]))],
      },
    }, [[], ...series.map(() => [])], box));
  }

  /** Draw the samples' values by time in s; `marks`: {at, sort, text} of faults and repairs; `now`: the time shown. */
  update(x, values, marks, now) {
    this.marks = marks;
    this.now = now;
    let first = 0;
    for (const plot of this.plots) {
      const from = first, size = plot.series.length - 1;
      plot.setData([x, ...Array.from({ length: size }, (_, i) => values.map((row) => row[from + i]))]);
      first += size;
    }
  }

  mark(u) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    const line = (at, colour, dash) => {
      const x = Math.round(u.valToPos(at, "x", true));
      if (!(x >= bbox.left && x <= bbox.left + bbox.width)) return null;
      ctx.strokeStyle = colour;
      ctx.setLineDash(dash.map((length) => length * ratio));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      return x;
    };
    ctx.save();
    ctx.lineWidth = 1.5 * ratio;
    ctx.font = `${11 * ratio}px system-ui`;
    ctx.fillStyle = style("--ink");
    ctx.textAlign = "left";
    let free = -Infinity; // texts must not overlap
    for (const { at, sort, text } of this.marks) {
      const x = line(at, style(sort === "fault" ? "--broken" : "--good"), sort === "fault" ? [4, 3] : []);
      const width = ctx.measureText(text).width;
      if (x === null || x < free || x + width > bbox.left + bbox.width) continue;
      ctx.fillText(text, x, bbox.top - 4 * ratio);
      free = x + width + 8 * ratio;
    }
    if (this.now !== null) line(this.now, style("--focus"), []);
    ctx.restore();
  }

  resize() {
    const width = Math.max(200, this.parent.clientWidth);
    for (const plot of this.plots) if (plot.width !== width) plot.setSize({ width, height: HEIGHT });
  }
}
