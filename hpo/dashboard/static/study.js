// One study, live: its ladder, what its settings do, its curves, all its trials, and what happens to it.
import { api, attempt, byId, debounce, duration, el, failure, follow, number, path, plot, state, target, whenSeen, words } from "./app.js";
import { MARGIN, nothing, targetLine } from "./curves.js";
import { ParallelCoordinates } from "./parallel.js";
import { TrialTable, filtered, sorted } from "./table.js";

const { study: name } = document.body.dataset;
const where = `studies/${path(name)}`;
const CURVES = 40;
const RUNGS = ["#4477AA", "#EE7733", "#228833", "#AA3377", "#66CCEE", "#B8860B", "#CC3311", "#5b6670"];
let study, data, setting;
const seen = new Set();

const table = new TrialTable(byId("table"), { study: name, onsort: () => filter(), onselect: chosen });
const parallel = new ParallelCoordinates(byId("parallel"), () => filter());

// what stands above the figures

const ENDED = ["reached", "censored", "diverged", "pruned", "failed"];
const ended = () => ENDED.reduce((sum, each) => sum + (study.trials[each] ?? 0), 0);
const atRest = () => ["finished", "failed", "cancelled", "interrupted"].includes(study.state);

/** What to do next with a study that has no forecast: never an empty page. */
function advice() {
  const { trials } = study;
  const only = (each) => ended() > 0 && (trials[each] ?? 0) === ended();
  if (study.state === "queued") return ["It waits for a worker.", "hpo worker takes studies from the queue; the page of the workers tells who is there."];
  if (study.state === "failed") return ["It failed.", study.message];
  if (only("diverged")) return ["Every training diverged.", "Lower the learning rates under search, or allow a longer warmup. A study that searches elsewhere needs a name of its own."];
  if (only("failed")) return ["Every training failed.", "The reasons stand in the table of trials; mend the workload, then resume."];
  if (study.state === "cancelled") return ["It was cancelled.", "What its trials told is kept; resuming goes on from there."];
  if (study.state === "interrupted") return ["It was interrupted.", "Resuming goes on where it stopped."];
  if (atRest() && !trials.reached) return ["No training reached the target.", "Raise budget.epochs_per_trial, widen the ranges under search, or set a target that can be reached."];
  if (!trials.reached) return ["It is on its way.", "A forecast is made when trainings have reached the target."];
  return null;
}

function about() {
  byId("about").textContent = [`${study.workload} to ${target(study.target)}`, `rungs ${study.ladder.map((batch) => number(batch)).join(", ")}`,
    study.full_scale ? `for ${number(study.full_scale.global_batch_size)}` : null, study.owner ? `of ${study.owner}` : null].filter(Boolean).join(" · ");
  byId("state").replaceChildren(state(study.state));
  if (study.cancel_requested && study.state === "running") byId("state").append(el("span.muted.small", {}, " cancelling…"));
  byId("cancel").hidden = atRest() || study.cancel_requested;
  byId("resume").hidden = !["failed", "cancelled", "interrupted"].includes(study.state);
  byId("forecast").hidden = !study.trials.reached;
  byId("forecast").href = `/studies/${path(name)}/forecast`;
  byId("spec").textContent = study.spec;
  const tile = (title, value, small) => el("div.tile", {}, el("div.small.muted", {}, title), el("div.value", {}, value), small ? el("div.small.muted", {}, small) : null);
  const running = study.trials.running ?? 0;
  byId("tiles").replaceChildren(tile("Trials", number(ended()), running ? `${running} running` : `${number(study.trials.queued ?? 0)} queued`),
    tile("Reached the target", number(study.trials.reached ?? 0), `${number(study.trials.pruned ?? 0)} stopped early, ${number(study.trials.diverged ?? 0)} diverged`),
    tile("Best so far", study.best_epochs_to_target === null ? "–" : `${number(study.best_epochs_to_target)} epochs`),
    tile("Spent", `${number(study.samples)} samples`, `${number(study.usage.accelerator_seconds / 3600)} accelerator hours`),
    tile("Worker", study.worker ?? "none", study.attempts > 1 ? `attempt ${study.attempts}` : ""));
}

