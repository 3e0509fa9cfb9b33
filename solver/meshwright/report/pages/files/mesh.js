"use strict";
// The mesh on the hosts: every GPU with its rank, and the ranks that one GPU talks to.

const SHORT = { dp_shard: "shard", dp_replicate: "copy" };
const CELL_PX = 44;

function meshFigure(plan) {
  const { axes, told } = plan.mesh;
  const view = { chosen: plan.mesh.hosts[0].gpus[0].rank };
  const talks = make("ul", { class: "lines", "aria-live": "polite" });
  const drawn = figure({
    label: `The mesh on the hosts of ${plan.name}`,
    caption: `${told} Choose a GPU with the pointer, or focus the drawing and use the arrow keys.`,
    draw: (width) => drawMesh(width, plan, view, talks),
    heading: ["axis", "degree", "where it lies", "over", "GB/s a GPU"],
    rows: () => axes.map((axis) => [axis.name, axis.degree, axis.lies, axis.over, axis.gbS]),
    above: [legend([["chosen GPU", "var(--ink)"], ...axes.map((axis) => [axis.name, colourOf(axis.name)])])],
    below: [talks],
  });
  listenMesh(drawn, plan, view);
  return drawn;
}

function listenMesh(drawn, plan, view) {
  const ranks = plan.mesh.hosts.flatMap((host) => host.gpus.map((gpu) => gpu.rank));
  const choose = (rank) => {
    view.chosen = rank;
    drawn.redraw();
  };
  drawn.box.setAttribute("role", "group");
  drawn.box.setAttribute("tabindex", 0);
  drawn.box.addEventListener("click", (event) => {
    const rank = event.target.closest("[data-rank]")?.dataset.rank;
    if (rank !== undefined) choose(Number(rank));
  });
  drawn.box.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const next = ranks.indexOf(view.chosen) + move;
    choose(ranks[Math.min(Math.max(next, 0), ranks.length - 1)]);
  });
}

/** Return the axis of whose group two GPUs are, or null. */
function sharedAxis(axes, a, b) {
  const unlike = axes.filter((_, i) => a.at[i] !== b.at[i]);
  return unlike.length === 1 ? unlike[0].name : null;
}

function drawMesh(width, plan, view, talks) {
  const { hosts, axes } = plan.mesh;
  const every = hosts.flatMap((host) => host.gpus);
  const chosen = every.find((gpu) => gpu.rank === view.chosen);
  talks.replaceChildren(...talkLines(axes, every, chosen));
  const largest = Math.max(...hosts.map((host) => host.gpus.length));
  const columns = Math.min(largest, 8, Math.max(Math.floor((width - 12) / CELL_PX), 2));
  const box = { width: columns * CELL_PX + 12, height: Math.ceil(largest / columns) * CELL_PX + 34 };
  const across = Math.max(Math.floor((width + 10) / (box.width + 10)), 1);
  const drawn = hosts.flatMap((host, i) => {
    const [x, y] = [(i % across) * (box.width + 10), Math.floor(i / across) * (box.height + 10)];
    const frame = shape("rect", { x: x + 0.5, y: y + 0.5, width: box.width - 1, height: box.height - 1, rx: 6, fill: "var(--panel)", stroke: "var(--line)" });
    const title = text(x + 8, y + 18, fitted(host.note ? `${host.name} · ${host.note}` : host.name, box.width - 12));
    return [frame, title, ...host.gpus.flatMap((gpu, j) => gpuCell(gpu, axes, chosen, x + 6 + (j % columns) * CELL_PX, y + 26 + Math.floor(j / columns) * CELL_PX))];
  });
  return canvas(width, Math.ceil(hosts.length / across) * (box.height + 10), ...drawn);
}

function gpuCell(gpu, axes, chosen, x, y) {
  const axis = gpu === chosen ? null : sharedAxis(axes, gpu, chosen);
  const isLit = gpu === chosen || axis !== null;
  const fill = gpu === chosen ? "var(--ink)" : axis ? colourOf(axis) : "var(--ground)";
  const places = axes.map((other, i) => `${other.name} ${gpu.at[i]}`).join(", ");
  const tip = shape("title", {}, `rank ${gpu.rank} on GPU ${gpu.device}: ${places || "alone"}`);
  const cell = shape("rect", { x: x + 2, y: y + 2, width: CELL_PX - 4, height: CELL_PX - 4, rx: 4, fill, stroke: isLit ? "none" : "var(--line)" });
  const middle = { x: x + CELL_PX / 2, "text-anchor": "middle" };
  const name = shape("text", { ...middle, y: y + 20, class: axis ? "on" : null }, String(gpu.rank));
  const under = shape("text", { ...middle, y: y + 35, class: axis ? "small on" : "small faint" }, axis ? (SHORT[axis] ?? axis) : `gpu ${gpu.device}`);
  if (gpu === chosen) for (const label of [name, under]) label.style.fill = "var(--ground)";
  return [shape("g", { "data-rank": gpu.rank }, tip, cell, name, under)];
}

function talkLines(axes, every, chosen) {
  const intro = axes.length ? `Rank ${whole.format(chosen.rank)} talks to:` : "One GPU talks to none.";
  return [
    make("li", {}, intro),
    ...axes.map((axis) => {
      const peers = every.filter((gpu) => gpu !== chosen && sharedAxis(axes, gpu, chosen) === axis.name);
      const drawn = peers.slice(0, 8).map((gpu) => whole.format(gpu.rank)).join(", ");
      const rest = axis.degree - 1 - Math.min(peers.length, 8);
      const ranks = [drawn, rest > 0 ? `${whole.format(rest)}${drawn ? " more" : " others, not drawn here"}` : ""].filter(Boolean).join(" and ");
      return make("li", {}, `${axis.name} (${axis.degree}, ${axis.lies}, ${axis.does}): rank${axis.degree > 2 ? "s" : ""} ${ranks}`);
    }),
  ];
}
