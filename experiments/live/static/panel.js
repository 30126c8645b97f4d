// The panel: what is known of the selected element, and the faults that it can have.

import { jobsOfLink, markJob, rateText } from "./fabric.js";

const byId = (id) => document.getElementById(id);

/** Return the faults that an element can have, with the name of the target. */
export function faultsOf(fabric, element) {
  if (element.link !== undefined) {
    const link = fabric.links[element.link];
    return fabric.faults.filter((fault) => fault.layer && fault.layer === link.layer && fault.targets.includes(link.target)).map((fault) => [fault, link.target]);
  }
  return fabric.faults.filter((fault) => !fault.layer && fault.targets.includes(element.node)).map((fault) => [fault, element.node]);
}

/** Return those of the active faults {kind, target, layer, since: s} that an element has; of a node, also its links'. */
export function faultsAt(fabric, element, faults) {
  if (element.link === undefined) return faults.filter(({ target }) => target === element.node);
  const link = fabric.links[element.link];
  return faults.filter(({ layer, target }) => layer && layer === link.layer && target === link.target);
}

function faultText({ kind, layer, since }, element) {
  const place = element.link === undefined && layer ? ` on its ${layer === "hb" ? "HB" : layer} link` : "";
  return `✕ ${kind}${place} since ${since.toFixed(3)} s`;
}

/** List the jobs with their colours, as buttons that call `emphasise` with the name; hide the list without. */
export function showJobs(jobs, emphasise) {
  const names = jobs?.names ?? [], list = byId("jobs");
  list.hidden = !names.length;
  if (list.dataset.names !== names.join("\n")) {
    list.dataset.names = names.join("\n");
    list.replaceChildren(...names.map((name, number) => jobItem(name, number, emphasise)));
  }
  for (const button of list.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.value === jobs?.emphasised));
}

function jobItem(name, number, emphasise) {
  const item = document.createElement("li"), button = text("button", `job ${name}`), colour = document.createElement("i");
  button.type = "button";
  button.value = name;
  button.title = "Show the GPUs and links of this job";
  button.addEventListener("click", () => emphasise(name));
  colour.className = "job";
  markJob(colour, number);
  button.prepend(colour);
  item.append(button);
  return item;
}

/** Return the line about the job of a GPU, or those that use a link, in a list; empty without. */
function jobLines(fabric, element, jobs) {
  if (element.link === undefined) {
    const number = jobs?.gpus[element.node];
    return number === undefined ? [] : [`job ${jobs.names[number]}`];
  }
  const names = jobsOfLink(fabric.links[element.link], jobs).map((number) => jobs.names[number]);
  if (names.length < 2) return names.map((name) => `used by job ${name}`);
  return [`shared by jobs ${names.join(", ")}`];
}

/** Return what is known of an element by a sample, without its faults; a line each. */
function statement(fabric, element, sample, faults, jobs) {
  const [name, ...lines] = state(fabric, element, sample, faults);
  return [name, ...jobLines(fabric, element, jobs), ...lines];
}

/** Return its name and its state; a line each. */
function state(fabric, element, sample, faults) {
  if (element.link === undefined) {
    const links = fabric.links.map((link, i) => i).filter((i) => [fabric.links[i].a, fabric.links[i].b].includes(element.node));
    const up = links.filter((i) => sample?.links[0][i]).length;
    if (!sample) return [element.node];
    const isOwn = faultsAt(fabric, element, faults).some(({ layer }) => !layer);
    const carrier = `${up} of ${links.length} links have a carrier`;
    return [element.node, isOwn && up ? `${carrier}: what failed is the node, not its cables` : carrier];
  }
  const link = fabric.links[element.link];
  const lines = [`Link of ${link.a} (${link.interface}) to ${link.b}, ${rateText(link.rate)}`];
  if (sample) {
    const [up, to, from, queue, drops] = sample.links.map((column) => column[element.link]);
    const rate = (share) => `${rateText((share * link.rate) / 1000)}${share ? `, ${Math.round(share / 10)}%` : ""}`;
    lines.push(up ? `to ${link.b}: ${rate(to)}\nto ${link.a}: ${rate(from)}` : "no carrier");
    lines.push(`queue at ${link.b}: ${queue} bytes${drops ? `; ${drops} frames dropped` : ""}`);
  }
  return lines;
}

/** Return the text of an element's tooltip. */
export function tipText(fabric, element, sample, faults, jobs) {
  const wrong = faultsAt(fabric, element, faults).map((fault) => faultText(fault, element));
  const [name, ...others] = statement(fabric, element, sample, faults, jobs);
  return [name, ...wrong, ...others].join("\n");
}

/** Write the element's name, faults and rates. `choose` gets src or dst, and the name of a GPU. */
export function describe(fabric, element, sample, faults, choose, jobs) {
  const isHost = fabric.hosts.some((host) => host.name === element.node && host.place);
  byId("ends").hidden = !isHost || !choose;
  for (const id of ["src", "dst"]) byId(`as-${id}`).onclick = () => choose(id, element.node);
  byId("element").textContent = statement(fabric, element, sample, faults, jobs).join("\n");
  const wrong = faultsAt(fabric, element, faults).map((fault) => faultText(fault, element));
  byId("wrong").hidden = !wrong.length;
  if (byId("wrong").innerText !== wrong.join("\n")) byId("wrong").replaceChildren(...wrong.map((line) => text("li", line)));
}

