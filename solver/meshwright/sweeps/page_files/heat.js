"use strict";
// The heat map: of all cases in a cell, the best value of a metric.

const MOST = 50; // values of an axis
const CELLS = 400; // up to which each has its number

const CROSSED = CHOICES.filter(({ distinct }) => distinct.length <= MOST);

function drawHeat(rows) {
  const [x, y, metric] = ["heat-x", "heat-y", "heat-value"].map(chosen);
  if (!x || !y || !metric) return blank("A heat map needs two axes and a metric.");
  const cells = heatCells(rows, x, y, metric);
  const layout = {
    xaxis: { ...heatAxis(x), automargin: true },
    yaxis: { ...heatAxis(y), automargin: true },
    margin: { l: 70, r: 20, t: 20, b: 60 },
  };
  const traces = [emptyCells(cells, x, y), valueCells(cells, x, y, metric)];
  const better = metric.best === "min" ? "least" : "most";
  const note = `Of each cell the ${better} ${metric.name}; bright is good, grey: no plan.`;
  return draw(traces, layout, note);
}

function heatAxis(column) {
  const tickvals = [...column.groups.keys()];
  const ticktext = column.groups.map((value) => plain(short(value)));
  return { title: { text: plain(column.name) }, tickvals, ticktext, zeroline: false };
}

/** Return, by row and column of the map, the cases of each cell and the best of them. */
function heatCells(rows, x, y, metric) {
  const cells = y.groups.map(() => x.groups.map(() => ({ rows: [], best: undefined })));
  for (const row of rows) {
    const across = x.groups.indexOf(x.values[row]);
    const down = y.groups.indexOf(y.values[row]);
    cells[down][across].rows.push(row);
  }
  for (const cell of cells.flat()) [cell.best] = front(cell.rows, metric, metric);
  return cells;
}

/** Return a grey ground where there are cases, but no plan. */
function emptyCells(cells, x, y) {
  const isEmpty = ({ rows, best }) => rows.length > 0 && best === undefined;
  const grey = [[0, paint("--line")], [1, paint("--line")]];
  return {
    ...heatTrace(cells, x, y, (cell) => (isEmpty(cell) ? 0 : null)),
    text: cells.map((line) => line.map((cell) => (isEmpty(cell) ? "none" : ""))),
    colorscale: grey,
    showscale: false,
  };
}

function valueCells(cells, x, y, metric) {
  const told = ({ best }) => (best === undefined ? "" : brief(metric.values[best]));
  const shade = ({ best }) =>
    best === undefined ? null : scaling(metric)(metric.values[best]);
  return {
    ...heatTrace(cells, x, y, shade),
    text: cells.map((line) => line.map(told)),
    ...shades(metric),
  };
}

function heatTrace(cells, x, y, value) {
  const told = ({ rows, best }) =>
    plain(`${show(rows.length)} cases${best === undefined ? "" : `; best: ${LABELS[best]}`}`);
  const isFew = x.groups.length * y.groups.length <= CELLS;
  return {
    type: "heatmap",
    x: [...x.groups.keys()],
    y: [...y.groups.keys()],
    z: cells.map((line) => line.map(value)),
    customdata: cells.map((line) => line.map(({ rows, best }) => best ?? rows[0])),
    hovertext: cells.map((line) => line.map(told)),
    hoverinfo: "text",
    texttemplate: isFew ? "%{text}" : "",
    hoverongaps: false,
    xgap: 2,
    ygap: 2,
  };
}
