// What the page asks of the server, by addresses relative to its own, so that a prefix in front of it changes nothing.

let token = "";

/** The bearer token that goes with every request; it lives in this variable alone. */
export function useToken(value) {
  token = value.trim();
}

/** An answer that is no success: its status, and what the server says of it. */
export class Refused extends Error {
  constructor(status, message, after = null) {
    super(message);
    this.status = status;
    this.after = after;
  }
}

export const describe = () => asked("describe");
export const stats = () => asked("stats");
export const explain = (question, signal) => asked("explain", question, signal);

async function asked(path, body, signal) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method: body === undefined ? "GET" : "POST",
      body: body === undefined ? undefined : JSON.stringify(body),
      headers,
      signal,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer. It may be restarting; this page goes on trying.");
  }
  const found = await response.json().catch(() => null);
  if (response.ok && found !== null) return found;
  throw new Refused(response.status, words(response, found), response.headers.get("Retry-After"));
}

function words(response, found) {
  if (response.status === 401 || response.status === 403)
    return "The server asks for a bearer token: put it under Access, at the top.";
  const told = found?.error ?? found?.detail;
  if (typeof told === "string") return told;
  if (typeof told?.message === "string") return told.message;
  return `The server answered with status ${response.status}.`;
}
