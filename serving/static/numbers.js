// Numbers as text.

/** A share in percent. */
export function percent(share, digits = 1) {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${Number(value.toFixed(digits))} %`;
}

/** A probability: never rounded to certainty. */
export function probability(value) {
  if (!Number.isFinite(value)) return "–";
  if (value > 0.9995 && value < 1) return "> 0.999";
  if (value > 0 && value < 0.0005) return "< 0.001";
  return value.toFixed(3);
}

/** A score with as many digits as its size needs. */
export function figure(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 0) return value > -0.0001 ? "> −0.0001" : `−${figure(-value)}`;
  const size = value;
  if (size >= 1e6) return value.toExponential(2);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  if (size >= 0.1) return value.toFixed(3);
  if (size === 0) return "0";
  return size < 0.0001 ? "< 0.0001" : value.toFixed(4);
}

/** A count with thin spaces between thousands. */
export const count = (value) => Math.round(value).toLocaleString("en-US").replaceAll(",", "\u202f");

/** A count with its noun, singular or plural. */
export const many = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;
