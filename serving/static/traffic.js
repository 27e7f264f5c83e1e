// Live metrics of one model, compared with its calibration data.

import { histogram, rate } from "./charts.js";
import { el } from "./dom.js";
import { count, figure, many, percent } from "./numbers.js";
import { SCORES } from "./words.js";

const RATES = { abstain: "Abstains", out_of_distribution: "Flagged as out of distribution" };
const STEP = 10;
const POINTS = 60;
const TOGETHER = 6;
const FEW = 20;

/**
 * Elements for the `stats` of the chosen model.
 *
 * @param note function that shows a line in the headline
 * @param several true if more than one process has answered
 */
export function traffic(stats, facts, note, several = false) {
  const of = stats.models.find((each) => each.name === facts.name && each.version === facts.version);
  if (!of?.totals.inputs) {
    note("");
    return [el("p", { class: "quiet" }, "No requests yet. Abstention rate, OOD rate and score histograms appear here once this model has answered some.")];
  }
  const notes = [of.totals.failed && many(of.totals.failed, "invalid input"), several && "counts of one worker: workers are counted separately"];
  note(notes.filter(Boolean).join("; "));
  const charts = Object.entries(of.histograms ?? {}).filter(([score]) => score in SCORES);
  const curve = points(of.series);
  return [
    alarms(of.drift?.alarms ?? []),
    el("div", { class: "tiles" }, inputs(of, curve), Object.entries(RATES).map(([name, title]) => decided(of, curve, name, title))),
    charts.length ? el("div", { class: "charts" }, charts.map(([score, spread]) => spreads(score, spread, facts))) : null,
    el("p", { class: "hint legend" }, legend(charts, of)),
  ];
}

function alarms(raised) {
  if (!raised.length) return null;
  return el("ul", { class: "alarms" }, raised.map(({ text }) => el("li", { class: "abstain" }, el("span", { class: "sign", "aria-hidden": "true" }, "!"), el("span", {}, text))));
}

/** The last ten minutes in steps of ten seconds, or the last hour in minutes, oldest first. */
function points(series) {
  const oldest = Math.max(0, ...series.map((each) => each.ago));
  const seconds = oldest < STEP * POINTS ? STEP : 6 * STEP;
  const buckets = Array.from({ length: POINTS }, () => ({ inputs: 0, abstain: 0, out_of_distribution: 0 }));
  for (const step of series) {
    const point = buckets[POINTS - 1 - Math.floor(step.ago / seconds)];
    if (!point) continue;
    for (const name of Object.keys(point)) point[name] += step[name] ?? 0;
  }
  return { buckets, seconds };
}

const within = ({ seconds }) => (seconds === STEP ? "the last ten minutes" : "the last hour");

function inputs(of, curve) {
  const counts = curve.buckets.map((each) => each.inputs);
  const most = Math.max(1, ...counts);
  const { median, p99 } = of.latency;
  const took = median === null ? "" : `median latency ${milliseconds(median)}; 99 % within ${milliseconds(p99)}`;
  return el(
    "div",
    { class: "tile" },
    el("h3", {}, "Inputs"),
    el("p", { class: "value" }, count(of.totals.inputs)),
    el("p", { class: "hint" }, took),
    rate(counts.map((each) => each / most), null, `Inputs in ${within(curve)}, at most ${count(most)} at a time`),
  );
}

const milliseconds = (seconds) => `${figure(seconds * 1000)} ms`;

function decided(of, curve, name, title) {
  const head = el("h3", {}, title);
  if (!(name in of.totals)) return el("div", { class: "tile" }, head, el("p", { class: "value" }, "–"), el("p", { class: "hint" }, "no threshold is set"));
  const share = of.totals[name] / of.totals.inputs;
  const usual = of.rates.calibrated[name];
  const known = Number.isFinite(usual);
  const words = known ? `${percent(usual)} of calibration data` : "calibrate again for a reference rate";
  const recent = curve.buckets.map((_, index) => minute(curve.buckets, index, name));
  const shares = recent.map(({ all, some }, index) => (curve.buckets[index].inputs ? some / all : null));
  const firm = recent.filter(({ all }) => all >= FEW).map(({ all, some }) => some / all);
  return el(
    "div",
    { class: "tile" },
    head,
    el("p", { class: "value" }, percent(share)),
    el("p", { class: "hint" }, words),
    rate(shares, known ? usual : null, `${title}: ${percent(share)} of all inputs, ${words}; curve: ${within(curve)}`, firm.length ? firm : [share]),
  );
}

/** Counts of the steps up to an index: smooths the curve when inputs are few. */
function minute(buckets, index, name) {
  const part = buckets.slice(Math.max(0, index - TOGETHER + 1), index + 1);
  const sum = (of) => part.reduce((total, each) => total + each[of], 0);
  return { all: sum("inputs"), some: sum(name) };
}

function spreads(score, { edges, calibrated, recent, psi }, facts) {
  const limits = Object.entries(facts.thresholds).filter(([, limit]) => limit.score === score).map(([kind, limit]) => [kind, limit.value]);
  return histogram(score, shares(recent), shares(calibrated), edges, limits, psi === null || psi === undefined ? "" : `PSI ${figure(psi)}`);
}

function shares(counts) {
  const all = counts.reduce((sum, each) => sum + each, 0);
  return counts.map((each) => (all ? each / all : 0));
}

function legend(charts, of) {
  if (!of.histograms) return "This bundle has no reference histograms; hydrant calibrate adds them.";
  if (!charts.length) return "";
  return "Bars: recent traffic. Line: calibration data. Dashed: threshold. The outer two bins are open. PSI (population stability index): 0 if both histograms are equal; with few inputs it is large by chance.";
}
