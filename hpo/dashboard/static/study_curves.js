// Learning curves and noise scales of a study's trials, updated as they train.
import { byId, number, quietly, steady } from "./app.js";
import { COLOURS, MARGIN, metricAxis, nothing, readCurves, targetLine } from "./curves.js";
import { logAxis, plain, plot, scale, whenClicked, whenSeen } from "./plots.js";

const CURVES = 40;
const POINTS = 400;
const BRIGHT = ["reached", "running", "censored"];

export class StudyCurves {
  /** ``rows()`` returns the rows of the table, ``data()`` the columns of the trials, and ``study()`` the current study. */
  constructor({ name, rows, data, study, selected, open }) {
    Object.assign(this, { name, rows, data, study, selected, open, seen: false });
    this.refresh = steady(() => this.#draw(), { rest: 150 });
    for (const key of ["curves", "noise"]) whenSeen(byId(key), () => { this.seen = true; this.refresh(); });
  }

  /** The trials whose curves are drawn: selected trials, running trials, then the best trials in the table. */
  #wanted() {
    const { columns } = this.data();
    const chosen = this.selected();
    const rank = (row) => chosen.has(columns.number[row]) ? 0 : columns.state[row] === "running" ? 1 : columns.state[row] === "reached" ? 2 : 3;
    const rows = this.rows().filter((row) => columns.state[row] !== "queued");
    const key = new Map(rows.map((row) => [row, rank(row)]));
    rows.sort((a, b) => key.get(a) - key.get(b) || (columns.epochs_to_target[a] ?? Infinity) - (columns.epochs_to_target[b] ?? Infinity) || a - b);
    byId("curves_shown").textContent = rows.length > CURVES ? `${CURVES} of ${number(rows.length)} trials: selected, running, then the best; filter the table to see others` : "";
    return rows.slice(0, CURVES);
  }

  async #draw() {
    if (!this.seen || !this.data()) return;
    const rows = this.#wanted();
    if (!rows.length) {
      await plot(byId("curves"), nothing("no trial has been evaluated yet"));
      await plot(byId("noise"), nothing("no trial measured it"));
      return;
    }
    const { columns } = this.data();
    const found = await quietly(() => readCurves(this.name, rows.map((row) => columns.number[row]), { columns: ["epochs", "metric", "gradient_noise_scale"], points: POINTS }));
    if (!found) return;
    const drawing = this.#drawing(rows, found);
    const { target } = this.study();
    const values = [...found.values()].flatMap((curve) => curve.metric);
    const axis = metricAxis(scale, values, target);
    await plot(byId("curves"), { data: drawing("metric"), layout: { ...this.#layout(360), yaxis: axis, ...targetLine(target, axis) } });
    const noises = [...found.values()].flatMap((curve) => curve.gradient_noise_scale).filter((value) => value > 0);
    await plot(byId("noise"), noises.length ? { data: drawing("gradient_noise_scale"), layout: { ...this.#layout(280), yaxis: { title: { text: "samples" }, ...logAxis(noises) } } }
      : nothing("no trial measured it"));
    for (const key of ["curves", "noise"]) whenClicked(byId(key), (point) => { if (typeof point.data.meta === "number") this.open(point.data.meta); });
  }

  /** Return a function that makes the traces of one column. */
  #drawing(rows, found) {
    const { columns } = this.data();
    const chosen = this.selected();
    const batches = [...new Set(columns.global_batch_size)].sort((a, b) => a - b);
    const colour = (batch) => COLOURS[batches.indexOf(batch) % COLOURS.length];
    const shown = batches.filter((batch) => rows.some((row) => columns.global_batch_size[row] === batch));
    const trace = (row, column) => {
      const [trial, batch] = [columns.number[row], columns.global_batch_size[row]];
      const curve = found.get(trial);
      const bright = chosen.size ? chosen.has(trial) : BRIGHT.includes(columns.state[row]);
      return { type: "scatter", mode: curve.epochs.length < 2 ? "markers" : "lines", x: curve.epochs, y: curve[column], name: number(batch), legendgroup: batch,
        showlegend: false, meta: trial, opacity: bright ? 0.9 : 0.3, line: { color: colour(batch), width: chosen.has(trial) ? 3.5 : columns.state[row] === "running" ? 2.5 : 1.5 },
        marker: { color: colour(batch) }, hovertemplate: `trial ${trial}, batch ${plain(number(batch))}<br>%{x:.3g} epochs: %{y:.4g}<extra></extra>` };
    };
    const legend = shown.map((batch) => ({ type: "scatter", mode: "lines", x: [null], y: [null], name: number(batch), legendgroup: batch,
      line: { color: colour(batch), width: 3 }, hoverinfo: "skip" }));
    return (column) => [...rows.filter((row) => found.has(columns.number[row])).map((row) => trace(row, column)), ...legend];
  }

  #layout(height) {
    return { height, margin: { ...MARGIN, t: 34 }, showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", title: { text: "global batch size " } },
      xaxis: { title: { text: "epochs" }, rangemode: "tozero" }, uirevision: "kept" };
  }
}