async function headline() {
  const told = advice();
  const place = byId("headline");
  if (told) { place.replaceChildren(el("p.forecast", {}, told[0]), el("p", {}, told[1])); return; }
  if (!study.full_scale) {
    place.replaceChildren(el("p.forecast", {}, "The study names no full-scale batch size."), el("p", {}, "The forecast page makes one for any."));
    return;
  }
  try {
    const { forecasts: [found] } = await api(`${where}/forecast`);
    const ends = found.epochs_to_target;
    const moved = Object.entries(found.settings).map(([each, of]) => `${words(each)} ${number(of.median)} (${number(of.low)} to ${number(of.high)})`);
    place.replaceChildren(el("p.forecast", {}, `At global batch size ${number(found.global_batch_size)}: ${number(ends.median)} epochs to ${target(study.target)} `
      + `(90 % interval ${number(ends.low)} to ${number(ends.high)})${moved.length ? ` with ${moved.join(", ")}` : ""}.`),
    el("p", {}, "Trust: ", el(`span.trust.${found.trust}`, {}, found.trust), `. ${found.reason}`), study.message ? el("p.muted", {}, study.message) : "");
  } catch (error) {
    failure(place, error);
  }
}

// the trials

async function readTrials() {
  const found = await api(`${where}/columns`);
  data = { ...found, values: (each) => found.columns[each] ?? found.settings[each] };
  byId("evidence").hidden = data.columns.number.length === 0;
  const batches = [...new Set(data.columns.global_batch_size)].sort((a, b) => a - b);
  if (byId("filter_batch").options.length !== batches.length + 1) {
    const kept = byId("filter_batch").value;
    byId("filter_batch").replaceChildren(el("option", { value: "" }, "every rung"), ...batches.map((batch) => el("option", { value: batch }, number(batch))));
    byId("filter_batch").value = kept;
  }
  const tuned = Object.keys(found.settings);
  if (!setting && tuned.length) {
    setting = tuned.includes("learning_rate") ? "learning_rate" : tuned[0];
    byId("tuned").replaceChildren(...tuned.map((each) => el("button", { type: "button", "aria-pressed": String(each === setting), onclick: () => choose(each) }, words(each))));
  }
  filter();
}

function filter() {
  if (!data) return;
  const rows = filtered(data, { state: byId("filter_state").value, batch: byId("filter_batch").value, text: byId("filter_text").value, brushes: parallel.brushes });
  sorted(rows, data.values(table.order), table.descending);
  byId("table_count").textContent = `${number(rows.length)} of ${number(data.columns.number.length)}`;
  table.show(data, rows);
  parallel.show(data, ["global_batch_size", ...Object.keys(data.settings), "epochs_to_target", "best_metric"], rows);
  drawCurves(rows);
}

function chosen(trials) {
  const fits = trials.length >= 2 && trials.length <= 8;
  byId("compare").disabled = !fits;
  byId("compare").textContent = trials.length ? `Compare ${trials.length}${trials.length > 8 ? " (at most 8)" : ""}` : "Compare";
}

// the figures

const figures = debounce(() => {
  for (const each of seen) if (each !== "curves") draw(each);
}, 600);

async function draw(key) {
  const query = key === "ladder" ? "" : `?setting=${encodeURIComponent(setting)}`;
  if (key !== "ladder" && !setting) return plot(byId(key), nothing("the study tunes nothing"));
  const found = await attempt(() => api(`${where}/figures/${key}${query}`));
  return found && plot(byId(key), found);
}

function choose(each) {
  setting = each;
  for (const button of byId("tuned").children) button.setAttribute("aria-pressed", String(button.textContent === words(each)));
  draw("setting");
  draw("response");
}

/** The trials whose curves are drawn: those that are chosen, those that run, then the best of what the table shows. */
function curvesOf(rows) {
  const { columns } = data;
  const order = (row) => table.selected.has(columns.number[row]) ? 0 : columns.state[row] === "running" ? 1 : columns.state[row] === "reached" ? 2 : 3;
  const wanted = rows.filter((row) => columns.state[row] !== "queued");
  wanted.sort((a, b) => order(a) - order(b) || (columns.epochs_to_target[a] ?? Infinity) - (columns.epochs_to_target[b] ?? Infinity) || a - b);
  byId("curves_shown").textContent = wanted.length > CURVES ? `${CURVES} of ${number(wanted.length)}: chosen, running, then the best; filter the table to see others` : "";
  return wanted.slice(0, CURVES);
}

