// The live figures of one model: what its traffic looks like beside the data that it was calibrated on.

import { histogram, rate } from "./charts.js";
import { el } from "./dom.js";
import { count, many, percent } from "./numbers.js";
import { SCORES } from "./words.js";

const RATES = { abstain: "Abstains", out_of_distribution: "Flagged as out of distribution" };

/** Elements for what `stats` gave of the model that is chosen; `note` takes a line for the headline. */
export function traffic(found, facts, note) {
  const of = facts && (found.models ?? []).find((each) => each.name === facts.name && each.version === facts.version);
  if (!of || !of.inputs) {
    note("");
    return [quiet("Nobody has asked this model anything yet. How often it abstains, what it flags, and how its scores are spread appear here as requests come in.")];
  }
  note(`${many(of.inputs, "input")} since it was loaded${of.failed ? `, ${count(of.failed)} of them unusable` : ""}`);
  const charts = Object.entries(of.histograms ?? {}).filter(([score]) => score in SCORES);
  return [
    alarms(of.alarms ?? []),
    el("div", { class: "tiles" }, asked(of), Object.entries(RATES).map(([name, title]) => tile(of, name, title))),
    charts.length ? el("div", { class: "charts" }, charts.map(([score, spread]) => chart(score, spread, facts))) : null,
    charts.length ? legend(charts) : null,
  ];
}

const quiet = (text) => el("p", { class: "quiet" }, text);

function alarms(words) {
  if (!words.length) return null;
  return el("ul", { class: "alarms" }, words.map((text) => el("li", { class: "abstain" }, el("span", { class: "sign", "aria-hidden": "true" }, "!"), el("span", {}, text))));
}

function asked(of) {
  const points = (of.timeline ?? []).map((each) => each.inputs);
  const most = Math.max(1, ...points);
  return el(
    "div",
    { class: "tile" },
    el("h3", {}, "Inputs"),
    el("p", { class: "value" }, count(of.inputs)),
    el("p", { class: "hint" }, span(of)),
    points.length > 1 ? rate(points.map((each) => each / most), null, `Inputs over time, at most ${count(most)} at a time`) : null,
  );
}

/** How long a time the curves show. */
function span(of) {
  const seconds = (of.timeline ?? []).length * (of.every ?? 0);
  if (!seconds) return "";
  return `curves: the last ${seconds < 120 ? many(seconds, "second") : many(Math.round(seconds / 60), "minute")}`;
}

function tile(of, name, title) {
  const found = of.rates?.[name];
  if (!found) return el("div", { class: "tile" }, el("h3", {}, title), el("p", { class: "value" }, "–"), el("p", { class: "hint" }, "no limit is set for it"));
  const share = found.n ? found.count / found.n : NaN;
  const points = (of.timeline ?? []).map((each) => (each.inputs ? (each[name] ?? 0) / each.inputs : null));
  const usual = found.expected;
  const words = Number.isFinite(usual) ? `${percent(usual)} of calibration data` : "calibrate again to know what is usual";
  return el(
    "div",
    { class: "tile" },
    el("h3", {}, title),
    el("p", { class: "value" }, percent(share)),
    el("p", { class: "hint" }, words),
    points.length > 1 ? rate(points, Number.isFinite(usual) ? usual : null, `${title}: ${percent(share)} of the traffic, ${words}`) : null,
  );
}

function chart(score, spread, facts) {
  const shares = (counts) => {
    const all = counts.reduce((sum, each) => sum + each, 0);
    return counts.map((each) => (all ? each / all : 0));
  };
  const limits = Object.entries(facts.thresholds).filter(([, limit]) => limit.score === score).map(([kind, limit]) => [kind, limit.value]);
  return histogram(score, shares(spread.counts), spread.reference ? shares(spread.reference) : null, spread.edges, limits);
}

function legend(charts) {
  const known = charts.some(([, spread]) => spread.reference);
  return el(
    "p",
    { class: "hint legend" },
    known
      ? "Bars: traffic. Line: calibration data. Dashed: the limit. Each bin is as wide as any other, and the outer two are open."
      : "Bars: traffic. This bundle’s calibration holds no reference to compare with: calibrate it again.",
  );
}
