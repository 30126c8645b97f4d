// Events in words, and what sort of step each is: a fault, its detection, the reroute, the first packet, the repair.

const SORTS = {
  fault: ["inject", "controller-crashed", "registry-crashed"],
  detection: ["port-down", "switch-down", "silent", "silence", "stale", "optical-links-down", "rail-lost"],
  reroute: ["decided", "rerouted", "changed", "steering", "migrated"],
  packet: ["first-packet"],
  repair: ["repair", "port-up", "switch-up", "resumed", "fresh", "optical-links-up", "controller-restarted", "controller-resumed", "registry-restarted"],
};
const JUMPS = { fault: ["inject"], reroute: ["rerouted", "changed", "migrated"], repair: ["repair"] }; // those that a button goes to
// Of each event the first sentence whose details are all there, as JSON, which words.py reads too: {key} is a detail,
// {key!} one that is not zero, {key:noun} a count, {*} all details. An event that another source has too, with another
// meaning, is named with its source first, such as replacement-decided.
const SENTENCES = {
  "inject": ["fault: {kind} at {target}"],
  "repair": ["repaired: {kind} at {target}"],
  "port-down": ["{switch} lost the carrier of {port}"],
  "port-up": ["{switch} has the carrier of {port} again"],
  "switch-down": ["controller lost {switch}"],
  "switch-up": ["{switch} is connected again"],
  "silent": ["no heartbeats over the link of {link}", "no heartbeats over the HB link of {hb-link}", "no heartbeats from GPU {gpu}", "no heartbeats over rail switch {rail}", "no heartbeats over HB domain {hb-domain}", "no heartbeats from {*}"],
  "resumed": ["heartbeats over the link of {link} again", "heartbeats over the HB link of {hb-link} again", "heartbeats from GPU {gpu} again", "heartbeats over rail switch {rail} again", "heartbeats over HB domain {hb-domain} again", "heartbeats from {*} again"],
  "decided": ["controller chose new paths for {gpus:GPU}"],
  "rerouted": ["{routes:route} changed; {detours:detour} in use"],
  "changed": ["agents changed {routes:route} of {sources:GPU}"],
  "refused": ["a route was refused: {why}"],
  "app-failed": ["{file}: {text} ({times} times)"],
  "stale": ["{gpu} gets no new health scores"],
  "fresh": ["{gpu} gets health scores again"],
  "steering": ["the policy has chosen the first routes of all GPUs"],
  "first-packet": ["packets flow again, {ms!} ms after {kind} at {target}", "{kind} at {target} cut no packets off"],
  "rail-lost": ["a node noticed the loss of {rails}"],
  "migrated": ["{nodes:node} moved the work of {rails} to other rails, {ms} ms later"],
  "start": ["started: {what} {text}"],
  "stop": ["stopped: {what}"],
  "pause": ["the run is held before its next step"],
  "resume": ["the run goes on"],
  "workload-failed": ["the workload that was started failed: {text}"],
  "background-failed": ["the background that was started failed: {text}"],
  "policy-failed": ["the policy that was started failed: {text}"],
  "step": ["next step: {text}"],
  "jobs": ["jobs run: {names}"],
  "jobs-started": ["jobs started"],
  "jobs-finished": ["jobs finished"],
  "phase": ["phases in progress: {names}", "no phase in progress"],
  "learned": ["controller has the interfaces of all GPUs"],
  "relearned": ["controller found no GPU in the place of {gpu}: {why}", "controller has the interfaces of the GPU that replaced {gpu}"],
  "ready": ["controller has set up the flows of all switches"],
  "controller-crashed": ["controller crashed"],
  "controller-restarted": ["controller restarted"],
  "controller-resumed": ["controller acts again, with {switches:switch}"],
  "silence": ["the set of components without heartbeats changed"],
  "optical-links-down": ["optical switches disconnected the fibres that are moved"],
  "optical-links-up": ["optical switches connected the fibres that were moved"],
  "not-crossed": ["optical switches refused to move fibres: {why}"],
  "registry": ["registry of health scores did not start: {why}", "registry of health scores started"],
  "registry-crashed": ["registry of health scores crashed"],
  "registry-restarted": ["registry of health scores restarted"],
  "registry-failed": ["registry of health scores failed: {why}"],
  "health": ["new health scores, version {version}"],
  "choice": ["{src} sends to {dst} by {paths}"],
  "failed": ["policy {policy} failed: {why}"],
  "connected": ["agents are connected to all GPUs"],
  "released": ["agents removed their routes"],
  "started": ["the first heartbeats were sent"],
  "workload-started": ["workload started"],
  "workload-finished": ["workload finished"],
  "background-on": ["background traffic begins: {text}"],
  "background-off": ["background traffic ends: {text}"],
  "background-sent": ["{sent:byte} of background sent, {requested:byte} requested"],
  "uplink-bytes": ["the bytes of every uplink were counted"],
  "script": ["script {name} begins with {faults:fault}"],
  "interrupted": ["{text}"],
  "interval-failed": ["the interval was not measured to its end: {text}"],
  "injected-late": ["{text}"],
  "repeated": ["measured again: {text}"],
  "journal-failed": ["{text}"],
  "training-discarded": ["rank {rank} dropped step {step}: {text}", "rank {rank} dropped step {step}"],
  "training-ended": ["process of rank {rank} ended with exit status {step}"],
  "training-restarted": ["training restarted"],
  "replacement-fault": ["the GPU to be replaced failed"],
  "replacement-detected": ["controller detected the failed GPU"],
  "replacement-decided": ["the replacement of the GPU was decided"],
  "replacement-adopted": ["the replacing GPU has the name and addresses of the failed one"],
  "replacement-optical-links-down": ["optical switches disconnected the fibres that are moved"],
  "replacement-optical-links-up": ["optical switches connected the fibres that were moved"],
  "replacement-replaced": ["packets reach the replacing GPU"],
  "replacement-state-moved": ["the replacing GPU has the state of the failed one"],
  "replacement-job-resumed": ["the job runs again"],
  "policy skipped": ["policy {policy} did not run: {why}"],
  "rails lost": ["rails {rails} were lost though no fault was injected"],
  "operations failed": ["a fault ended the operations: {error}"]
};

function count(number, noun) {
  const ending = /(s|x|ch|sh)$/.test(noun) ? "es" : "s";
  return `${number} ${noun}${number === 1 ? "" : ending}`;
}

function filled(sentence, detail) {
  const text = (value) => (value === undefined || value === null ? "" : String(value));
  let isWhole = true;
  const words = sentence.replace(/\{(\*|[\w-]+)(!?)(?::(\w+))?\}/g, (_, key, notZero, noun) => {
    if (key === "*") return Object.values(detail).join(", ");
    const value = notZero && detail[key] === 0 ? undefined : detail[key];
    const part = noun && value !== undefined ? count(value, noun) : text(value);
    isWhole &&= part !== "";
    return part;
  });
  return isWhole ? words : "";
}

let sentencesOfMeasures = {};
/** Take in the sentences of events that measures emit, those of plugins too. */
export function addSentences(sentences) {
  sentencesOfMeasures = sentences;
}

/** Return an event in words; one that has no sentence by its name and its plain details. */
export function words({ what, detail }) {
  for (const sentence of SENTENCES[what] ?? sentencesOfMeasures[what] ?? []) {
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
