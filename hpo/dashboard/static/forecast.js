// Shows the forecast at any batch size and the plan for any machine, redrawn while the sliders move.
import { api, attempt, byId, debounce, duration, el, failure, home, interval, number, path, predicted, toast, words } from "./app.js";
import { plot, whenClicked } from "./plots.js";
import { settingsTables, shown } from "./settings.js";

const { study: name } = document.body.dataset;
const where = `studies/${path(name)}`;
const slider = { batches: [], nodes: [] };
let study, machines;
byId("up").textContent = name;
byId("up").href = `${home}/studies/${path(name)}`;

const MOST_BATCH = 1e8;

/** A whole number from 1 to ``most`` in the page's address, as a list; empty if there is none. */
function addressed(name, most) {
  const given = Number(new URLSearchParams(location.search).get(name));
  return Number.isInteger(given) && given >= 1 && given <= most ? [given] : [];
}

/** Batch sizes from the first rung to well beyond full scale: powers of two, the study's own batch sizes and ``more``. */
function batches(more) {
  const full = study.full_scale?.global_batch_size ?? 8 * study.ladder.at(-1);
  const last = Math.min(Math.max(full, study.ladder.at(-1)) * 8, MOST_BATCH);
  const found = new Set([...study.ladder, full, ...more]);
  for (let size = study.ladder[0]; size <= last; size *= 2) found.add(size);
  return [...found].sort((a, b) => a - b);
}

function nodeCounts(machine, more = []) {
  const found = new Set([machine.nodes, ...more]);
  for (let count = 1; count < machine.nodes; count *= 2) found.add(count);
  return [...found].sort((a, b) => a - b);
}

const chosenMachine = () => machines.find((machine) => machine.name === byId("machine").value) ?? machines[0];
const value = (id, values) => values[Math.min(Number(byId(id).value), values.length - 1)];

function setSlider(id, values, wanted) {
  slider[id === "batch" ? "batches" : "nodes"] = values;
  byId(id).max = values.length - 1;
  const nearest = values.reduce((best, each, index) => Math.abs(Math.log(each / wanted)) < Math.abs(Math.log(values[best] / wanted)) ? index : best, 0);
  byId(id).value = nearest;
  label();
}

function label() {
  const batch = value("batch", slider.batches);
  const nodes = value("nodes", slider.nodes);
  byId("batch_shown").textContent = number(batch);
  byId("nodes_shown").textContent = number(nodes);
  byId("batch").setAttribute("aria-valuetext", `${number(batch)} samples`);
  byId("nodes").setAttribute("aria-valuetext", `${number(nodes)} nodes`);
}

function query() {
  const given = { at: value("batch", slider.batches), machine: chosenMachine().name, nodes: value("nodes", slider.nodes),
    minimise: byId("minimise").value };
  if (Number(byId("slot").value) > 0) given.slot_hours = byId("slot").value;
  if (byId("cost").value) given.cost = byId("cost").value;
  return given;
}

const hours = (ends) => ends ? `${duration(ends.median)} (${duration(ends.low)} to ${duration(ends.high)})` : "unknown";

function sentence({ forecast, plan, refused }) {
  return [el("p.forecast", {}, `At global batch size ${number(forecast.global_batch_size)}: `,
    predicted(forecast, "the target"),
    plan?.seconds_to_target ? `, in ${hours(plan.seconds_to_target)}.` : "."),
  el("p", {}, "Trust: ", el(`span.trust.${forecast.trust}`, {}, forecast.trust), `. ${forecast.reason}`),
  refused ? el("div.notice.bad", { role: "alert" }, refused) : null,
  ...(plan?.details?.notes ?? []).map((note) => el("p.muted.small", {}, note))].filter(Boolean);
}

const tile = (title, text, small) => el("div.tile", {}, el("div.small.muted", {}, title), el("div.value", {}, text), small ? el("div.small.muted", {}, small) : null);
const percent = (share) => share === null || share === undefined ? "–" : `${Math.round(100 * share)} %`;

