// Scores and decisions in plain words.

import { figure, many, percent, probability } from "./numbers.js";

/** Every score: its name, its meaning, and whether it is a probability. */
export const SCORES = {
  confidence: { name: "Confidence", about: "probability of the predicted label", share: true },
  predictive_entropy: { name: "Predictive entropy", about: "total uncertainty; 0 if one label has all the probability" },
  expected_entropy: { name: "Expected entropy", about: "uncertainty within each member: ambiguous input" },
  mutual_information: { name: "Mutual information", about: "disagreement between members: too little training data" },
  disagreement: { name: "Disagreement", about: "share of members that predict another label", share: true },
  energy: { name: "Energy", about: "higher if the network responds weakly to every label" },
  distance: { name: "Distance", about: "distance to the training data, in standard deviations" },
  length_deviation: { name: "Length", about: "number of tokens against validation data, in standard deviations; below 0: shorter" },
  score_variance: { name: "Variance", about: "spread of the members’ scores" },
};

/** A value of a score. */
export const valueOf = (score, value) => (SCORES[score]?.share ? probability(value) : figure(value));

/** The name of a score within a sentence. */
export const inSentence = (score) => (SCORES[score]?.name ?? score).toLowerCase();

/** The reasons of a verdict, OOD first: `{title, text}` each. */
export function reasons(row, facts) {
  const { ood, abstain } = facts.thresholds;
  const compare = facts.task === "tokens" ? spansBeyond : comparison;
  const reason = (title, name, limit) => ({
    title,
    text: limit ? `${compare(row, name, limit)} ${target(limit)}` : "No threshold is set; hydrant calibrate fits one.",
  });
  return [reason("Training data", "out_of_distribution", ood), reason("Certainty", "abstain", abstain)];
}

/** How many spans of a tagged text a threshold marks; each word is compared separately. */
function spansBeyond({ spans }, name, limit) {
  const marked = spans.filter((span) => span[name]).length;
  return `${marked} of ${many(spans.length, "span")} marked: one word has ${inSentence(limit.score)} ${limit.side} ${valueOf(limit.score, limit.value)}.`;
}

/** The one verdict of an answer. */
export function verdict(row, facts) {
  const { ood, abstain } = facts.thresholds;
  if (row.out_of_distribution) return { kind: "ood", text: row.abstain ? `Abstains: unlike its training data${aspect(row)}` : `Unlike its training data${aspect(row)}: check the answer` };
  if (row.abstain) return { kind: "abstain", text: "Abstains: too uncertain" };
  if (!ood && !abstain) return { kind: "open", text: "No thresholds are set: answers everything" };
  return { kind: "answered", text: "Answers" };
}

/** Where a text with a length is unlike the training data; the limit is that of hydrant predict. */
const aspect = ({ length_deviation: length }) => (Number.isFinite(length) ? ` in ${Math.abs(length) > 3 ? "length" : "content"}` : "");

function comparison(row, decision, limit) {
  if (!(limit.score in row)) return "";
  const name = SCORES[limit.score]?.name ?? limit.score;
  return `${name} ${valueOf(limit.score, row[limit.score])} is ${row[decision] ? "" : "not "}${limit.side} ${valueOf(limit.score, limit.value)}.`;
}

/** The target that a threshold was fitted for. */
function target({ side, target: fitted }) {
  const { coverage, risk, false_alarm: alarm, true_positive_rate: caught } = fitted ?? {};
  if (coverage) return `${percent(1 - coverage)} of ordinary inputs are ${side} it.`;
  if (risk) return `At most ${percent(risk)} of the answers are expected to be wrong.`;
  if (alarm) return `${percent(alarm)} of ordinary inputs are ${side} it.`;
  if (caught) return `${percent(caught)} of the OOD inputs that it was fitted on are ${side} it.`;
  return "";
}

/** The reason that no members are shown. */
export function noMembers(facts) {
  if (facts.members === 1) return "This model has one member.";
  return `The graph averages its ${facts.members} members. To see each of them, run hydrant export --member-outputs and load the bundle again.`;
}

/** One sentence about a model. */
export function about(facts) {
  const reads = { image: "images", audio: "sounds" }[facts.modality] ?? (facts.pairs ? "pairs of texts" : "texts");
  const classes = facts.labels.length;
  const gives = {
    classification: `one of ${classes} labels`,
    score: "a score",
    multi_label: `any of ${classes} labels`,
    tokens: "spans of words",
  }[facts.task];
  const members = facts.members === 1 ? "One member" : `${facts.members} members`;
  return `Reads ${reads}, predicts ${gives}. ${members}, run by ${facts.backend}${facts.precision ? ` in ${facts.precision.toUpperCase()}` : ""}.`;
}
