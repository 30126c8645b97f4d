// The page: receives the state of a run by server-sent events, or reads a recorded run, and shows any time of it.

import { Drawing } from "./fabric.js";
import { describe, requestText, showActions, showActive, showBusy, showJobs, showLinks, showTraffic, tipText } from "./panel.js";
import { Strips, valuesOf } from "./strips.js";
import { addSentences, isJump, sortOf, words } from "./words.js";

const MAX_SAMPLES = 6000; // of a fabric, 20 minutes at 5 per second; a recorded run has all
const MAX_EVENTS = 5000;
const SHOWN_EVENTS = 200;
const STRIPS_MS = 400; // between two drawings of the strips
const DONE_MS = 4000; // for which it is said that a click was carried out
const SELECT = "Select a link, GPU or switch in the drawing.";
const byId = (id) => document.getElementById(id);

const page = {
  run: { active: [], control: false },
  sections: [], // a fabric each: {fabric, valuesOf, samples, events, health, paths: of each pair}
  steps: [], // of the run
  phases: [], // of workloads
  jobs: [], // that run from then on: {fabric, names, gpus, links}, numbers of jobs by GPU and link
  job: null, // that is emphasised
  section: null, // that is shown
  selected: null,
  pair: "", // whose path is shown, if any
  problem: "", // why it can't be
  busy: new Set(), // requests that have no answer yet
  isUp: false, // whether the last section's fabric is up
  shownNs: null, // null: the present
  beginNs: null,
  playing: null,
};

const drawing = new Drawing(byId("fabric"), select, byId("tip"), (element) => tipText(page.section.fabric, element, currentSample(), activeFaults(), currentJobs()));
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
  if (!page.section || !page.selected) return;
  const isNow = page.isUp && page.section === page.sections.at(-1);
  describe(page.section.fabric, page.selected, currentSample(), activeFaults(), choose, currentJobs());
  showLinks(page.section.fabric, page.selected, select);
  if (page.run.control && isNow) showActions(page.section.fabric, page.selected, page.run.active, isBusy, send);
}

/** Return whether a click on a fault, or on what is started, is worked on. */
function isBusy({ kind, target, what }) {
  return [...page.busy].some((request) => request.kind === kind && request.target === target && request.what === what);
}

/** Make a GPU an end of the pair whose path is shown. */
function choose(end, name) {
  byId(end).value = name;
  refreshPath();
}

/** Send a request, and show that it is worked on until its answer has come. */
async function send(request, button) {
  const text = requestText(request), begun = performance.now();
  page.busy.add(request);
  showBusy(button, true);
  say(`Working: ${text} …`);
  let problem;
  try {
    const answer = await fetch("control", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(request) });
    problem = (await answer.json()).error;
  } catch (error) {
    problem = `no answer: ${error.message}`;
  }
  page.busy.delete(request);
  showBusy(button, false);
  showControls();
  if (problem) say(problem, "bad");
  else say(`Done: ${text}, ${((performance.now() - begun) / 1000).toFixed(1)} s`, "good");
}

let silence = null;
/** Write into the status line what a click does. What went well goes away by itself. */
function say(text, sort = "") {
  clearTimeout(silence);
  byId("answer").textContent = text;
  byId("answer").className = sort;
  if (sort === "good") silence = setTimeout(() => say(""), DONE_MS);
}

/** Show the state of the controls. */
function showControls() {
  showActive(page.run, isBusy, send);
  showTraffic(page.run, isBusy, send);
  refreshPanel();
}

/** Show the path of the chosen pair; of a run that is under way, ask for it first, so that it is followed from now on. */
async function refreshPath() {
  const [src, dst] = ["src", "dst"].map((id) => byId(id).value.trim());
  page.pair = src && dst ? `${src} ${dst}` : "";
  page.problem = "";
  if (page.pair && page.isUp && !page.record) {
    const { pair } = page;
    try {
      const { error } = await (await fetch(`path?${new URLSearchParams({ src, dst })}`)).json();
      if (page.pair === pair) page.problem = error ?? "";
    } catch {
      return; // the run has ended
    }
  }
  render();
}

