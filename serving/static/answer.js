// The answer to one input: verdict with its reasons, uncertainty scores with their thresholds, and members.

import { el } from "./dom.js";
import { figure, many, percent, probability } from "./numbers.js";
import { ends, place } from "./scale.js";
import { SCORES, noMembers, reasons, valueOf, verdict } from "./words.js";

const SIGNS = { answered: "✓", abstain: "?", ood: "!", open: "–" };

/** The answer to one input, as elements. */
export function answer(explanation, facts) {
  const { row } = explanation;
  if (row.error) return [problem("Invalid input", row.error)];
  const parts = { classification, score, multi_label: labels, tokens }[facts.task](explanation, facts);
  return [
    el("div", { class: "verdict" }, parts.head, facts.task === "tokens" ? tokenVerdict(row, facts) : pill(verdict(row, facts))),
    parts.body,
    reasonList(row, facts),
    facts.task === "tokens" ? null : uncertainties(row, facts),
    parts.members,
  ];
}

/** An error with its title. */
export function problem(title, text) {
  return el("div", { class: "problem", role: "alert" }, el("h3", {}, title), el("p", {}, text));
}

/** The text before the first request. */
export function nothingYet() {
  return el(
    "div",
    { class: "empty" },
    el("p", {}, "The prediction appears here, with its confidence, its uncertainty and the decision to answer or abstain."),
  );
}

function pill({ kind, text }) {
  return el("p", { class: `pill ${kind}` }, el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[kind]), text);
}

function block(title, note, ...children) {
  return el("section", { class: "block" }, el("h3", {}, title, note ? el("small", {}, note) : null), ...children);
}

// Classification

function classification(explanation, facts) {
  const { row } = explanation;
  const head = el(
    "div",
    { class: "head" },
    el("p", { class: "label" }, row.label),
    el("p", { class: "sure" }, el("b", {}, percent(row.confidence)), " confidence"),
  );
  const set = row.prediction_set;
  const body = set && el(
    "p",
    { class: "set" },
    set.length
      ? `Prediction set, which contains the correct label with ${percent(1 - facts.conformal.alpha, 0)} probability: `
      : `The prediction set for ${percent(1 - facts.conformal.alpha, 0)} probability is empty: no label is probable enough.`,
    set.slice(0, 12).map((name) => el("span", { class: "tag" }, name)),
    set.length > 12 ? ` and ${many(set.length - 12, "more", "more")}` : null,
  );
  return { head, body, members: memberBlock(explanation, facts) };
}

/** The first three labels, and further ones of at least 0.5 %. */
const likeliest = (classes) => classes.filter((each, index) => index < 3 || each.probability >= 0.005);

function memberBlock({ row, members, classes, others }, facts) {
  const likely = likeliest(classes);
  const rest = classes.length - likely.length + others.count;
  const share = 1 - likely.reduce((sum, each) => sum + each.probability, 0);
  return block(
    members ? "Members" : "Most likely labels",
    members ? "bar: mean · dots: members" : null,
    el("div", { class: "classes" }, likely.map((each) => classRow(each, row.label))),
    rest ? el("p", { class: "hint" }, `${many(rest, "other label")}: ${percent(Math.max(0, share))}${rest === 1 ? "" : " in all"}.`) : null,
    members ? memberList(members.map((each) => `${each.label} ${probability(each.confidence)}`)) : el("p", { class: "hint" }, noMembers(facts)),
  );
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
    threshold === undefined ? null : el("span", { class: "unseen" }, assigned ? "applies" : "does not apply", `, threshold ${probability(threshold)}`),
  );
}

/** Vertical offset of a member's dot, so that equal values do not cover each other. */
const up = (index, members) => `${((index - (members - 1) / 2) * Math.min(0.34, 1 / members)).toFixed(2)}rem`;

function memberList(texts) {
  return el(
    "ol",
    { class: "members" },
    texts.map((text, index) => el("li", {}, el("i", { class: `dot m${index % 6}`, "aria-hidden": "true" }), el("span", { class: "member" }, `Member ${index + 1}`), el("span", { class: "output" }, text))),
  );
}

