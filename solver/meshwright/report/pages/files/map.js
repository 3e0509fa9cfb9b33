"use strict";
// The map of all plans: dots at their step time and memory, and below
// them what rules refuse. The dots can be chosen by their degrees, hovered, and walked.

const STATES = {
  best: { name: "the recommended plan", fill: "var(--c3)", r: 7 },
  near: { name: "may be within the tolerance", fill: "var(--c5)", r: 4.5 },
  slower: { name: "fits, slower", fill: "var(--c1)", r: 3 },
  memory: { name: "does not fit in memory", fill: "var(--c2)", r: 3 },
  refused: { name: "refused by a rule", fill: "var(--c8)", r: 3 },
};
const REACH_PX = 16; // from the pointer to the dot that it means
const MOST_ROWS = 200; // of the table
const NEAR = 1.5; // times the step time of the recommended plan, up to which the map can be cut
const UNSAID = ["vpp", "cp", "ep", "dp_replicate", "recompute_segment"]; // where they are 1
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

class MapView {
  constructor(data) {
    this.data = data;
    this.dots = data.dots.map(([state, stepS, isExact, gib, skeletons, techniques, ...values]) => {
      const known = { ...data.common, ...Object.fromEntries(data.fields.map((name, i) => [name, values[i]])) };
      const fields = Object.fromEntries(data.names.map((name) => [name, known[name]]));
      return { state, stepS, isExact, gib, skeletons, techniques, fields };
    });
    this.refused = data.refusals.flatMap((rule) => rule.examples.map((fields) => ({ state: "refused", rule, fields })));
    this.chosen = {}; // values by which dots are chosen
    this.marks = []; // what is drawn, with its place
    this.at = null;
    this.best = this.dots.find((dot) => dot.state === "best");
    this.mostS = Infinity; // step time up to which dots are drawn
    this.said = make("p", { class: "hint map-said", id: "map-said", role: "status" }, "");
    this.figure = figure(this.parts());
    this.listen(this.figure.box);
    this.say();
  }

  parts() {
    const states = Object.keys(STATES).filter((state) => [...this.dots, ...this.refused].some((dot) => dot.state === state));
    return {
      label: "Map of all plans: step time against memory",
      caption: this.data.told.join(" "),
      draw: (width) => this.draw(width),
      heading: ["plan fields", "state", "step, s", "memory, GiB", "plans", "techniques"],
      rows: () => this.rows(),
      above: [legend(states.map((state) => [STATES[state].name, STATES[state].fill])), this.controls()],
      below: [this.said],
    };
  }

  /** Return the dots that are drawn, the fastest first, and the rules as rows of the table. */
  rows() {
    const shown = this.dots.filter((dot) => this.isChosen(dot)).sort((a, b) => a.stepS - b.stepS);
    const rows = shown.slice(0, MOST_ROWS).map((dot) => [
      fieldsText(dot.fields), STATES[dot.state].name, `${dot.isExact ? "" : ">= "}${digits.format(dot.stepS)}`, dot.gib, dot.skeletons, dot.techniques,
    ]);
    const left = shown.length - rows.length;
    const more = left > 0 ? [[`${whole.format(left)} slower dots`, "left out of the table", "", "", "", ""]] : [];
    const refused = this.data.refusals.map(({ rule, sentence, count }) => [`${rule}: ${sentence}`, STATES.refused.name, "-", "-", count, "-"]);
    return [...rows, ...more, ...refused];
  }

  controls() {
    const lists = this.data.filters.map((name) => {
      const values = [...new Set(this.dots.map((dot) => dot.fields[name]))].sort((a, b) => a - b);
      const select = make("select", { id: `map-${name}` }, make("option", { value: "" }, "all"), ...values.map((value) => make("option", { value }, value)));
      select.addEventListener("change", () => this.choose(name, select.value));
      return make("span", { class: "pair" }, make("label", { for: select.id }, name), select);
    });
    const near = make("button", { type: "button", "aria-pressed": false }, `Up to ${NEAR} x the recommended plan`);
    near.addEventListener("click", () => {
      this.mostS = this.mostS === Infinity ? this.best.stepS * NEAR : Infinity;
      near.setAttribute("aria-pressed", this.mostS !== Infinity);
      this.again();
    });
    const cut = this.best ? [near] : [];
    return make("div", { class: "controls", role: "group", "aria-label": "Which dots are drawn" }, ...lists, ...cut, ...this.pinButton());
  }

