"use strict";
// Pasted text is read by the server, which knows the kinds of files.

async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** Return the sentence of a response that was refused. */
async function refusal(response) {
  try {
    return (await response.json()).error ?? `The server answered ${response.status}.`;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

async function readPasted() {
  const box = document.getElementById("read-notes");
  const [text, gpu] = ["text", "gpu"].map((id) => document.getElementById(id).value);
  const response = await post("api/paste", { text, gpu, spec: state.spec });
  if (!response.ok) {
    box.replaceChildren(make("p", { class: "warn" }, await refusal(response)));
    return;
  }
  const { spec, read, notes } = await response.json();
  box.replaceChildren(make("p", {}, `Read as ${read}.`), noteList(notes));
  begin(spec);
}

function noteList(notes) {
  return make("ul", { class: "notes" }, ...notes.map((note) => make("li", {}, note)));
}

document.getElementById("read").addEventListener("click", readPasted);
