"use strict";
// What the page was written with, what its reader has chosen, and how values read.

const { columns: COLUMNS, cases: CASES, labels: LABELS, front: FRONT } = PAGE;
const ROWS = [...CASES.keys()];
const NAMES = COLUMNS[0].values;
const STATUSES = COLUMNS[1].values;
const METRICS = COLUMNS.filter((column) => column.kind === "metric");

const state = {
  words: [],
  statuses: new Set(STATUSES),
  tests: new Map(), // of columns: what their values must hold to
  brush: new Map(), // of columns: spans drawn on the axes of the parallel coordinates
  isFrontOnly: false,
  sortBy: null,
  isUp: true,
  page: 0,
  selected: null,
  rows: [], // that pass all filters, in order
  fronts: [],
};

const collator = new Intl.Collator("en", { numeric: true });

/** Compare two values that are known: numbers by size, all else as text. */
function compare(a, b) {
  const areNumbers = typeof a === "number" && typeof b === "number";
  return areNumbers ? a - b : collator.compare(a, b);
}

/** Return text that charts print as it is: they read some HTML in theirs. */
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

function byId(id) {
  return document.getElementById(id);
}

/** Let a select offer columns, or nothing where `other` is told. */
function offer(id, columns, start, other = null) {
  const options = columns.map((column) =>
    make("option", { value: COLUMNS.indexOf(column) }, column.name),
  );
  if (other) options.unshift(make("option", { value: "" }, other));
  byId(id).replaceChildren(...options);
  byId(id).value = start ? COLUMNS.indexOf(start) : "";
}

function chosen(id) {
  return byId(id).value === "" ? undefined : COLUMNS[byId(id).value];
}

/** Return the first of these columns whose values differ. */
function firstVarying(names) {
  const named = names.map((name) => METRICS.find((column) => column.name === name));
  return named.find((column) => column?.distinct.length > 1);
}

for (const column of COLUMNS) {
  const known = column.values.filter((value) => value !== null);
  column.isNumber = known.length > 0 && known.every(Number.isFinite);
  column.distinct = [...new Set(known)].sort(compare);
  column.groups = [...column.distinct, ...(known.length < ROWS.length ? [null] : [])];
}

const CHOICES = COLUMNS.filter(
  ({ kind, distinct }) =>
    ["status", "axis", "plan"].includes(kind) && distinct.length > 1,
); // by which cases are told apart
