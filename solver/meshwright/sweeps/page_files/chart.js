"use strict";
// What all charts share.

const SPREAD = 30; // of values, from which their axis is logarithmic

const CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["lasso2d", "select2d"],
};

/** Return what all charts look like, in the colours that the page has now. */
function look() {
  const axis = { gridcolor: paint("--grid"), zerolinecolor: paint("--line"), linecolor: paint("--line") };
  return {
    margin: { l: 70, r: 20, t: 20, b: 50 },
    font: { family: "system-ui, sans-serif", size: 12, color: paint("--ink") },
    legend: { orientation: "h", y: 1.14 },
    paper_bgcolor: paint("--ground"),
    plot_bgcolor: paint("--ground"),
    axis,
  };
}

/** Return the colour of the value of a column that stands at this place. */
function colourAt(place) {
  return paint(`--c${(place % COLOURS.length) + 1}`);
}

const compact = new Intl.NumberFormat("en", {
  notation: "compact",
  maximumSignificantDigits: 3,
});

function draw(traces, layout, note) {
  byId("chart-note").textContent = note;
  const { axis, ...all } = look();
  const named = ["xaxis", "yaxis"].filter((name) => name in layout);
  const axes = Object.fromEntries(named.map((name) => [name, { ...axis, ...layout[name] }]));
  return Plotly.react("chart", traces, { ...all, ...layout, ...axes }, CONFIG);
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