function tiles({ forecast, plan }) {
  const ends = plan?.accelerator_hours;
  const goal = forecast.best ?? forecast.epochs_to_target;
  return [tile(forecast.best ? `Best ${forecast.best.metric}` : "Epochs to target", number(goal.median), `${number(goal.low)} to ${number(goal.high)}`),
    ...(plan ? [tile(forecast.best ? "Time of the run" : "Time to target", duration(plan.seconds_to_target?.median), plan.seconds_to_target ? `${duration(plan.seconds_to_target.low)} to ${duration(plan.seconds_to_target.high)}` : ""),
      tile("Accelerator hours", number(ends?.median), ends ? `${number(ends.low)} to ${number(ends.high)}` : ""),
      tile("Chance within the slot", percent(plan.chance_in_slot), plan.chance_in_slot === null ? "enter a slot" : ""),
      tile("Placement", `${number(plan.nodes)} × ${number(plan.ranks_per_node)}`, `${number(plan.local_batch_size)} samples per rank${plan.accumulation_steps > 1 ? `, ${plan.accumulation_steps} micro batches` : ""}`),
      tile("Limited by", plan.limited_by || "–", plan.energy_kwh ? `${number(plan.energy_kwh.median)} kWh` : "")] : [])];
}

function list(rows, text, otherwise) {
  return rows?.length ? el("ul", {}, ...rows.map((row) => el("li", {}, text(row)))) : el("p.muted", {}, otherwise);
}

const factor = (of) => of > 1.005 ? `${number(of)} times` : of < 0.995 ? `${number(of)} times` : "the same";

function sensitivityText(row) {
  return `${row.what}: ${factor(row.time)} the time, ${factor(row.accelerator_hours)} the accelerator hours`.replaceAll("the same the", "the same");
}

function pilotRunText(row) {
  return `${number(row.steps)} updates on ${number(row.nodes)} ${row.nodes === 1 ? "node" : "nodes"} at batch ${number(row.global_batch_size)} check ${words(row.checks)}: `
    + `expect ${words(row.quantity)} ${interval(row.expected)}; ${row.overturned_by} would overturn the plan`;
}

function settings(forecast) {
  const { names } = study.search;
  const moved = Object.keys(forecast.settings);
  return settingsTables({ heads: () => ["Value", "90 % interval"], names: Object.keys(forecast.complete_settings), first: [...moved, ...names],
    marked: (setting) => moved.includes(setting), cells: (setting) => [shown(forecast.complete_settings[setting], 6),
      moved.includes(setting) ? `${number(forecast.settings[setting].low)} to ${number(forecast.settings[setting].high)}` : names.includes(setting) ? "the best of all rungs" : ""] });
}

async function draw(found) {
  byId("said").replaceChildren(...sentence(found));
  byId("details").classList.remove("stale");
  byId("details").hidden = false;
  byId("tiles").replaceChildren(...tiles(found));
  byId("prospects").replaceChildren(...found.prospects.flatMap(([title, text]) => [el("dt", {}, title), el("dd", {}, text)]));
  byId("sensitivity").replaceChildren(list(found.plan?.details?.sensitivity, sensitivityText, found.plan ? "The machine has only one node." : "There is no plan to vary."));
  byId("pilot_runs").replaceChildren(list(found.plan?.details?.pilot_runs, pilotRunText, found.plan ? "This plan has no open question that a short run could answer." : "There is no plan to test."));
  byId("settings").replaceChildren(...settings(found.forecast));
  byId("keep").disabled = !found.plan;
  byId("pictures").hidden = !found.figures;
  if (!found.figures) return;
  await Promise.all(["front", "tradeoffs", "shares"].map((key) => plot(byId(key), found.figures[key])));
  for (const key of ["front", "tradeoffs"]) whenClicked(byId(key), take);
}

