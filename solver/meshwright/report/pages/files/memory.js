"use strict";
// Memory of a GPU by stage and part, against what it has and what a plan may use.

function memoryFigure(plan) {
  const { groups, names, hasHost, hasRecomputed } = plan.memory;
  const most = Math.max(...groups.flatMap((group) => [group.total, group.capacity, group.usable]));
  const gib = (value) => `${show(value)} GiB`;
  const alike = new Set(groups.map((group) => `${group.usable} ${group.capacity}`)).size === 1;
  const [first] = groups;
  const marksOf = (group) => [
    { at: group.usable, name: `usable ${gib(group.usable)}`, colour: "var(--alarm)" },
    { at: group.capacity, name: `GPU ${gib(group.capacity)}`, colour: "var(--ink)" },
  ];
  const marks = alike ? marksOf(first) : [];
  const rows = groups.map((group) => ({
    label: group.label,
    parts: names.map((name) => [name, group.parts[name]]).filter(([, value]) => value > 0),
    told: `${show(group.total)} GiB`,
    isAlarm: group.total > group.usable,
    marks: alike ? [] : marksOf(group),
  }));
  return figure({
    label: `Memory of a GPU by stage of ${plan.name}`,
    caption: `${plan.memory.told} A plan may use what is left of the red line; the rest of the GPU is kept for what the prediction may be off.`,
    draw: (width) => stackedBars(width, rows, most * 1.02, show, marks),
    heading: ["stage", "GPU", "layers", ...(hasRecomputed ? ["recomputed"] : []), ...names, "total, GiB", "usable", "of the GPU", ...(hasHost ? ["on the host"] : []), "fits with probability"],
    rows: () =>
      groups.map((group) => [
        group.label, group.gpu, group.layers, ...(hasRecomputed ? [group.recomputed] : []), ...names.map((name) => group.parts[name]),
        group.total, group.usable, group.capacity, ...(hasHost ? [group.host] : []), group.fits,
      ]),
    above: [legend(names.map((name) => [name, colourOf(name)]))],
  });
}
