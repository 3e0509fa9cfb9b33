"use strict";
// Plans that are known near the fastest, in the order of their steps, as a table.

const LEAST_RISK = 1e-3; // smaller ones are not told apart: tails are not known

function nearTable(near) {
  const named = (name) => near.find((plan) => plan.why === name);
  const base = named("the fastest plan") ?? named("the recommended plan") ?? near.find((plan) => plan.isFirst) ?? near[0];
  const heading = ["why it is here", "step", `against ${base.why}`, "risk", ...(PAGE.usePlan ? ["use"] : []), "plan"];
  const rows = near.map((plan) => [
    plan.why, seconds(plan.stepS), plan === base ? "-" : signed(plan.stepS / base.stepS - 1), riskText(plan.risk),
    ...(PAGE.usePlan ? [useButton(plan)] : []), plan.plan,
  ]);
  const told = `Risk is that of running out of memory; the spec accepts ${percent(PAGE.risk)}.`;
  return make("div", {}, table(heading, rows), make("p", { class: "hint" }, told));
}

/** Return what pins a plan; nothing pins one whose risk the spec does not accept. */
function useButton(plan) {
  if (plan.isFirst) return "shown";
  if (plan.risk > PAGE.risk) return "too risky";
  const button = make("button", { type: "button", class: "use", "aria-label": `Use this: ${plan.why}` }, "Use this");
  button.addEventListener("click", () => PAGE.usePlan(plan.pins));
  return button;
}

function riskText(risk) {
  return risk < LEAST_RISK ? `< ${percent(LEAST_RISK)}` : percent(risk);
}
