"use strict";
// Which rows are shown.

const TEXT = ROWS.map((row) =>
  [...COLUMNS.map((column) => show(column.values[row])), ...CASES[row].plan]
    .join("\n")
    .toLowerCase(),
);

const COMPARISONS = {
  "<": (a, b) => a < b,
  "<=": (a, b) => a <= b,
  ">": (a, b) => a > b,
  ">=": (a, b) => a >= b,
  "=": (a, b) => show(a) === show(b),
  "!=": (a, b) => show(a) !== show(b),
};
const NUMBER = "[-+]?(?:\\d+\\.?\\d*|\\.\\d+)(?:e[-+]?\\d+)?";
const COMPARISON = new RegExp(`^([<>]=?|!?=)?(${NUMBER})$`, "i");
const SPAN = new RegExp(`^(${NUMBER})?\\.\\.(${NUMBER})?$`, "i");

/** Return what a column's filter asks of a value; null where it cannot be read. */
function parseTest(column, text) {
  if (!column.isNumber) return parseText(text.trim().toLowerCase());
  const joined = text.replaceAll(",", "").replace(/([<>=])\s+/g, "$1").trim();
  const tests = joined.split(/\s+/).map(parseNumber);
  if (tests.includes(null)) return null;
  return (value) => value !== null && tests.every((test) => test(value));
}

function parseText(text) {
  const holds = (value) => show(value).toString().toLowerCase();
  if (text.startsWith("!")) return (value) => !holds(value).includes(text.slice(1));
  if (text.startsWith("=")) return (value) => holds(value) === text.slice(1);
  return (value) => holds(value).includes(text);
}

function parseNumber(word) {
  const comparison = COMPARISON.exec(word);
  if (comparison) {
    const [, sign = "=", number] = comparison;
    return (value) => COMPARISONS[sign](value, Number(number));
  }
  const [, low = "-Infinity", high = "Infinity"] = SPAN.exec(word) ?? [word, "", ""];
  if (low === "" || word === "..") return null;
  return (value) => Number(low) <= value && value <= Number(high);
}

/** Return the rows that pass all filters but those drawn on parallel coordinates. */
function matchingRows() {
  const tests = [...state.tests];
  return ROWS.filter(
    (row) =>
      state.statuses.has(STATUSES[row]) &&
      state.words.every((word) => TEXT[row].includes(word)) &&
      tests.every(([column, test]) => test(column.values[row])),
  );
}

/** Return those rows within the spans drawn on parallel coordinates. */
function brushedRows(rows) {
  const within = ([column, spans]) => {
    const place = placing(column);
    return (row) => {
      const at = place(column.values[row]);
      return spans.some(([low, high]) => low <= at && at <= high);
    };
  };
  const tests = [...state.brush].map(within);
  return rows.filter((row) => tests.every((test) => test(row)));
}

/** Order rows by the chosen column; unknown values come last, either way. */
function sorted(rows) {
  if (!state.sortBy) return rows;
  const { values } = state.sortBy;
  const sign = state.isUp ? 1 : -1;
  const order = (a, b) => {
    if (values[a] === null || values[b] === null) {
      return (values[a] === null) - (values[b] === null);
    }
    return sign * compare(values[a], values[b]);
  };
  return [...rows].sort((a, b) => order(a, b) || a - b);
}
