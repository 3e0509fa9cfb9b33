"use strict";
// Asks, and shows what comes back: first the question as it was understood, then the
// plan before on the new numbers, the proven answer, and, where none fits, the reasons.

let controller = null;
let notes = [];

/** Begin with another spec. */
function begin(spec) {
  pending.clear();
  state.spec = spec;
  Object.assign(state, { plan: null, before: null });
  ask();
}

async function ask() {
  controller?.abort();
  const asking = (controller = new AbortController());
  const edits = [...pending];
  tell("Asking …");
  try {
    const body = { spec: state.spec, edits, carried: state.plan ?? undefined };
    const response = await post("api/solve", body, asking.signal);
    if (!response.ok) {
      await refuse(response);
      return;
    }
    await eachMessage(response, (message) => take(message, edits));
    if (state.hasMap) await drawMap(asking.signal);
  } catch (error) {
    if (error.name !== "AbortError") tell(`The server does not answer: ${error.message}`, true);
  }
  if (controller === asking) document.getElementById("stop").hidden = true;
}

/** Tell why an edit was refused, and show the spec as it still is. */
async function refuse(response) {
  const told = await refusal(response);
  pending.clear();
  if (state.knobs) {
    showLists();
    showSliders(state.knobs);
  }
  tell(told, true);
}

/** Call a function with every line of JSON that a response has. */
async function eachMessage(response, act) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) act(JSON.parse(line));
  }
}

function take(message, edits) {
  const acts = { question: understood, queued, progress, carried, answer: answered, reasons, failed };
  acts[message.kind]?.(message, edits);
}

function understood({ spec, yaml, title, knobs, gpus, job, notes: read }, edits) {
  for (const [path, value] of edits) if (pending.get(path) === value) pending.delete(path);
  if (!state.knobs) for (const part of document.querySelectorAll("details.wide")) part.open = innerWidth > 860;
  Object.assign(state, { spec, yaml, gpus, job, knobs });
  notes = read;
  remember();
  document.title = `${title} - Meshwright`;
  document.getElementById("title").textContent = title;
  document.getElementById("yaml").textContent = yaml;
  document.getElementById("stop").hidden = false;
  showLists();
  showSliders(knobs);
}

function queued({ position }) {
  tell(`Waiting: ${position === 1 ? "next" : `number ${position} in the queue`} …`);
}

function progress({ text }) {
  tell(`${text} …`);
}

function carried(message) {
  drawPage(message, "The plan before, on the new numbers; looking for the best …");
}

function answered(message) {
  const told = {
    optimal: "Proven.",
    feasible: message.isStopped ? "Stopped: the best plan so far." : "Found, not proven.",
    infeasible: "No plan fits.",
    unknown: "Stopped before any plan was found.",
  }[message.status];
  drawPage(message, told, message.status === "infeasible");
  if (message.status === "unknown") return;
  const now = { spec: state.spec, knobs: state.knobs, speed: message.speed };
  document.getElementById("change").textContent = state.before ? changeTold(state.before, now) : "";
  state.before = now;
}

const MOST_CHANGES = 3; // that are named

/** Return what was changed since the answer before, and what that did. */
function changeTold(before, now) {
  const [was, is] = [before.spec, now.spec].map(namesOf);
  const named = Object.keys(is).filter((name) => was[name] !== is[name] && is[name] !== `${was[name]}, changed`);
  const changes = named.map((name) => `${was[name]} → ${is[name]}`);
  if (!named.length) changes.push(...numberChanges(before.knobs, now.knobs));
  const [had, has] = [before.spec.pins ?? {}, now.spec.pins ?? {}];
  const pins = [...new Set([...Object.keys(had), ...Object.keys(has)])].filter((name) => JSON.stringify(had[name]) !== JSON.stringify(has[name]));
  if (pins.length > MOST_CHANGES) changes.push(Object.keys(has).length ? "The plan pinned" : "All decisions left open");
  else changes.push(...pins.map((name) => (name in has ? `${name} pinned to ${JSON.stringify(has[name])}` : `${name} left open`)));
  if (!changes.length) return "";
  const told = changes.length > MOST_CHANGES ? `${changes.length} changes` : changes.join(", ");
  if (!now.speed) return `${told}: no plan fits.`;
  if (!before.speed) return `${told}: a plan fits, ${seconds(now.speed.stepS)} a step.`;
  if (now.speed.stepS === before.speed.stepS) return `${told}: the step stays ${seconds(now.speed.stepS)}.`;
  const [step, rate] = ["stepS", "rate"].map((name) => signed(now.speed[name] / before.speed[name] - 1));
  return `${told}: step ${step} (${seconds(before.speed.stepS)} → ${seconds(now.speed.stepS)}), tokens/s/GPU ${rate}.`;
}

