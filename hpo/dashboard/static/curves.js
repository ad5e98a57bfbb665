// Curves of trials, shared by the study, trial and comparison pages.
import { api, path } from "./app.js";
import { plain } from "./plots.js";

export const COLOURS = ["#4477AA", "#EE7733", "#228833", "#AA3377", "#66CCEE", "#B8860B", "#CC3311", "#5b6670"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash"];
const COLUMNS = ["step", "epochs", "seconds", "train_loss", "loss", "metric", "learning_rate", "global_batch_size",
  "gradient_noise_scale"];
const POINTS = 2000;

/** Read the convergence of some trials, as columns by trial number. */
export async function readCurves(study, numbers, { columns = COLUMNS, points = POINTS } = {}) {
  const query = new URLSearchParams([...numbers.map((number) => ["trial", number]),
    ...columns.map((column) => ["column", column]), ["max_points", points]]);
  const { curves } = await api(`studies/${path(study)}/convergence?${query}`);
  return new Map(curves.map((curve) => [curve.trial, curve.columns]));
}

export const look = (index) => ({ color: COLOURS[index % COLOURS.length], dash: DASHES[index % DASHES.length] });

export function line(columns, of, name, { index = 0, width = 2, ...others } = {}) {
  return { type: "scatter", mode: columns.epochs.length < 2 ? "markers" : "lines", x: columns.epochs, y: columns[of],
    name: plain(name), line: { ...look(index), width }, marker: { color: look(index).color }, connectgaps: false, ...others };
}

export const MARGIN = { l: 64, r: 16, t: 10, b: 44 };

/** A line at the target, in a figure whose vertical axis is ``axis``. */
export function targetLine(target, axis = {}) {
  if (target.threshold === null) return {};
  const at = axis.type === "log" ? Math.log10(target.threshold) : target.threshold;
  return { shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: target.threshold, y1: target.threshold,
    line: { dash: "dot", width: 1.5, color: "#AA3377" } }],
  annotations: [{ xref: "paper", x: 1, xanchor: "right", y: at, yanchor: "bottom", showarrow: false, text: "target" }] };
}

/** The vertical axis of the target's metric; its range includes the target. */
export function metricAxis(scale, values, target) {
  return { title: { text: plain(target.metric) }, ...scale(target.threshold === null ? values : [...values, target.threshold]) };
}

export const nothing = (text) => ({ data: [], layout: { height: 220, margin: MARGIN, xaxis: { visible: false },
  yaxis: { visible: false }, annotations: [{ text: plain(text), xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false }] } });
