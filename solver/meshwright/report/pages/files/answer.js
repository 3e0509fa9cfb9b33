"use strict";
// Puts an answer together: what is told, the charts of the plan that is chosen, the proof.

let chosen = null; // the plan that is drawn

function heading(id, title, ...children) {
  return make("section", { "aria-labelledby": id }, make("h2", { id }, title), ...children);
}

function facts(entries) {
  const items = entries.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  return make("dl", { class: "facts" }, ...items);
}

function launchOf(plan) {
  const { launch } = plan;
  if (!launch) return [];
  if (launch.refused) return [make("h3", {}, "Launch"), make("p", {}, launch.refused)];
  const more = launch.others.length ? ` The export has ${launch.others.join(", ")} beside it: meshwright export.` : "";
  return [
    make("h3", {}, `Launch with ${launch.target}`),
    make("pre", { tabindex: 0, "aria-label": "Launch line" }, launch.line),
    make("details", {}, make("summary", {}, `All of ${launch.file}`), make("pre", { tabindex: 0, "aria-label": launch.file }, launch.text)),
    make("p", { class: "hint" }, `Written for ${launch.version}.${more}`),
  ];
}

/** Return what is told and drawn of one plan. */
function planParts(plan) {
  const words = PAGE.verdict.includes(plan.words[0]) ? [] : plan.words; // told already
  const note = plan.note ? [make("p", { class: "warn" }, plan.note)] : [];
  return [
    heading("plan", "The plan", ...note, ...(words.length ? [make("ul", { class: "lines" }, ...words.map((line) => make("li", {}, line)))] : []), facts(plan.facts), ...launchOf(plan)),
    ...(plan.times ?? []).map((time) => heading(time.id, time.title, waterfallFigure(time).element)),
    ...(plan.time ? [heading("time", "Where the step goes", stepFigure(plan).element)] : []),
    ...(plan.timeline ? [heading("timeline", "The pipeline over time", ...playedFigures(plan))] : []),
    heading("memory", "Memory", memoryFigure(plan).element),
    ...(plan.mesh ? [heading("mesh", "The mesh on the hosts", meshFigure(plan).element)] : []),
    ...(plan.cluster ? [heading("links", "Links and their loads", clusterFigure(plan).element)] : []),
  ];
}

function chooser() {
  const select = make("select", { id: "choose" }, ...PAGE.plans.map((plan, i) => make("option", { value: i }, plan.name)));
  select.value = PAGE.plans.indexOf(chosen);
  select.addEventListener("change", () => {
    chosen = PAGE.plans[Number(select.value)];
    draw();
    document.getElementById("choose").focus();
  });
  return make("div", { class: "controls" }, make("label", { for: "choose" }, "Draw the plan"), select);
}

function answerParts() {
  const { near, worth, sections } = PAGE;
  const grouped = sections.map(({ id, title, sections: parts }) => heading(id, title, ...parts.map((one) => section(one, parts.length === 1 && one.title === title))));
  return [
    ...(near.length > 1 ? [heading("near", "Plans near the fastest", nearTable(near))] : []),
    ...(worth.length ? [heading("worth", "What each limit is worth", worthFigure(worth).element)] : []),
    ...mapParts(),
    ...grouped,
  ];
}

/** Return the map of all plans, or what asks for it, where the page has either. */
function mapParts() {
  const map = PAGE.map ? mapFigure(PAGE.map).element : PAGE.askMap?.();
  return map ? [heading("map", "The map of all plans", map)] : [];
}

/** Draw the answer that PAGE holds, its verdict first. */
function drawAnswer() {
  chosen = PAGE.plans[0] ?? null;
  document.getElementById("verdict").replaceChildren(...PAGE.verdict.map((line) => make("p", {}, line)));
  draw();
}

function draw() {
  drawings.clear();
  const several = PAGE.plans.length > 1;
  document.getElementById("main").replaceChildren(
    ...(PAGE.isComparison && several ? [heading("side", "Side by side", sideBySideFigure(PAGE.plans).element)] : []),
    ...(PAGE.hasPlan ? [] : answerParts()),
    ...(PAGE.histogram ? [heading("steps", "How long steps take", histogramFigure(PAGE.histogram).element)] : []),
    ...(several ? [chooser()] : []),
    ...(chosen ? planParts(chosen) : []),
    ...(PAGE.hasPlan ? answerParts() : []),
  );
  const titles = [...document.querySelectorAll("h2")].map((title) => make("a", { href: `#${title.id}` }, title.textContent));
  document.getElementById("contents").replaceChildren(...titles);
  drawAll();
}
