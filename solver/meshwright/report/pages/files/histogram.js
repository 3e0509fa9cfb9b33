"use strict";
// How long simulated steps take: how many of them lie in each bin.

function histogramFigure({ samples, edges, counts, undisturbedS, medianS, p99S }) {
  const marks = [["undisturbed", undisturbedS], ["median", medianS], ["99 of 100", p99S]];
  const bins = counts.map((count, i) => ({ fromS: edges[i], toS: edges[i + 1], count }));
  return figure({
    label: "Step times of the simulated steps",
    caption: `${whole.format(samples)} steps: ${marks.map(([name, atS]) => `${name} ${seconds(atS)}`).join(", ")}.`,
    draw: (width) => histogramDrawing(width, bins, undisturbedS, medianS),
    heading: ["from", "to", "steps"],
    rows: () => bins.map(({ fromS, toS, count }) => [seconds(fromS), seconds(toS), count]),
  });
}

function histogramDrawing(width, bins, undisturbedS, medianS) {
  const [left, right, top, bottom] = [44, width - 12, 34, 190];
  const leastS = Math.min(undisturbedS, bins[0].fromS);
  const mostS = Math.max(bins.at(-1).toS, leastS * 1.0001);
  const most = Math.max(...bins.map(({ count }) => count));
  const x = (atS) => left + ((atS - leastS) / (mostS - leastS)) * (right - left);
  const y = (count) => bottom - (count / most) * (bottom - top);
  const bars = bins.map(({ fromS, toS, count }) =>
    bar(x(fromS), y(count), Math.max(x(toS) - x(fromS), 2), bottom - y(count), "var(--c1)", `${seconds(fromS)} to ${seconds(toS)}: ${whole.format(count)} steps`),
  );
  const across = ticks(most, 4).flatMap((count) => [
    shape("line", { x1: left, x2: right, y1: y(count), y2: y(count), class: "grid" }),
    text(left - 6, y(count) + 4, whole.format(count), { anchor: "end", kind: "faint" }),
  ]);
  const lines = [["undisturbed", undisturbedS, "var(--good)", 12], ["median", medianS, "var(--alarm)", 27]].flatMap(([name, atS, colour, at]) => [
    shape("line", { x1: x(atS), x2: x(atS), y1: at - 6, y2: bottom, stroke: colour, "stroke-width": 1.6 }),
    text(x(atS) + (x(atS) > width - 180 ? -5 : 5), at, `${name} ${seconds(atS)}`, { anchor: x(atS) > width - 180 ? "end" : "start", kind: "halo" }),
  ]);
  const ends = [text(left, bottom + 16, seconds(leastS), { kind: "faint" }), text(right, bottom + 16, seconds(mostS), { anchor: "end", kind: "faint" })];
  return canvas(width, bottom + 22, ...across, ...bars, ...lines, ...ends);
}
