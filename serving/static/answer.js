// What the model says of one input: the verdict and why, its uncertainties beside their limits, and its members.

import { el } from "./dom.js";
import { figure, many, percent, probability } from "./numbers.js";
import { ends, place } from "./scale.js";
import { SCORES, decisions, noMembers, valueOf, verdict } from "./words.js";

const SIGNS = { answered: "✓", abstain: "?", ood: "!", open: "–" };

/** The answer to one input, as elements. */
export function answer(found, facts) {
  const row = found.row;
  if (row.error) return [problem("This input could not be used", row.error)];
  const parts = { classification, score, multi_label: labels, tokens }[facts.task](found, facts);
  return [
    el("div", { class: "verdict" }, parts.head, facts.task === "tokens" ? tokenVerdict(row, facts) : pill(verdict(row, facts))),
    parts.body,
    why(row, facts),
    facts.task === "tokens" ? null : uncertainties(row, facts),
    parts.members,
  ];
}

/** Something that went wrong, said calmly. */
export function problem(title, text) {
  return el("div", { class: "problem", role: "alert" }, el("h3", {}, title), el("p", {}, text));
}

/** What stands there before anything was asked. */
export function nothingYet() {
  return el(
    "div",
    { class: "empty" },
    el("p", {}, "Its answer appears here: what it says, how sure it is, and whether it would rather not say."),
  );
}

function pill({ kind, text }) {
  return el("p", { class: `pill ${kind}` }, el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[kind]), text);
}

function block(title, note, ...children) {
  return el("section", { class: "block" }, el("h3", {}, title, note ? el("small", {}, note) : null), ...children);
}

// One label of several

function classification(found, facts) {
  const { row } = found;
  const head = el(
    "div",
    { class: "head" },
    el("p", { class: "label" }, row.label),
    el("p", { class: "sure" }, el("b", {}, percent(row.confidence)), " sure"),
  );
  const set = row.prediction_set;
  const body = set && el(
    "p",
    { class: "set" },
    set.length
      ? `With a probability of ${percent(1 - facts.conformal.alpha, 0)}, the right label is among: `
      : `No label is probable enough to be among those that hold the right one with ${percent(1 - facts.conformal.alpha, 0)} probability.`,
    set.slice(0, 12).map((name) => el("span", { class: "tag" }, name)),
    set.length > 12 ? ` and ${many(set.length - 12, "more", "more")}` : null,
  );
  return { head, body, members: voices(found, facts) };
}

/** Labels that are worth a line: the first few, and others while they are probable at all. */
const worth = (classes) => classes.filter((each, index) => index < 3 || each.probability >= 0.005);

function voices(found, facts) {
  const said = found.members;
  const likely = worth(found.classes);
  const rest = found.classes.length - likely.length + found.others.count;
  const share = 1 - likely.reduce((sum, each) => sum + each.probability, 0);
  const chart = block(
    said ? "What each member says" : "The likeliest labels",
    said ? "bar: their mean · dots: each member" : null,
    el("div", { class: "classes" }, likely.map((each) => classRow(each, found.row.label))),
    rest ? el("p", { class: "hint" }, `${many(rest, "other label")} ${rest === 1 ? "has" : "share"} ${percent(Math.max(0, share))}.`) : null,
    said ? memberList(said.map((each) => `${each.label} ${probability(each.confidence)}`)) : el("p", { class: "hint" }, noMembers(facts)),
  );
  return chart;
}

function classRow({ label, probability: mean, members: each, threshold, assigned }, top) {
  const limit = threshold === undefined ? null : el("span", { class: "limit", "--at": `${threshold * 100}%`, "aria-hidden": "true" });
  return el(
    "div",
    { class: `class ${label === top || assigned ? "chosen" : ""}` },
    el("span", { class: "name", title: label }, label),
    el(
      "span",
      { class: "track", "aria-hidden": "true" },
      el("span", { class: "fill", "--to": `${mean * 100}%` }),
      limit,
      (each ?? []).map((value, index) => el("i", { class: `dot m${index % 6}`, "--at": `${value * 100}%`, "--up": up(index, each.length), title: `member ${index + 1}: ${probability(value)}` })),
    ),
    el("span", { class: "number" }, probability(mean)),
    threshold === undefined ? null : el("span", { class: "unseen" }, assigned ? "applies" : "does not apply", `, limit ${probability(threshold)}`),
  );
}

/** How far from the middle a member's dot lies, so that members who agree are all seen. */
const up = (index, members) => `${((index - (members - 1) / 2) * Math.min(0.34, 1 / members)).toFixed(2)}rem`;

function memberList(texts) {
  return el(
    "ol",
    { class: "members" },
    texts.map((text, index) => el("li", {}, el("i", { class: `dot m${index % 6}`, "aria-hidden": "true" }), el("span", { class: "who" }, `Member ${index + 1}`), el("span", { class: "says" }, text))),
  );
}

