"use strict";
// Memory of a GPU by stage and part, against what it has and what a plan may use.

const MOST_STAGES = 8; // up to which all stages that differ are drawn

/** Return the fullest of every run of stages that hold the same layers. */
function fullestOfEach(groups) {
  const runs = [];
  for (const group of groups) {
    const isAlike = runs.at(-1)?.[0].layers === group.layers && runs.at(-1)[0].parts.weights === group.parts.weights;
    if (isAlike) runs.at(-1).push(group);
    else runs.push([group]);
  }
  return runs.map((run) => {
    const fullest = run.reduce((most, group) => (group.total - group.usable > most.total - most.usable ? group : most));
    return run.length > 1 ? { ...fullest, label: `${fullest.label} of ${run[0].label.match(/\d+/)}-${run.at(-1).label.match(/\d+$/)}` } : fullest;
  });
}

function memoryFigure(plan) {
  const { groups, names, hasHost, hasRecomputed } = plan.memory;
  const most = Math.max(...groups.flatMap((group) => [group.total, group.capacity ?? 0, group.usable]));
  const gib = (value) => `${show(value)} GiB`;
  const alike = new Set(groups.map((group) => `${group.usable} ${group.capacity}`)).size === 1;
  const [first] = groups;
  const marksOf = (group) => [
    { at: group.usable, name: `usable ${gib(group.usable)}`, colour: "var(--alarm)" },
    ...(group.capacity ? [{ at: group.capacity, name: `GPU ${gib(group.capacity)}`, colour: "var(--ink)" }] : []),
  ];
  const marks = alike ? marksOf(first) : [];
  const drawn = groups.length > MOST_STAGES ? fullestOfEach(groups) : groups;
  const rows = drawn.map((group) => ({
    label: group.label,
    parts: names.map((name) => [name, group.parts[name]]).filter(([, value]) => value > 0),
    told: `${show(group.total)} GiB`,
    isAlarm: group.total > group.usable,
    marks: alike ? [] : marksOf(group),
  }));
  return figure({
    label: `Memory of a GPU by stage of ${plan.name}`,
    caption: `${plan.memory.told} A plan may use what is left of the red line; the rest of the GPU is kept for what the prediction may be off.${drawn === groups ? "" : " Of stages with the same layers the fullest is drawn."}`,
    draw: (width) => stackedBars(width, rows, most * 1.02, show, marks),
    heading: ["stage", "GPU", "layers", ...(hasRecomputed ? ["recomputed"] : []), ...names, "total, GiB", "usable", "of the GPU", ...(hasHost ? ["in CPU memory"] : []), "fits with probability"],
    rows: () =>
      groups.map((group) => [
        group.label, group.gpu, group.layers, ...(hasRecomputed ? [group.recomputed] : []), ...names.map((name) => group.parts[name]),
        group.total, group.usable, group.capacity, ...(hasHost ? [group.host] : []), group.fits,
      ]),
    above: [legend(names.map((name) => [name, colourOf(name)]))],
  });
}
