"use strict";
// Unpacks the library that draws the charts.

const DIGITS =
  "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

/** Return the bytes of text in which five digits of base 85 stand for four bytes. */
function bytesOf(text, count) {
  const values = new Uint8Array(128);
  for (const [value, digit] of [...DIGITS].entries()) values[digit.charCodeAt(0)] = value;
  const words = new DataView(new ArrayBuffer((text.length / 5) * 4));
  for (let i = 0; i < text.length; i += 5) {
    let word = 0;
    for (let k = i; k < i + 5; k += 1) word = word * 85 + values[text.charCodeAt(k)];
    words.setUint32((i / 5) * 4, word);
  }
  return new Uint8Array(words.buffer, 0, count);
}

/** Run the library of the page, which makes Plotly known. */
async function runLibrary() {
  const packed = new Blob([bytesOf(LIBRARY, BYTES)]).stream();
  const code = packed.pipeThrough(new DecompressionStream("deflate"));
  new Function(await new Response(code).text()).call(window);
}
