// The page: the form, requests, and results. It contacts its own server only.

import { answer, brief, inOneLine, nothingYet, problem } from "./answer.js";
import { describe, explain, stats, useToken } from "./api.js";
import { at, el, say, show } from "./dom.js";
import { figure } from "./numbers.js";
import { traffic } from "./traffic.js";
import { about } from "./words.js";

const EVERY_STATS = 3000;
const EVERY_LOOK = 15000;
const MAX_EARLIER = 8;
const MAX_BYTES = 32 * 2 ** 20;

let models = [];
let counted = true;
const processes = new Set();
let image = null;
let running = null;
const earlier = [];

// Models and versions

async function look() {
  try {
    const description = await describe();
    models = description.models;
    offer();
    state(models.some((each) => each.ready) ? "up" : "", models.length ? "Ready" : "No model is loaded");
    say(at("about-server"), `hydrant ${description.version}. For programs: POST predict, or the Open Inference Protocol under v2. Prometheus metrics: metrics.`);
  } catch (error) {
    state("down", error.status === 401 || error.status === 403 ? "Token required" : "Not reachable");
    if (!models.length) say(at("about"), error.message);
    if (error.status === 401 || error.status === 403) at("access").open = true;
  }
}

function state(kind, text) {
  at("state").className = `state ${kind}`;
  say(at("state-text"), text);
}

function offer() {
  const names = [...new Set(models.map((each) => each.name))];
  options(at("model"), names);
  offerVersions();
}

function offerVersions() {
  const of = models.filter((each) => each.name === at("model").value);
  const current = of.find((each) => each.current) ?? of.at(-1);
  options(at("version"), of.map((each) => each.version), current?.version, (version) => (version === current?.version && of.length > 1 ? `${version} (current)` : version));
  form();
}

/** Update the choices of a list, and keep the selection. */
function options(list, values, preferred = values[0], words = (value) => value) {
  const texts = values.map(words);
  const same = values.length === list.options.length && values.every((value, index) => list.options[index].value === value && list.options[index].textContent === texts[index]);
  if (!same) {
    const selected = list.dataset.chosen && values.includes(list.value) ? list.value : preferred;
    show(list, values.map((value, index) => el("option", { value }, texts[index])));
    if (selected !== undefined) list.value = selected;
  }
  list.disabled = values.length < 2;
}

const chosen = () => models.find((each) => each.name === at("model").value && each.version === at("version").value);

/** Show the fields of the chosen model. */
function form() {
  const facts = chosen();
  if (!facts) return;
  say(at("about"), about(facts));
  at("image-field").hidden = facts.modality !== "image";
  at("text-field").hidden = facts.modality !== "text";
  at("pair-check").hidden = facts.task === "tokens";
  if (at("form").dataset.of !== `${facts.name}/${facts.version}`) {
    at("form").dataset.of = `${facts.name}/${facts.version}`;
    if (facts.task === "tokens") at("pair").checked = false;
    else at("pair").checked = facts.pairs;
  }
  paired();
}

function paired() {
  at("pair-field").hidden = !at("pair").checked;
  say(at("text-label"), at("pair").checked ? "First text" : "Text");
}

// Predictions

/** The request in the form: `{facts, input, title, picked}`, or `{missing}`. */
function formRequest() {
  const facts = chosen();
  if (!facts) return { missing: "No model is loaded yet." };
  if (facts.modality === "image") {
    if (!image) return { missing: "Choose an image first." };
    return { facts, input: { image: image.base64 }, title: image.name, picked: image };
  }
  if (facts.modality !== "text") return { missing: "This page takes texts and images. Send sounds to POST predict, in base64 or as form files." };
  const text = at("text").value;
  if (!at("pair").checked) return text.trim() ? { facts, input: text, title: text } : { missing: "Type a text first." };
  const second = at("second").value;
  if (!text.trim() || !second.trim()) return { missing: "Type both texts first." };
  return { facts, input: [text, second], title: `${text} | ${second}` };
}

async function ask() {
  const request = formRequest();
  if (request.missing) {
    show(at("answer-body"), problem("No input", request.missing));
    return;
  }
  running?.abort();
  const mine = (running = new AbortController());
  wait(true);
  say(at("spoken"), "");
  const { facts } = request;
  const from = performance.now();
  try {
    const { explanations } = await explain({ model: facts.name, version: facts.version, inputs: [request.input] }, mine.signal);
    const took = performance.now() - from;
    const [first] = explanations;
    show(at("answer-body"), answer(first, facts));
    say(at("spoken"), inOneLine(first, facts));
    say(at("took"), `${figure(took)} ms round trip`);
    keep(request, first, facts);
  } catch (error) {
    if (error.name === "AbortError") return;
    show(at("answer-body"), problem("No answer", error.message ?? String(error)));
    say(at("took"), "");
  } finally {
    if (running === mine) wait(false);
  }
}

