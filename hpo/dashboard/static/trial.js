// The page of one trial: how it converged, its settings, why it ended, and the command that runs it again.
import { api, asksForBest, attempt, byId, duration, el, failure, follow, home, number, path, state, steady, when, words } from "./app.js";
import { MARGIN, line, metricAxis, nothing, readCurves, targetLine } from "./curves.js";
import { logAxis, plot, scale } from "./plots.js";
import { settingsTables, shown } from "./settings.js";

const { study: name, trial: given } = document.body.dataset;
const trialNumber = Number(given);
const where = `studies/${path(name)}`;
let study, tuned;

function facts(trial) {
  const rows = [["Global batch size", number(trial.global_batch_size)], ["Seed", number(trial.seed)],
    ...(asksForBest(study) ? [] : [["Epochs to target", trial.epochs_to_target === null ? "not reached" : number(trial.epochs_to_target)]]),
    ["Trained", trial.epochs === null ? "–" : `${number(trial.epochs)} epochs, ${number(trial.steps)} updates`],
    ["Time", duration(trial.seconds)], [`Best ${study.target.metric}`, number(trial.best_metric)],
    ["Ended", trial.finished_at ? when(trial.finished_at) : "not yet"], ["Purpose", words(trial.purpose)]];
  return el("dl.facts", {}, ...rows.flatMap(([term, fact]) => [el("dt", {}, term), el("dd", {}, fact)]));
}

const ENDS = { reached: "The trial reached the target.", censored: "The trial used up its budget before it reached the target.",
  diverged: "The loss diverged.", pruned: "The trial was stopped early: others of its batch size did better at the same point.",
  failed: "The trial crashed, which says nothing about its settings.", running: "The trial is running.", queued: "The trial is queued." };

function summary(trial) {
  const why = trial.reason && `${trial.reason[0].toUpperCase()}${trial.reason.slice(1)}.`;
  const end = trial.state === "censored" && asksForBest(study) ? "The trial trained to the end of its budget." : ENDS[trial.state];
  return [el("p.forecast", {}, end), why ? el("p", {}, why) : null, facts(trial)].filter(Boolean);
}

async function draw() {
  const columns = (await readCurves(name, [trialNumber])).get(trialNumber);
  const layout = (title, more = {}) => ({ height: 300, margin: MARGIN, showlegend: false, xaxis: { title: { text: "epochs" }, rangemode: "tozero" },
    yaxis: { title: { text: title } }, ...more });
  if (!columns.epochs.length) {
    for (const place of ["metric", "loss", "schedule", "noise"]) await plot(byId(place), nothing("no evaluation yet"));
    return;
  }
  const axis = metricAxis(scale, columns.metric, study.target);
  await plot(byId("metric"), { data: [line(columns, "metric", study.target.metric, { mode: "lines+markers" })],
    layout: layout("", { yaxis: axis, ...targetLine(study.target, axis) }) });
  const legend = { showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, margin: { ...MARGIN, t: 30 } };
  await plot(byId("loss"), { data: [line(columns, "loss", "held-out"), line(columns, "train_loss", "training", { index: 1 })],
    layout: layout("loss", { ...legend, yaxis: { title: { text: "loss" }, ...scale([...columns.train_loss, ...columns.loss]) } }) });
  const batches = [...new Set(columns.global_batch_size)].sort((a, b) => a - b);
  await plot(byId("schedule"), { data: [line(columns, "learning_rate", "learning rate"),
    line(columns, "global_batch_size", "global batch size", { index: 1, yaxis: "y2", line: { shape: "hv", dash: "dash", color: "#EE7733" } })],
  layout: layout("learning rate", { ...legend, yaxis: { title: { text: "learning rate" }, rangemode: "tozero" },
    yaxis2: { title: { text: "batch" }, overlaying: "y", side: "right", showgrid: false, range: [0, 1.3 * batches.at(-1)],
      ...(batches.length < 8 ? { tickvals: batches, ticktext: batches.map((batch) => number(batch)) } : {}) },
    margin: { ...MARGIN, r: 72, t: 30 } }) });
  const noises = columns.gradient_noise_scale.filter((value) => value > 0);
  await plot(byId("noise"), noises.length
    ? { data: [line(columns, "gradient_noise_scale", "noise scale", { mode: "lines+markers" })],
      layout: layout("samples", { yaxis: { title: { text: "samples" }, ...logAxis(noises) } }) }
    : nothing("not measured in this trial"));
}

