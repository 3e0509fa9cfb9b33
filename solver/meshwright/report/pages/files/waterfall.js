"use strict";
// The step time as a waterfall: each part starts where the one before ended.

const PART_NAMES = {
  compute: "compute", recompute: "recompute", bubble: "pipeline bubble", tp: "tensor-parallel traffic",
  cp: "context-parallel traffic", ep: "expert traffic", zero: "ZeRO gathers", dp: "gradients (dp)",
  pp: "sends between stages", offload: "copies to and from CPU memory", optimizer: "optimizer update", host: "waiting for the CPU",
};
const PARTS = Object.keys(PART_NAMES);
function partName(part) {
  return PART_NAMES[part] ?? part;
}

function stepFigure(plan) {
  return waterfallFigure({
    label: `Step time by part of ${plan.name}`,
    caption: "Parts of the slowest stage; traffic is what no compute hides. The bubble is the rest of the step.",
    parts: plan.time,
    wholeS: plan.stepS,
    whole: "step",
  });
}

/** Return a time by its parts, the first on top, and the whole below. */
function waterfallFigure({ label, caption, parts, wholeS, whole }) {
  const steps = [];
  let from = 0;
  parts.forEach(([part, value], i) => {
    steps.push({ told: partName(part), brief: part, value, from, colour: colourOf(part, i) });
    from += value;
  });
  const rows = [...steps, { told: whole, brief: whole, value: wholeS, from: 0, colour: "var(--ink)" }];
  return figure({
    label,
    caption,
    draw: (width) => waterfall(width, rows, wholeS),
    heading: ["part", "seconds", `share of the ${whole === "step" ? "step" : "whole"}`],
    rows: () => rows.map(({ told, value }) => [told, value, percent(value / wholeS)]),
  });
}

function waterfall(width, rows, stepS) {
  const left = width < 500 ? 72 : 170;
  const right = width < 500 ? 74 : 120;
  const height = rows.length * 26;
  const scale = (value) => left + (value / stepS) * (width - left - right);
  const row = ({ told: name, brief, value, from, colour }, i) => {
    const [y, end] = [i * 26 + 4, scale(from + value)];
    const told = width < 500 ? seconds(value) : `${seconds(value)} · ${percent(value / stepS)}`;
    return [
      shape("line", { x1: end, x2: end, y1: y, y2: y + 26, class: "axis" }),
      bar(scale(from), y + 3, Math.max(end - scale(from), 1.5), 17, colour, `${name}: ${seconds(value)}`),
      text(0, y + 16, fitted(width < 500 ? brief : name, left - 8)),
      text(end + 6, y + 16, told),
    ];
  };
  const across = ticks(stepS, width < 500 ? 3 : 6);
  return canvas(width, height + 26, ...gridX(across, scale, 0, height + 4, seconds), ...rows.flatMap(row));
}

/** Return the step times of several plans, one bar of parts each. */
function sideBySideFigure(plans) {
  const longest = Math.max(...plans.map((plan) => plan.stepS));
  const names = PARTS.filter((part) => plans.some((plan) => plan.time.some(([name]) => name === part)));
  const rows = plans.map((plan) => ({
    label: plan.name,
    parts: names.map((part) => [part, partOf(plan, part)]).filter(([, value]) => value > 0),
    told: seconds(plan.stepS),
  }));
  return figure({
    label: "Step time of each plan by part",
    caption: "The fastest first.",
    draw: (width) => stackedBars(width, rows, longest, seconds),
    heading: ["plan", ...names.map((part) => `${partName(part)}, s`), "step, s"],
    rows: () => plans.map((plan) => [plan.name, ...names.map((part) => partOf(plan, part)), plan.stepS]),
    above: [legend(names.map((part) => [partName(part), colourOf(part)]))],
  });
}

function partOf(plan, part) {
  return plan.time.find(([name]) => name === part)?.[1] ?? 0;
}
