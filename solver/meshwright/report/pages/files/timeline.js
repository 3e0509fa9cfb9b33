"use strict";
// The timeline of the pipeline: what every stage does when, with zoom, and with the
// middle of a long schedule folded.

const WORK = ["forward", "recompute", "backward", "weight gradients", "communication", "step end"];
const KINDS = { F: "forward", B: "backward", W: "weight gradients" };
const LEFT_PX = 74;
const LABEL_PX = 17; // width from which a task carries the number of its micro-batch

class TimelineView {
  constructor(plan) {
    this.data = plan.timeline;
    const { stages, fold, stepS } = this.data;
    this.gapS = fold ? (stepS - (fold.toS - fold.fromS)) * 0.03 : 0;
    this.endS = this.shown(stepS);
    [this.fromS, this.toS] = [0, this.endS];
    this.chosen = null; // stage and index of a task
    this.followers = []; // what is drawn anew after the timeline, on its axis
    this.rowPx = stages.length > 32 ? 8 : stages.length > 8 ? 12 : 24;
    this.told = make("p", { class: "hint", id: `task-${plan.id}`, role: "status" }, "");
    this.figure = figure(this.parts(plan));
    this.listen(this.figure.box, plan);
    this.tell();
  }

  parts(plan) {
    const { stages, fold } = this.data;
    const works = WORK.filter((work) => stages.some((stage) => stage.busy[work] > 0));
    const left = fold ? ` Folded at the grey bar: ${whole.format(fold.tasks)} tasks, ${seconds(fold.toS - fold.fromS)}.` : "";
    return {
      label: `Pipeline timeline of ${plan.name}`,
      caption: `${this.data.told}${left} Idle time is the bubble.`,
      draw: (width) => this.draw(width),
      heading: ["stage", ...works.map((work) => `${work}, s`), "idle, s"],
      rows: () =>
        stages.map(({ label, busy }) => {
          const times = works.map((work) => busy[work] ?? 0);
          return [label, ...times, Math.max(this.data.stepS - times.reduce((a, b) => a + b, 0), 0)];
        }),
      above: [legend([...works.map((work) => [work, colourOf(work)]), ["idle", "var(--idle)"]]), this.controls()],
      below: [this.told],
    };
  }

  controls() {
    const button = (name, label, act) => {
      const button = make("button", { type: "button", "aria-label": label }, name);
      button.addEventListener("click", act);
      return button;
    };
    return make(
      "div", { class: "controls", role: "group", "aria-label": "Zoom of the timeline" },
      button("+", "Zoom in", () => this.zoom(0.5)),
      button("−", "Zoom out", () => this.zoom(2)),
      button("◀", "Earlier", () => this.pan(-0.3)),
      button("▶", "Later", () => this.pan(0.3)),
      button("Start", "Show the start of the step", () => this.look(0, this.endS / 6)),
      button("End", "Show the end of the step", () => this.look(this.endS * (5 / 6), this.endS)),
      button("All", "Show the whole step", () => this.look(0, this.endS)),
    );
  }