  /** Return the button that pins the degrees of a dot, on pages that can. */
  pinButton() {
    if (!PAGE.pinDegrees) return [];
    this.pin = make("button", { type: "button", disabled: "" }, "Pin its degrees");
    this.pin.addEventListener("click", () => PAGE.pinDegrees(this.at.dot.fields));
    return [this.pin];
  }

  choose(name, value) {
    this.chosen[name] = value;
    this.again();
  }

  again() {
    this.figure.redraw();
    this.say();
  }

  isChosen({ fields, stepS }) {
    if (stepS > this.mostS) return false;
    return Object.entries(this.chosen).every(([name, value]) => value === "" || !(name in fields) || String(fields[name]) === value);
  }

  listen(box) {
    box.setAttribute("role", "group");
    box.setAttribute("tabindex", 0);
    box.setAttribute("aria-describedby", "map-said");
    box.addEventListener("keydown", (event) => this.key(event));
    for (const kind of ["pointermove", "pointerdown"]) box.addEventListener(kind, (event) => this.point(event));
  }

  key(event) {
    const best = this.marks.find(({ dot }) => dot.state === "best") ?? this.marks[0];
    if (!best || !(event.key in ARROWS || event.key === "Home")) return;
    event.preventDefault();
    this.mark(event.key === "Home" || !this.at ? best : this.next(...ARROWS[event.key]));
  }

  /** Return the nearest mark in a direction; what lies aside counts twice. */
  next(dx, dy) {
    const far = ({ x, y }) => {
      const [along, aside] = [(x - this.at.x) * dx + (y - this.at.y) * dy, Math.abs((x - this.at.x) * dy + (y - this.at.y) * dx)];
      return along > 0.01 ? along + 2 * aside : Infinity;
    };
    return this.marks.reduce((least, mark) => (far(mark) < far(least) ? mark : least), this.at);
  }

  point(event) {
    const box = this.figure.box.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let [found, least] = [null, REACH_PX];
    for (const mark of this.marks) {
      const far = Math.hypot(mark.x - x, mark.y - y) - mark.r;
      if (far <= least) [found, least] = [mark, far];
    }
    if (found) this.mark(found);
  }

  mark(mark) {
    if (mark === this.at) return;
    this.at = mark;
    this.ring?.remove();
    this.ring = shape("circle", { cx: mark.x, cy: mark.y, r: mark.r + 4, fill: "none", stroke: "var(--ink)", "stroke-width": 2 });
    this.figure.box.firstChild.append(this.ring);
    this.say();
  }

  say() {
    const drawn = this.dots.filter((dot) => this.isChosen(dot)).length;
    const of = this.dots.length ? `${whole.format(drawn)} of ${whole.format(this.dots.length)} dots are drawn. ` : "";
    const none = `${of}Point at one, or walk with the arrow keys${this.best ? "; Home goes to the recommended plan" : ""}.`;
    if (this.pin) this.pin.disabled = !this.at;
    this.said.textContent = this.at ? this.tip(this.at.dot) : none;
  }

  tip({ state, stepS, isExact, gib, skeletons, techniques, fields, rule }) {
    if (rule) return `${fieldsText(fields)}: refused by ${rule.rule}: ${rule.sentence}.`;
    const many = skeletons > 1 ? `; ${whole.format(skeletons)} plans` : "";
    const time = `${isExact ? "" : "at least "}${seconds(stepS)}`;
    return `${fieldsText(fields)}: ${STATES[state].name}; ${time}, ${show(gib)} GiB of ${show(this.data.usable)} usable; ${techniques}${many}.`;
  }

