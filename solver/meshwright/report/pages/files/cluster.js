"use strict";
// The cluster: its links as loaded as the step loads them, the busiest one lit.

const POINTS = { gpu: "var(--c3)", switch: "var(--c1)", nic: "var(--c2)", rest: "var(--c8)" };
const POINT_NAMES = { gpu: "GPU", switch: "switch", nic: "NIC", rest: "more of them" };

function clusterFigure(plan) {
  const { phases, told } = plan.cluster;
  const choice = make("select", {}, ...["all traffic", ...phases].map((name) => make("option", {}, name)));
  const lit = make("p", { role: "status" });
  const drawn = figure({
    label: `Cluster with link loads of ${plan.name}`,
    caption: `${told} The wider and darker a link, the longer it is busy in a step; a red link is the bottleneck of the traffic chosen.`,
    draw: (width) => drawCluster(width, plan, choice.value, lit),
    heading: ["link", "traffic", "GB a step, one way", "seconds at full rate", "share of the step"],
    rows: () => plan.cluster.loads.map(([link, phase, gb, s]) => [link, phase, gb, s, percent(s / plan.stepS)]),
    above: [
      make("div", { class: "controls" }, make("label", {}, "Traffic ", choice)),
      legend([...new Set(plan.cluster.points.map(([, kind]) => kind))].map((kind) => [POINT_NAMES[kind], POINTS[kind]])),
    ],
    below: [lit],
  });
  choice.addEventListener("change", () => drawn.redraw());
  return drawn;
}

function drawCluster(width, plan, phase, lit) {
  const { points, lines } = plan.cluster;
  const rows = new Set(points.map(([, , , , y]) => y.toFixed(3))).size;
  const height = Math.min(Math.max(rows * 84, 220), 460);
  const at = new Map(points.map(([name, , , x, y]) => [name, [24 + x * (width - 48), 24 + (1 - y) * (height - 56)]]));
  const busy = lines.map((line) => (phase === "all traffic" ? line.total : (line.phases[phase] ?? 0)));
  const most = Math.max(...busy);
  lit.textContent = toldOfBottleneck(plan, phase);
  const order = [...lines.keys()].sort((a, b) => busy[a] - busy[b]);
  const drawn = order.map((i) => link(lines[i], at, busy[i], most, plan.stepS));
  const marks = points.flatMap((point) => pointMark(point, at, width, points));
  return canvas(width, height, ...drawn, ...marks);
}

function link({ ends, gbS, rails }, at, busyS, most, stepS) {
  const [[x1, y1], [x2, y2]] = ends.map((end) => at.get(end));
  const isWorst = most > 0 && busyS > 0.999 * most;
  const share = most > 0 ? busyS / most : 0;
  const stroke = isWorst ? "var(--alarm)" : busyS > 0 ? "var(--accent)" : "var(--line)";
  const tip = `${ends.join(" – ")}: ${show(gbS)} GB/s${rails > 1 ? ` x ${rails}` : ""}, busy ${seconds(busyS)}, ${percent(busyS / stepS)} of the step`;
  const attributes = { x1, y1, x2, y2, stroke, "stroke-width": 1.5 + 5 * share, "stroke-linecap": "round", opacity: busyS > 0 ? 0.45 + 0.55 * share : 1 };
  return shape("line", isWorst ? { ...attributes, "data-bottleneck": "" } : attributes, shape("title", {}, tip));
}

function pointMark([name, kind, count], at, width, points) {
  const [x, y] = at.get(name);
  const inRow = points.filter((point) => at.get(point[0])[1] === y).length;
  const room = width / inRow;
  const label = kind === "rest" ? `${whole.format(count)} more` : kind === "switch" && count > 1 ? `${name} (of ${whole.format(count)})` : name;
  const size = Math.min(9, room / 4);
  const tip = shape("title", {}, `${label}: ${POINT_NAMES[kind]}${count > 1 ? `, one of ${whole.format(count)}` : ""}`);
  const mark = kind === "gpu" ? { x: x - size, y: y - size, width: 2 * size, height: 2 * size, rx: 2 } : { cx: x, cy: y, r: size };
  const drawn = shape(kind === "gpu" ? "rect" : "circle", { ...mark, fill: POINTS[kind], stroke: "var(--ground)", "stroke-width": 1.5 }, tip);
  const short = room < 44 ? name.replace(/^\D+/, "") : fitted(label, room);
  const isBeside = kind === "switch" && room > 300;
  const told = isBeside
    ? text(x > width * 0.7 ? x - size - 6 : x + size + 6, y + 4, label, { anchor: x > width * 0.7 ? "end" : "start", kind: "halo" })
    : text(x, y + size + 14, short, { anchor: anchorAt(x, width), kind: "halo" });
  return room < 16 ? [drawn] : [drawn, told];
}

/** Return how text is set so that it keeps within a drawing. */
function anchorAt(x, width) {
  return x < 40 ? "start" : x > width - 40 ? "end" : "middle";
}

function toldOfBottleneck(plan, phase) {
  const found = phase === "all traffic" ? plan.cluster.bottleneck : plan.cluster.loads.find(([, name]) => name === phase);
  if (!found) return "No link carries traffic.";
  const [link, name, gb, s] = found;
  const by = phase === "all traffic" ? `, most of it by ${name}` : "";
  return `Bottleneck: ${link}, ${show(gb)} GB a step${by}: busy ${seconds(s)}, ${percent(s / plan.stepS)} of the step.`;
}
