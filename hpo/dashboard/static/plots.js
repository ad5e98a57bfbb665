// Plots in the colours of the page, and what their axes need.
import { el, home, theme } from "./app.js";

const root = document.documentElement;
let plotly;

/** Plotly, loaded with the first plot of a page. */
export function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    document.head.append(el("script", { src: `${home}/static/plotly.min.js`, onload: () => resolve(window.Plotly),
      onerror: () => reject(new Error("the plot library could not be loaded")) }));
  });
  return plotly;
}

/** Text that plotly shows as it is: it takes some HTML for markup. */
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
  const narrow = place.clientWidth < NARROW;
  if (narrow && layout.legend?.orientation === "h") layout.font = { ...layout.font, size: 11 };
  if (narrow) separate(layout);
  await library.react(place, data, themed(layout), { ...CONFIG, displayModeBar: narrow ? false : "hover", ...figure.config });
}

const NARROW = 560;     // pixels
const LINE = 15;

/** Put the names of regimes, which would meet on a narrow page, on lines of their own above the figure. */
function separate(layout) {
  const names = (layout.annotations ?? []).filter((each) => each.name === "regime");
  if (names.length < 2) return;
  names.forEach((each, at) => {
    each.text = each.text.replace("<br>", " ");
    each.yshift = LINE * (names.length - 1 - at);
  });
  layout.margin = { ...layout.margin, t: Math.max(layout.margin?.t ?? 0, 12 + LINE * names.length) };
}

/** Do some work when a place comes near the window: what is far below costs nothing. */
export function whenSeen(place, work) {
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    work();
  }, { rootMargin: "400px" }).observe(place);
}

/** Hear clicks on the points of a plot, which must have been drawn: ``heard(point)``. */
export function whenClicked(place, heard) {
  if (place.dataset.clicks) return;
  place.dataset.clicks = "heard";
  place.on("plotly_click", ({ points }) => heard(points[0]));
}

const MOST_TICKS = 8;

/** Round numbers for a logarithmic axis: at least four, as plotly's own crowd or vanish on short axes, and not too many. */
function logTicks(low, high) {
  const decades = [];
  for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade += 1) decades.push(decade);
  let ticks = [];
  for (const steps of [[1], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]]) {
    ticks = decades.flatMap((decade) => steps.map((step) => step * 10 ** decade)).filter((tick) => tick >= low && tick <= high);
    if (ticks.length > MOST_TICKS && steps.length === 1) {      // a loss that blew up spans hundreds of powers of ten
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

/** An axis that suits values over several powers of ten; anything else stays linear. */
export function scale(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const positive = known.filter((value) => value > 0);
  const [low, high] = positive.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]);
  return positive.length && positive.length === known.length && high / low > 30 ? logAxis(positive) : {};
}

document.addEventListener("themechange", () => {
  for (const [place, figure] of drawn) if (place.isConnected) plot(place, figure); else drawn.delete(place);
});
