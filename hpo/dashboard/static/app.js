// What all pages share: asking the server, building elements, formats, themes, live events, plots.
// Text enters a page through textContent alone, so that a name is never markup.

const root = document.documentElement;

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

/** What the server refused, or could not do: its message, its way out and the faults of a study file. */
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

export const path = (...parts) => parts.map((part) => encodeURIComponent(part)).join("/");

/** Ask the API; returns its JSON. A session that ended leads to the login page, and back. */
export async function api(where, { method = "GET", body, headers = {}, signal } = {}) {
  const answer = await fetch(`/api/v1/${where}`, {
    method, signal, credentials: "same-origin",
    headers: { "X-Requested-With": "dashboard", ...(body ? { "Content-Type": "application/json" } : {}), ...headers },
    body: body ? JSON.stringify(body) : undefined,
  });
  if (answer.status === 401) {
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    return new Promise(() => {});
  }
  if (answer.status === 204) return null;
  const found = await answer.json().catch(() => null);
  if (!answer.ok) throw new ServerError(answer.status, found);
  return found;
}

// formats

/** A number as a person writes it: three significant digits, thousands apart. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 1).replace("e+", "e");
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits });
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

export const target = (of) => `${of.metric} ${of.higher_is_better ? "≥" : "≤"} ${number(of.threshold)}`;

export const state = (name) => el(`span.state.${name}`, {}, name);

export const when = (time) => el("time", { datetime: time, title: new Date(time).toLocaleString() }, ago(time));

// what happens on every page

export function toast(text, kind = "") {
  const shown = el(`div.notice.${kind || "plain"}`, { role: kind === "bad" ? "alert" : "status" }, text);
  byId("toasts").append(shown);
  setTimeout(() => shown.remove(), kind === "bad" ? 12000 : 5000);
}

/** Run what a person asked for; says what went wrong. Returns undefined then. */
export async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    toast([error.message, error.wayOut].filter(Boolean).join(". "), "bad");
    return undefined;
  }
}

/** Show in a place that something failed, with what to do. */
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
  try { localStorage.setItem("theme", next); } catch { /* a browser that keeps nothing: this page's choice alone */ }
  document.dispatchEvent(new Event("themechange"));
}

export function debounce(work, milliseconds) {
  let timer;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => work(...given), milliseconds); };
}

// live events

/** Follow server-sent events, of one study or of all; goes on after a lost connection, from the last event seen. */
export function follow(study, listeners) {
  const source = new EventSource(study ? `/api/v1/studies/${path(study)}/events` : "/api/v1/events");
  for (const [kind, heard] of Object.entries(listeners)) {
    source.addEventListener(kind, (event) => heard(JSON.parse(event.data)));
  }
  const sign = byId("live");
  source.onopen = () => { sign.textContent = "live"; sign.classList.remove("lost"); };
  source.onerror = () => {
    sign.textContent = "connecting…";
    sign.classList.add("lost");
    // a refused stream is closed for good; ask again, as the server may be starting
    if (source.readyState === EventSource.CLOSED) setTimeout(() => { source.close(); follow(study, listeners); }, 1500);
  };
  addEventListener("pagehide", () => source.close(), { once: true });
  return source;
}

// plots

let plotly;

/** Plotly, loaded with the first plot of a page. */
export function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    document.head.append(el("script", { src: "/static/plotly.min.js", onload: () => resolve(window.Plotly),
      onerror: () => reject(new Error("the plot library could not be loaded")) }));
  });
  return plotly;
}

const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();

/** A layout in the colours of the page. */
export function themed(layout = {}) {
  const axis = { gridcolor: style("--grid"), linecolor: style("--muted"), tickcolor: style("--muted"),
    zerolinecolor: style("--grid") };
  const found = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { ...layout.font, family: style("--sans"), color: style("--ink"), size: layout.font?.size ?? 13 },
    hoverlabel: { ...layout.hoverlabel, bgcolor: style("--card"), bordercolor: style("--muted"),
      font: { color: style("--ink"), size: 12 } } };
  for (const name of Object.keys(found)) if (/^[xy]axis/.test(name)) found[name] = { ...found[name], ...axis };
  found.xaxis ??= axis;
  found.yaxis ??= axis;
  return found;
}

const CONFIG = { responsive: true, displaylogo: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"] };
const drawn = new Map();

// figures made by the server are drawn in ink on paper; on a dark page these take the page's colours
const INKS = { "#1f2933": "--ink", "#5b6670": "--muted", "#e7eaee": "--grid", "rgba(31, 41, 51, 0.10)": "--band" };

function inked(data) {
  if (theme() === "light") return data;
  let text = JSON.stringify(data);
  for (const [ink, name] of Object.entries(INKS)) text = text.replaceAll(ink, style(name));
  return JSON.parse(text);
}

/** Draw or redraw a figure in a place; it follows the theme. */
export async function plot(place, figure) {
  const library = await loadPlotly();
  drawn.set(place, figure);
  place.querySelector(":scope > .skeleton")?.remove();
  const { data, layout } = inked({ data: figure.data, layout: figure.layout });
  await library.react(place, data, themed(layout), { ...CONFIG, ...figure.config });
}

/** Do some work when a place comes near the window: what is far below costs nothing. */
export function whenSeen(place, work) {
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    work();
  }, { rootMargin: "400px" }).observe(place);
}

document.addEventListener("themechange", () => {
  for (const [place, figure] of drawn) if (place.isConnected) plot(place, figure); else drawn.delete(place);
});

byId("theme")?.addEventListener("click", chooseTheme);
byId("logout")?.addEventListener("click", async () => {
  await fetch("/logout", { method: "POST", credentials: "same-origin", headers: { "X-Requested-With": "dashboard" } });
  location.assign("/login");
});
if (byId("who")) api("me").then((me) => { byId("who").textContent = me.owner || "no owner"; }).catch(() => {});
