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

function list(id, label, options, choose) {
  const select = make("select", { id }, ...options);
  select.addEventListener("change", () => choose(select.value));
  document.getElementById("lists").append(make("label", { for: id }, label), select);
  return select;
}

function drawLists() {
  const clusters = CHOICES.clusters.map(({ name, gpu, gpus }) => option(name, `${name} (${gpus} x ${gpu})`));
  list("start", "Start from", [option("", "a bundled spec …"), ...Object.keys(CHOICES.specs).map((name) => option(name))], (name) => {
    if (name) begin(CHOICES.specs[name]);
  });
  list("model", "Model", CHOICES.models.map((name) => option(name)), (name) => edit([["model", name]]));
  list("cluster", "Machine", clusters, (name) => edit([["cluster", clusterOf(name)]]));
  list("framework", "Framework", CHOICES.frameworks.map((name) => option(name)), (name) => edit([["framework", name]]));
  document.getElementById("gpu").append(option("", "—"), ...CHOICES.gpus.map((name) => option(name)));
}

/** Return the cluster of a machine with about as many GPUs as there are now. */
function clusterOf(name) {
  const { gpus, grows } = CHOICES.clusters.find((cluster) => cluster.name === name);
  return { topology: name, count: grows ? Math.max(Math.round(state.gpus / gpus), 1) : 1 };
}

/** Show in the lists what the spec has; anything but a name is added as an entry. */
function showLists() {
  const { model, cluster, framework } = state.spec;
  const topology = typeof cluster === "string" ? cluster : cluster?.topology;
  select("model", nameOf(model));
  select("cluster", nameOf(topology));
  select("framework", framework ?? "megatron");
  select("start", "");
}

function nameOf(value) {
  if (typeof value === "string") return value;
  return value?.preset ? `${value.preset} *` : (value?.name ?? "described in full");
}

function select(id, value) {
  const list = document.getElementById(id);
  list.querySelector("option[data-added]")?.remove();
  list.value = value;
  if (list.value !== value) {
    list.prepend(make("option", { value, "data-added": "" }, value.endsWith(" *") ? `${value.slice(0, -2)}, changed` : value));
    list.value = value;
  }
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
  const told = make("output", { for: id });
  const input = make("input", { type: "range", id, min: 0, step: 1 });
  const row = make("div", { class: "slider", "data-knob": name }, make("label", { for: id }), told, input);
  input.addEventListener("input", () => {
    const at = Number(input.value);
    tellSlider(row, row.knob.labels[at]);
    edit([[row.knob.path, row.knob.values[at]]], SETTLE_MS);
  });
  return row;
}

function setSlider(row, knob) {
  row.knob = knob;
  const input = row.querySelector("input");
  row.querySelector("label").textContent = knob.label;
  input.max = knob.values.length - 1;
  input.value = knob.at;
  tellSlider(row, knob.labels[knob.at]);
}

function tellSlider(row, label) {
  row.querySelector("output").textContent = label;
  row.querySelector("input").setAttribute("aria-valuetext", label);
}