function wait(is) {
  at("answer").classList.toggle("waiting", is);
  at("answer").setAttribute("aria-busy", String(is));
  at("submit").setAttribute("aria-disabled", String(is));
}

/** Add to the list of earlier answers. */
function keep(request, explanation, facts) {
  earlier.unshift({ request, explanation, facts });
  earlier.length = Math.min(earlier.length, MAX_EARLIER);
  at("earlier").hidden = earlier.length < 2;
  show(at("earlier-list"), earlier.map((each) => {
    const { kind, text } = brief(each.explanation, each.facts);
    const button = el(
      "button",
      { type: "button" },
      el("span", { class: `sign ${kind}`, "aria-hidden": "true" }, { answered: "✓", abstain: "?", ood: "!", open: "–" }[kind]),
      el("span", { class: "input", dir: "auto" }, each.request.title.slice(0, 200)),
      el("span", { class: "output" }, text.slice(0, 120)),
    );
    button.addEventListener("click", () => again(each));
    return el("li", {}, button);
  }));
}

function again({ request, explanation, facts }) {
  if (typeof request.input === "string") at("text").value = request.input;
  else if (Array.isArray(request.input)) [at("text").value, at("second").value] = request.input;
  else picture(request.picked);
  if (!request.picked) {
    at("pair").checked = Array.isArray(request.input);
    paired();
  }
  show(at("answer-body"), answer(explanation, facts));
  say(at("took"), `${facts.name}, version ${facts.version}`);
}

// Images

async function take(file) {
  if (!file) return;
  if (file.size > MAX_BYTES) {
    show(at("answer-body"), problem("The file is too large", `It has ${figure(file.size / 2 ** 20)} MiB; this page sends up to ${MAX_BYTES / 2 ** 20} MiB.`));
    return;
  }
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let from = 0; from < bytes.length; from += 0x8000) text += String.fromCharCode(...bytes.subarray(from, from + 0x8000));
  if (image && !earlier.some((each) => each.request.picked === image)) URL.revokeObjectURL(image.address);
  picture({ name: file.name, base64: btoa(text), address: URL.createObjectURL(file) });
  ask();
}

function picture(taken) {
  image = taken;
  at("preview").src = taken.address;
  at("preview").alt = `The chosen image, ${taken.name}`;
  at("preview").hidden = false;
  show(at("drop-text"), taken.name);
}

function drops() {
  const drop = at("drop");
  for (const event of ["dragenter", "dragover"])
    drop.addEventListener(event, (one) => { one.preventDefault(); drop.classList.add("over"); });
  for (const event of ["dragleave", "drop"]) drop.addEventListener(event, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); });
  at("image").addEventListener("change", () => take(at("image").files[0]));
  // a file dropped beside the field must not replace the page
  for (const event of ["dragover", "drop"]) window.addEventListener(event, (one) => one.preventDefault());
  window.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((each) => each.type.startsWith("image/"));
    if (file && chosen()?.modality === "image") take(file);
  });
}

// Traffic

async function watch() {
  const facts = chosen();
  if (!counted || !facts) return;
  try {
    const counts = await stats();
    processes.add(counts.process);
    show(at("traffic-body"), traffic(counts, facts, (text) => say(at("traffic-note"), text), processes.size > 1));
  } catch (error) {
    say(at("traffic-note"), "");
    counted = error.status !== 404;
    show(at("traffic-body"), el("p", { class: "quiet" }, counted ? error.message : "This server has no traffic metrics."));
  }
}

/** Call a function at intervals while the page is visible. */
function repeat(what, milliseconds) {
  let next = null;
  const turn = async () => {
    clearTimeout(next);
    if (document.hidden) return;
    await what();
    clearTimeout(next);
    next = setTimeout(turn, milliseconds);
  };
  document.addEventListener("visibilitychange", turn);
  return turn;
}

const lookNow = repeat(look, EVERY_LOOK);
const watchNow = repeat(watch, EVERY_STATS);

async function start() {
  show(at("answer-body"), nothingYet());
  at("form").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  for (const id of ["text", "second"])
    at(id).addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); ask(); }
    });
  at("model").addEventListener("change", () => { delete at("version").dataset.chosen; at("version").replaceChildren(); at("model").dataset.chosen = "1"; offerVersions(); watchNow(); });
  at("version").addEventListener("change", () => { at("version").dataset.chosen = "1"; form(); watchNow(); });
  at("pair").addEventListener("change", paired);
  at("access-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useToken(at("token").value);
    at("access").open = false;
    lookNow();
    watchNow();
  });
  drops();
  await lookNow();
  await watchNow();
}

start();
