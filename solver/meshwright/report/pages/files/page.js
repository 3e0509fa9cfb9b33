"use strict";
// Draws the answer of the page, and anew when the page changes its width or is printed.

/** In a notebook, make the frame as high as the page, in place of the text before it. */
function fitFrame() {
  const frame = window.frameElement;
  if (!frame?.srcdoc) return;
  frame.previousElementSibling.hidden = true;
  frame.style.height = `${document.documentElement.offsetHeight}px`;
}

drawAnswer();
fitFrame();
let drawnPx = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== drawnPx) drawAll();
  drawnPx = innerWidth;
});
new ResizeObserver(fitFrame).observe(document.body);
addEventListener("beforeprint", () => drawAll(680));
addEventListener("afterprint", () => drawAll());
