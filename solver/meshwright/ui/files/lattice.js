"use strict";
// The map of all plans takes a second, so that it is drawn once it is asked for, and
// from then on after every answer.

function mapButton() {
  const told = make("p", { class: "hint", role: "status" }, "Every plan that was looked at as a dot: which fit, which rules refuse others, and how fast they may be.");
  const button = make("button", { type: "button", id: "draw-map" }, "Draw the map");
  button.addEventListener("click", async () => {
    state.hasMap = true;
    told.textContent = "Drawing the map …";
    await drawMap(controller.signal);
  });
  return make("div", {}, make("div", { class: "controls" }, button), told);
}

/** Ask for the map around the plans of the answer that is shown, and draw it. */
async function drawMap(signal) {
  const page = PAGE;
  const response = await post("api/solve", { spec: state.spec, wanted: "map", plans: state.known }, signal);
  if (!response.ok) {
    tell(await refusal(response), true);
    return;
  }
  await eachMessage(response, ({ kind, map, text }) => {
    if (kind === "failed") tell(text, true);
    if (kind === "map" && page === PAGE) showMap(map);
  });
}

function showMap(map) {
  const place = document.getElementById("map")?.parentElement;
  if (!place) return;
  if (!map) {
    place.lastElementChild.replaceWith(make("p", {}, "There is no map: no plan says which parts of the cluster are used."));
    return;
  }
  const hadFocus = place.contains(document.activeElement);
  PAGE.map = map;
  const [drawn] = mapParts();
  place.replaceWith(drawn);
  drawAll();
  if (hadFocus) drawn.querySelector(".chart").focus();
}

const DEGREES = ["tp", "pp", "cp", "ep", "dp_replicate", "dp_shard", "zero"];

function pinDegrees(fields) {
  edit(DEGREES.filter((name) => name in fields).map((name) => [`pins.${name}`, fields[name]]));
}
