"use strict";
// Sets the page up, and draws it anew when a choice changes.

const VIEWS = { scatter: drawScatter, parallel: drawParallel, heat: drawHeat };
const PAUSE_MS = 120; // of typing, before rows are looked up
const NARROW = matchMedia("(max-width: 900px)"); // where all stands in one column
let waiting = 0;

function update() {
  updateRows();
  drawView();
}

function updateRows() {
  const brushed = brushedRows(matchingRows());
  const [x, y] = [chosen("scatter-x"), chosen("scatter-y")];
  state.fronts = fronts(brushed, x, y, frontGroups());
  const best = new Set(state.fronts.flat());
  const shown = state.isFrontOnly ? brushed.filter((row) => best.has(row)) : brushed;
  state.rows = sorted(shown);
  byId("count").textContent = `${show(shown.length)} of ${show(ROWS.length)} cases`;
  drawTable();
}

function soon(action) {
  clearTimeout(waiting);
  waiting = setTimeout(action, PAUSE_MS);
}

/** Draw the chosen view; parallel coordinates grey out what is not within spans. */
function drawView() {
  const view = document.querySelector("[name=view]:checked").value;
  if (view !== byId("chart").dataset.view) changeView(view);
  const isWhole = view === "parallel" && !state.isFrontOnly;
  VIEWS[view](isWhole ? matchingRows() : state.rows).then(listen);
}

function changeView(view) {
  for (const controls of document.querySelectorAll(".controls[data-view]")) {
    controls.hidden = controls.dataset.view !== view;
  }
  Plotly.purge("chart");
  byId("chart").dataset.view = view;
  byId("chart").style.minWidth = "";
}

/** Hear what is clicked and drawn in the chart. */
function listen(chart) {
  chart.removeAllListeners("plotly_click");
  chart.removeAllListeners("plotly_restyle");
  chart.on("plotly_click", ({ points: [point] }) => select(point.customdata));
  chart.on("plotly_restyle", () => {
    readBrush();
    soon(updateRows);
  });
}

function select(row) {
  state.selected = row;
  drawDetails();
  markSelected();
  if (byId("chart").dataset.view === "scatter") drawView();
  if (NARROW.matches) byId("details").scrollIntoView();
}

function offerColumns() {
  const grouped = CHOICES.filter(
    ({ groups, isNumber }) => isNumber || groups.length <= COLOURS.length,
  );
  const axes = CROSSED.filter((column) => column.kind === "axis");
  const across = axes[0] ?? CROSSED[0];
  const down = axes[1] ?? CROSSED.find((column) => column !== across);
  const asked = FRONT.map((name) => METRICS.find((column) => column.name === name));
  const x = asked[0] ?? firstVarying(["gpus", "peak_gib", "usd_per_mtoken"]) ?? METRICS[0];
  const y = asked[1] ?? firstVarying(["tokens_per_s", "step_s", "mfu"]) ?? METRICS[0];
  offer("scatter-x", METRICS, x);
  offer("scatter-y", METRICS, y);
  offer("scatter-colour", grouped, grouped.find(({ kind }) => kind === "axis"), "none");
  offer("parallel-metric", METRICS, y);
  offer("heat-x", CROSSED, across);
  offer("heat-y", CROSSED, down);
  offer("heat-value", METRICS, y);
}

function offerStatuses() {
  for (const status of COLUMNS[1].distinct) {
    const count = STATUSES.filter((other) => other === status).length;
    const box = make("input", { type: "checkbox", value: status, checked: "" });
    byId("statuses").append(make("label", {}, box, ` ${status} (${show(count)})`));
  }
}

function readFilters() {
  state.words = byId("text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const boxes = [...byId("statuses").querySelectorAll(":checked")];
  state.statuses = new Set(boxes.map((box) => box.value));
  state.isFrontOnly = byId("front-only").checked;
}

function reset() {
  Object.assign(state, { sortBy: null, page: 0 });
  byId("filters").reset();
  state.tests.clear();
  state.brush.clear();
  drawHeading();
  readFilters();
  clearTimeout(waiting);
  update();
}

function start() {
  offerColumns();
  offerStatuses();
  drawHeading();
  drawDetails();
  byId("filters").addEventListener("input", () => {
    readFilters();
    soon(update);
  });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("start-over").addEventListener("click", reset);
  byId("views").addEventListener("change", update);
  byId("kinds").addEventListener("change", ({ target }) =>
    byId("table").classList.toggle(`no-${target.value}`, !target.checked),
  );
  byId("before").addEventListener("click", () => turnPage(-1));
  byId("after").addEventListener("click", () => turnPage(1));
  byId("table").tBodies[0].addEventListener("click", ({ target }) =>
    select(Number(target.closest("tr").dataset.row)),
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawView);
  update();
}

runLibrary().then(start);