/** Use the nodes and batch size of the plan that was clicked. */
function take({ customdata: [nodes, batch] }) {
  setSlider("nodes", [...new Set([...slider.nodes, nodes])].sort((a, b) => a - b), nodes);
  setSlider("batch", [...new Set([...slider.batches, batch])].sort((a, b) => a - b), batch);
  ask();
}

let asking;
async function ask() {
  asking?.abort();
  asking = new AbortController();
  byId("details").classList.add("stale");
  const given = new URLSearchParams(query());
  history.replaceState(null, "", `?${given}`);
  try {
    await draw(await api(`${where}/preview?${given}`, { signal: asking.signal }));
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("details").hidden = true;
    failure(byId("said"), error);
  }
}

async function plans() {
  const found = (await api(`${where}/plans`)).plans;
  byId("plans").replaceChildren(found.length ? el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Saved plans" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["Plan", "Machine", "Nodes", "Batch", "Epochs", "Time", "Observed", "Download"].map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, ...found.toReversed().map(({ plan, observed_epochs_to_target: observed, outcomes }) => el("tr", {},
      el("td", {}, `${plan.id}, ${words(plan.kind)}`), el("td", {}, plan.machine), el("td.number", {}, number(plan.nodes)),
      el("td.number", {}, number(plan.global_batch_size)), el("td", {}, interval(plan.epochs_to_target)), el("td", {}, hours(plan.seconds_to_target)),
      el("td", {}, outcomes.length ? `${observed === null ? "missed" : number(observed)} (${outcomes.length} run${outcomes.length > 1 ? "s" : ""})` : "not launched"),
      el("td", {}, ...["script", "job", "settings"].flatMap((part) => [el("a", { href: `${home}/api/v1/plans/${plan.id}/${part}`, download: true }, part), " "]))))))) : el("p.empty", {}, "No plan has been saved yet."));
}

async function keep() {
  const { at, cost, slot_hours: slot, ...given } = query();
  const run = await attempt(() => api(`${where}/plans`, { method: "POST", body: { ...given, global_batch_size: at,
    ...(slot ? { slot_hours: Number(slot) } : {}), ...(cost ? { cost } : {}) } }));
  if (!run) return;
  toast(`Plan ${run.plan.id} has been saved. You can download its script, job and settings below.`, "good");
  await attempt(plans);
}

const redraw = debounce(ask, 120);
byId("asked").addEventListener("input", () => { label(); redraw(); });
byId("asked").addEventListener("submit", (event) => event.preventDefault());
byId("machine").addEventListener("change", () => setSlider("nodes", nodeCounts(chosenMachine()), chosenMachine().nodes));
byId("keep").addEventListener("click", keep);

try {
  [study, { machines }] = await Promise.all([api(where), api("machines")]);
  const before = new URLSearchParams(location.search);
  byId("machine").replaceChildren(...machines.map((machine) => el("option", { value: machine.name }, machine.title ?? machine.name)));
  byId("machine").value = [before.get("machine"), study.full_scale?.machine, "local"].find((each) => machines.some(({ name: known }) => known === each));
  for (const id of ["minimise", "cost"]) if ([...byId(id).options].some((each) => each.value === before.get(id))) byId(id).value = before.get(id);
  if (before.get("slot_hours")) byId("slot").value = before.get("slot_hours");
  const machine = chosenMachine();
  const own = study.full_scale?.machine === machine.name ? study.full_scale.nodes : null;
  const [nodes] = [...addressed("nodes", machine.nodes), own ?? machine.nodes];
  setSlider("nodes", nodeCounts(machine, [nodes]), nodes);
  const [batch] = [...addressed("at", MOST_BATCH), study.full_scale?.global_batch_size ?? study.ladder.at(-1)];
  setSlider("batch", batches([batch]), batch);
  study.search = await api(`${where}/tuned`);
  await Promise.all([ask(), attempt(plans)]);
} catch (error) {
  failure(byId("said"), error);
}
