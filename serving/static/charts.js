// Charts of traffic, as SVG, each with its values as a text alternative.

import { el, svg } from "./dom.js";
import { figure, percent } from "./numbers.js";
import { SCORES } from "./words.js";

const WIDTH = 300;

/**
 * A rate over time.
 *
 * @param points shares, or null without inputs
 * @param expected the calibrated share, or null
 * @param firm the shares that set the height: those of enough inputs
 */
export function rate(points, expected, words, firm = points) {
  const height = 60;
  const top = Math.max(0.02, (expected ?? 0) * 2, ...firm);
  const x = (index) => (points.length < 2 ? WIDTH : (index * WIDTH) / (points.length - 1));
  const y = (value) => height - (Math.min(value, top) / top) * height;
  const runs = together(points).map((run) => run.map(([index, value]) => [x(index), y(value)]));
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": words },
    svg("line", { class: "base", x1: 0, x2: WIDTH, y1: height, y2: height }),
    expected ? svg("line", { class: "mark", x1: 0, x2: WIDTH, y1: y(expected), y2: y(expected) }) : null,
    runs.map((run) => svg("polygon", { class: "under", points: [[run[0][0], height], ...run, [run.at(-1)[0], height]].map(pair).join(" ") })),
    runs.map((run) => svg("polyline", { class: "curve", points: (run.length > 1 ? run : [[run[0][0] - 1, run[0][1]], [run[0][0] + 1, run[0][1]]]).map(pair).join(" ") })),
  );
}

const pair = ([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`;

/** Runs of consecutive values with their indices; gaps are not drawn. */
function together(points) {
  const runs = [];
  points.forEach((value, index) => {
    if (value === null) return;
    if (runs.at(-1)?.at(-1)[0] === index - 1) runs.at(-1).push([index, value]);
    else runs.push([[index, value]]);
  });
  return runs;
}

/**
 * A score's recent values as bars and the calibration data as an outline, both as shares.
 *
 * @param score its name
 * @param now shares of each bin
 * @param reference shares of each bin, or null
 * @param edges of the inner bins; the first and the last bin have no end
 * @param limits `[kind, value]` of each threshold on this score
 */
export function histogram(score, now, reference, edges, limits, note) {
  const height = 90;
  const bins = now.length;
  const step = WIDTH / bins;
  const top = Math.max(0.001, ...now, ...(reference ?? []));
  const y = (share) => height - (share / top) * (height - 4);
  const bars = now.map((share, index) => svg("rect", { class: "bars", x: (index * step + 0.6).toFixed(2), width: (step - 1.2).toFixed(2), y: y(share).toFixed(2), height: (height - y(share)).toFixed(2) }));
  const steps = (reference ?? []).flatMap((share, index) => [`${(index * step).toFixed(1)},${y(share).toFixed(1)}`, `${((index + 1) * step).toFixed(1)},${y(share).toFixed(1)}`]);
  const marks = limits.map(([kind, value]) => {
    const at = (among(value, edges) * step).toFixed(1);
    return svg("line", { class: `mark ${kind}`, x1: at, x2: at, y1: 0, y2: height });
  });
  const name = SCORES[score]?.name ?? score;
  const words = `${name}: ${now.map((share, index) => `${percent(share, 0)} ${between(edges, index)}${reference ? `, calibration ${percent(reference[index], 0)}` : ""}`).join("; ")}`;
  return el(
    "figure",
    {},
    el("figcaption", {}, name, el("small", {}, note ?? "")),
    svg(
      "svg",
      { class: "histogram", viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": words },
      bars,
      steps.length ? svg("polyline", { class: "reference", points: steps.join(" ") }) : null,
      marks,
      svg("line", { class: "base", x1: 0, x2: WIDTH, y1: height, y2: height }),
    ),
    el("div", { class: "range", "aria-hidden": "true" }, el("span", {}, edges.length ? `below ${figure(edges[0])}` : ""), el("span", {}, edges.length ? `above ${figure(edges.at(-1))}` : "")),
  );
}

/** The fractional bin index of a value. */
function among(value, edges) {
  const index = edges.findIndex((edge) => value < edge);
  if (index === 0) return 0.5;
  if (index < 0) return edges.length + 0.5;
  return index + (value - edges[index - 1]) / (edges[index] - edges[index - 1]);
}

function between(edges, index) {
  if (!edges.length) return "";
  if (index === 0) return `below ${figure(edges[0])}`;
  if (index >= edges.length) return `above ${figure(edges.at(-1))}`;
  return `from ${figure(edges[index - 1])} to ${figure(edges[index])}`;
}
