"use strict";
// What all charts share: their frame with the data as a table, bars, and axes.

const ROW_PX = 30;
const drawings = new Set(); // of charts on the page, drawn anew when its width changes

/**
 * Return a chart with its caption and its data as a table.
 *
 * `draw(width)` returns the drawing, `rows` the rows of the table when it is opened.
 */
function figure({ label, caption, draw, heading, rows, above = [], below = [] }) {
  const box = make("div", { class: "chart", role: "img", "aria-label": label });
  const told = make("details", {}, make("summary", {}, "Data as a table", make("span", { class: "unseen" }, `: ${label}`)));
  told.addEventListener("toggle", () => {
    if (told.open && told.children.length === 1) told.append(table(heading, rows(), label));
  });
  const redraw = (width = box.clientWidth || 340) => box.replaceChildren(draw(width));
  drawings.add(redraw);
  const element = make("figure", {}, ...above, box, ...below, make("figcaption", {}, caption), told);
  return { element, box, redraw };
}

function drawAll(width) {
  for (const redraw of drawings) redraw(width);
}

/** Return up to `count` round numbers from 0 to a limit. */
function ticks(limit, count = 5) {
  const raw = limit / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((round) => round * power).find((round) => round >= raw * 0.999);
  return Array.from({ length: Math.floor(limit / step + 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/** Return a drawing of some size whose text keeps its size. */
function canvas(width, height, ...children) {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, ...children);
}

function text(x, y, value, { anchor = "start", kind = null } = {}) {
  return shape("text", { x, y, "text-anchor": anchor, class: kind }, value);
}

/** Return a rectangle whose tip tells what it is. */
function bar(x, y, width, height, fill, tip) {
  const attributes = { x, y, width: Math.max(width, 0), height, fill, stroke: "var(--ground)", "stroke-width": 0.6 };
  return shape("rect", attributes, shape("title", {}, tip));
}

/** Return text cut to some width in pixels, about 6.6 a letter. */
function fitted(value, width) {
  const most = Math.max(Math.floor(width / 6.6), 2);
  return value.length > most ? `${value.slice(0, most - 1)}…` : value;
}

function gridX(values, scale, top, bottom, format) {
  return values.flatMap((value) => [
    shape("line", { x1: scale(value), x2: scale(value), y1: top, y2: bottom, class: "grid" }),
    text(scale(value), bottom + 15, format(value), { anchor: "middle", kind: "faint" }),
  ]);
}

/**
 * Return stacked bars over an axis, of rows `{label, parts: [[name, value]], told, marks}`.
 *
 * Marks of a row cross it alone, those of the chart all rows.
 */
function stackedBars(width, rows, limit, format, marks = []) {
  const left = Math.min(150, Math.max(70, width * 0.24));
  const right = 78;
  const top = 8 + 15 * marks.length;
  const bottom = top + rows.length * ROW_PX;
  const scale = (value) => left + (value / limit) * (width - left - right);
  const drawn = rows.flatMap((row, i) => rowOfBars(row, top + i * ROW_PX, left, scale, format));
  const totals = rows.map((row, i) => toldOf(row, scale(limit) + 8, top + i * ROW_PX + 19));
  const lines = marks.flatMap(({ at, name, colour }, i) => [
    shape("line", { x1: scale(at), x2: scale(at), y1: 15 * i + 10, y2: bottom, stroke: colour, "stroke-width": 1.6, "stroke-dasharray": i ? "none" : "5 3" }),
    text(scale(at) - 5, 15 * i + 14, name, { anchor: "end", kind: "halo" }),
  ]);
  const across = ticks(limit, width < 500 ? 3 : 6);
  return canvas(width, bottom + 22, ...gridX(across, scale, top, bottom, format), ...drawn, ...totals, ...lines);
}

function rowOfBars({ label, parts, marks = [] }, y, left, scale, format) {
  let from = 0;
  const bars = parts.map(([name, value]) => {
    const drawn = bar(scale(from), y + 5, scale(from + value) - scale(from), ROW_PX - 10, colourOf(name), `${label}: ${name} ${format(value)}`);
    from += value;
    return drawn;
  });
  const lines = marks.map(({ at, colour, name }) =>
    shape("line", { x1: scale(at), x2: scale(at), y1: y + 1, y2: y + ROW_PX - 1, stroke: colour, "stroke-width": 1.6 }, shape("title", {}, name)),
  );
  return [text(0, y + 19, fitted(label, left - 8)), ...bars, ...lines];
}

function toldOf({ told, isAlarm }, x, y) {
  const label = text(x, y, told);
  if (isAlarm) label.style.fill = "var(--alarm)";
  return label;
}
