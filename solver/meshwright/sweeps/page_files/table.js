"use strict";
// The table: headings that sort and filter, and a page of rows.

const PAGE_ROWS = 100;

function drawHeading() {
  const cells = COLUMNS.map((column) =>
    make(
      "th",
      { scope: "col", "data-kind": column.kind },
      sortButton(column),
      filterInput(column),
    ),
  );
  byId("table").tHead.replaceChildren(make("tr", {}, ...cells));
}

function sortButton(column) {
  const button = make("button", { type: "button", title: "Sort" }, column.name);
  button.addEventListener("click", () => {
    state.isUp = state.sortBy === column ? !state.isUp : column.best !== "max";
    state.sortBy = column;
    update();
  });
  return button;
}

function filterInput(column) {
  const label = `Filter ${column.name}`;
  const accepts = column.isNumber ? "8, >=8, <80 or 2..16" : "text, !text or =text";
  const input = make("input", { "aria-label": label, title: accepts, size: 6 });
  input.autocomplete = "off";
  input.addEventListener("input", () => {
    const test = input.value.trim() ? parseTest(column, input.value) : undefined;
    input.setAttribute("aria-invalid", test === null);
    if (test) state.tests.set(column, test);
    else state.tests.delete(column);
    soon(update);
  });
  return input;
}

function drawTable() {
  const last = Math.max(0, Math.ceil(state.rows.length / PAGE_ROWS) - 1);
  state.page = Math.min(state.page, last);
  const first = state.page * PAGE_ROWS;
  const page = state.rows.slice(first, first + PAGE_ROWS);
  const front = new Set(state.fronts.flat());
  byId("table").tBodies[0].replaceChildren(
    ...page.map((row) => tableRow(row, front.has(row))),
  );
  byId("span").textContent = page.length
    ? `${show(first + 1)} to ${show(first + page.length)} of ${show(state.rows.length)}`
    : "no case";
  byId("before").disabled = state.page === 0;
  byId("after").disabled = state.page === last;
  markSorted();
}

function tableRow(row, isOnFront) {
  const name = make("button", { type: "button" }, LABELS[row]);
  const first = make("th", { scope: "row", title: NAMES[row] }, name);
  const cells = COLUMNS.slice(1).map((column) => tableCell(column, row));
  const line = make("tr", { "data-row": row }, first, ...cells);
  line.toggleAttribute("data-front", isOnFront);
  if (row === state.selected) line.setAttribute("aria-current", "true");
  return line;
}

function tableCell(column, row) {
  const text = show(column.values[row]);
  const cell = make("td", { "data-kind": column.kind }, text);
  if (column.isNumber) cell.className = "number";
  else cell.title = text;
  return cell;
}

function markSorted() {
  const headings = byId("table").tHead.rows[0].cells;
  COLUMNS.forEach((column, i) => {
    const order = state.isUp ? "ascending" : "descending";
    const isSorted = column === state.sortBy;
    headings[i].ariaSort = isSorted ? order : "none";
    const arrow = isSorted ? (state.isUp ? " ▲" : " ▼") : "";
    headings[i].firstChild.textContent = column.name + arrow;
  });
}

function markSelected() {
  for (const line of byId("table").tBodies[0].rows) {
    if (Number(line.dataset.row) === state.selected) {
      line.setAttribute("aria-current", "true");
    } else line.removeAttribute("aria-current");
  }
}

function turnPage(step) {
  state.page += step;
  drawTable();
  byId("table").parentElement.scrollTop = 0;
}