let asked = "";
const drawCurves = debounce(async (rows, again = false) => {
  if (!seen.has("curves")) return;
  const wanted = curvesOf(rows);
  const { columns } = data;
  const key = wanted.map((row) => columns.number[row]).join();
  if (key === asked && !again) return;
  asked = key;
  if (!wanted.length) { await plot(byId("curves"), nothing("no training has been evaluated yet")); return; }
  const query = new URLSearchParams([...wanted.map((row) => ["trial", columns.number[row]]), ["column", "epochs"], ["column", "metric"],
    ["column", "gradient_noise_scale"], ["max_points", 400]]);
  const found = await attempt(() => api(`${where}/convergence?${query}`));
  if (!found) return;
  const batches = [...new Set(columns.global_batch_size)].sort((a, b) => a - b);
  const trace = (curve, index, column) => ({ type: "scatter", mode: curve.columns.epochs.length < 2 ? "markers" : "lines", x: curve.columns.epochs, y: curve.columns[column],
    name: number(columns.global_batch_size[wanted[index]]), legendgroup: columns.global_batch_size[wanted[index]], showlegend: false, meta: curve.trial,
    line: { color: RUNGS[batches.indexOf(columns.global_batch_size[wanted[index]]) % RUNGS.length], width: columns.state[wanted[index]] === "running" ? 2.5 : 1.5 },
    opacity: ["reached", "running", "censored"].includes(columns.state[wanted[index]]) ? 0.9 : 0.35,
    hovertemplate: `trial ${curve.trial}, batch ${number(columns.global_batch_size[wanted[index]])}<br>%{x:.3g} epochs: %{y:.4g}<extra></extra>` });
  const legend = (shown) => batches.filter((batch) => wanted.some((row) => columns.global_batch_size[row] === batch)).map((batch) => ({ type: "scatter", mode: "lines", x: [null], y: [null],
    name: number(batch), legendgroup: batch, showlegend: shown, line: { color: RUNGS[batches.indexOf(batch) % RUNGS.length], width: 3 } }));
  const layout = (title, more) => ({ height: 380, margin: MARGIN, showlegend: true, legend: { orientation: "h", y: 1.12, title: { text: "global batch size " } },
    xaxis: { title: { text: "epochs" }, rangemode: "tozero" }, yaxis: { title: { text: title } }, ...more });
  await plot(byId("curves"), { data: [...found.curves.map((curve, index) => trace(curve, index, "metric")), ...legend(true)],
    layout: layout(study.target.metric, targetLine(study.target)) });
  const measured = found.curves.map((curve, index) => trace(curve, index, "gradient_noise_scale")).filter((each) => each.y.some((value) => value > 0));
  await plot(byId("noise"), measured.length ? { data: [...measured, ...legend(true)], layout: layout("samples", { height: 300, yaxis: { title: { text: "samples" }, type: "log" } }) }
    : nothing("no trial measured it"));
}, 60);

// what happens

function logged(event) {
  const list = byId("log");
  if (!event.id || list.querySelector(`[data-id="${event.id}"]`)) return;
  if (list.children.length === 1 && !list.firstElementChild.dataset.id) list.replaceChildren();
  list.prepend(el("li", { dataset: { id: event.id } }, el("time.muted", { datetime: event.at }, new Date(event.at).toLocaleTimeString()), el("span", {}, `${words(event.kind)}: ${event.message}`)));
  while (list.children.length > 300) list.lastElementChild.remove();
}

const refresh = debounce(async () => {
  const before = ended();
  const next = await attempt(() => api(where));
  if (!next) return;
  study = next;
  about();
  if (ended() === before && study.state !== "running") await attempt(readTrials);
}, 200);
const trialsChanged = debounce(async () => { await attempt(readTrials); figures(); await headline(); }, 700);
const curvesGrew = debounce(() => data && drawCurves(filtered(data, {}), true), 400);

async function act(what) {
  if (await attempt(() => api(`${where}/${what}`, { method: "POST" }))) refresh();
}

byId("cancel").addEventListener("click", () => act("cancel"));
byId("resume").addEventListener("click", () => act("resume"));
byId("compare").addEventListener("click", () => location.assign(`/studies/${path(name)}/compare?trials=${[...table.selected].join(",")}`));
byId("clear").addEventListener("click", () => {
  for (const id of ["filter_state", "filter_batch", "filter_text"]) byId(id).value = "";
  parallel.brushes = {};
  filter();
});
for (const id of ["filter_state", "filter_batch", "filter_text"]) byId(id).addEventListener("input", filter);

try {
  study = await api(where);
  about();
  headline();
  await readTrials();
  for (const each of ["ladder", "setting", "response"]) whenSeen(byId(each), () => { seen.add(each); draw(each); });
  for (const each of ["curves", "noise"]) whenSeen(byId(each), () => { seen.add("curves"); filter(); });
  const logs = await attempt(() => api(`${where}/logs?limit=200`));
  byId("log").replaceChildren(...(logs?.events.length ? [] : [el("li", {}, "nothing yet")]));
  logs?.events.forEach(logged);
  follow(name, {
    log: (event) => { logged(event); refresh(); },
    progress: (told) => {
      const more = JSON.stringify(told.trials) !== JSON.stringify(study.trials);
      study = { ...study, state: told.state, cancel_requested: told.cancel_requested, trials: told.trials };
      about();
      if (more) { refresh(); trialsChanged(); } else if (Object.keys(told.points).length) curvesGrew();
    },
  });
} catch (error) {
  failure(byId("headline"), error);
}
