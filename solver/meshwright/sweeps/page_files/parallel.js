"use strict";
// Parallel coordinates: a line per plan, over axes, plan fields and a metric.

const FEW = 16; // values of an axis that stand at equal distances
const AXIS_PX = 80; // at least, between two axes
const LETTERS = 11; // that fit beside an axis

function hasWebGl() {
  return Boolean(make("canvas").getContext("webgl"));
}

function isRanked(column) {
  const isFew = column.kind !== "metric" && column.distinct.length <= FEW;
  return isFew || !column.isNumber;
}

/** Return where values stand on their axis; those that are missing, below all others. */
function placing(column) {
  if (isRanked(column)) {
    const places = new Map(column.distinct.map((value, i) => [value, i]));
    return (value) => places.get(value) ?? -1;
  }
  const scale = scaling(column);
  const [low, high] = [scale(column.distinct[0]), scale(column.distinct.at(-1))];
  return (value) => (value === null ? low - 0.1 * (high - low) : scale(value));
}

function drawParallel(rows) {
  const metric = chosen("parallel-metric");
  const planned = rows.filter((row) => CASES[row].json);
  const columns = COLUMNS.filter(
    (column) => column === metric || (column.kind !== "status" && CHOICES.includes(column)),
  );
  if (!hasWebGl()) return blank("They need WebGL, which this browser lacks.");
  if (!planned.length || !metric) return blank("No case with a plan is left.");
  const trace = {
    type: "parcoords",
    line: lines(planned, metric),
    dimensions: columns.map((column) => dimension(planned, column)),
    labelangle: -18,
    tickfont: { size: 11 },
  };
  byId("chart").style.minWidth = `${AXIS_PX * (columns.length + 2)}px`;
  const margin = { l: 80, r: 20, t: 70, b: 20 };
  return draw([trace], { margin }, lacking(rows, planned, "a plan"));
}

function lines(rows, metric) {
  const known = rows.map((row) => metric.values[row] ?? metric.distinct[0]);
  const color = known.map(scaling(metric));
  return { color, ...shades(metric) };
}

function dimension(rows, column) {
  const place = placing(column);
  const marked = isRanked(column) ? [...column.distinct] : marks(column);
  if (rows.some((row) => column.values[row] === null)) marked.unshift(null);
  const spans = state.brush.get(column);
  return {
    name: String(COLUMNS.indexOf(column)),
    label: plain(short(column.name.split(".").at(-1))),
    values: rows.map((row) => place(column.values[row])),
    range: [place(marked[0]), place(marked.at(-1))],
    tickvals: marked.map(place),
    ticktext: marked.map(isRanked(column) ? (value) => short(value, LETTERS) : mark),
    ...(spans && { constraintrange: spans }),
  };
}

function mark(value) {
  return value === null ? "none" : brief(value);
}

/** Take over the spans that were drawn on the axes. */
function readBrush() {
  state.brush.clear();
  for (const { name, constraintrange: spans } of byId("chart").data[0].dimensions) {
    const all = spans && !Array.isArray(spans[0]) ? [spans] : spans;
    if (all) state.brush.set(COLUMNS[name], all);
  }
}
