// Curves of trials, as the trial page and the comparison draw them.
import { api, path } from "./app.js";

export const COLOURS = ["#4477AA", "#EE7733", "#228833", "#AA3377", "#66CCEE", "#B8860B", "#CC3311", "#5b6670"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash"];
const COLUMNS = ["step", "epochs", "seconds", "train_loss", "loss", "metric", "learning_rate", "global_batch_size",
  "gradient_noise_scale"];

/** The convergence of some trials, in columns, by number. */
export async function readCurves(study, numbers) {
  const query = new URLSearchParams([...numbers.map((number) => ["trial", number]),
    ...COLUMNS.map((column) => ["column", column]), ["max_points", 2000]]);
  const { curves } = await api(`studies/${path(study)}/convergence?${query}`);
  return new Map(curves.map((curve) => [curve.trial, curve.columns]));
}

export const look = (index) => ({ color: COLOURS[index % COLOURS.length], dash: DASHES[index % DASHES.length] });

export function line(columns, of, name, { index = 0, width = 2, ...others } = {}) {
  return { type: "scatter", mode: columns.epochs.length < 2 ? "markers" : "lines", x: columns.epochs, y: columns[of], name,
    line: { ...look(index), width }, marker: { color: look(index).color }, connectgaps: false, ...others };
}

/** An axis that suits values over several powers of ten; anything else stays linear. */
export function scale(values) {
  const positive = values.filter((value) => value > 0);
  return positive.length === values.length && positive.length && Math.max(...positive) / Math.min(...positive) > 30
    ? { type: "log", exponentformat: "power", dtick: 1 } : { rangemode: "tozero" };
}

export const MARGIN = { l: 64, r: 16, t: 10, b: 44 };

export function targetLine(target) {
  return { shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: target.threshold, y1: target.threshold,
    line: { dash: "dot", width: 1.5, color: "#AA3377" } }],
  annotations: [{ xref: "paper", x: 1, xanchor: "right", y: target.threshold, yanchor: "bottom", showarrow: false,
    text: "target" }] };
}

export const nothing = (text) => ({ data: [], layout: { height: 260, margin: MARGIN, xaxis: { visible: false },
  yaxis: { visible: false }, annotations: [{ text, xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false }] } });
