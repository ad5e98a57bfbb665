// Plots in the colours of the page, and helpers for their axes.
import { el, home, theme } from "./app.js";

const root = document.documentElement;
let plotly;

/** Load Plotly when the first plot of a page is drawn. */
export function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    document.head.append(el("script", { src: `${home}/static/plotly.min.js`, onload: () => resolve(window.Plotly),
      onerror: () => reject(new Error("the plot library could not be loaded")) }));
  });
  return plotly;
}

/** Escape text for Plotly, which interprets some HTML. */
export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();

/** A layout in the colours of the page. */
function themed(layout = {}) {
  const axis = { gridcolor: style("--grid"), linecolor: style("--muted"), tickcolor: style("--muted"),
    zerolinecolor: style("--grid"), automargin: true };
  const found = { hovermode: "closest", ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { ...layout.font, family: style("--sans"), color: style("--ink"), size: layout.font?.size ?? 13 },
    hoverlabel: { ...layout.hoverlabel, align: "left", bgcolor: style("--card"), bordercolor: style("--muted"),
      font: { color: style("--ink"), size: 12 } } };
  for (const name of Object.keys(found)) if (/^[xy]axis/.test(name)) found[name] = { ...found[name], ...axis };
  found.xaxis ??= axis;
  found.yaxis ??= axis;
  return found;
}

const CONFIG = { responsive: true, displaylogo: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"] };
const drawn = new Map();

// the server draws figures in the light theme; on a dark page these colours are replaced by the theme's
const INKS = { "#1f2933": "--ink", "#5b6670": "--muted", "#e7eaee": "--grid", "rgba(31, 41, 51, 0.10)": "--band" };

function inked(data) {
  if (theme() === "light") return data;
  let text = JSON.stringify(data);
  for (const [ink, name] of Object.entries(INKS)) text = text.replaceAll(ink, style(name));
  return JSON.parse(text);
}

/** Draw or redraw a figure in an element; it follows the theme. */
export async function plot(place, figure) {
  const library = await loadPlotly();
  drawn.set(place, figure);
  place.querySelector(":scope > .skeleton")?.remove();
  const { data, layout } = inked({ data: figure.data, layout: figure.layout });
  const narrow = place.clientWidth < NARROW;
  if (narrow && layout.legend?.orientation === "h") layout.font = { ...layout.font, size: 11 };
  if (narrow) separate(layout);
  await library.react(place, data, themed(layout), { ...CONFIG, displayModeBar: narrow ? false : "hover", ...figure.config });
}

const NARROW = 560;     // pixels
const LINE = 15;

/** Put each regime's label on a separate line above the figure, because the labels would overlap on a narrow page. */
function separate(layout) {
  const names = (layout.annotations ?? []).filter((each) => each.name === "regime");
  if (names.length < 2) return;
  names.forEach((each, at) => {
    each.text = each.text.replace("<br>", " ");
    each.yshift = LINE * (names.length - 1 - at);
  });
  layout.margin = { ...layout.margin, t: Math.max(layout.margin?.t ?? 0, 12 + LINE * names.length) };
}

/** Do some work once an element comes near the viewport, so that elements far below cost nothing. */
export function whenSeen(place, work) {
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    work();
  }, { rootMargin: "400px" }).observe(place);
}

/** Call ``heard(point)`` for clicks on the points of a plot, which must already be drawn. */
export function whenClicked(place, heard) {
  if (place.dataset.clicks) return;
  place.dataset.clicks = "heard";
  place.on("plotly_click", ({ points }) => heard(points[0]));
}

const MOST_TICKS = 8;

/** Ticks of a logarithmic axis: at least four round numbers, because Plotly's own are crowded or missing on short axes. */
function logTicks(low, high) {
  const decades = [];
  for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade += 1) decades.push(decade);
  let ticks = [];
  for (const steps of [[1], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]]) {
    ticks = decades.flatMap((decade) => steps.map((step) => step * 10 ** decade)).filter((tick) => tick >= low && tick <= high);
    if (ticks.length > MOST_TICKS && steps.length === 1) {      // a diverged loss spans hundreds of powers of ten
      const stride = Math.ceil(ticks.length / MOST_TICKS);
      return ticks.filter((_, index) => index % stride === 0);
    }
    if (ticks.length >= 4) return ticks;
  }
  return null;
}

const tickText = (tick) => tick >= 1e6 || tick < 1e-3 ? tick.toExponential(0).replace("e+", "e") : Number(tick.toPrecision(3)).toLocaleString("en");

/** A logarithmic axis for some positive values. */
export function logAxis(values) {
  const [low, high] = values.filter((value) => value > 0)
    .reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]);
  if (!(high > 0)) return { type: "log" };
  const ends = [low / 1.15, high * 1.15];
  const ticks = logTicks(...ends);
  return { type: "log", range: ends.map(Math.log10),
    ...(ticks ? { tickvals: ticks, ticktext: ticks.map(tickText) } : { nticks: 4 }) };
}

/** A logarithmic axis for values that span several powers of ten, and a linear axis for all others. */
export function scale(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const positive = known.filter((value) => value > 0);
  const [low, high] = positive.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]);
  return positive.length && positive.length === known.length && high / low > 30 ? logAxis(positive) : {};
}

document.addEventListener("themechange", () => {
  for (const [place, figure] of drawn) if (place.isConnected) plot(place, figure); else drawn.delete(place);
});
