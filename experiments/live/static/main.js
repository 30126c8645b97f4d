// The page: receives the state of a run by server-sent events, and shows the present or any time that it has received.

import { Drawing } from "./fabric.js";
import { describe, showActions, showActive } from "./panel.js";
import { Strips } from "./strips.js";

const MAX_SAMPLES = 6000; // 20 minutes at 5 per second
const MAX_EVENTS = 1000;
const SHOWN_EVENTS = 200;
const byId = (id) => document.getElementById(id);

const page = {
  run: { active: [], control: false },
  fabric: null,
  samples: [],
  events: [],
  health: null,
  selected: null,
  shownNs: null, // null: the present
  beginNs: null,
  playing: null,
};

const drawing = new Drawing(byId("fabric"), select);
const strips = new Strips(byId("strips"), (seconds) => showTime(page.beginNs + seconds * 1e9));

function seconds(ns) {
  return (ns - page.beginNs) / 1e9;
}

function select(element) {
  page.selected = element;
  drawing.select(element);
  refreshPanel();
}

function refreshPanel() {
  if (!page.fabric || !page.selected) return;
  describe(page.fabric, page.selected, currentSample());
  if (page.run.control) showActions(page.fabric, page.selected, page.run.active, send);
}

async function send(request) {
  byId("answer").textContent = "";
  try {
    const answer = await fetch("control", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(request) });
    const body = await answer.json();
    if (body.error) byId("answer").textContent = body.error;
  } catch (error) {
    byId("answer").textContent = `no answer: ${error.message}`;
  }
}

/** Return the last sample at or before the time that is shown. */
function currentSample() {
  const { samples, shownNs } = page;
  if (shownNs === null) return samples.at(-1);
  let low = 0;
  let high = samples.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (samples[middle].ns <= shownNs) low = middle + 1;
    else high = middle;
  }
  return samples[Math.max(0, low - 1)];
}

/** Show a time; null for the present. */
function showTime(ns) {
  page.shownNs = ns;
  byId("live").setAttribute("aria-pressed", String(ns === null));
  render();
}

let isDue = false;
function render() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    const sample = currentSample();
    const faulty = new Set(page.run.active.map((fault) => fault.target));
    drawing.update(sample, faulty, page.health);
    const slider = byId("slider");
    if (page.samples.length) {
      slider.min = seconds(page.samples[0].ns);
      slider.max = seconds(page.samples.at(-1).ns);
      slider.value = seconds(page.shownNs ?? page.samples.at(-1).ns);
      byId("now").textContent = `${Number(slider.value).toFixed(2)} s`;
      slider.setAttribute("aria-valuetext", byId("now").textContent);
    }
    if (page.selected && page.fabric) describe(page.fabric, page.selected, sample);
  });
}

let stripsDue = 0;
function renderStrips() {
  if (performance.now() < stripsDue) return;
  stripsDue = performance.now() + 400;
  strips.update(page.samples, page.samples.map((sample) => seconds(sample.ns)));
}

function textOf({ what, detail }) {
  const parts = Object.entries(detail).filter(([key, value]) => !["active", "command"].includes(key) && typeof value !== "object");
  return [what, ...parts.map(([key, value]) => `${key} ${value}`)].join(", ");
}

function renderEvents() {
  const items = page.events.slice(-SHOWN_EVENTS).reverse().map((event) => {
    const item = document.createElement("li");
    const time = document.createElement("time");
    time.textContent = `${seconds(event.ns).toFixed(3)} s`;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = textOf(event);
    button.addEventListener("click", () => showTime(event.ns));
    item.append(time, button);
    return item;
  });
  byId("events").replaceChildren(...items);
}

let eventsDue = false;
const handlers = {
  run(run) {
    page.run = run;
    byId("title").textContent = `${run.title}, live`;
    document.title = `${run.title}, live — Railyard`;
    byId("step").textContent = run.step;
    showActive(run, send);
    refreshPanel();
  },
  fabric(fabric) {
    page.fabric = fabric;
    page.samples = [];
    page.selected = null;
    byId("drawing-title").textContent = fabric ? `${fabric.label}: ${fabric.title.replace(/^the /, "")}` : "Fabric";
    byId("element").textContent = "Select a link, GPU or switch.";
    byId("actions").replaceChildren();
    byId("legend").textContent = "Width and blue: traffic. Dashed red: no carrier. Orange dot: a queue at the network's end.";
    drawing.last = null;
    drawing.show(fabric);
    strips.show(fabric);
  },
  sample(sample) {
    page.beginNs ??= sample.ns;
    page.samples.push(sample);
    if (page.samples.length > MAX_SAMPLES) page.samples.shift();
    if (page.shownNs === null) render();
    renderStrips();
  },
  health(health) {
    page.health = health;
  },
  event(event) {
    page.beginNs ??= event.ns;
    page.events.push(event);
    if (page.events.length > MAX_EVENTS) page.events.shift();
    if (eventsDue) return;
    eventsDue = true;
    setTimeout(() => {
      eventsDue = false;
      renderEvents();
    }, 50);
  },
};

function connect() {
  const source = new EventSource("events");
  source.onopen = () => {
    byId("state").textContent = "connected";
    page.samples = [];
    page.events = [];
  };
  source.onerror = () => {
    byId("state").textContent = "not connected: the run has ended, or is busy";
  };
  for (const [kind, handler] of Object.entries(handlers)) {
    source.addEventListener(kind, (message) => handler(JSON.parse(message.data)));
  }
}

byId("live").addEventListener("click", () => showTime(null));
byId("slider").addEventListener("input", (event) => showTime(page.beginNs + Number(event.target.value) * 1e9));
byId("copy").addEventListener("click", () => navigator.clipboard.writeText(byId("command").textContent));
byId("play").addEventListener("click", () => {
  if (page.playing) {
    cancelAnimationFrame(page.playing);
    page.playing = null;
    byId("play").textContent = "Play";
    return;
  }
  byId("play").textContent = "Stop";
  if (page.shownNs === null && page.samples.length) page.shownNs = page.samples[0].ns;
  let before = performance.now();
  const step = (now) => {
    const next = page.shownNs + (now - before) * 1e6 * Number(byId("speed").value);
    before = now;
    const end = page.samples.at(-1)?.ns ?? 0;
    showTime(Math.min(next, end));
    if (next < end) page.playing = requestAnimationFrame(step);
    else byId("play").click();
  };
  page.playing = requestAnimationFrame(step);
});

connect();