/** Compare with the best trial of the same batch size; differences are highlighted. */
async function best(trial) {
  const answer = asksForBest(study) ? { state: "censored", order: "best_metric", descending: study.target.higher_is_better } : { state: "reached", order: "epochs_to_target" };
  const query = new URLSearchParams({ ...answer, global_batch_size: trial.global_batch_size, limit: 1 });
  return (await api(`${where}/trials?${query}`)).trials[0];
}

function settings(trial, other) {
  const same = !other || other.number === trial.number;
  byId("compared").textContent = !other ? `No trial of this batch size has ${asksForBest(study) ? "trained to the end of its budget" : "reached the target"}.`
    : same ? "This is the best trial of its batch size." : `Settings that differ from trial ${other.number}, the best of this batch size, are listed first.`;
  const differs = (setting) => !same && JSON.stringify(trial.settings[setting]) !== JSON.stringify(other.settings[setting]);
  const names = Object.keys(trial.settings);
  byId("settings").replaceChildren(...settingsTables({ heads: () => ["This trial", ...(same ? [] : [`Trial ${other.number}`])], names, marked: differs,
    first: [...names.filter(differs), ...tuned], cells: (setting) => [shown(trial.settings[setting], 6), ...(same ? [] : [shown(other.settings[setting], 6)])] }));
}

async function read() {
  [study, { names: tuned }] = await Promise.all([api(where), api(`${where}/tuned`)]);
  const trial = await api(`${where}/trials/${trialNumber}`);
  byId("up").textContent = name;
  byId("up").href = `${home}/studies/${path(name)}`;
  byId("number").textContent = trial.number;
  byId("state").replaceChildren(state(trial.state));
  byId("summary").replaceChildren(...summary(trial));
  const all = Object.values(study.trials).reduce((sum, count) => sum + count, 0);
  for (const [id, other] of [["before", trialNumber - 1], ["after", trialNumber + 1]]) {
    const there = other >= 0 && other < all;
    byId(id).hidden = !there;
    if (there) byId(id).href = `${home}/studies/${path(name)}/trials/${other}`;
  }
  settings(trial, await best(trial));
  await command(trial);
  await draw();
}

async function command(trial) {
  const job = await attempt(() => api(`${where}/trials/${trial.number}/job`));
  if (!job) return;
  const file = `trial-${trial.number}.json`;
  byId("download").href = `${home}/api/v1/${where}/trials/${trial.number}/job`;
  byId("download").setAttribute("download", file);
  byId("download").textContent = file;
  byId("command").textContent = `python -m trainers ${file}`;
  byId("job").textContent = JSON.stringify(job, null, 1);
}

byId("copy").addEventListener("click", () => attempt(async () => {
  if (!navigator.clipboard) {      // only pages over HTTPS or of this machine may use the clipboard
    getSelection().selectAllChildren(byId("command"));
    byId("copy").textContent = "Press Ctrl+C to copy";
    return;
  }
  await navigator.clipboard.writeText(byId("command").textContent);
  byId("copy").textContent = "Copied";
}));

try {
  await read();
  const again = steady(read, { rest: 300 });
  follow(name, { progress: (told) => {
    if (String(trialNumber) in told.points || told.changed.some((each) => each.number === trialNumber)) again();
  } }, again);
} catch (error) {
  failure(byId("summary"), error);
}
