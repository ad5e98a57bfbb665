// The page of a study, live: its progress, figures, curves, trials and events.
import { answered, api, attempt, byId, el, failure, follow, home, number, path, quietly, steady, words } from "./app.js";
import { ParallelCoordinates } from "./parallel.js";
import { StudyCurves } from "./study_curves.js";
import { StudyFigures } from "./study_figures.js";
import { sayWhatIsKnown, showHeadline, showRunning, showSummary } from "./summary.js";
import { TrialTable, filtered, sorted } from "./table.js";

const { study: name } = document.body.dataset;
const where = `studies/${path(name)}`;
const FILTERS = ["filter_state", "filter_batch", "filter_text"];
const LOGGED = 300;
const PAGE = 1000;
let study, data, told;

const open = (trial) => location.assign(`${home}/studies/${path(name)}/trials/${trial}`);
const table = new TrialTable(byId("table"), { study: name, onsort: () => filter(), onselect: chosen });
const parallel = new ParallelCoordinates(byId("parallel"), () => filter());
let figures, curves;

// the trials

async function readTrials(asked = api(`${where}/columns`)) {
  const found = await asked;
  data = { ...found, values: (each) => found.columns[each] ?? found.settings[each] };
  byId("evidence").hidden = data.columns.number.length === 0;
  const batches = [...new Set(data.columns.global_batch_size)].sort((a, b) => a - b);
  const kept = byId("filter_batch").value;
  byId("filter_batch").replaceChildren(el("option", { value: "" }, "every rung"), ...batches.map((batch) => el("option", { value: batch }, number(batch))));
  byId("filter_batch").value = batches.includes(Number(kept)) ? kept : "";
  figures?.offer(data.tuned, (text, onclick) => el("button.small", { type: "button", onclick }, text));
  filter();
}

function filter() {
  if (!data) return;
  const rows = filtered(data, { state: byId("filter_state").value, batch: byId("filter_batch").value, text: byId("filter_text").value, brushes: parallel.brushes });
  sorted(rows, data.values(table.order), table.descending);
  byId("table_count").textContent = `${number(rows.length)} of ${number(data.columns.number.length)}`;
  table.show(data, rows);
  parallel.show(data, ["global_batch_size", ...Object.keys(data.settings), "epochs_to_target", "best_metric"], rows, table.selected);
  curves?.refresh();
}

function chosen(trials) {
  const fits = trials.length >= 2 && trials.length <= 8;
  byId("compare").disabled = !fits;
  byId("compare").textContent = trials.length ? `Compare ${trials.length}${trials.length > 8 ? " (at most 8)" : trials.length < 2 ? " (at least 2)" : ""}` : "Compare";
  parallel.select(table.selected);
  figures.select(trials);
  curves.refresh();
}

// events

let newest = 0;

function logged(event) {
  const list = byId("log");
  if (!event.id || list.querySelector(`[data-id="${event.id}"]`)) return;
  if (list.children.length === 1 && !list.firstElementChild.dataset.id) list.replaceChildren();
  newest = Math.max(newest, event.id);
  const at = new Date(event.at);
  const shown = at.toDateString() === new Date().toDateString() ? at.toLocaleTimeString() : at.toLocaleString();
  const older = [...list.children].find((each) => Number(each.dataset.id) < event.id) ?? null;
  list.insertBefore(el("li", { dataset: { id: event.id } }, el("time.muted", { datetime: event.at }, shown), el("span", {}, `${words(event.kind)}: ${event.message}`)), older);
  while (list.children.length > LOGGED) list.lastElementChild.remove();
}

/** Read the events after the newest one shown; the server returns the oldest first, page by page. */
async function readLog() {
  let logs;
  do {
    logs = await quietly(() => api(`${where}/logs?limit=${PAGE}&after=${newest}`));
    if (!logs) return;
    logs.events.slice(-LOGGED).forEach(logged);
  } while (logs.next !== null);
  if (!byId("log").querySelector("[data-id]")) byId("log").replaceChildren(el("li", {}, "nothing yet"));
}

function show(next) {
  study = next;
  showSummary(study, name);
  if (told) showRunning(told, study, name);
}

const refreshStudy = steady(async () => show(await api(where)), { rest: 300, share: 2 });
const refreshTrials = steady(async () => { await readTrials(); figures.refresh(); refreshHeadline(); }, { rest: 600, share: 3 });
const refreshHeadline = steady(() => showHeadline(study, where), { rest: 1500, share: 4 });

function progressed(news) {
  const changed = JSON.stringify(news.trials) !== JSON.stringify(study.trials) || news.state !== study.state;
  told = news;
  show({ ...study, state: news.state, cancel_requested: news.cancel_requested, trials: news.trials });
  if (changed) { refreshStudy(); refreshTrials(); }
  if (Object.keys(news.points).length) curves.refresh();
}

function readAgain() {
  for (const work of [refreshStudy, refreshTrials, readLog, curves.refresh]) work();
}

async function act(what, done) {
  const button = byId(what);
  button.disabled = true;
  const next = await attempt(() => api(`${where}/${what}`, { method: "POST" }));
  button.disabled = false;
  if (!next) return;
  show({ ...study, ...next });
  byId("state").focus();
  byId("said").textContent = done;
  refreshHeadline();
}

byId("cancel").addEventListener("click", () => act("cancel", "The study is being cancelled."));
byId("resume").addEventListener("click", () => act("resume", "The study is queued again."));
byId("compare").addEventListener("click", () => location.assign(`${home}/studies/${path(name)}/compare?trials=${[...table.selected].join(",")}`));
byId("clear").addEventListener("click", () => {
  for (const id of FILTERS) byId(id).value = "";
  parallel.brushes = {};
  filter();
});
for (const id of FILTERS) byId(id).addEventListener("input", filter);

try {
  const asked = api(`${where}/columns`);
  asked.catch(() => {});      // the request for the study itself reports the error
  show(await api(where));
  figures = new StudyFigures({ where, open, fitted: () => answered(study) > 0 });
  curves = new StudyCurves({ name, open, rows: () => table.rows, data: () => data, study: () => study, selected: () => table.selected });
  sayWhatIsKnown(study);
  await readTrials(asked);
  refreshHeadline();      // not awaited, because a fit may take the server several seconds
  await readLog();
  // while the study is queued, workers may come and go without an event
  setInterval(() => { if (study.state === "queued" && !document.hidden) refreshHeadline(); }, 3000);
  follow(name, { log: (event) => { logged(event); refreshStudy(); }, progress: progressed }, readAgain);
} catch (error) {
  failure(byId("headline"), error);
}