/** Return the chosen pair's path at the time that is shown, and write it. */
function showPath() {
  const rows = page.section?.paths.get(page.pair), path = rows && lastUntil(rows);
  const [src, dst] = page.pair.split(" ");
  const hosts = page.section?.fabric.hosts ?? [], isPair = [src, dst].every((name) => hosts.some((host) => host.name === name));
  let text = "";
  if (page.problem) text = page.problem;
  else if (path) text = `${path.gpus ? `packets: ${path.gpus.join(" → ")}${path.problem ? `, then ${path.problem}` : ""}; ` : ""}the fabric's policy: ${path.policy}`;
  else if (isPair && src !== dst) text = "no path is recorded for this time";
  if (byId("path").textContent !== text) byId("path").textContent = text;
  return path;
}

/** Write the run's step and the workload's phases at the time that is shown. */
function showStep() {
  const step = lastUntil(page.steps), phase = lastUntil(page.phases);
  const names = phase && !(phase.ns < step?.ns) ? phase.names : [];
  const texts = { step: step?.text ?? "", phase: names.length ? `phase: ${names.join(", ")}` : "" };
  for (const [id, text] of Object.entries(texts)) if (byId(id).textContent !== text) byId(id).textContent = text;
}

/** Return how many of the rows, ordered by `ns`, are at or before a time. */
function countUntil(rows, ns) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].ns <= ns) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the last of the rows at or before the time that is shown; of the present, the last. */
function current(rows) {
  if (page.shownNs === null) return rows.at(-1);
  return rows[Math.max(0, countUntil(rows, page.shownNs) - 1)];
}

/** Return the last of the rows at or before the time that is shown; undefined if all are later. */
function lastUntil(rows) {
  return page.shownNs === null ? rows.at(-1) : rows[countUntil(rows, page.shownNs) - 1];
}

function currentSample() {
  return page.section ? current(page.section.samples) : undefined;
}

/** Return the jobs on the fabric that is shown, at the time that is shown; undefined without. */
function currentJobs() {
  const jobs = lastUntil(page.jobs);
  return jobs?.fabric === page.section?.fabric.label ? { ...jobs, emphasised: page.job } : undefined;
}

/** Emphasise the GPUs and links of a job in the drawing; those of none if it was emphasised already. */
function emphasiseJob(name) {
  page.job = page.job === name ? null : name;
  render();
}

/** Return the faults that are active at the time that is shown, by the events until then. */
function activeFaults() {
  const active = new Map();
  for (const { ns, what, detail } of page.section?.events ?? []) {
    if (page.shownNs !== null && ns > page.shownNs) continue;
    const { kind, target } = detail, key = `${kind} ${target}`;
    const layer = page.section.fabric.faults.find((fault) => fault.kind === kind)?.layer;
    if (what === "inject") active.set(key, { kind, target, layer, since: seconds(ns) });
    if (what === "repair") active.delete(key);
  }
  return [...active.values()];
}

/** Show a time; null for the present. */
function showTime(ns) {
  page.shownNs = ns;
  byId("live").setAttribute("aria-pressed", String(ns === null));
  render();
  markLater();
  renderStrips();
}

/** Show a fabric's section. */
function showSection(section) {
  page.section = section;
  page.selected = null;
  const { fabric } = section ?? { fabric: null };
  byId("drawing-title").textContent = fabric ? `${fabric.label}: ${fabric.title.replace(/^the /, "")}` : "Fabric";
  byId("element").textContent = SELECT;
  byId("ends").hidden = true;
  byId("wrong").hidden = true;
  byId("actions").replaceChildren();
  byId("kinds").hidden = true;
  byId("hosts").replaceChildren(...(fabric?.hosts ?? []).map((host) => new Option(host.name)));
  byId("fabrics-label").hidden = page.sections.length < 2;
  byId("fabrics").replaceChildren(...page.sections.map((one, i) => new Option(`${i + 1}: ${one.fabric.label}`, i, false, one === section)));
  drawing.show(fabric);
  strips.show(fabric, !page.run.derived);
  renderStrips();
  renderEvents();
  render();
}

let isDue = false;
function render() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    const sample = currentSample();
    showStep();
    drawing.update(sample, activeFaults(), page.section && current(page.section.health), showPath(), currentJobs());
    showJobs(currentJobs(), emphasiseJob);
    const slider = byId("slider");
    const samples = page.section?.samples ?? [];
    if (samples.length) {
      slider.min = seconds(samples[0].ns);
      slider.max = seconds(samples.at(-1).ns);
      slider.value = seconds(page.shownNs ?? samples.at(-1).ns);
      byId("now").textContent = `${Number(slider.value).toFixed(3)} s`;
      slider.setAttribute("aria-valuetext", byId("now").textContent);
    }
    if (page.selected && page.section) describe(page.section.fabric, page.selected, sample, activeFaults(), choose, currentJobs());
  });
}

