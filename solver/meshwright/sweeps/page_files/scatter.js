"use strict";
// Two metrics of every case, and the front.

const SYMBOLS = [
  "circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon",
];

/** Return the column whose few values have a colour each. */
function colourGroups() {
  const column = chosen("scatter-colour");
  return column && column.groups.length <= COLOURS.length ? column : undefined;
}

function frontGroups() {
  return byId("scatter-each").checked ? colourGroups() : undefined;
}

function drawScatter(rows) {
  const [x, y] = [chosen("scatter-x"), chosen("scatter-y")];
  if (!x || !y) return blank("No case has a metric.");
  const known = rows.filter((row) => x.values[row] !== null && y.values[row] !== null);
  const traces = [
    ...state.fronts.map((found, i) => frontLine(found, x, y, i)),
    ...pointTraces(known, x, y),
    selectedPoint(known, x, y),
  ];
  const layout = { xaxis: metricAxis(x), yaxis: metricAxis(y), hovermode: "closest" };
  return draw(traces, layout, lacking(rows, known, "both metrics"));
}

function metricAxis(column) {
  const type = isSpread(column) && byId("scatter-log").checked ? "log" : "linear";
  const better = column.best === "min" ? "less" : "more";
  return { title: { text: `${column.name} (${better} is better)` }, type };
}

function frontLine(rows, x, y, i) {
  return {
    x: rows.map((row) => x.values[row]),
    y: rows.map((row) => y.values[row]),
    mode: "lines",
    line: { shape: "hv", width: 2, color: frontGroups() ? colourAt(i) : paint("--ink") },
    name: "front",
    showlegend: !frontGroups(),
    hoverinfo: "skip",
  };
}

function pointTraces(rows, x, y) {
  const column = colourGroups();
  if (!column) return [points(rows, x, y, colours(rows), "cases")];
  return column.groups.map((value, i) => {
    const group = rows.filter((row) => column.values[row] === value);
    const look = { color: colourAt(i), symbol: SYMBOLS[i] };
    return points(group, x, y, look, plain(short(value)));
  });
}

/** Return the colours of points by a column of many numbers, if one is chosen. */
function colours(rows) {
  const column = chosen("scatter-colour");
  if (!column) return { color: colourAt(0) };
  const known = rows.map((row) => column.values[row] ?? column.distinct[0]);
  return { color: known.map(scaling(column)), ...shades(column) };
}

function points(rows, x, y, look, name) {
  const best = new Set(state.fronts.flat());
  const byFront = (on, off) => rows.map((row) => (best.has(row) ? on : off));
  const marker = { size: byFront(10, 7), opacity: byFront(1, 0.5) };
  return {
    x: rows.map((row) => x.values[row]),
    y: rows.map((row) => y.values[row]),
    customdata: rows,
    text: rows.map((row) => hoverText(row, [x, y])),
    hoverinfo: "text",
    mode: "markers",
    marker: { ...marker, line: { width: 1, color: paint("--ground") }, ...look },
    name,
  };
}

function hoverText(row, columns) {
  const values = columns.map((column) => `${column.name} ${show(column.values[row])}`);
  return [LABELS[row], ...values].map(plain).join("<br>");
}

function selectedPoint(rows, x, y) {
  const marked = rows.filter((row) => row === state.selected);
  const look = { size: 17, symbol: "circle-open", color: paint("--ink"), opacity: 1 };
  const trace = points(marked, x, y, { ...look, line: { width: 2.5 } }, "selected");
  return { ...trace, hoverinfo: "skip", showlegend: false };
}