  draw(width) {
    this.at = this.ring = null;
    const shown = this.dots.filter((dot) => this.isChosen(dot));
    const [left, right, top, bottom] = [58, 16, 12, 332];
    const scaleX = logScale(this.dots.map((dot) => dot.stepS).filter((dot) => dot <= this.mostS), left + 8, width - right - 8);
    const scaleY = logScale([...this.dots.map((dot) => dot.gib), this.data.usable], bottom - 8, top + 8);
    const places = shown.map((dot) => ({ dot, x: scaleX.at(dot.stepS), y: scaleY.at(dot.gib), r: STATES[dot.state].r }));
    const [refusals, marks, height] = this.drawRefused(width, this.dots.length ? bottom + 44 : 0);
    this.marks = [...places, ...marks];
    if (!this.dots.length) return canvas(width, height, ...refusals);
    const across = gridX(scaleX.ticks(width < 500 ? 4 : 8), scaleX.at, top, bottom, seconds);
    const up = scaleY.ticks(7).flatMap((value) => [
      shape("line", { x1: left, x2: width - right, y1: scaleY.at(value), y2: scaleY.at(value), class: "grid" }),
      text(left - 6, scaleY.at(value) + 4, show(value), { anchor: "end", kind: "faint" }),
    ]);
    const y = scaleY.at(this.data.usable);
    const usable = shape("line", { x1: left, x2: width - right, y1: y, y2: y, stroke: "var(--alarm)", "stroke-width": 1.4, "stroke-dasharray": "5 3" });
    const names = [text(0, top + 1, "GiB", { kind: "faint" }), text(width - right, bottom + 31, "step time", { anchor: "end", kind: "faint" }), text(width - right, y - 5, `usable ${show(this.data.usable)} GiB`, { anchor: "end", kind: "halo" })];
    return canvas(width, height, ...across, ...up, usable, ...places.map(dotShape), ...names, ...refusals);
  }

  /** Return what rules refuse, a row of dots for each, with their places and the height. */
  drawRefused(width, from) {
    const [left, step] = [Math.min(210, width * 0.45), 8];
    const each = Math.max(Math.floor((width - left - 62) / step), 1);
    const marks = [];
    const drawn = this.data.refusals.flatMap((rule, i) => {
      const shown = this.refused.filter((dot) => dot.rule === rule && this.isChosen(dot)).slice(0, each);
      const row = shown.map((one, k) => ({ dot: one, x: left + 4 + k * step, y: from + 20 * i + 8, r: 3 }));
      marks.push(...row);
      const count = text(left + 8 + row.length * step, from + 20 * i + 12, whole.format(rule.count), { kind: "faint" });
      return [text(0, from + 20 * i + 12, fitted(rule.rule, left - 8)), ...row.map(dotShape), count];
    });
    return [drawn, marks, from + 20 * this.data.refusals.length];
  }
}

function dotShape({ dot, x, y, r }) {
  const { fill } = STATES[dot.state];
  const isBest = dot.state === "best";
  return shape("circle", { cx: x, cy: y, r, fill, "fill-opacity": dot.state === "slower" || dot.state === "memory" ? 0.75 : 1, stroke: isBest ? "var(--ink)" : "none", "stroke-width": isBest ? 2 : 0, "data-state": dot.state });
}

/** Return plan fields in words; those that say nothing are left out. */
function fieldsText(fields) {
  const isSaid = ([name, value]) => !["", "none", "1f1b", false].includes(value) && !(value === 1 && UNSAID.includes(name)) && name !== "microbatches";
  return Object.entries(fields).filter(isSaid).map(([name, value]) => (value === true ? name : `${name} ${value}`)).join(", ");
}

/** Return a logarithmic scale from values to pixels, with its round ticks. */
function logScale(values, from, to) {
  const known = values.filter((value) => value > 0);
  const [low, high] = [Math.log10(Math.min(...known)), Math.log10(Math.max(...known))];
  const span = Math.max(high - low, 0.05);
  const at = (value) => from + ((Math.log10(value) - low) / span) * (to - from);
  return { at, ticks: (count) => logTicks(low, low + span, count) };
}

function logTicks(low, high, count) {
  for (const steps of [[1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9], [1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(low); power <= high; power += 1) {
      for (const step of steps) {
        const value = step * 10 ** power;
        if (Math.log10(value) >= low - 1e-9 && Math.log10(value) <= high + 1e-9) found.push(Number(value.toPrecision(6)));
      }
    }
    if (found.length <= count || steps.length === 1) return found;
  }
  return [];
}

function mapFigure(data) {
  return new MapView(data).figure;
}
