// The page: what is chosen, asked and shown. The server's address is that of the page; nothing else is spoken to.

import { answer, brief, inOneLine, nothingYet, problem } from "./answer.js";
import { describe, explain, stats, useToken } from "./api.js";
import { at, el, say, show } from "./dom.js";
import { figure } from "./numbers.js";
import { traffic } from "./traffic.js";
import { about } from "./words.js";

const EVERY_STATS = 3000;
const EVERY_LOOK = 15000;
const KEPT = 8;
const MOST_BYTES = 32 * 2 ** 20;

let models = [];
let counted = true;
const processes = new Set();
let image = null;
let running = null;
const earlier = [];

// Models and versions

async function look() {
  try {
    const found = await describe();
    models = found.models;
    offer();
    state(models.some((each) => each.ready) ? "up" : "", models.length ? "Ready" : "No model is loaded");
    say(at("about-server"), `hydrant ${found.version}. Programs ask POST predict, or the Open Inference Protocol under v2; figures for Prometheus are under metrics.`);
  } catch (error) {
    state("down", error.status === 401 || error.status === 403 ? "A token is needed" : "Not reached");
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
  options(at("version"), of.map((each) => each.version), current?.version, (version) => (version === current?.version && of.length > 1 ? `${version} (answers)` : version));
  form();
}

/** The choices of a list, where they changed; what was chosen stays chosen. */
function options(list, values, preferred = values[0], words = (value) => value) {
  const texts = values.map(words);
  const same = values.length === list.options.length && values.every((value, index) => list.options[index].value === value && list.options[index].textContent === texts[index]);
  if (!same) {
    const kept = list.dataset.chosen && values.includes(list.value) ? list.value : preferred;
    show(list, values.map((value, index) => el("option", { value }, texts[index])));
    if (kept !== undefined) list.value = kept;
  }
  list.disabled = values.length < 2;
}

const chosen = () => models.find((each) => each.name === at("model").value && each.version === at("version").value);

/** The form as the chosen model needs it. */
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

// Asking

function question() {
  const facts = chosen();
  if (!facts) return { lacks: "There is no model to ask yet." };
  if (facts.modality === "image") {
    if (!image) return { lacks: "Choose an image first." };
    return { facts, input: { image: image.base64 }, given: image.name, kept: image };
  }
  if (facts.modality !== "text") return { lacks: "This page takes texts and images. Send sounds to POST predict, in base64 or as files of a form." };
  const text = at("text").value;
  if (!at("pair").checked) return text.trim() ? { facts, input: text, given: text } : { lacks: "Type a text first." };
  const second = at("second").value;
  if (!text.trim() || !second.trim()) return { lacks: "Type both texts first." };
  return { facts, input: [text, second], given: `${text} | ${second}` };
}

async function ask() {
  const asked = question();
  if (asked.lacks) {
    show(at("answer-body"), problem("Nothing to ask", asked.lacks));
    return;
  }
  running?.abort();
  const mine = (running = new AbortController());
  wait(true);
  say(at("told"), "");
  const { facts } = asked;
  const from = performance.now();
  try {
    const found = await explain({ model: facts.name, version: facts.version, inputs: [asked.input] }, mine.signal);
    const took = performance.now() - from;
    const [first] = found.explanations;
    show(at("answer-body"), answer(first, facts));
    say(at("told"), inOneLine(first, facts));
    say(at("took"), `${figure(took)} ms, there and back`);
    keep(asked, first, facts);
  } catch (error) {
    if (error.name === "AbortError") return;
    show(at("answer-body"), problem("It could not answer", error.message ?? String(error)));
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

/** The last answers, to come back to. */
function keep(asked, found, facts) {
  earlier.unshift({ asked, found, facts });
  earlier.length = Math.min(earlier.length, KEPT);
  at("earlier").hidden = earlier.length < 2;
  show(at("earlier-list"), earlier.map((each) => {
    const { kind, text } = brief(each.found, each.facts);
    const button = el(
      "button",
      { type: "button" },
      el("span", { class: `sign ${kind}`, "aria-hidden": "true" }, { answered: "✓", abstain: "?", ood: "!", open: "–" }[kind]),
      el("span", { class: "given", dir: "auto" }, each.asked.given.slice(0, 200)),
      el("span", { class: "said" }, text.slice(0, 120)),
    );
    button.addEventListener("click", () => again(each));
    return el("li", {}, button);
  }));
}

function again({ asked, found, facts }) {
  if (typeof asked.input === "string") at("text").value = asked.input;
  else if (Array.isArray(asked.input)) [at("text").value, at("second").value] = asked.input;
  else picture(asked.kept);
  if (!asked.kept) {
    at("pair").checked = Array.isArray(asked.input);
    paired();
  }
  show(at("answer-body"), answer(found, facts));
  say(at("took"), `${facts.name}, version ${facts.version}`);
}

// Images

async function take(file) {
  if (!file) return;
  if (file.size > MOST_BYTES) {
    show(at("answer-body"), problem("That file is too large", `It has ${figure(file.size / 2 ** 20)} MiB; this page sends up to ${MOST_BYTES / 2 ** 20}.`));
    return;
  }
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let from = 0; from < bytes.length; from += 0x8000) text += String.fromCharCode(...bytes.subarray(from, from + 0x8000));
  if (image && !earlier.some((each) => each.asked.kept === image)) URL.revokeObjectURL(image.address);
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
  // a file that misses the field must not take the page away
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
    const found = await stats();
    processes.add(found.process);
    show(at("traffic-body"), traffic(found, facts, (text) => say(at("traffic-note"), text), processes.size > 1));
  } catch (error) {
    say(at("traffic-note"), "");
    counted = error.status !== 404;
    show(at("traffic-body"), el("p", { class: "quiet" }, counted ? error.message : "This server keeps no figures of its traffic."));
  }
}

/** Do something now and again while the page is looked at. */
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
