"use strict";
// Memory of a GPU by stage and part, against what it has and what a plan may use.

function memoryFigure(plan) {
  const { groups, names, hasHost, hasRecomputed } = plan.memory;
  const most = Math.max(...groups.flatMap((own) => [own.total, own.capacity, own.usable]));
  const colours = new Map(names.map((name, i) => [name, COLOURS[i % COLOURS.length]]));
  const gib = (value) => `${show(value)} GiB`;
  const alike = new Set(groups.map((own) => `${own.usable} ${own.capacity}`)).size === 1;
  const [first] = groups;
  const marksOf = (own) => [
    { at: own.usable, name: `usable ${gib(own.usable)}`, colour: "var(--alarm)" },
    { at: own.capacity, name: `GPU ${gib(own.capacity)}`, colour: "var(--ink)" },
  ];
  const marks = alike ? marksOf(first) : [];
  const rows = groups.map((own) => ({
    label: own.label,
    parts: names.map((name) => [name, own.parts[name]]).filter(([, value]) => value > 0),
    told: `${show(own.total)} GiB`,
    isAlarm: own.total > own.usable,
    marks: alike ? [] : marksOf(own),
  }));
  return figure({
    label: `Memory of a GPU by stage of ${plan.name}`,
    caption: `${plan.memory.told} A plan may use what is left of the red line; the rest of the GPU is kept for what the prediction may be off.`,
    draw: (width) => stackedBars(width, rows, (name) => colours.get(name), most * 1.02, show, marks),
    heading: ["stage", "GPU", "layers", ...(hasRecomputed ? ["recomputed"] : []), ...names, "total, GiB", "usable", "of the GPU", ...(hasHost ? ["on the host"] : []), "fits with probability"],
    rows: () =>
      groups.map((own) => [
        own.label, own.gpu, own.layers, ...(hasRecomputed ? [own.recomputed] : []), ...names.map((name) => own.parts[name]),
        own.total, own.usable, own.capacity, ...(hasHost ? [own.host] : []), own.fits,
      ]),
    above: [legend([...colours])],
  });
}
