// Events in words, and what sort of step each is: a fault, its detection, the reroute, the first packet, the repair.

const SORTS = {
  fault: ["inject", "controller-crashed", "registry-crashed"],
  detection: ["port-down", "switch-down", "silent", "silence", "stale", "optical-links-down", "rail-lost"],
  reroute: ["decided", "rerouted", "changed", "steering", "migrated"],
  packet: ["first-packet"],
  repair: ["repair", "port-up", "switch-up", "resumed", "fresh", "optical-links-up", "controller-restarted", "registry-restarted"],
};
const JUMPS = { fault: ["inject"], reroute: ["rerouted", "changed", "migrated"], repair: ["repair"] }; // those that a button goes to
// Of each event the first sentence whose details are all there, as JSON, which words.py reads too: {key} is a detail,
// {key:noun} a count, {*} all details.
const SENTENCES = {
  "inject": ["fault: {kind} at {target}"],
  "repair": ["repaired: {kind} at {target}"],
  "port-down": ["{switch} lost the carrier of {port}"],
  "port-up": ["{switch} has the carrier of {port} again"],
  "switch-down": ["controller lost {switch}"],
  "switch-up": ["{switch} is connected again"],
  "silent": ["no heartbeats from {*}"],
  "resumed": ["controller acts again, with {switches:switch}", "heartbeats from {*} again"],
  "decided": ["controller chose new paths for {gpus:GPU}"],
  "rerouted": ["{routes:route} changed; {detours:detour} in use"],
  "changed": ["agents changed {routes:route} of {sources:GPU}"],
  "refused": ["{gpu} refused a route: {why}"],
  "stale": ["{gpu} gets no new health scores"],
  "fresh": ["{gpu} gets health scores again"],
  "steering": ["the policy has chosen the first routes of all GPUs"],
  "first-packet": ["packets flow again, {ms} ms after {kind} at {target}", "{kind} at {target} cut no packets off"],
  "rail-lost": ["a node noticed the loss of {rails}"],
  "migrated": ["{nodes:node} moved the work of {rails} to other rails, {ms} ms later"],
  "start": ["started: {what} {text}"],
  "stop": ["stopped: {what}"],
  "pause": ["the run is held before its next step"],
  "resume": ["the run goes on"]
};

function count(number, noun) {
  const ending = /(s|x|ch|sh)$/.test(noun) ? "es" : "s";
  return `${number} ${noun}${number === 1 ? "" : ending}`;
}

function filled(sentence, detail) {
  const text = (value) => (value === undefined || value === null || value === "" || value === 0 ? "" : String(value));
  let isWhole = true;
  const words = sentence.replace(/\{(\*|\w+)(?::(\w+))?\}/g, (_, key, noun) => {
    if (key === "*") return Object.values(detail).join(", ");
    const part = noun ? (detail[key] === undefined ? "" : count(detail[key], noun)) : text(detail[key]);
    isWhole &&= part !== "";
    return part;
  });
  return isWhole ? words : "";
}

/** Return an event in words; one that has no sentence by its name and its plain details. */
export function words({ what, detail }) {
  for (const sentence of SENTENCES[what] ?? []) {
    const text = filled(sentence, detail);
    if (text) return text;
  }
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
