// Events in words, and what sort of step each is: a fault, its detection, the reroute, the first packet, the repair.

const SORTS = {
  fault: ["inject", "controller-crashed", "registry-crashed"],
  detection: ["port-down", "switch-down", "silent", "silence", "stale", "optical-links-down", "rail-lost"],
  reroute: ["decided", "rerouted", "changed", "steering", "migrated"],
  packet: ["first-packet"],
  repair: ["repair", "port-up", "switch-up", "resumed", "fresh", "optical-links-up", "controller-restarted", "registry-restarted"],
};
const JUMPS = { fault: ["inject"], reroute: ["rerouted", "changed", "migrated"], repair: ["repair"] }; // those that a button goes to
const WORDS = {
  inject: (d) => `fault: ${d.kind} at ${d.target}`,
  repair: (d) => `repaired: ${d.kind} at ${d.target}`,
  "port-down": (d) => `${d.switch} lost the carrier of ${d.port}`,
  "port-up": (d) => `${d.switch} has the carrier of ${d.port} again`,
  "switch-down": (d) => `controller lost ${d.switch}`,
  "switch-up": (d) => `${d.switch} is connected again`,
  silent: (d) => `no heartbeats from ${Object.values(d).join(", ")}`,
  resumed: (d) => (d.switches === undefined ? `heartbeats from ${Object.values(d).join(", ")} again` : `controller acts again, with ${d.switches} switches`),
  decided: (d) => `controller chose new paths for ${count(d.gpus, "GPU")}`,
  rerouted: (d) => `${count(d.routes, "route")} changed; ${count(d.detours, "detour")} in use`,
  changed: (d) => `agents changed ${count(d.routes, "route")} of ${count(d.sources, "GPU")}`,
  refused: (d) => `${d.gpu} refused a route: ${d.why}`,
  stale: (d) => `${d.gpu} gets no new health scores`,
  fresh: (d) => `${d.gpu} gets health scores again`,
  steering: () => "the policy has chosen the first routes of all GPUs",
  "first-packet": (d) => (d.ms ? `packets flow again, ${d.ms} ms after ${d.kind} at ${d.target}` : `${d.kind} at ${d.target} cut no packets off`),
  "rail-lost": (d) => `a node noticed the loss of ${d.rails}`,
  migrated: (d) => `${count(d.nodes, "node")} moved the work of ${d.rails} to other rails, ${d.ms} ms later`,
  start: (d) => `started: ${d.what} ${d.text}`,
  stop: (d) => `stopped: ${d.what}`,
  pause: () => "the run is held before its next step",
  resume: () => "the run goes on",
};

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** Return an event in words; one that this file does not know by its name and its plain details. */
export function words({ what, detail }) {
  if (WORDS[what]) return WORDS[what](detail);
  const parts = Object.entries(detail).filter(([, value]) => typeof value !== "object" && value !== "");
  return [what.replaceAll("-", " "), ...parts.map(([key, value]) => `${key} ${value}`)].join(", ");
}

/** Return the sort of an event; empty for others. */
export function sortOf({ what }) {
  return Object.keys(SORTS).find((sort) => SORTS[sort].includes(what)) ?? "";
}

/** Return whether the button of a sort goes to an event. */
export function isJump(event, sort) {
  return (JUMPS[sort] ?? SORTS[sort]).includes(event.what);
}
