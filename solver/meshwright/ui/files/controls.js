"use strict";
// Lists and sliders: each is an edit of the spec.

const SETTLE_MS = 40; // after which a moved slider asks

let settling = 0;

/** Edit the spec, and ask once nothing has moved for a moment. */
function edit(edits, delayMs = 0) {
  for (const [path, value] of edits) {
    pending.delete(path);
    pending.set(path, value);
  }
  clearTimeout(settling);
  settling = setTimeout(ask, delayMs);
}

function option(value, label = value) {
  return make("option", { value }, label);
}

/** Add a box in which a name is found by any part of it; the server knows `others`. */
function finder(id, label, options, choose, others = null) {
  const names = options.map(({ value }) => value);
  const box = make("input", { id, list: `${id}-names`, autocomplete: "off", spellcheck: "false", placeholder: "any part of a name" });
  const take = () => {
    const typed = box.value.trim().toLowerCase();
    const near = names.filter((name) => name.toLowerCase().includes(typed));
    const found = names.find((name) => name.toLowerCase() === typed) ?? (near.length === 1 ? near[0] : null);
    if (!typed) return;
    if (found) choose(found);
    else if (others && !near.length) others(box.value.trim());
    else tell(`${label}: ${near.length ? `${near.length} names have "${typed}" in them: ${near.slice(0, 6).join(", ")} …` : `no name has "${typed}" in it`}`, true);
    showName(id, found ?? box.dataset.now);
  };
  box.addEventListener("focus", () => {
    box.placeholder = box.value || box.placeholder;
    box.value = "";
  });
  box.addEventListener("blur", () => showName(id, box.dataset.now));
  box.addEventListener("change", take);
  box.addEventListener("input", (event) => {
    if (event.inputType === "insertReplacementText") take(); // an entry was chosen
  });
  document.getElementById("lists").append(make("label", { for: id }, label), box, make("datalist", { id: `${id}-names` }, ...options));
}

function showName(id, name) {
  const box = document.getElementById(id);
  box.dataset.now = name;
  if (box !== document.activeElement) box.value = name;
  else if (name) box.placeholder = name;
}

function drawLists() {
  const clusters = CHOICES.clusters.map(({ name, gpu, gpus }) => option(name, `${gpus} x ${gpu}`));
  finder("start", "Start from a bundled spec", Object.keys(CHOICES.specs).map((name) => option(name, "")), (name) => begin(CHOICES.specs[name]));
  finder("model", "Model", CHOICES.models.map((name) => option(name, "")), (name) => edit([["model", name]]), (name) => edit([["model", name]]));
  finder("cluster", "Machine", clusters, (name) => edit([["cluster", clusterOf(name)]]), (name) => edit([["cluster", name]]));
  const framework = make("select", { id: "framework" }, ...CHOICES.frameworks.map((name) => option(name)));
  framework.addEventListener("change", () => edit([["framework", framework.value]]));
  document.getElementById("lists").append(make("label", { for: "framework" }, "Framework"), framework);
  document.getElementById("gpu").append(option("", "—"), ...CHOICES.gpus.map((name) => option(name)));
}

/** Return the cluster of a machine with about as many GPUs as there are now. */
function clusterOf(name) {
  const { gpus, grows } = CHOICES.clusters.find((cluster) => cluster.name === name);
  return { topology: name, count: grows ? Math.max(Math.round(state.gpus / gpus), 1) : 1 };
}

/** Return the names of what the spec trains, on what, with what. */
function namesOf({ model, cluster, framework }) {
  const alone = cluster?.gpu ? `${cluster.count ?? 1}x${nameOf(cluster.gpu)}` : null;
  const machine = alone ?? nameOf(typeof cluster === "string" ? cluster : cluster?.topology);
  return { start: "", model: nameOf(model), cluster: machine, framework: framework ?? "megatron" };
}

function nameOf(value) {
  if (typeof value === "string") return value;
  return value?.preset ? `${value.preset}, changed` : (value?.name ?? "described in full");
}

function showLists() {
  const { framework, ...names } = namesOf(state.spec);
  document.getElementById("framework").value = framework;
  for (const [id, name] of Object.entries(names)) showName(id, name);
}

/** Draw the sliders that a spec has; those that are there already stay, with the focus. */
function showSliders(knobs) {
  const box = document.getElementById("sliders");
  const known = new Map([...box.querySelectorAll(".slider")].map((row) => [row.dataset.knob, row]));
  const rows = knobs.map((knob) => known.get(knob.name) ?? slider(knob.name));
  for (const row of known.values()) if (!rows.includes(row)) row.remove();
  rows.forEach((row, i) => {
    if (!row.isConnected || box.children[i + 1] !== row) box.insertBefore(row, box.children[i + 1] ?? null);
    if (!pending.has(knobs[i].path)) setSlider(row, knobs[i]);
  });
}

function slider(name) {
  const id = `knob-${name}`;
  const range = make("input", { type: "range", id, min: 0, step: 1 });
  const box = make("input", { type: "number", id: `${id}-number`, min: 0, step: "any" });
  const row = make("div", { class: "slider", "data-knob": name }, make("label", { for: id }), box, make("span", {}), range);
  range.addEventListener("input", () => {
    const number = row.knob.numbers[Number(range.value)];
    showNumber(row, number);
    edit([[row.knob.path, written(row.knob, number)]], SETTLE_MS);
  });
  box.addEventListener("input", () => (row.dataset.typing = ""));
  box.addEventListener("change", () => {
    delete row.dataset.typing;
    if (box.value === "") showNumber(row, row.knob.numbers[row.knob.at]);
    else edit([[row.knob.path, written(row.knob, Number(box.value))]]);
  });
  return row;
}

/** Return a number of the page as the spec has it. */
function written({ name, per }, number) {
  if (name === "tolerance") return number ? [{ step_s: `${number}%` }, "simplest"] : "step_s";
  return name === "gpus" ? Math.max(Math.round(number / per), 1) : number / per;
}

function setSlider(row, knob) {
  row.knob = knob;
  const [label, box, unit, range] = row.children;
  label.textContent = knob.label;
  box.setAttribute("aria-label", `${knob.label}, as a number`);
  unit.textContent = knob.unit;
  range.max = knob.numbers.length - 1;
  range.value = knob.at;
  showNumber(row, knob.numbers[knob.at]);
}

function showNumber(row, number) {
  const [, box, , range] = row.children;
  if (!("typing" in row.dataset)) box.value = number;
  range.setAttribute("aria-valuetext", `${show(number)} ${row.knob.unit}`);
}
