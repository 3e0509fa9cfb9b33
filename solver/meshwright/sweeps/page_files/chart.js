"use strict";
// What all charts share.

const COLOURS = [
  "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f",
]; // Okabe and Ito's, told apart by the colour-blind; grey in place of yellow
const INK = "#1c2733";
const SPREAD = 30; // of values, from which their axis is logarithmic

const CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["lasso2d", "select2d"],
};
const LAYOUT = {
  margin: { l: 70, r: 20, t: 20, b: 50 },
  font: { family: "system-ui, sans-serif", size: 12, color: INK },
  legend: { orientation: "h", y: 1.14 },
};

const compact = new Intl.NumberFormat("en", {
  notation: "compact",
  maximumSignificantDigits: 3,
});

function draw(traces, layout, note) {
  byId("chart-note").textContent = note;
  return Plotly.react("chart", traces, { ...LAYOUT, ...layout }, CONFIG);
}

function blank(note) {
  const hidden = { visible: false };
  return draw([], { xaxis: hidden, yaxis: hidden }, note);
}

function lacking(rows, drawn, what) {
  const rest = rows.length - drawn.length;
  return rest ? `Not drawn: ${show(rest)} without ${what}. The table has them.` : "";
}

/** Return a value in no more letters than there is room for on an axis. */
function short(value, letters = 18) {
  const text = value === null ? "none" : show(value).toString();
  return text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
}

/** Return a number in few letters. */
function brief(number) {
  return Math.abs(number) < 1e5 ? show(number) : compact.format(number);
}

function isSpread(column) {
  const [low, high] = [column.distinct[0], column.distinct.at(-1)];
  return column.isNumber && low > 0 && high > SPREAD * low;
}

/** Return how numbers of a column are laid out: by size, or by order of magnitude. */
function scaling(column) {
  return isSpread(column) ? Math.log10 : (value) => value;
}

/** Return five numbers at equal distances. */
function marks(column) {
  const [low, high] = [column.distinct[0], column.distinct.at(-1)];
  const at = (share) =>
    isSpread(column) ? low * (high / low) ** share : low + share * (high - low);
  return [0, 0.25, 0.5, 0.75, 1].map(at);
}

/** Return colours for the numbers of a column, the better the brighter. */
function shades(column) {
  const ticks = marks(column);
  const colorbar = {
    title: { text: plain(column.name) },
    thickness: 12,
    tickvals: ticks.map(scaling(column)),
    ticktext: ticks.map(brief),
  };
  const reversescale = column.best === "min";
  return { colorscale: "Cividis", reversescale, showscale: true, colorbar };
}
