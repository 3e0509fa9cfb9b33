"use strict";
// The data of the page, and the elements that all its parts are made of. Text of the
// data is set as text, never as HTML.

let PAGE = JSON.parse(document.getElementById("data").textContent);

const SVG = "http://www.w3.org/2000/svg";

/** Make an HTML element of attributes and of texts or other elements. */
function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Make an SVG element. */
function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const hundredths = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const significant = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const whole = new Intl.NumberFormat("en");

/** Return a number as it stands everywhere on the page. */
function show(value) {
  if (typeof value !== "number") return value ?? "";
  return (Number.isInteger(value) ? whole : digits).format(value);
}

/** Return seconds as the terminal prints them: 43.80 s, 480 ms. */
function seconds(value) {
  if (value === 0) return "0";
  if (value >= 1) return `${hundredths.format(value)} s`;
  if (value >= 1e-3) return `${significant.format(value * 1e3)} ms`;
  return `${digits.format(value * 1e6)} µs`;
}

function percent(share, places = 1) {
  return `${(100 * share).toFixed(places)}%`;
}

/** Return a table that scrolls sideways where it is wide. */
function table(heading, rows, caption) {
  const isNumber = heading.map((_, i) => i > 0 && rows.every((row) => isNumeric(row[i])));
  const cell = (tag, value, i, more = {}) =>
    make(tag, { ...more, class: isNumber[i] ? "number" : null }, value instanceof Element ? value : String(show(value)));
  const head = make("tr", {}, ...heading.map((name, i) => cell("th", name, i, { scope: "col" })));
  const body = rows.map((row) =>
    make("tr", {}, ...row.map((value, i) => cell(i ? "td" : "th", value, i, i ? {} : { scope: "row" }))),
  );
  const cells = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  if (caption) cells.prepend(make("caption", { class: "hint" }, caption));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption ?? "Table" }, cells);
}

function isNumeric(value) {
  return typeof value === "number" || value === "-" || value === "" || /^[-−+<>= ]*[\d.,]+( ?(%|s|ms|µs|x|GiB|GB))?$/.test(value);
}

/** Return what text reports print: a title with lines or a table. */
function section({ title, lines, heading, rows }, isAlone) {
  const told = heading
    ? table(heading, rows, title)
    : make("ul", { class: "lines" }, ...lines.map((line) => make("li", {}, line.trim())));
  if (heading) told.querySelector("caption").remove();
  return make("div", {}, ...(isAlone ? [] : [make("h3", {}, title)]), told);
}

function legend(entries) {
  const item = ([name, colour]) => {
    const box = make("i", { "aria-hidden": "true" });
    box.style.background = colour;
    return make("li", {}, box, name);
  };
  return make("ul", { class: "legend" }, ...entries.map(item));
}
