// Requests to the server, by relative addresses, so that the page also works behind a path prefix.

let token = "";

/** Set the bearer token of every request; it is kept in memory only. */
export function useToken(value) {
  token = value.trim();
}

/** An unsuccessful response: its status and the server's message. */
export class Refused extends Error {
  constructor(status, message, after = null) {
    super(message);
    this.status = status;
    this.after = after;
  }
}

export const describe = () => request("describe");
export const stats = () => request("stats");
export const explain = (body, signal) => request("explain", body, signal);

async function request(path, body, signal) {
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
    throw new Refused(0, "The server does not answer. It may be restarting; this page retries.");
  }
  const content = await response.json().catch(() => null);
  if (response.ok && content !== null) return content;
  throw new Refused(response.status, words(response, content), response.headers.get("Retry-After"));
}

function words(response, content) {
  if (response.status === 401 || response.status === 403)
    return "The server requires a bearer token: enter it under Access, at the top.";
  const message = content?.error ?? content?.detail;
  if (typeof message === "string") return message;
  if (typeof message?.message === "string") return message.message;
  return `The server answered with status ${response.status}.`;
}