let stripsTimer = null;
/** Draw the strips soon: of the present its last seconds, of another time as many around it. */
function renderStrips() {
  stripsTimer ??= setTimeout(() => {
    stripsTimer = null;
    const { samples, events } = page.section ?? { samples: [] };
    if (!samples.length) return;
    const span = Number(byId("span").value) * 1e9;
    const last = samples.at(-1).ns;
    const end = page.shownNs === null ? last : Math.min(last, page.shownNs + span / 2);
    const begin = Math.max(samples[0].ns, end - span);
    const shown = samples.slice(Math.max(0, countUntil(samples, begin) - 1), countUntil(samples, end));
    const marks = events.filter(({ what }) => what === "inject" || what === "repair").map((event) => ({
      at: seconds(event.ns), sort: sortOf(event), text: event.what === "inject" ? `${event.detail.kind} ${event.detail.target}` : "repair",
    }));
    strips.update(shown.map(({ ns }) => seconds(ns)), shown.map(({ values }) => values), marks, page.shownNs === null ? null : seconds(page.shownNs));
  }, STRIPS_MS);
}

function renderEvents() {
  const items = (page.section?.events ?? []).slice(-SHOWN_EVENTS).reverse().map((event) => {
    const item = document.createElement("li");
    item.className = sortOf(event);
    item.dataset.ns = event.ns;
    const time = document.createElement("time");
    time.textContent = `${seconds(event.ns).toFixed(3)} s`;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = words(event);
    button.tabIndex = -1;
    button.addEventListener("click", () => showTime(event.ns));
    item.append(time, button);
    return item;
  });
  const focused = document.activeElement?.closest("#events li")?.dataset.ns;
  const top = byId("events").scrollTop;
  byId("events").replaceChildren(...items);
  byId("events").scrollTop = top;
  const stop = items.find((item) => item.dataset.ns === focused) ?? items[0];
  if (stop) stop.lastChild.tabIndex = 0;
  if (focused && stop) stop.lastChild.focus();
  for (const button of byId("jumps").children) button.disabled = !page.section?.events.some((event) => isJump(event, button.dataset.jump));
  markLater();
}

/** Mark the events after the time that is shown. */
function markLater() {
  for (const item of byId("events").children) item.classList.toggle("later", page.shownNs !== null && Number(item.dataset.ns) > page.shownNs);
}

/** Show the next event of a sort after the time that is shown, the first one after the last. */
function jump(sort) {
  const events = (page.section?.events ?? []).filter((event) => isJump(event, sort));
  const next = events.find(({ ns }) => page.shownNs !== null && ns > page.shownNs) ?? events[0];
  if (next) showTime(next.ns);
}

function add(rows, row, limit) {
  page.beginNs ??= row.ns;
  if (rows.length && row.ns < rows.at(-1).ns) rows.splice(countUntil(rows, row.ns), 0, row);
  else rows.push(row);
  if (rows.length > limit) rows.shift();
}

/** Add what the run does from now on. The fabrics' times begin with their first sample or event. */
function addStep(rows, row) {
  rows.push(row);
  if (rows.length > MAX_EVENTS && !page.record) rows.shift();
  if (!page.record) render();
}

