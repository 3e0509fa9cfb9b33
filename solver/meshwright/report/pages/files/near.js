"use strict";
// Plans that are known near the fastest: step time against the risk of running out.

const LEAST_RISK = 1e-3; // risks below are drawn there: tails are not known

function nearFigure(near) {
  const groups = [...new Set(near.map((plan) => plan.techniques))];
  const looks = new Map(groups.map((name, i) => [name, { fill: COLOURS[i % COLOURS.length], isSquare: i >= COLOURS.length }]));
  const first = near.find((plan) => plan.isFirst) ?? near[0];
  return figure({
    label: "Plans near the fastest: step time against risk of running out of memory",
    caption: `Left is faster, low is safer; colours are techniques. Risks below ${percent(LEAST_RISK)} stand at the bottom; the dashed line is the risk that the spec accepts.`,
    draw: (width) => drawNear(width, near, looks, first),
    heading: ["plan", "why it is here", "step, s", `against ${first.why}`, "risk", "techniques"],
    rows: () => near.map((plan) => [plan.plan, plan.why, plan.stepS, slower(plan, first), riskText(plan.risk), plan.techniques]),
    above: [legend([...looks].map(([name, { fill, isSquare }]) => [`${name}${isSquare ? " (square)" : ""}`, fill]))],
  });
}

function slower(plan, first) {
  const loss = plan.stepS / first.stepS - 1;
  return `${loss < 0 ? "−" : "+"}${percent(Math.abs(loss))}`;
}

function riskText(risk) {
  return risk < LEAST_RISK ? `< ${percent(LEAST_RISK)}` : percent(risk);
}

function drawNear(width, near, looks, first) {
  const [left, right, top, height] = [58, 24, 14, 260];
  const steps = near.map((plan) => plan.stepS);
  const [low, high] = [Math.min(...steps), Math.max(...steps)];
  const pad = Math.max((high - low) * 0.06, high * 0.002);
  const scaleX = (value) => left + ((value - low + pad) / (high - low + 2 * pad)) * (width - left - right);
  const scaleY = (risk) => {
    const share = Math.log10(Math.max(risk, LEAST_RISK) / LEAST_RISK) / Math.log10(1 / LEAST_RISK);
    return top + (1 - share) * (height - top - 34);
  };
  const gridY = [1, 0.1, 0.01, LEAST_RISK].flatMap((risk) => [
    shape("line", { x1: left, x2: width - right, y1: scaleY(risk), y2: scaleY(risk), class: "grid" }),
    text(left - 6, scaleY(risk) + 4, riskText(risk), { anchor: "end", kind: "faint" }),
  ]);
  const accepted = shape("line", { x1: left, x2: width - right, y1: scaleY(PAGE.risk), y2: scaleY(PAGE.risk), stroke: "var(--alarm)", "stroke-width": 1.4, "stroke-dasharray": "5 3" });
  const across = [0, 0.5, 1].map((share) => low + share * (high - low));
  const gridAcross = high > low ? across : [low];
  const last = [...near.filter((plan) => plan !== first), first];
  const marks = last.map((plan) => nearMark(plan, scaleX(plan.stepS), scaleY(plan.risk), looks.get(plan.techniques), first, width));
  return canvas(width, height, ...gridY, ...gridX(gridAcross, scaleX, top, height - 30, seconds), accepted, ...marks.flat());
}

function nearMark(plan, x, y, { fill, isSquare }, first, width) {
  const isFirst = plan === first;
  const tip = `${plan.plan}: ${seconds(plan.stepS)}, ${slower(plan, first)}, risk ${riskText(plan.risk)}, ${plan.techniques} (${plan.why})`;
  const r = isFirst ? 8 : 6;
  const place = isSquare ? { x: x - r, y: y - r, width: 2 * r, height: 2 * r } : { cx: x, cy: y, r };
  const look = { ...place, fill, stroke: isFirst ? "var(--ink)" : "var(--ground)", "stroke-width": isFirst ? 2.5 : 1 };
  const mark = shape(isSquare ? "rect" : "circle", { ...look, "data-plan": plan.plan }, shape("title", {}, tip));
  if (!isFirst) return [mark];
  const isAtEnd = x > width - 110;
  return [mark, text(isAtEnd ? x - 12 : x + 12, y - 8, first.why, { kind: "halo", anchor: isAtEnd ? "end" : "start" })];
}
