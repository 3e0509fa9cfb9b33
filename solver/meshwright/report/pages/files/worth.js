"use strict";
// What each limit is worth: the throughput of the fastest plan after one change.

function worthFigure(worth) {
  const known = worth.filter((change) => change.gain !== null);
  return figure({
    label: "What each limit is worth: tokens/s/GPU after one change",
    caption: "Each change is solved again; none of them is in the answer above.",
    draw: (width) => drawWorth(width, known),
    heading: ["change", "kind", "step, s", "tokens/s/GPU"],
    rows: () => worth.map((change) => [change.change, change.kind, change.stepS ?? "none fits", change.gain === null ? "-" : signed(change.gain)]),
  });
}

function signed(gain) {
  return `${gain < 0 ? "−" : "+"}${percent(Math.abs(gain))}`;
}

function drawWorth(width, rows) {
  const left = Math.min(230, width * 0.42);
  const gains = rows.map((change) => change.gain);
  const [low, high] = [Math.min(0, ...gains), Math.max(0, ...gains)];
  const span = Math.max(high - low, 1e-6);
  const inner = width - left - 130;
  const scale = (gain) => left + 62 + ((gain - low) / span) * inner;
  const drawn = rows.flatMap(({ change, gain }, i) => {
    const y = i * 26;
    const [from, to] = [scale(Math.min(gain, 0)), scale(Math.max(gain, 0))];
    const isLoss = gain < -5e-5;
    const told = isLoss ? text(from - 6, y + 17, signed(gain), { anchor: "end" }) : text(to + 6, y + 17, signed(gain));
    return [text(0, y + 17, fitted(change, left - 8)), bar(from, y + 4, Math.max(to - from, 1), 17, isLoss ? "var(--c2)" : "var(--c3)", `${change}: ${signed(gain)}`), told];
  });
  const zero = shape("line", { x1: scale(0), x2: scale(0), y1: 0, y2: rows.length * 26, class: "axis" });
  return canvas(width, rows.length * 26 + 4, zero, ...drawn);
}
