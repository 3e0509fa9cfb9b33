"use strict";
// The step as it passes: a clock that moves over the timeline and over the memory of
// every stage.

const PLAY_S = 20; // what the whole step takes on the screen

/** Return the charts that share a clock: the timeline, and memory over the step. */
function playedFigures(plan) {
  const playback = new Playback(plan, new TimelineView(plan));
  return [playback.view.figure.element, playback.controls(), playback.figure.element];
}

class Playback {
  constructor(plan, view) {
    this.view = view;
    this.stages = plan.timeline.stages;
    this.at = null; // on the shown axis, on which a fold is short; null before it is used
    this.runs = false;
    this.heightPx = Math.max(view.rowPx, 14);
    this.figure = figure(this.parts(plan));
    view.followers.push(() => this.figure.redraw(), () => this.mark());
  }

  parts(plan) {
    const gib = (stage) => stage.held.map(([, value]) => value);
    return {
      label: `Memory over the step of ${plan.name}`,
      caption: "What a GPU of a stage holds, against the red line: what a plan may use.",
      draw: (width) => this.draw(width),
      heading: ["stage", "least, GiB", "most, GiB", "usable"],
      rows: () => this.stages.map((stage) => [stage.label, Math.min(...gib(stage)), Math.max(...gib(stage)), stage.usable]),
    };
  }

  controls() {
    this.button = make("button", { type: "button" }, "Play the step");
    this.button.addEventListener("click", () => (this.runs ? this.stop() : this.play()));
    this.slider = make("input", { type: "range", min: 0, max: 1000, value: 0, "aria-label": "Time in the step" });
    this.slider.addEventListener("input", () => {
      this.stop();
      this.move((Number(this.slider.value) / 1000) * this.view.endS);
    });
    this.told = make("output", { class: "hint", "aria-live": "off" }, "");
    return make("div", { class: "controls playback", role: "group", "aria-label": "The step as it passes" }, this.button, this.slider, this.told);
  }

  play() {
    if (this.at === null || this.at >= this.view.endS) this.move(0);
    this.runs = true;
    this.button.textContent = "Pause";
    let beforeMs = null;
    const frame = (nowMs) => {
      if (!this.runs || !this.button.isConnected) return;
      const passed = beforeMs === null ? 0 : ((nowMs - beforeMs) / 1000 / PLAY_S) * this.view.endS;
      beforeMs = nowMs;
      this.move(Math.min(this.at + passed, this.view.endS));
      if (this.at >= this.view.endS) this.stop();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  stop() {
    this.runs = false;
    this.button.textContent = "Play the step";
  }

  /** Set the clock, and show what stands there. */
  move(at) {
    const { view } = this;
    this.at = at;
    const span = view.toS - view.fromS;
    if (at < view.fromS || at > view.toS) view.look(at, at + span);
    this.slider.value = Math.round((1000 * at) / view.endS);
    const timeS = view.time(at);
    const works = this.stages.filter((stage) => isBusy(stage, timeS, view.data)).length;
    const held = this.stages.map((stage) => heldAt(stage, timeS));
    const most = held.indexOf(Math.max(...held));
    this.told.textContent = `${seconds(timeS)}: ${works} of ${this.stages.length} stages work; ${this.stages[most].label} holds most, ${show(held[most])} GiB`;
    this.mark();
  }

  /** Draw the clock over both charts. */
  mark() {
    if (this.at === null) return;
    const x = this.view.scale(this.at);
    for (const { box } of [this.view.figure, this.figure]) {
      box.querySelector("line.clock")?.remove();
      const drawing = box.querySelector("svg");
      const inside = this.at >= this.view.fromS && this.at <= this.view.toS;
      if (drawing && inside) drawing.append(shape("line", { class: "clock", x1: x, x2: x, y1: 0, y2: drawing.getAttribute("height") }));
    }
  }

  draw(width) {
    const { view, heightPx } = this;
    const height = this.stages.length * heightPx + 4;
    const most = Math.max(...this.stages.flatMap((stage) => [stage.usable, ...stage.held.map(([, gib]) => gib)]));
    const rows = this.stages.flatMap((stage, i) => this.row(stage, i * heightPx + 3, (gib) => (gib / most) * (heightPx - 3), width));
    const names = this.stages.map((stage, i) => (heightPx > 14 || i % 4 === 0 ? text(0, (i + 0.5) * heightPx + 6, stage.label) : ""));
    return canvas(width, height + 22, ...rows, ...names, ...view.axis(height, width));
  }

  row(stage, top, scale, width) {
    const { view } = this;
    const [left, right, bottom] = [LEFT_PX, width - 8, top + this.heightPx - 3];
    const clipped = (timeS) => Math.min(Math.max(view.scale(view.shown(timeS)), left), right);
    const steps = stage.held.map(([atS, gib]) => `H${clipped(atS).toFixed(1)}V${(bottom - scale(gib)).toFixed(2)}`);
    const usable = bottom - scale(stage.usable);
    const told = shape("title", {}, `${stage.label}: at most ${show(Math.max(...stage.held.map(([, gib]) => gib)))} of ${show(stage.usable)} GiB`);
    const limit = { x1: left, x2: right, y1: usable, y2: usable, stroke: "var(--alarm)", "stroke-dasharray": "5 3" };
    return [
      shape("rect", { x: left, y: usable, width: right - left, height: bottom - usable, fill: "var(--idle)" }),
      shape("path", { d: `M${left} ${bottom}${steps.join("")}H${right}V${bottom}z`, fill: "var(--c1)" }, told),
      shape("line", limit),
    ];
  }
}

function isBusy(stage, timeS, { pipelineS, stepS }) {
  if (timeS >= stepS) return false;
  if (timeS >= pipelineS) return timeS < pipelineS + stage.ends.reduce((sum, [, , partS]) => sum + partS, 0);
  return stage.spans.some(([, , , startS, endS]) => startS <= timeS && timeS < endS);
}

function heldAt(stage, timeS) {
  return stage.held.findLast(([atS]) => atS <= timeS)?.[1] ?? stage.held[0][1];
}
