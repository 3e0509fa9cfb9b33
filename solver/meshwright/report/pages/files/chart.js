"use strict";
// Shows the picture that fits the screen. What marks say of themselves is their tip.

const IS_NARROW = matchMedia("(max-width: 640px)");

function showPicture() {
  const source = IS_NARROW.matches ? PAGE.narrow : PAGE.wide;
  const picture = new DOMParser().parseFromString(source, "image/svg+xml").documentElement;
  for (const mark of picture.querySelectorAll("[aria-roledescription]:not(g)")) {
    const told = (mark.getAttribute("aria-label") ?? "").split("; ");
    const tip = told.filter((part) => !/^(x|y|x2|y2|label): /.test(part)).join("; ");
    mark.prepend(shape("title", {}, tip));
  }
  document.getElementById("chart").replaceChildren(document.importNode(picture, true));
}

IS_NARROW.addEventListener("change", showPicture);
showPicture();
