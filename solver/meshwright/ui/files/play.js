"use strict";
// What can be saved, and the start of the page.

function save(name, content) {
  const url = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = make("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Save what the server makes of the plan: one file, which may be an archive. */
async function saveMade(wanted, to) {
  const response = await post("api/solve", { spec: state.spec, wanted, to, plan: state.plan });
  if (!response.ok) {
    tell(await refusal(response), true);
    return;
  }
  await eachMessage(response, ({ kind, name, base64, text }) => {
    if (kind === "failed") tell(text, true);
    if (kind === "file") save(name, Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)));
  });
}

function showExports(hasPlan) {
  const button = (label, act) => {
    const button = make("button", { type: "button" }, label);
    button.addEventListener("click", act);
    return button;
  };
  const always = [button("Save the spec", () => save("spec.yaml", state.yaml))];
  const withPlan = [
    ...exportButtons(button),
    button("Report", () => saveMade("report", "")),
    button("Trace", () => saveMade("files", "trace")),
    button("Plan as JSON", () => save("plan.json", JSON.stringify(state.plan, null, 2))),
  ];
  document.getElementById("exports").replaceChildren(...always, ...(hasPlan ? withPlan : []));
}

/** Return a button for each launcher that takes plans of the framework. */
function exportButtons(button) {
  const [usual, ...others] = CHOICES.exports[state.spec.framework ?? "megatron"] ?? [];
  if (!usual) return [];
  const more = others.map((name) => button(`Files for ${name}`, () => saveMade("files", name)));
  return [button("Files to launch", () => saveMade("files", "")), ...more];
}

document.getElementById("question").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("stop").addEventListener("click", () => post("api/stop", { job: state.job }));
addEventListener("popstate", () => {
  const spec = specOfAddress();
  if (spec) begin(spec);
});
let shownPx = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== shownPx) drawAll();
  shownPx = innerWidth;
});
drawLists();
begin(specOfAddress() ?? CHOICES.specs[CHOICES.first]);
