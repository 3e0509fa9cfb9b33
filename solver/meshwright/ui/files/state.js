"use strict";
// The state of the page: a spec. It stands in the address, so that links and the
// browser's Back keep it.

const CHOICES = PAGE.choices;
const MOST_QUERY = 6000; // characters; longer specs stand behind the #, which no server reads

const state = { spec: null, plan: null, gpus: 0, job: null, knobs: null, known: [], hasMap: false, before: null };
const pending = new Map(); // edits that no answer has taken up yet, by path

/** Return the fields of a spec as pairs of path and value. */
function flat(value, path = "") {
  const isMapping = value !== null && typeof value === "object" && !Array.isArray(value);
  if (!isMapping || (path && !Object.keys(value).length)) return [[path, asWord(value)]];
  return Object.entries(value).flatMap(([name, inner]) => flat(inner, path ? `${path}.${name}` : name));
}

function asWord(value) {
  return typeof value === "string" && parsed(value) === undefined ? value : JSON.stringify(value);
}

function parsed(word) {
  try {
    return JSON.parse(word);
  } catch {
    return undefined;
  }
}

/** Return the spec of pairs of path and value: the inverse of `flat`. */
function nested(pairs) {
  const spec = Object.create(null);
  for (const [path, word] of pairs) {
    const names = path.split(".");
    const last = names.pop();
    let node = spec;
    for (const name of names) {
      if (node[name] === null || typeof node[name] !== "object") node[name] = Object.create(null);
      node = node[name];
    }
    node[last] = parsed(word) ?? word;
  }
  return spec;
}

function address(spec) {
  const query = new URLSearchParams(flat(spec)).toString();
  return query.length <= MOST_QUERY ? `?${query}` : `#${query}`;
}

/** Return the spec that the address of the page has, or null. */
function specOfAddress() {
  const text = location.search.length > 1 ? location.search.slice(1) : location.hash.slice(1);
  const pairs = [...new URLSearchParams(text)].filter(([path]) => path);
  return pairs.some(([path]) => path.startsWith("model")) ? nested(pairs) : null;
}

let isOpened = false; // whether the address has been set since the page was opened

/** Put the state into the address; a new entry of the history for a new question. */
function remember() {
  const url = address(state.spec);
  const isNew = url !== location.search + location.hash;
  if (isNew && isOpened) history.pushState(null, "", url);
  else if (isNew) history.replaceState(null, "", url);
  isOpened = true;
}
