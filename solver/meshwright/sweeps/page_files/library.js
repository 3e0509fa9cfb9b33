"use strict";
// Unpacks the library that draws the charts.

/** Run the library of the page, which makes Plotly known. */
async function runLibrary() {
  const packed = Uint8Array.from(atob(LIBRARY), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  new Function(await new Response(unpacked).text()).call(window);
}
