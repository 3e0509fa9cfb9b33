"use strict";
// Asks, and shows what comes back: first the question as it was understood, then the
// plan before on the new numbers, the proven answer, and, where none fits, the reasons.

let controller = null;
let notes = [];

/** Begin with another spec. */
function begin(spec) {
  pending.clear();
  state.spec = spec;
  state.plan = null;
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
}

/** Draw the answer, and its first line where it stays in sight while sliders move. */
function drawWhole() {
  keepingPlace(drawAnswer);
  document.getElementById("headline").textContent = PAGE.verdict[0] ?? "";
}

function drawPage(message, told, isAlarm = false) {
  state.plan = message.plan ?? state.plan;
  PAGE = { ...message.page, choices: CHOICES };
  state.known = message.known;
  if (message.kind === "answer" && message.status !== "unknown") Object.assign(PAGE, { askMap: mapButton, pinDegrees });
  drawWhole();
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
  drawWhole();
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

/** Show the decisions of the plan, and pins of the spec that no plan keeps. */
function showPins(pinnable) {
  const known = new Map(pinnable.map((pin) => [pin.name, pin]));
  for (const [name, value] of Object.entries(state.spec.pins ?? {})) {
    if (!known.has(name)) known.set(name, { name, value: JSON.stringify(value), isPinned: true });
  }
  const buttons = [...known.values()].map(({ name, value, isPinned }) => {
    const button = make("button", { type: "button", class: "pin", "aria-pressed": isPinned }, `${name} ${value}`);
    button.setAttribute("title", isPinned ? "Pinned: choose to leave it open" : "Choose to pin it");
    button.addEventListener("click", () => edit([[`pins.${name}`, isPinned ? null : value]]));
    return button;
  });
  const hint = make("span", { class: "hint" }, "Pin:");
  document.getElementById("pins").replaceChildren(...(buttons.length ? [hint, ...buttons] : []));
}