function numberChanges(before, now) {
  return now.flatMap(({ name, label, unit, numbers, at }) => {
    const old = before.find((knob) => knob.name === name);
    const was = old?.numbers[old.at];
    return was === undefined || was === numbers[at] ? [] : [`${label} ${show(was)} → ${show(numbers[at])} ${unit}`.trimEnd()];
  });
}

function drawPage(message, told, isAlarm = false) {
  state.plan = message.plan ?? state.plan;
  PAGE = { ...message.page, choices: CHOICES };
  state.known = message.known;
  if (message.kind === "answer" && message.status !== "unknown") Object.assign(PAGE, { askMap: mapButton, pinDegrees, usePlan });
  keepingPlace(drawAnswer);
  document.getElementById("repairs").hidden = true;
  showPins(message.pinnable);
  showExports(message.plan !== null);
  tell([told, ...notes].join(" "), isAlarm);
}

/** Draw without losing the place on the page: it may be drawn while somebody reads. */
function keepingPlace(draw) {
  const main = document.getElementById("main");
  main.style.minHeight = `${main.offsetHeight}px`;
  draw();
  main.style.minHeight = "";
}

function reasons({ page, repairs, isStopped }) {
  PAGE = { ...page, choices: CHOICES, askMap: PAGE.askMap, map: PAGE.map, pinDegrees };
  keepingPlace(drawAnswer);
  const box = document.getElementById("repairs");
  box.hidden = false;
  const items = repairs.map(({ sentence, edits }) => {
    const apply = make("button", { type: "button" }, "Apply");
    apply.setAttribute("aria-label", `Apply: ${sentence}`);
    apply.addEventListener("click", () => edit(edits));
    return make("li", {}, apply, make("span", {}, sentence));
  });
  const none = isStopped ? "Stopped before repairs were looked at." : "No repair was found.";
  box.replaceChildren(make("h2", {}, "Repairs"), items.length ? make("ul", {}, ...items) : make("p", {}, none));
  tell("No plan fits; each repair below was solved.", true);
}

function failed({ text }) {
  tell(text, true);
}

function tell(text, isAlarm = false) {
  const line = document.getElementById("status");
  line.textContent = text;
  line.classList.toggle("warn", isAlarm);
}

/** Pin every field of a plan. */
function usePlan(pins) {
  edit([["pins", pins]]);
}

/** Show the decisions of the plan, and pins of the spec that no plan keeps. */
function showPins(pinnable) {
  const known = new Map(pinnable.map((pin) => [pin.name, pin]));
  for (const [name, value] of Object.entries(state.spec.pins ?? {})) {
    if (!known.has(name)) known.set(name, { name, value, values: [value], isPinned: true });
  }
  const pinned = [...known.values()].filter((pin) => pin.isPinned).length;
  const reset = make("button", { type: "button" }, "Leave all open");
  reset.addEventListener("click", () => edit([["pins", null]]));
  const focused = document.activeElement?.id;
  document.getElementById("pins").replaceChildren(...[...known.values()].map(pinBox), ...(pinned ? [reset] : []));
  document.getElementById("pinnable").hidden = !known.size;
  document.getElementById("pinned").textContent = pinned ? ` (${pinned} pinned)` : "";
  if (focused?.startsWith("pin-")) document.getElementById(focused)?.focus();
}

function pinBox({ name, value, values, isPinned }) {
  const told = (one) => (typeof one === "string" ? one : JSON.stringify(one));
  const open = option("", isPinned ? "left open" : `${told(value)}, open`);
  const box = make("select", { id: `pin-${name}`, class: "pin", "data-pinned": isPinned ? "" : null }, open, ...values.map((one, i) => option(i, told(one))));
  box.value = isPinned ? values.indexOf(value) : "";
  box.addEventListener("change", () => edit([[`pins.${name}`, box.value === "" ? null : values[Number(box.value)]]]));
  return make("span", { class: "pair" }, make("label", { for: box.id }, name), box);
}