// Regression

function score({ row, members }, facts) {
  const deviation = Math.sqrt(row.score_variance);
  const head = el(
    "div",
    { class: "head" },
    el("p", { class: "label" }, figure(row.score)),
    el("p", { class: "sure" }, "± ", el("b", {}, figure(deviation)), " between members"),
  );
  return {
    head,
    body: scoreLine(row, members, facts),
    members: block("Members", null, members ? memberList(members.map(figure)) : el("p", { class: "hint" }, noMembers(facts))),
  };
}

function scoreLine(row, members, facts) {
  const interval = row.interval_low !== undefined;
  const values = [row.score, ...(members ?? []), ...(interval ? [row.interval_low, row.interval_high] : [])];
  let low = Math.min(...values);
  let high = Math.max(...values);
  const margin = (high - low || Math.abs(low) || 1) * 0.15;
  [low, high] = facts.activation === "sigmoid" ? [0, 1] : [low - margin, high + margin];
  const to = (value) => `${place(value, [low, high]).at * 100}%`;
  const text = interval
    ? `${percent(facts.intervals.confidence, 0)} prediction interval: ${figure(row.interval_low)} to ${figure(row.interval_high)}.`
    : "No prediction interval; hydrant calibrate fits one.";
  return el(
    "div",
    { class: "line" },
    el(
      "div",
      { class: "axis", "aria-hidden": "true" },
      interval ? el("span", { class: "between", "--from": to(row.interval_low), "--to": to(row.interval_high) }) : null,
      (members ?? []).map((value, index) => el("i", { class: `dot m${index % 6}`, "--at": to(value), "--up": up(index, members.length) })),
      el("span", { class: "mean", "--at": to(row.score) }),
      el("span", { class: "end" }, figure(low)),
      el("span", { class: "end right" }, figure(high)),
    ),
    el("p", {}, text),
  );
}

// Multi-label

function labels({ row, members, classes, others }, facts) {
  const assigned = row.labels;
  const head = el(
    "div",
    { class: "head" },
    assigned.length
      ? el("p", { class: "label many" }, assigned.map((each) => el("span", { class: "tag" }, each.label)))
      : el("p", { class: "label none" }, "no label"),
    el("p", { class: "sure" }, `${assigned.length} of ${many(facts.labels.length, "label")}`),
  );
  const body = block(
    "Labels",
    members ? "mark: threshold · dots: members" : "mark: threshold",
    el("div", { class: "classes" }, classes.map((each) => classRow(each))),
    others?.count ? el("p", { class: "hint" }, `${many(others.count, "other label")} with lower probability.`) : null,
    members ? el("p", { class: "key" }, members.map((_, index) => el("span", {}, el("i", { class: `dot m${index % 6}`, "aria-hidden": "true" }), `Member ${index + 1}`))) : el("p", { class: "hint" }, noMembers(facts)),
  );
  return { head, body, members: null };
}

// Token classification

function tokens(explanation, facts) {
  const { words, spans, input } = explanation.row;
  const text = String(input ?? "");
  const head = el(
    "div",
    { class: "head" },
    el("p", { class: "label" }, spans.length ? many(spans.length, "span") : "no spans"),
    el("p", { class: "sure" }, `in ${many(words.length, "word")}`),
  );
  const body = el("div", {}, el("p", { class: "marked", dir: "auto" }, marked(text, spans)), spans.length ? spanTable(spans, text) : null);
  return { head, body, members: wordTable(explanation, facts) };
}

/** The text with its spans marked; offsets count code points, not UTF-16 units. */
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

