// The range of a score's bar. Thresholds are always at the same position, so that bars are comparable.

const LIMIT_AT = 0.62;

/**
 * Ends of the bar of a score: `[low, high]`, or null if it is unbounded.
 *
 * @param score its name
 * @param facts of the model: its task, number of labels and members
 * @param limit its threshold, or undefined
 */
export function ends(score, facts, limit) {
  if (score === "confidence" || score === "disagreement") return [0, 1];
  const most = largest(score, facts);
  const edges = facts.reference?.histograms?.[score]?.edges;
  if (!limit && most === null && edges?.length > 1) {
    const width = edges.at(-1) - edges[0];
    return [edges[0] - 0.3 * width, edges.at(-1) + width];
  }
  if (!limit) return most === null ? null : [0, most];
  const value = limit.value;
  if (score === "energy") return [value - 12, value + (12 * (1 - LIMIT_AT)) / LIMIT_AT];
  const low = score === "distance" ? Math.min(-2, 2 * value) : 0;
  const high = low + (value - low) / LIMIT_AT;
  return high > low ? [low, high] : [low, low + 1];
}

/** The largest value that a score can have. */
function largest(score, facts) {
  const classes = facts.labels.length;
  const each = facts.task === "multi_label" ? classes * Math.log(2) : Math.log(Math.max(classes, 2));
  if (score === "predictive_entropy" || score === "expected_entropy") return each;
  if (score === "mutual_information")
    return facts.task === "multi_label" ? each : Math.log(Math.max(2, Math.min(facts.members, classes)));
  return null;
}

/** The position of a value between two ends: `{at: 0 to 1, beyond: outside}`. */
export function place(value, [low, high]) {
  const at = (value - low) / (high - low);
  return { at: Math.min(1, Math.max(0, at)), beyond: at > 1 || at < 0 };
}
