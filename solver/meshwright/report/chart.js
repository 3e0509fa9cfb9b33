"use strict";
// Draws the chart. Of the menu only the pictures are offered: the views of the source
// write it as HTML, and the editor sends it elsewhere.

const CHART = JSON.parse(document.getElementById("data").textContent);
const ACTIONS = { export: true, source: false, compiled: false, editor: false };

vegaEmbed("#chart", CHART, { mode: "vega-lite", actions: ACTIONS }).catch(
  console.error,
);