let eventsDue = false;
const handlers = {
  run(run) {
    page.run = run;
    addSentences(run.sentences ?? {});
    byId("title").textContent = run.title;
    document.title = `${run.title}, ${page.record ? "recorded" : "live"} — Railyard`;
    if (!page.record) setState(`live, ${run.control ? "with controls" : "read-only"}${run.paused ? ", held" : ""}`, true);
    page.beginNs = run.begin_ns ?? page.beginNs;
    showControls();
  },
  fabric(fabric) {
    page.isUp = Boolean(fabric);
    if (!fabric) return;
    page.sections.push({ fabric, valuesOf: valuesOf(fabric), samples: [], events: [], health: [], paths: new Map() });
    if (!page.record) showSection(page.sections.at(-1));
  },
  sample(sample) {
    const section = page.sections.at(-1);
    if (!section) return;
    sample.values = section.valuesOf(sample);
    add(section.samples, sample, page.record ? Infinity : MAX_SAMPLES);
    if (page.record || section !== page.section) return;
    if (page.shownNs === null) render();
    renderStrips();
  },
  health(health) {
    const section = page.sections.at(-1);
    if (section) add(section.health, health, page.record ? Infinity : MAX_SAMPLES);
  },
  paths({ ns, paths }) {
    const section = page.sections.at(-1);
    for (const [pair, path] of Object.entries(section ? paths : {})) {
      if (!section.paths.has(pair)) section.paths.set(pair, []);
      section.paths.get(pair).push({ ns, ...path });
    }
    if (!page.record) render();
  },
  step(step) {
    addStep(page.steps, step);
  },
  phase(phase) {
    addStep(page.phases, phase);
  },
  jobs(jobs) {
    addStep(page.jobs, jobs);
  },
  event(event) {
    const section = page.sections.at(-1);
    if (!section || !page.isUp) return;
    add(section.events, event, page.record ? Infinity : MAX_EVENTS);
    if (page.record || eventsDue) return;
    eventsDue = true;
    setTimeout(() => {
      eventsDue = false;
      renderEvents();
      refreshPath();
    }, 50);
  },
};

function setState(text, isUp) {
  byId("state").textContent = text;
  byId("state").classList.toggle("up", isUp);
}

function connect() {
  const source = new EventSource("events");
  source.onopen = () => {
    setState(page.run.control ? "live, with controls" : "live, read-only", true);
    page.sections = [];
    page.steps = [];
    page.phases = [];
    page.jobs = [];
    showSection(null);
  };
  source.onerror = () => {
    setState("not connected: the run has ended, or is busy", false);
  };
  for (const [kind, handler] of Object.entries(handlers)) {
    source.addEventListener(kind, (message) => handler(JSON.parse(message.data)));
  }
}

/** Show a recorded run from its begin. */
function showRecord(messages) {
  page.record = true;
  for (const { kind, data } of messages) handlers[kind]?.(kind === "run" ? { ...data, control: false, active: [] } : data);
  setState(page.run.derived ? "a finished run, by its flows and events: queues and the packets' paths need --live" : "a finished run", false);
  byId("live").textContent = "End";
  byId("span").value = "Infinity";
  showSection(page.sections[0] ?? null);
  if (page.section?.samples.length) showTime(page.section.samples[0].ns);
}

/** Go to the event above or below: the list is one tab stop. */
function moveInEvents(event) {
  const item = event.target.closest("li"), step = { ArrowUp: "previousSibling", ArrowDown: "nextSibling" }[event.key];
  const next = step && item?.[step];
  if (!next) return;
  event.preventDefault();
  item.lastChild.tabIndex = -1;
  next.lastChild.tabIndex = 0;
  next.lastChild.focus();
}

byId("events").addEventListener("keydown", moveInEvents);
byId("live").addEventListener("click", () => showTime(null));
byId("pair").addEventListener("input", refreshPath);
byId("span").addEventListener("change", renderStrips);
byId("pair").addEventListener("submit", (event) => event.preventDefault());
byId("fabrics").addEventListener("change", (event) => {
  showSection(page.sections[Number(event.target.value)]);
  showTime(page.section.samples[0]?.ns ?? null);
});
for (const button of byId("jumps").children) button.addEventListener("click", () => jump(button.dataset.jump));
byId("slider").addEventListener("input", (event) => showTime(page.beginNs + Number(event.target.value) * 1e9));
byId("copy").addEventListener("click", () => navigator.clipboard.writeText(byId("command").textContent));
byId("play").addEventListener("click", () => {
  if (page.playing) {
    cancelAnimationFrame(page.playing);
    page.playing = null;
    byId("play").textContent = "Play";
    return;
  }
  const samples = page.section?.samples ?? [];
  if (!samples.length) return;
  byId("play").textContent = "Pause";
  if (page.shownNs === null || page.shownNs >= samples.at(-1).ns) page.shownNs = samples[0].ns;
  let before = performance.now();
  const step = (now) => {
    const next = page.shownNs + (now - before) * 1e6 * Number(byId("speed").value);
    before = now;
    const end = page.section.samples.at(-1).ns;
    showTime(Math.min(next, end));
    if (next < end) page.playing = requestAnimationFrame(step);
    else byId("play").click();
  };
  page.playing = requestAnimationFrame(step);
});

const record = byId("record");
if (record) {
  showRecord(JSON.parse(record.textContent));
} else {
  setInterval(refreshPath, 1000);
  connect();
}