/** List a node's links, to select one. */
export function showLinks(fabric, element, select) {
  const own = fabric.links.map((link, index) => ({ ...link, index })).filter(({ a, b }) => [a, b].includes(element.node));
  byId("links").hidden = !own.length;
  byId("links").open = own.length <= 4;
  byId("links").lastElementChild.replaceChildren(...own.map(({ a, b, interface: name, index }) => {
    const button = text("button", `${a} ${name} to ${b}`);
    button.type = "button";
    button.addEventListener("click", () => select({ link: index }));
    return button;
  }));
}

/** Show that a click is worked on, on its button, or on the one that took its place since. */
export function showBusy(button, isBusy) {
  button.disabled = isBusy;
  button.classList.toggle("busy", isBusy);
  if (isBusy) button.setAttribute("aria-busy", "true");
  else button.removeAttribute("aria-busy");
}

/** Return a request in words, with the elements that it is about. */
export function requestText({ do: act, kind, target, what }) {
  const acts = { inject: `inject ${kind} at ${target}`, repair: `repair ${kind} at ${target}`, start: `start ${what}`, stop: `stop ${what}` };
  return acts[act] ?? { pause: "hold the run", resume: "go on with the run" }[act];
}

/** Show a form for each fault of the element; `active`: faults of the page, `isBusy`: whether a fault's click is worked on. */
export function showActions(fabric, element, active, isBusy, send) {
  const forms = faultsOf(fabric, element).map(([fault, target]) => {
    const current = active.find((one) => one.kind === fault.kind && one.target === target);
    const form = document.createElement("form");
    const button = document.createElement("button");
    button.textContent = `${current ? "Repair" : "Inject"} ${fault.kind}`;
    button.className = current ? "good" : "bad";
    showBusy(button, isBusy({ kind: fault.kind, target }));
    form.append(button);
    const inputs = Object.entries(current ? {} : fault.parameters).map(([name, { default: value, about }]) => {
      const label = document.createElement("label");
      const input = document.createElement("input");
      input.name = name;
      input.value = value ?? "";
      label.title = about;
      label.append(`${name} `, input);
      form.append(label);
      return input;
    });
    form.title = fault.about;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = Object.fromEntries(inputs.filter((input) => input.value !== "").map((input) => [input.name, number(input.value)]));
      send(current ? { do: "repair", ...current } : { do: "inject", kind: fault.kind, target, ...given }, button);
    });
    return form;
  });
  byId("actions").replaceChildren(...forms);
  byId("kinds").hidden = !forms.length;
  byId("kinds").lastElementChild.replaceChildren(...faultsOf(fabric, element).flatMap(([fault]) => [text("dt", fault.kind), text("dd", fault.about)]));
}

function text(tag, content) {
  const element = document.createElement(tag);
  element.textContent = content;
  return element;
}

function number(text) {
  return text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** Show the faults that are active, each with a button that repairs it, and the command that repeats all clicks. */
export function showActive(run, isBusy, send) {
  const items = run.active.map((fault) => {
    const item = document.createElement("li");
    const { kind, target, ...parameters } = fault;
    const given = Object.entries(parameters).map(([name, value]) => ` ${name}=${value}`).join("");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "good";
    button.textContent = `Repair ${kind} at ${target}`;
    showBusy(button, isBusy(fault));
    button.addEventListener("click", () => send({ do: "repair", ...fault }, button));
    item.append(button, given);
    return item;
  });
  byId("faults").hidden = !items.length;
  byId("active").replaceChildren(...items);
  byId("script").hidden = !run.command;
  byId("command").textContent = run.command ?? "";
}

const TYPED = "as typed below";

/** Fill a list with the names of texts, and the field beside it with the text of the one that is chosen. */
function offer(select, field, texts) {
  const names = Object.keys(texts);
  if (select.dataset.names === names.join("\n")) return;
  select.dataset.names = names.join("\n");
  select.replaceChildren(...names.map((name) => new Option(name)), ...(field ? [new Option(TYPED, "")] : []));
  if (!field) return;
  const write = () => {
    if (select.value) field.value = texts[select.value];
  };
  select.onchange = write;
  field.oninput = () => {
    select.value = names.find((name) => texts[name] === field.value) ?? "";
  };
  write();
}

/** Show the forms that start and stop traffic, and the button that holds the run before its next step. */
export function showTraffic(run, isBusy, send) {
  byId("traffic").hidden = !run.control;
  for (const [what, texts] of Object.entries(run.choices ?? {})) {
    const isRunning = (run.running ?? []).includes(what);
    const form = byId(what), select = form.querySelector("select"), field = form.querySelector("textarea"), button = form.querySelector("button");
    offer(select, field, texts);
    for (const input of [select, field]) if (input) input.disabled = isRunning;
    button.textContent = `${isRunning ? "Stop" : "Start"} ${what}`;
    showBusy(button, isBusy({ what }));
    form.onsubmit = (event) => {
      event.preventDefault();
      send(isRunning ? { do: "stop", what } : { do: "start", what, text: (field ?? select).value }, button);
    };
  }
  byId("pause").textContent = run.paused ? "Go on with the run" : "Hold the run before its next step";
  byId("pause").onclick = () => send({ do: run.paused ? "resume" : "pause" }, byId("pause"));
}
