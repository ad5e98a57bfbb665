// Shared by all pages: requests to the server, elements, formats, themes, live events.
// Text is only set through textContent, so that names are never interpreted as markup.

const root = document.documentElement;

/** The prefix of every URL of the server: empty, or the path under which a proxy serves the application. */
export const home = root.dataset.root;

/** An element: el("a.button", {href}, "text", child, ...). Properties that begin with "on" are listeners. */
export function el(what, properties = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** An error response of the server: its message, the remedy and the faults of a study file. */
export class ServerError extends Error {
  constructor(status, body) {
    const error = body?.error ?? {};
    super(error.message ?? `the server answered ${status}`);
    this.status = status;
    this.kind = error.kind ?? "";
    this.wayOut = error.way_out ?? "";
    this.faults = error.faults ?? [];
  }
}

/** The server did not respond; it may be starting. */
export class Unreachable extends Error {
  constructor() {
    super("the server does not respond");
    this.wayOut = "retrying; your input is kept";
  }
}

export const path = (...parts) => parts.map((part) => encodeURIComponent(part)).join("/");

let leaving = false;
addEventListener("pageshow", () => { leaving = false; });

/** Call the API and return its JSON. If the session has ended, go to the login page, which returns here afterwards. */
export async function api(where, { method = "GET", body, headers = {}, signal } = {}) {
  const answer = await fetch(`${home}/api/v1/${where}`, {
    method, signal, credentials: "same-origin",
    headers: { "X-Requested-With": "dashboard", ...(body ? { "Content-Type": "application/json" } : {}), ...headers },
    body: body ? JSON.stringify(body) : undefined,
  }).catch((error) => { throw error.name === "AbortError" ? error : new Unreachable(); });
  if (answer.status === 401) {
    // only once, as another call would restart the navigation
    if (!leaving) location.assign(`${home}/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    leaving = true;
    return new Promise(() => {});
  }
  if (answer.status === 204) return null;
  const found = await answer.json().catch(() => null);
  if (!answer.ok) throw new ServerError(answer.status, found);
  return found;
}

// formats

/** Format a number for readers: three significant digits, with thousands separators. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 1).replace("e+", "e");
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits });
}

/** What a forecast predicts: the epochs to a target in words, or the best metric within the study's budget. */
export function predicted(forecast, goal) {
  const ends = forecast.best ?? forecast.epochs_to_target;
  const [budget] = Object.entries(forecast.best?.within ?? {});
  const answer = forecast.best ? `${forecast.best.metric} ${number(ends.median)} within ${number(budget[1])} ${budget[0]}` : `${number(ends.median)} epochs to ${goal}`;
  return `${answer} (90 % interval ${number(ends.low)} to ${number(ends.high)})`;
}

export const interval = (ends) => ends ? `${number(ends.median)} (${number(ends.low)} to ${number(ends.high)})` : "–";

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 90) return `${number(seconds, 2)} s`;
  if (seconds < 5400) return `${number(seconds / 60, 2)} min`;
  if (seconds < 172800) return `${number(seconds / 3600, 3)} h`;
  return `${number(seconds / 86400, 3)} days`;
}

export function ago(time) {
  const seconds = (Date.now() - new Date(time)) / 1000;
  return seconds < 5 ? "just now" : `${duration(Math.max(0, seconds))} ago`;
}

export const words = (name) => String(name).replaceAll("_", " ");

/** Whether a study asks for the best metric within a budget, so that no trial can reach its target. */
export const asksForBest = (study) => study.target.threshold === null;

/** How many trials answer a study's question: those that reached the target or, if it asks for the best metric, used up their budget. */
export const answered = (study) => study.trials[asksForBest(study) ? "censored" : "reached"] ?? 0;

/** The best result of a study's trials; null before there is one. */
export const best = (study) => study.best_metric !== null ? `${study.target.metric} ${number(study.best_metric)}`
  : study.best_epochs_to_target !== null ? `${number(study.best_epochs_to_target)} epochs` : null;

export const target = (of) => of.threshold === null ? `best ${of.metric}` : `${of.metric} ${of.higher_is_better ? "≥" : "≤"} ${number(of.threshold)}`;

export const state = (name) => el(`span.state.${name}`, {}, name);

const AGAIN = 20000;

/** How long ago a time was; the text is kept up to date. */
export const when = (time) => el("time", { datetime: time, dataset: { ago: "" }, title: new Date(time).toLocaleString() }, ago(time));

setInterval(() => { for (const each of document.querySelectorAll("time[data-ago]")) each.textContent = ago(each.dateTime); }, AGAIN);

// common to every page

export function toast(text, kind = "") {
  const shown = el(`div.notice.${kind || "plain"}`, { role: kind === "bad" ? "alert" : "status" }, text);
  byId("toasts").append(shown);
  setTimeout(() => shown.remove(), kind === "bad" ? 12000 : 5000);
}

/** Run an action of the user; on an error, show it and return undefined. */
export async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    toast([error.message, error.wayOut].filter(Boolean).join(". "), "bad");
    return undefined;
  }
}

/** Run background work; errors of a restarting server are ignored, as the indicator at the top shows them. */
export async function quietly(work) {
  return attempt(async () => {
    try {
      return await work();
    } catch (error) {
      if (error instanceof Unreachable || error.status >= 500 || error.status === 429) return undefined;
      throw error;
    }
  });
}

/** Show an error and its remedy in an element. */
export function failure(place, error) {
  place.replaceChildren(el("div.notice.bad", { role: "alert" }, el("strong", {}, error.message),
    error.wayOut ? el("p", {}, error.wayOut) : null));
}

export function theme() {
  return root.dataset.theme === "dark" ? "dark" : "light";
}

function chooseTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  root.dataset.theme = next;
  try { localStorage.setItem("theme", next); } catch { /* storage is blocked: the choice applies to this page only */ }
  document.dispatchEvent(new Event("themechange"));
}

export function debounce(work, milliseconds) {
  let timer;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => work(...given), milliseconds); };
}

/**
 * Wrap work that is requested more often than it can run: one run at a time, the newest request wins, and each run is
 * followed by a pause of ``rest`` milliseconds or ``share`` times its duration, whichever is longer.
 */
export function steady(work, { rest = 200, share = 1 } = {}) {
  let wanted = false;
  let busy = false;
  return async () => {
    wanted = true;
    if (busy) return;
    busy = true;
    while (wanted) {
      wanted = false;
      const began = performance.now();
      await quietly(work);
      await new Promise((resolve) => { setTimeout(resolve, Math.max(rest, share * (performance.now() - began))); });
    }
    busy = false;
  };
}

// live events

const FIRST_WAIT = 500;
const LONGEST_WAIT = 8000;
const HIDDEN = 20000;

/**
 * Follow the server-sent events of one study or of all studies. After a lost connection, resume from the last event seen
 * and call ``again``, which rereads everything that events do not carry.
 */
export function follow(study, listeners, again = () => {}) {
  const where = study ? `${home}/api/v1/studies/${path(study)}/events` : `${home}/api/v1/events`;
  const sign = byId("live");
  let last = "";
  let wait = FIRST_WAIT;
  let lost = false;
  let source;
  let timer;
  const connect = () => {
    clearTimeout(timer);
    source = new EventSource(last ? `${where}?after=${last}` : where);
    for (const [kind, heard] of Object.entries(listeners)) {
      source.addEventListener(kind, (event) => { last = event.lastEventId || last; heard(JSON.parse(event.data)); });
    }
    source.onopen = () => {
      sign.textContent = "live";
      sign.classList.remove("lost");
      wait = FIRST_WAIT;
      if (lost) again();
      lost = false;
    };
    source.onerror = () => {
      sign.textContent = "connecting…";
      sign.classList.add("lost");
      lost = true;
      source.close();
      quietly(() => api("me"));      // goes to the login page if the session has ended, which an event source does not tell
      timer = setTimeout(connect, wait);
      wait = Math.min(LONGEST_WAIT, 1.5 * wait);
    };
  };
  connect();
  // browsers open at most six connections to a server, so hidden pages close their connection
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => { source.close(); lost = true; }, HIDDEN);
    else if (lost) connect();
  });
  addEventListener("pagehide", () => { clearTimeout(timer); source.close(); }, { once: true });
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}

byId("theme")?.addEventListener("click", chooseTheme);
byId("logout")?.addEventListener("click", async () => {
  await fetch(`${home}/logout`, { method: "POST", credentials: "same-origin", headers: { "X-Requested-With": "dashboard" } });
  location.assign(`${home}/login`);
});
if (byId("who")) api("me").then((me) => { byId("who").textContent = me.owner || "no owner"; }).catch(() => {});
