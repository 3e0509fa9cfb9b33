"use strict";
// Colours by name: a part of the step or of memory has one colour on every page.

const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"].map((name) => `var(${name})`);

const COLOUR_OF = {
  // Of the step of training; what belongs to a part of memory has its colour.
  compute: 1, recompute: 2, bubble: 8, tp: 4, cp: 5, ep: 6, zero: 7, dp: 3, pp: 6, offload: 5, optimizer: 7, host: 8,
  // Of memory, in training and in serving.
  weights: 1, gradients: 3, activations: 2, logits: 4, workspace: 5, cache: 6, overhead: 8,
  // Of the time of a token.
  "weight matmuls": 1, attention: 2, "small kernels": 3, "tensor links": 4, "stage links": 6, "expert links": 5, head: 7, waiting: 8,
  // Of tasks on the timeline.
  forward: 1, backward: 3, "weight gradients": 6, communication: 4, "step end": 7,
  // Of axes of the mesh.
  dp_shard: 3, dp_replicate: 7,
};

/** Return the colour of a part by its name, or by its place where it has none. */
function colourOf(name, place = 7) {
  const number = COLOUR_OF[name];
  return number ? COLOURS[number - 1] : COLOURS[place % COLOURS.length];
}

/** Return the value that a colour of the page has now, for charts that read no CSS. */
function paint(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