function tokenVerdict({ spans }, facts) {
  const { ood, abstain } = facts.thresholds;
  const flagged = spans.filter((span) => span.out_of_distribution || span.abstain).length;
  if (!ood && !abstain) return pill(verdict({}, facts));
  if (flagged) return pill({ kind: spans.some((span) => span.out_of_distribution) ? "ood" : "abstain", text: `${many(flagged, "span")} to check` });
  return pill({ kind: "answered", text: spans.length ? "Answers" : "No spans" });
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

const inWords = (each) => [each.out_of_distribution && "unlike its training data", each.abstain && "abstains"].filter(Boolean).join(", ") || "answers";

function spanTable(spans) {
  return table(
    "Spans",
    ["span", "label", "confidence", "entropy", "decision"],
    spans.map((span) => [span.text, span.label, probability(span.confidence), figure(span.predictive_entropy), inWords(span)]),
  );
}

/** The members' tags of a word; a common tag is named once. */
function together(each) {
  const tags = new Set(each.map(({ label }) => label));
  if (tags.size === 1) return `${each[0].label} ${each.map(({ confidence }) => probability(confidence)).join(", ")}`;
  return each.map(({ label, confidence }) => `${label} ${probability(confidence)}`).join(", ");
}

function wordTable({ row, members }, facts) {
  const { words } = row;
  const heads = ["word", "tag", "confidence", "entropy", "mutual information", ...(members ? ["members"] : [])];
  const rows = words.slice(0, 200).map((word, index) => [
    word.text ?? "",
    word.label,
    probability(word.confidence),
    figure(word.predictive_entropy),
    figure(word.mutual_information),
    ...(members ? [together(members[index])] : []),
  ]);
  return block(
    "Words",
    words.length > 200 ? "the first 200" : null,
    table("Words", heads, rows),
    members ? null : el("p", { class: "hint" }, noMembers(facts)),
  );
}

// Uncertainties and reasons

function uncertainties(row, facts) {
  const limits = Object.entries(facts.thresholds);
  const names = Object.keys(SCORES).filter((name) => Number.isFinite(row[name]));
  return block(
    "Uncertainty",
    limits.length ? "mark: calibrated threshold" : null,
    el("div", { class: "scores" }, names.map((name) => scoreRow(name, row[name], facts, limits.filter(([, limit]) => limit.score === name)))),
  );
}

function scoreRow(name, value, facts, limits) {
  const bounds = ends(name, facts, limits[0]?.[1]);
  const { name: title, about } = SCORES[name];
  const beyond = limits.some(([, limit]) => (limit.side === "below" ? value < limit.value : value > limit.value));
  const kind = beyond ? (limits.some(([of]) => of === "ood") ? "ood" : "abstain") : "answered";
  const at = bounds && place(value, bounds);
  const words = limits.map(([of, limit]) => `${of === "ood" ? "flagged" : "abstains"} ${limit.side} ${valueOf(name, limit.value)}`);
  return el(
    "div",
    { class: `row ${limits.length ? kind : "plain"}` },
    el("span", { class: "what" }, el("b", {}, title), el("small", {}, about)),
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

function reasonList(row, facts) {
  const items = reasons(row, facts).map(({ title, text }) => el("li", {}, el("b", {}, title), el("p", {}, text)));
  return block("Why", null, el("ul", { class: "why" }, items));
}

/** The whole answer in one line, for screen readers. */
export function inOneLine({ row }, facts) {
  if (row.error) return `Invalid input: ${row.error}`;
  return `${brief({ row }, facts).text}. ${verdict(decided(row, facts), facts).text}.`;
}

/** The decisions of a row; for token classification, those of its spans. */
function decided(row, facts) {
  if (facts.task !== "tokens") return row;
  return { out_of_distribution: row.spans.some((span) => span.out_of_distribution), abstain: row.spans.some((span) => span.abstain) };
}

/** One line about an answer, for the list of earlier ones. */
export function brief({ row }, facts) {
  if (row.error) return { kind: "open", text: "invalid input" };
  const text = {
    classification: () => `${row.label} ${probability(row.confidence)}`,
    score: () => figure(row.score),
    multi_label: () => row.labels.map((each) => each.label).join(", ") || "no label",
    tokens: () => row.spans.map((span) => `${span.text} ${span.label}`).join(", ") || "no spans",
  }[facts.task]();
  return { kind: verdict(decided(row, facts), facts).kind, text };
}