  listen(box, plan) {
    box.setAttribute("role", "group");
    box.setAttribute("tabindex", 0);
    box.setAttribute("aria-describedby", `task-${plan.id}`);
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("pointermove", (event) => this.choose(this.taskAt(event)));
    box.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8);
    }, { passive: false });
  }

  key(event) {
    const acts = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.look(0, this.endS),
      ArrowRight: () => this.step(0, 1), ArrowLeft: () => this.step(0, -1),
      ArrowDown: () => this.step(1, 0), ArrowUp: () => this.step(-1, 0),
    };
    if (!acts[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    acts[event.key]();
  }

  /** Return where a time stands on the axis, on which the fold is short. */
  shown(timeS) {
    const { fold } = this.data;
    if (!fold || timeS <= fold.fromS) return timeS;
    if (timeS >= fold.toS) return timeS - (fold.toS - fold.fromS) + this.gapS;
    return fold.fromS + ((timeS - fold.fromS) / (fold.toS - fold.fromS)) * this.gapS;
  }

  /** Return the time that stands at a place on the axis: the inverse of `shown`. */
  time(shownS) {
    const { fold } = this.data;
    if (!fold || shownS <= fold.fromS) return shownS;
    if (shownS >= fold.fromS + this.gapS) return shownS + (fold.toS - fold.fromS) - this.gapS;
    return fold.fromS + ((shownS - fold.fromS) / this.gapS) * (fold.toS - fold.fromS);
  }

  look(fromS, toS) {
    const span = Math.min(Math.max(toS - fromS, this.endS / 4000), this.endS);
    this.fromS = Math.min(Math.max(fromS, 0), this.endS - span);
    this.toS = this.fromS + span;
    this.figure.redraw();
    for (const follow of this.followers) follow();
  }

  zoom(factor) {
    const middle = (this.fromS + this.toS) / 2;
    const half = ((this.toS - this.fromS) / 2) * factor;
    this.look(middle - half, middle + half);
  }

  pan(share) {
    const move = (this.toS - this.fromS) * share;
    this.look(this.fromS + move, this.toS + move);
  }

  draw(width) {
    const height = this.data.stages.length * this.rowPx + 4;
    this.scale = (shownS) => LEFT_PX + ((shownS - this.fromS) / (this.toS - this.fromS)) * (width - LEFT_PX - 8);
    this.paths = Object.fromEntries(WORK.map((work) => [work, []]));
    this.labels = [];
    const idle = shape("rect", { x: LEFT_PX, y: 2, width: width - LEFT_PX - 8, height: height - 4, fill: "var(--idle)" });
    this.data.stages.forEach((stage, i) => this.addStage(stage, i, width));
    const works = Object.entries(this.paths).map(([work, rects]) => shape("path", { d: rects.join(""), fill: colourOf(work), "data-work": work }));
    const names = this.data.stages.map((stage, i) => (this.rowPx > 12 || i % 4 === 0 ? text(0, (i + 0.5) * this.rowPx + 6, stage.label) : ""));
    return canvas(width, height + 22, idle, ...works, ...this.labels, ...this.foldMark(height), ...names, ...this.axis(height, width), ...this.outline());
  }

  addStage(stage, i, width) {
    const top = i * this.rowPx + 3;
    for (const [kind, microbatch, chunk, startS, endS] of stage.spans) {
      const [x, end] = [this.scale(this.shown(startS)), this.scale(this.shown(endS))];
      if (end < LEFT_PX || x > width) continue;
      this.addTask(stage.parts[kind + chunk], KINDS[kind], x, end, top, width);
      if (end - x > LABEL_PX && this.rowPx > 16) {
        this.labels.push(shape("text", { x: (x + end) / 2, y: top + this.rowPx / 2 + 3, "text-anchor": "middle", class: "on" }, String(microbatch)));
      }
    }
    let fromS = this.shown(this.data.pipelineS);
    for (const [work, , takesS] of stage.ends) {
      this.rect(work, this.scale(fromS), this.scale(fromS + takesS), top, width);
      fromS += takesS;
    }
  }

  addTask(parts, main, x, end, top, width) {
    if (end - x < 5) return this.rect(main, x, end, top, width);
    const takesS = parts.reduce((sum, [, , partS]) => sum + partS, 0);
    let from = x;
    for (const [work, , partS] of parts) {
      const to = from + ((end - x) * partS) / takesS;
      this.rect(work, from, to, top, width);
      from = to;
    }
    return undefined;
  }

  rect(work, from, to, top, width) {
    const [x, end] = [Math.max(from, LEFT_PX), Math.min(to, width - 8)];
    if (end <= x) return;
    const wide = Math.max(end - x - (end - x > 5 ? 0.7 : 0), 0.3).toFixed(2);
    this.paths[work].push(`M${x.toFixed(2)} ${top}h${wide}v${this.rowPx - 4}h-${wide}z`);
  }

  foldMark(height) {
    const { fold } = this.data;
    if (!fold) return [];
    const [x, end] = [this.scale(fold.fromS), this.scale(fold.fromS + this.gapS)].map((at) => Math.max(at, LEFT_PX));
    const tip = shape("title", {}, `${whole.format(fold.tasks)} tasks are folded`);
    return end > x ? [shape("rect", { x, y: 0, width: end - x, height, fill: "var(--c8)", opacity: 0.55 }, tip)] : [];
  }

  axis(height, width) {
    const { fold, stepS } = this.data;
    const spanS = this.toS - this.fromS;
    const distance = ticks(spanS, width < 500 ? 3 : 7)[1] ?? spanS;
    const marks = [];
    for (let at = 0; at <= stepS + 1e-12 && marks.length < 400; at += distance) {
      if (fold && at > fold.fromS && at < fold.toS) at = Math.ceil(fold.toS / distance) * distance;
      const x = this.scale(this.shown(at));
      if (x >= LEFT_PX - 1 && x <= width - 8) marks.push(text(x, height + 15, seconds(Number(at.toPrecision(10))), { anchor: x > width - 40 ? "end" : "middle", kind: "faint" }));
    }
    return marks;
  }

  outline() {
    const task = this.task();
    if (!task) return [];
    const [x, end] = [task[3], task[4]].map((at) => this.scale(this.shown(at)));
    const y = this.chosen.stage * this.rowPx + 2;
    return [shape("rect", { x, y, width: Math.max(end - x, 2), height: this.rowPx - 2, fill: "none", stroke: "var(--ink)", "stroke-width": 2 })];
  }

  task() {
    return this.chosen && this.data.stages[this.chosen.stage].spans[this.chosen.index];
  }

  taskAt(event) {
    const box = this.figure.box.getBoundingClientRect();
    const stage = Math.floor((event.clientY - box.top) / this.rowPx);
    const x = event.clientX - box.left;
    const index = this.data.stages[stage]?.spans.findIndex((span) => this.scale(this.shown(span[3])) <= x && x < this.scale(this.shown(span[4])));
    return index >= 0 ? { stage, index } : null;
  }

  choose(chosen) {
    if (chosen?.stage === this.chosen?.stage && chosen?.index === this.chosen?.index) return;
    this.chosen = chosen;
    this.figure.box.querySelector("svg > rect[stroke-width='2']")?.remove();
    this.figure.box.querySelector("svg")?.append(...this.outline());
    this.tell();
  }

  /** Choose the next task of a stage, or the same on the next stage. */
  step(stages, tasks) {
    const { stages: all } = this.data;
    const before = this.chosen ?? { stage: 0, index: -1 };
    const stage = Math.min(Math.max(before.stage + stages, 0), all.length - 1);
    const most = all[stage].spans.length - 1;
    this.choose({ stage, index: Math.min(Math.max(before.index + tasks, 0), most) });
    const at = this.shown(this.task()[3]);
    if (at < this.fromS || at > this.toS) this.look(at - (this.toS - this.fromS) / 2, at + (this.toS - this.fromS) / 2);
  }

  tell() {
    const task = this.task();
    if (!task) {
      this.told.textContent = "Point at a task, or focus the timeline: arrows choose a task, + and − zoom, 0 shows all.";
      return;
    }
    const [kind, microbatch, chunk, startS, endS] = task;
    const stage = this.data.stages[this.chosen.stage];
    const parts = stage.parts[kind + chunk].map(([, part, partS]) => `${partName(part)} ${seconds(partS)}`);
    const which = this.data.vpp > 1 ? `, chunk ${chunk}` : "";
    this.told.textContent = `${stage.label}: ${KINDS[kind]} of micro-batch ${microbatch}${which}, from ${seconds(startS)} to ${seconds(endS)}: ${parts.join(", ")}`;
  }
}
