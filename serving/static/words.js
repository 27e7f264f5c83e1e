// What scores and decisions mean, in plain words.

import { figure, many, percent, probability } from "./numbers.js";

/** Every score: its name, what it tells, and whether it is a probability. */
export const SCORES = {
  confidence: { name: "Confidence", about: "probability of its answer", share: true },
  predictive_entropy: { name: "Predictive entropy", about: "how evenly the probabilities are spread: all its doubt" },
  expected_entropy: { name: "Expected entropy", about: "the doubt that every member has: noise in such inputs" },
  mutual_information: { name: "Mutual information", about: "the doubt between members: what the model has not learnt" },
  disagreement: { name: "Disagreement", about: "share of members that would answer otherwise", share: true },
  energy: { name: "Energy", about: "how weakly the network speaks for any answer" },
  distance: { name: "Distance", about: "how far it lies from the training data, in standard deviations" },
  score_variance: { name: "Variance", about: "how far the members’ scores lie apart" },
};

/** A value of a score. */
export const valueOf = (score, value) => (SCORES[score]?.share ? probability(value) : figure(value));

/** The name of a score within a sentence. */
export const inSentence = (score) => (SCORES[score]?.name ?? score).toLowerCase();

/** What is decided of an input, most serious first: `{kind, title, text}` each. */
export function decisions(row, facts) {
  const found = [outOf(row, facts.thresholds.ood), abstention(row, facts.thresholds.abstain)];
  return facts.task === "tokens" ? found.map((each) => (each.limit ? ofSpans(each, row.spans) : each)) : found;
}

/** The same of a tagged text, where each word is decided of by itself. */
function ofSpans({ name, kinds, titles, limit }, spans) {
  const flagged = spans.filter((span) => span[name]).length;
  const beyond = `${inSentence(limit.score)} lies ${side(limit)} ${valueOf(limit.score, limit.value)}`;
  return {
    kind: kinds[flagged ? 1 : 0],
    title: flagged ? `${titles[1]}: ${flagged} of ${many(spans.length, "span")}` : titles[0],
    text: `Decided word by word: where its ${beyond}, and for the span that holds such a word. ${promise(limit)}`,
  };
}

/** One line for the whole answer. */
export function verdict(row, facts) {
  const { ood, abstain } = facts.thresholds;
  if (row.out_of_distribution && row.abstain) return { kind: "ood", text: "Unlike its training data, and it abstains" };
  if (row.out_of_distribution) return { kind: "ood", text: "Unlike its training data" };
  if (row.abstain) return { kind: "abstain", text: "It abstains: ask someone else" };
  if (!ood && !abstain) return { kind: "open", text: "No limits are set, so it answers everything" };
  return { kind: "answered", text: "It stands by this answer" };
}

function outOf(row, limit) {
  if (!limit)
    return {
      kind: "open",
      title: "Unlike its training data?",
      text: "Nobody has set a limit for this model: hydrant calibrate fits one, from validation data alone.",
    };
  const beyond = Boolean(row.out_of_distribution);
  return {
    ...told("out_of_distribution", ["answered", "ood"], ["Like its training data", "Out of distribution"], beyond),
    limit,
    text: `${lies(row, limit, beyond)} ${promise(limit)}`,
  };
}

function abstention(row, limit) {
  if (!limit)
    return {
      kind: "open",
      title: "Would it rather not answer?",
      text: "Nobody has set a limit for this model, so it answers everything: hydrant calibrate fits one.",
    };
  const beyond = Boolean(row.abstain);
  return {
    ...told("abstain", ["answered", "abstain"], ["Answers", "Abstains"], beyond),
    limit,
    text: `${lies(row, limit, beyond)} ${promise(limit)}`,
  };
}

const told = (name, kinds, titles, beyond) => ({ name, kinds, titles, kind: kinds[Number(beyond)], title: titles[Number(beyond)] });

const side = (limit) => (limit.side === "below" ? "below" : "above");

function lies(row, limit, beyond) {
  if (!(limit.score in row)) return "";
  const value = valueOf(limit.score, row[limit.score]);
  const name = SCORES[limit.score]?.name ?? limit.score;
  return `${name} ${value} ${beyond ? "lies" : "does not lie"} ${side(limit)} ${valueOf(limit.score, limit.value)}.`;
}

/** What a limit was chosen for. */
function promise(limit) {
  const { coverage, risk, false_alarm: alarm, true_positive_rate: caught } = limit.target ?? {};
  const of = limit.side === "below" ? "below" : "above";
  if (coverage) return `Of ordinary inputs, ${percent(1 - coverage)} lie ${of} it.`;
  if (risk) return `It was set so that at most ${percent(risk)} of the answers given are wrong.`;
  if (alarm) return `Of ordinary inputs, ${percent(alarm)} lie ${of} it.`;
  if (caught) return `Of the foreign inputs it was set with, ${percent(caught)} lie ${of} it.`;
  return "";
}

/** Why the page cannot show what each member says. */
export function noMembers(facts) {
  if (facts.members === 1) return "This model has one member.";
  return `This model’s ${facts.members} members are averaged inside its graph. To see each of them, export it with hydrant export --member-outputs and load it again; disagreement and mutual information tell how far they differ all the same.`;
}

/** What a model does, in a sentence. */
export function about(facts) {
  const reads = { image: "images", audio: "sounds" }[facts.modality] ?? (facts.pairs ? "pairs of texts" : "texts");
  const classes = facts.labels.length;
  const gives = {
    classification: `one of ${classes} labels`,
    score: "a score",
    multi_label: `any of ${classes} labels`,
    tokens: "the spans in them",
  }[facts.task];
  const members = facts.members === 1 ? "one member" : `${facts.members} members`;
  return `Reads ${reads}, answers ${gives}. ${members[0].toUpperCase()}${members.slice(1)}, run by ${facts.backend}${facts.precision ? ` in ${facts.precision.toUpperCase()}` : ""}.`;
}