// A score, with its interval

function score(found, facts) {
  const { row: told } = found;
  const deviation = Math.sqrt(told.score_variance);
  const head = el(
    "div",
    { class: "head" },
    el("p", { class: "label" }, figure(told.score)),
    el("p", { class: "sure" }, "± ", el("b", {}, figure(deviation)), " between members"),
  );
  const line = scoreLine(told, found.members, facts);
  return {
    head,
    body: line,
    members: block(
      "What each member says",
      null,
      found.members ? memberList(found.members.map(figure)) : el("p", { class: "hint" }, noMembers(facts)),
    ),
  };
}

function scoreLine(told, each, facts) {
  const interval = told.interval_low !== undefined;
  const values = [told.score, ...(each ?? []), ...(interval ? [told.interval_low, told.interval_high] : [])];
  let low = Math.min(...values);
  let high = Math.max(...values);
  const margin = (high - low || Math.abs(low) || 1) * 0.15;
  [low, high] = facts.activation === "sigmoid" ? [0, 1] : [low - margin, high + margin];
  const to = (value) => `${place(value, [low, high]).at * 100}%`;
  const text = interval
    ? `With ${percent(facts.intervals.confidence, 0)} probability it lies between ${figure(told.interval_low)} and ${figure(told.interval_high)}.`
    : "It has no interval: hydrant calibrate fits one.";
  return el(
    "div",
    { class: "line" },
    el(
      "div",
      { class: "axis", "aria-hidden": "true" },
      interval ? el("span", { class: "between", "--from": to(told.interval_low), "--to": to(told.interval_high) }) : null,
      (each ?? []).map((value, index) => el("i", { class: `dot m${index % 6}`, "--at": to(value), "--up": up(index, each.length) })),
      el("span", { class: "mean", "--at": to(told.score) }),
      el("span", { class: "end" }, figure(low)),
      el("span", { class: "end right" }, figure(high)),
    ),
    el("p", {}, text),
  );
}

// Several labels

function labels(found, facts) {
  const assigned = found.row.labels;
  const head = el(
    "div",
    { class: "head" },
    assigned.length
      ? el("p", { class: "label many" }, assigned.map((each) => el("span", { class: "tag" }, each.label)))
      : el("p", { class: "label none" }, "none of its labels"),
    el("p", { class: "sure" }, `${assigned.length} of ${many(facts.labels.length, "label")}`),
  );
  const body = block(
    "Each label by itself",
    found.members ? "mark: its limit · dots: each member" : "mark: its limit",
    el("div", { class: "classes" }, found.classes.map((each) => classRow(each))),
    found.others?.count ? el("p", { class: "hint" }, `${many(found.others.count, "other label")} lie below these.`) : null,
    found.members ? el("p", { class: "key" }, found.members.map((_, index) => el("span", {}, el("i", { class: `dot m${index % 6}`, "aria-hidden": "true" }), `Member ${index + 1}`))) : el("p", { class: "hint" }, noMembers(facts)),
  );
  return { head, body, members: null };
}

// Tags of words

function tokens(found, facts) {
  const { words, spans, input } = found.row;
  const text = String(input ?? "");
  const head = el(
    "div",
    { class: "head" },
    el("p", { class: "label" }, spans.length ? many(spans.length, "span") : "no span"),
    el("p", { class: "sure" }, `in ${many(words.length, "word")}`),
  );
  const body = el("div", {}, el("p", { class: "marked", dir: "auto" }, marked(text, spans)), spans.length ? spanTable(spans, text) : null);
  return { head, body, members: wordTable(found, facts) };
}

/** The text with its spans marked; offsets count characters, not the code units of this language. */
function marked(text, spans) {
  const characters = Array.from(text);
  const parts = [];
  let from = 0;
  for (const span of spans) {
    if (span.start < from) continue;
    parts.push(characters.slice(from, span.start).join(""));
    const kind = span.out_of_distribution ? "ood" : span.abstain ? "abstain" : "answered";
    parts.push(el("mark", { class: kind }, characters.slice(span.start, span.end).join(""), el("small", {}, span.label)));
    from = span.end;
  }
  parts.push(characters.slice(from).join(""));
  return parts;
}

function tokenVerdict(told, facts) {
  const { ood, abstain } = facts.thresholds;
  const flagged = told.words.length && [...told.spans].filter((span) => span.out_of_distribution || span.abstain).length;
  if (!ood && !abstain) return pill({ kind: "open", text: "No limits are set, so it answers everything" });
  if (flagged) return pill({ kind: told.spans.some((span) => span.out_of_distribution) ? "ood" : "abstain", text: `${many(flagged, "span")} to be looked at` });
  return pill({ kind: "answered", text: told.spans.length ? "It stands by these spans" : "It found nothing to mark" });
}

