"use strict";
// All there is to say of the case that is selected.

function drawDetails() {
  byId("details").replaceChildren(...detailParts(state.selected));
  byId("details").scrollTop = 0;
}

function detailParts(row) {
  if (row === null) {
    return [make("p", { class: "hint" }, "Select a point, a cell or a row.")];
  }
  const told = CASES[row];
  return [
    make("h2", {}, NAMES[row]),
    make("p", { class: told.json ? "" : "bad" }, STATUSES[row]),
    ...told.reason.map((line) => make("p", {}, line)),
    pairs(row, "axis"),
    ...part("Plan", told.plan.map((line) => make("p", {}, line))),
    ...part("Memory of the fullest GPU, GiB", memoryBars(told.memory)),
    ...part("Step time by part, s", timeBars(told.time)),
    ...part("Certificate", told.certificate.map((line) => make("p", {}, line))),
    ...part("Metrics", told.json ? [pairs(row, "metric")] : []),
    ...planText(told.json),
  ];
}

function part(title, content) {
  const [first] = content;
  return first ? [make("h3", {}, title), ...content] : [];
}

function pairs(row, kind) {
  const known = COLUMNS.filter(
    (column) => column.kind === kind && column.values[row] !== null,
  );
  const cells = known.flatMap((column) => [
    make("dt", {}, column.name),
    make("dd", {}, show(column.values[row])),
  ]);
  return make("dl", { class: "pairs" }, ...cells);
}

function memoryBars(memory) {
  if (!memory) return [];
  const parts = Object.entries(memory.parts).filter(([, gib]) => gib > 0);
  const usable = memory.usable_gib;
  const lines = [
    ...parts.flatMap(([name, gib]) => barLine(name, gib, usable)),
    ...barLine("all", memory.total_gib, usable, "total"),
  ];
  const free = show(usable - memory.total_gib);
  const host = memory.host_gib ? `, ${show(memory.host_gib)} in the host's` : "";
  const told = `of ${show(usable)} usable, ${free} free${host}`;
  return [make("dl", { class: "bars" }, ...lines), make("p", {}, told)];
}

function timeBars(time) {
  const parts = Object.entries(time).filter(([, seconds]) => seconds > 0);
  const all = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
  const lines = parts.flatMap(([name, seconds]) => barLine(name, seconds, all));
  return parts.length ? [make("dl", { class: "bars" }, ...lines)] : [];
}

function barLine(name, value, most, kind = "") {
  const fill = make("div", { class: kind });
  fill.style.background = kind ? "var(--accent)" : colourOf(name);
  fill.style.width = `${Math.min(100, (100 * value) / most)}%`;
  return [
    make("dt", {}, name),
    make("dd", { class: "bar", "aria-hidden": "true" }, fill),
    make("dd", {}, show(value)),
  ];
}

function planText(plan) {
  if (!plan) return [];
  const text = JSON.stringify(plan, null, 1);
  const title = make("summary", {}, "Plan as JSON");
  return [make("details", {}, title, make("pre", { tabindex: 0 }, text))];
}
