// The panel: what is known of the selected element, and the faults that it can have.

import { rateText } from "./fabric.js";

const byId = (id) => document.getElementById(id);

/** Return the faults that an element can have, with the name of the target. */
export function faultsOf(fabric, element) {
  if (element.link !== undefined) {
    const link = fabric.links[element.link];
    return fabric.faults.filter((fault) => fault.layer && fault.layer === link.layer && fault.targets.includes(link.target)).map((fault) => [fault, link.target]);
  }
  return fabric.faults.filter((fault) => !fault.layer && fault.targets.includes(element.node)).map((fault) => [fault, element.node]);
}

/** Write the element's name, and its rates by a sample. `choose` gets src or dst, and the name of a GPU. */
export function describe(fabric, element, sample, choose) {
  const isHost = fabric.hosts.some((host) => host.name === element.node && host.place);
  byId("ends").hidden = !isHost || !choose;
  for (const id of ["src", "dst"]) byId(`as-${id}`).onclick = () => choose(id, element.node);
  if (element.link === undefined) {
    const links = fabric.links.map((link, i) => i).filter((i) => [fabric.links[i].a, fabric.links[i].b].includes(element.node));
    const up = links.filter((i) => sample?.links[0][i]).length;
    byId("element").textContent = `${element.node}\n${sample ? `${up} of ${links.length} links have a carrier` : ""}`;
    return;
  }
  const link = fabric.links[element.link];
  const lines = [`Link of ${link.a} (${link.interface}) to ${link.b}, ${rateText(link.rate)}`];
  if (sample) {
    const [up, to, from, queue, drops] = sample.links.map((column) => column[element.link]);
    const rate = (share) => `${rateText((share * link.rate) / 1000)}${share ? `, ${Math.round(share / 10)}%` : ""}`;
    lines.push(up ? `to ${link.b}: ${rate(to)}\nto ${link.a}: ${rate(from)}` : "no carrier");
    lines.push(`queue at ${link.b}: ${queue} bytes${drops ? `; ${drops} frames dropped` : ""}`);
  }
  byId("element").textContent = lines.join("\n");
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

/** Show a form for each fault of the element; `active` are the faults that the page injected. */
export function showActions(fabric, element, active, send) {
  const forms = faultsOf(fabric, element).map(([fault, target]) => {
    const current = active.find((one) => one.kind === fault.kind && one.target === target);
    const form = document.createElement("form");
    const button = document.createElement("button");
    button.textContent = `${current ? "Repair" : "Inject"} ${fault.kind}`;
    button.className = current ? "good" : "bad";
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
      send(current ? { do: "repair", ...current } : { do: "inject", kind: fault.kind, target, ...given });
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
export function showActive(run, send) {
  const items = run.active.map((fault) => {
    const item = document.createElement("li");
    const { kind, target, ...parameters } = fault;
    const given = Object.entries(parameters).map(([name, value]) => ` ${name}=${value}`).join("");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "good";
    button.textContent = `Repair ${kind} at ${target}`;
    button.addEventListener("click", () => send({ do: "repair", ...fault }));
    item.append(button, given);
    return item;
  });
  byId("faults").hidden = !items.length;
  byId("active").replaceChildren(...items);
  byId("script").hidden = !run.command;
  byId("command").textContent = run.command ?? "";
}

/** Show the forms that start and stop traffic, and the button that holds the run before its next step. */
export function showTraffic(run, send) {
  byId("traffic").hidden = !run.control;
  byId("policies").replaceChildren(...(run.policies ?? []).map((name) => new Option(name)));
  for (const what of ["workload", "background", "policy"]) {
    const isRunning = (run.running ?? []).includes(what);
    const [input, button] = byId(what).children;
    input.value ||= run.examples?.[what] ?? "";
    input.disabled = isRunning;
    button.textContent = `${isRunning ? "Stop" : "Start"} ${what}`;
    byId(what).onsubmit = (event) => {
      event.preventDefault();
      send(isRunning ? { do: "stop", what } : { do: "start", what, text: input.value });
    };
  }
  byId("pause").textContent = run.paused ? "Go on with the run" : "Hold the run before its next step";
  byId("pause").onclick = () => send({ do: run.paused ? "resume" : "pause" });
}
