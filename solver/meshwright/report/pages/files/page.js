"use strict";
// Draws the answer of the page, and anew when the page changes its width or is printed.

drawAnswer();
let drawnPx = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== drawnPx) drawAll();
  drawnPx = innerWidth;
});
addEventListener("beforeprint", () => drawAll(680));
addEventListener("afterprint", () => drawAll());
