"use strict";
// Pareto fronts of two metrics.

/** Return the rows that none of them beats: as good in both metrics, better in one. */
function front(rows, x, y) {
  const cost = (column, row) => column.values[row] * (column.best === "max" ? -1 : 1);
  const known = rows.filter((row) => x.values[row] !== null && y.values[row] !== null);
  known.sort((a, b) => cost(x, a) - cost(x, b) || cost(y, a) - cost(y, b));
  const kept = [];
  for (const row of known) {
    const last = kept.at(-1);
    const isTie =
      kept.length && cost(x, row) === cost(x, last) && cost(y, row) === cost(y, last);
    if (!kept.length || isTie || cost(y, row) < cost(y, last)) kept.push(row);
  }
  return kept;
}

/** Return the front of all rows, or one for each value of a column. */
function fronts(rows, x, y, column) {
  if (!x || !y) return [];
  const groups = column
    ? column.groups.map((value) => rows.filter((row) => column.values[row] === value))
    : [rows];
  return groups.map((group) => front(group, x, y));
}
