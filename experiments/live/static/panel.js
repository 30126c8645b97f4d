// The panel: what is known of the selected element, and the faults that it can have.

const byId = (id) => document.getElementById(id);

function rate(bps) {
  return bps >= 1e9 ? `${(bps / 1e9).toPrecision(3)} Gbit/s` : `${(bps / 1e6).toPrecision(3)} Mbit/s`;
}

/** Return the faults that an element can have, with the name of the target. */
export function faultsOf(fabric, element) {
  if (element.link !== undefined) {
    const link = fabric.links[element.link];
    return fabric.faults.filter((fault) => fault.layer && fault.layer === link.layer && fault.targets.includes(link.target)).map((fault) => [fault, link.target]);
  }
  return fabric.faults.filter((fault) => !fault.layer && fault.targets.includes(element.node)).map((fault) => [fault, element.node]);
}

/** Write the element's name, and its rates by a sample. */
export function describe(fabric, element, sample) {
  if (element.link === undefined) {
    byId("element").textContent = element.node;
    return;
  }
  const link = fabric.links[element.link];
  const lines = [`${link.a} ${link.interface} — ${link.b}, ${rate(link.rate)}`];
  if (sample) {
    const [up, to, from, queue] = sample.links.map((column) => column[element.link]);
    lines.push(up ? `${rate((to * link.rate) / 1000)} to the network, ${rate((from * link.rate) / 1000)} from it` : "no carrier");
    lines.push(`${queue} bytes wait at ${link.b}`);
  }
  byId("element").textContent = lines.join("\n");
}

/** Show a form for each fault of the element; `active` are the faults that the page injected. */
export function showActions(fabric, element, active, send) {
  const forms = faultsOf(fabric, element).map(([fault, target]) => {
    const current = active.find((one) => one.kind === fault.kind && one.target === target);
    const box = document.createElement("fieldset");
    const legend = document.createElement("legend");
    legend.textContent = fault.kind;
    const about = document.createElement("p");
    about.textContent = fault.about;
    box.append(legend, about);
    const inputs = Object.entries(current ? {} : fault.parameters).map(([name, { default: value }]) => {
      const label = document.createElement("label");
      const input = document.createElement("input");
      input.name = name;
      input.value = value ?? "";
      label.append(`${name} `, input, " ");
      box.append(label);
      return input;
    });
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = current ? `Repair ${target}` : `Inject at ${target}`;
    button.addEventListener("click", () => {
      const given = Object.fromEntries(inputs.filter((input) => input.value !== "").map((input) => [input.name, number(input.value)]));
      send(current ? { do: "repair", ...current } : { do: "inject", kind: fault.kind, target, ...given });
    });
    box.append(button);
    return box;
  });
  byId("actions").replaceChildren(...forms);
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
    button.textContent = `Repair ${kind} at ${target}`;
    button.disabled = !run.control;
    button.addEventListener("click", () => send({ do: "repair", ...fault }));
    item.append(button, given);
    return item;
  });
  if (!items.length) {
    const none = document.createElement("li");
    none.textContent = "none of the page";
    items.push(none);
  }
  byId("active").replaceChildren(...items);
  byId("script").hidden = !run.command;
  byId("command").textContent = run.command ?? "";
}
