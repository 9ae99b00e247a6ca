// Requests to the server; every failure becomes an ApiError with a kind that the page has a sentence for.

import { session } from "./storage.js";

const TOKEN = "pretune.token";
let askForToken = async () => null;
let pendingToken = null;

/** A failed request: `kind` is busy, restarting, down, unauthorized, slow, large, input, missing or failed. */
export class ApiError extends Error {
  constructor(kind, message = "", { retryAfter = null, field = null } = {}) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter; // seconds
    this.field = field; // such as texts[3]
  }
}

const KINDS = { 400: "input", 401: "unauthorized", 403: "unauthorized", 404: "missing", 413: "large", 422: "input", 429: "busy",
                502: "restarting", 503: "restarting", 504: "slow" };

/** Set the function that asks the user for an access token; it returns a promise of the token, or of null. */
export function onUnauthorized(ask) {
  askForToken = ask;
}

/** Return the address of a route, relative to the page, so that it works behind a path prefix, too. */
export function address(path) {
  return new URL(path, document.baseURI).href;
}

/** Return the path of a route of a model. */
export function modelPath(name, route) {
  return `api/models/${encodeURIComponent(name)}/${route}`;
}

/** Return the access token that the user gave, or null. */
export function accessToken() {
  return session.get(TOKEN);
}

async function newToken(rejected) {
  if (accessToken() !== rejected) return accessToken(); // another request has asked in the meantime
  pendingToken ??= askForToken(rejected !== null).finally(() => {
    pendingToken = null;
  });
  const token = await pendingToken;
  if (token) session.set(TOKEN, token);
  return token;
}

async function failure(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A proxy answered with something else than JSON.
  }
  const seconds = Number.parseFloat(response.headers.get("Retry-After"));
  const kind = KINDS[response.status] ?? "failed";
  return new ApiError(kind, String(error.message ?? ""), {
    retryAfter: Number.isFinite(seconds) ? seconds : null,
    field: error.field ?? null,
  });
}

async function send(path, body, signal) {
  for (;;) {
    const token = accessToken();
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const options = body === undefined ? { headers, signal } : {
      method: "POST", signal, body: JSON.stringify(body), headers: { ...headers, "Content-Type": "application/json" },
    };
    let response;
    try {
      response = await fetch(address(path), options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("down");
    }
    if (response.ok) return response;
    if (response.status !== 401 || !(await newToken(token))) throw await failure(response);
  }
}

async function whole(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("down"); // the connection broke in the middle
  }
}

/** Return the JSON that a route answers to GET. */
export async function get(path, signal) {
  return whole(await send(path, undefined, signal));
}

/** Return the JSON that a route answers to a body. */
export async function post(path, body, signal) {
  return whole(await send(path, body, signal));
}

/** Call `onEvent` with each event of a stream of server-sent events, and return the last one. */
export async function postStream(path, body, signal, onEvent) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let last = null;
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("down");
    }
    if (piece.done) break;
    const events = (buffer + piece.value).replaceAll("\r\n", "\n").split("\n\n");
    buffer = events.pop();
    for (const lines of events) {
      const data = lines.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
      if (!data.trim()) continue;
      last = JSON.parse(data);
      if (last.error) throw new ApiError("failed", String(last.error.message ?? ""));
      onEvent(last);
    }
  }
  if (!last?.done) throw new ApiError("down"); // the stream broke off
  return last;
}