function table(caption, heads, rows) {
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell))))),
    ),
  );
}

const inWords = (each) => [each.out_of_distribution && "unlike its training data", each.abstain && "abstains"].filter(Boolean).join(", ") || "stands by it";

function spanTable(spans) {
  return table(
    "Spans",
    ["span", "label", "confidence", "entropy", "decision"],
    spans.map((span) => [span.text, span.label, probability(span.confidence), figure(span.predictive_entropy), inWords(span)]),
  );
}

/** What the members say of a word; a tag that all give is named once. */
function together(each) {
  const tags = new Set(each.map(({ label }) => label));
  if (tags.size === 1) return `${each[0].label} ${each.map(({ confidence }) => probability(confidence)).join(", ")}`;
  return each.map(({ label, confidence }) => `${label} ${probability(confidence)}`).join(", ");
}

function wordTable(found, facts) {
  const { words } = found.row;
  const voicesOf = found.members;
  const heads = ["word", "tag", "confidence", "entropy", "mutual information", ...(voicesOf ? ["members"] : [])];
  const rows = words.slice(0, 200).map((word, index) => [
    word.text ?? "",
    word.label,
    probability(word.confidence),
    figure(word.predictive_entropy),
    figure(word.mutual_information),
    ...(voicesOf ? [together(voicesOf[index])] : []),
  ]);
  return block(
    "Word by word",
    words.length > 200 ? "the first 200" : null,
    table("Words", heads, rows),
    voicesOf ? null : el("p", { class: "hint" }, noMembers(facts)),
  );
}

// Uncertainties and decisions

function uncertainties(told, facts) {
  const limits = Object.entries(facts.thresholds);
  const names = Object.keys(SCORES).filter((name) => Number.isFinite(told[name]));
  return block(
    "How sure it is",
    limits.length ? "mark: the calibrated limit" : null,
    el("div", { class: "scores" }, names.map((name) => scoreRow(name, told[name], facts, limits.filter(([, limit]) => limit.score === name)))),
  );
}

function scoreRow(name, value, facts, limits) {
  const bounds = ends(name, facts, limits[0]?.[1]);
  const known = SCORES[name];
  const beyond = limits.some(([, limit]) => (limit.side === "below" ? value < limit.value : value > limit.value));
  const kind = beyond ? (limits.some(([of]) => of === "ood") ? "ood" : "abstain") : "answered";
  const at = bounds && place(value, bounds);
  const words = limits.map(([of, limit]) => `${of === "ood" ? "flagged" : "abstains"} ${limit.side} ${valueOf(name, limit.value)}`);
  return el(
    "div",
    { class: `row ${limits.length ? kind : "plain"}` },
    el("span", { class: "what" }, el("b", {}, known.name), el("small", {}, known.about)),
    el(
      "span",
      { class: "gauge" },
      bounds
        ? el(
            "span",
            { class: "track", "aria-hidden": "true" },
            el("span", { class: `fill${at.beyond ? " beyond" : ""}`, "--to": `${at.at * 100}%` }),
            limits.map(([, limit]) => el("span", { class: `limit ${limit.side}`, "--at": `${place(limit.value, bounds).at * 100}%` })),
          )
        : null,
      words.length ? el("small", { class: "bound" }, words.join(", ")) : null,
    ),
    el("span", { class: "number" }, valueOf(name, value)),
  );
}

function why(told, facts) {
  return block(
    "What it decides, and why",
    null,
    el(
      "ul",
      { class: "why" },
      decisions(told, facts).map(({ kind, title, text }) =>
        el("li", { class: kind }, el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[kind]), el("div", {}, el("b", {}, title), el("p", {}, text))),
      ),
    ),
  );
}

/** The whole answer in a line, for those who hear the page. */
export function inOneLine(found, facts) {
  if (found.row.error) return `This input could not be used: ${found.row.error}`;
  const { text } = brief(found, facts);
  return `${text}. ${verdict(decided(found.row, facts), facts).text}.`;
}

/** The decisions of a row, where it has them; of a tagged text those of its spans. */
function decided(told, facts) {
  if (facts.task !== "tokens") return told;
  return { out_of_distribution: told.spans.some((span) => span.out_of_distribution), abstain: told.spans.some((span) => span.abstain) };
}

/** One line about an answer, for the list of earlier ones. */
export function brief(found, facts) {
  const { row: told } = found;
  if (told.error) return { kind: "open", text: "could not be used" };
  const text = {
    classification: () => `${told.label} ${probability(told.confidence)}`,
    score: () => figure(told.score),
    multi_label: () => told.labels.map((each) => each.label).join(", ") || "no label",
    tokens: () => told.spans.map((span) => `${span.text} ${span.label}`).join(", ") || "no span",
  }[facts.task]();
  return { kind: verdict(decided(told, facts), facts).kind, text };
}

