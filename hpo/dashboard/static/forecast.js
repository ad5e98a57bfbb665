// The forecast at any batch size and the plan for any machine, redrawn while the sliders move.
import { api, attempt, byId, debounce, duration, el, failure, interval, number, path, plot, toast, words } from "./app.js";
import { MARGIN } from "./curves.js";

const { study: name } = document.body.dataset;
const where = `studies/${path(name)}`;
const slider = { batches: [], nodes: [] };
let study, machines, shown;
byId("up").textContent = name;
byId("up").href = `/studies/${path(name)}`;

/** Batch sizes from the first rung to well beyond the full scale: powers of two, and the study's own. */
function batches() {
  const full = study.full_scale?.global_batch_size ?? 8 * study.ladder.at(-1);
  const last = Math.max(full, study.ladder.at(-1)) * 8;
  const found = new Set([...study.ladder, full]);
  for (let size = study.ladder[0]; size <= last; size *= 2) found.add(size);
  return [...found].sort((a, b) => a - b);
}

function nodeCounts(machine) {
  const found = new Set([machine.nodes]);
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

const hours = (ends) => ends ? `${duration(ends.median)} (${duration(ends.low)} to ${duration(ends.high)})` : "not known";

function sentence({ forecast, plan, refused }) {
  return [el("p.forecast", {}, `At global batch size ${number(forecast.global_batch_size)}: `,
    `${number(forecast.epochs_to_target.median)} epochs to the target (90 % interval ${number(forecast.epochs_to_target.low)} to ${number(forecast.epochs_to_target.high)})`,
    plan?.seconds_to_target ? `, in ${hours(plan.seconds_to_target)}.` : "."),
  el("p", {}, "Trust: ", el(`span.trust.${forecast.trust}`, {}, forecast.trust), `. ${forecast.reason}`),
  refused ? el("div.notice.bad", { role: "alert" }, refused) : null,
  ...(plan?.details?.notes ?? []).map((note) => el("p.muted.small", {}, note))].filter(Boolean);
}

const tile = (title, text, small) => el("div.tile", {}, el("div.small.muted", {}, title), el("div.value", {}, text), small ? el("div.small.muted", {}, small) : null);
const percent = (share) => share === null || share === undefined ? "–" : `${Math.round(100 * share)} %`;

function tiles({ forecast, plan }) {
  const ends = plan?.accelerator_hours;
  return [tile("Epochs to target", number(forecast.epochs_to_target.median), `${number(forecast.epochs_to_target.low)} to ${number(forecast.epochs_to_target.high)}`),
    ...(plan ? [tile("Time to target", duration(plan.seconds_to_target?.median), plan.seconds_to_target ? `${duration(plan.seconds_to_target.low)} to ${duration(plan.seconds_to_target.high)}` : ""),
      tile("Accelerator hours", number(ends?.median), ends ? `${number(ends.low)} to ${number(ends.high)}` : ""),
      tile("Chance within the slot", percent(plan.chance_in_slot), plan.chance_in_slot === null ? "give a slot" : ""),
      tile("Placement", `${number(plan.nodes)} × ${number(plan.ranks_per_node)}`, `${number(plan.local_batch_size)} samples a rank${plan.accumulation_steps > 1 ? `, ${plan.accumulation_steps} micro batches` : ""}`),
      tile("Limited by", plan.limited_by || "–", plan.energy_kwh ? `${number(plan.energy_kwh.median)} kWh` : "")] : [])];
}

function drawFront(plan) {
  const rows = plan?.details?.front ?? [];
  const of = (row) => row.seconds_to_target;
  return plot(byId("front"), { data: [{ type: "scatter", mode: "lines+markers", x: rows.map((row) => row.accelerator_hours),
    y: rows.map((row) => of(row).median / 3600), customdata: rows.map((row) => [row.nodes, row.global_batch_size]),
    error_y: { type: "data", symmetric: false, array: rows.map((row) => (of(row).high - of(row).median) / 3600),
      arrayminus: rows.map((row) => (of(row).median - of(row).low) / 3600), thickness: 1, color: "#8a949e" },
    marker: { size: rows.map((row) => row.chosen ? 14 : 9), symbol: rows.map((row) => row.chosen ? "star" : row.knee ? "diamond" : "circle"),
      color: rows.map((row) => row.chosen ? "#AA3377" : "#4477AA") }, line: { color: "#4477AA", width: 1.5 },
    hovertemplate: "%{customdata[0]} nodes, batch %{customdata[1]}<br>%{x:.3g} accelerator hours, %{y:.3g} h<extra></extra>" }],
  layout: { height: 320, margin: MARGIN, showlegend: false, xaxis: { title: { text: "accelerator hours" }, type: "log" },
    yaxis: { title: { text: "hours to target" }, type: "log" } } });
}

function drawShares(plan) {
  const rows = Object.entries(plan?.details?.shares ?? {}).filter(([, share]) => share > 0.0005).sort((a, b) => a[1] - b[1]);
  return plot(byId("shares"), { data: [{ type: "bar", orientation: "h", x: rows.map(([, share]) => 100 * share), y: rows.map(([cause]) => words(cause)),
    marker: { color: "#4477AA" }, text: rows.map(([, share]) => percent(share)), textposition: "auto", hoverinfo: "skip" }],
  layout: { height: 320, margin: { ...MARGIN, l: 90 }, xaxis: { title: { text: "% of the time" }, rangemode: "tozero" }, yaxis: { automargin: true } } });
}

function list(rows, text, otherwise) {
  return rows?.length ? el("ul", {}, ...rows.map((row) => el("li", {}, text(row)))) : el("p.muted", {}, otherwise);
}

const factor = (of) => of > 1.005 ? `${number(of)} times` : of < 0.995 ? `only ${number(of)} times` : "the same";

function sensitivityText(row) {
  return `${row.what}: ${factor(row.time)} the time, ${factor(row.accelerator_hours)} the accelerator hours`.replaceAll("the same the", "the same");
}

function rehearsalText(row) {
  return `${number(row.steps)} updates on ${number(row.nodes)} nodes at batch ${number(row.global_batch_size)} check ${words(row.checks)}: `
    + `expect ${words(row.quantity)} ${interval(row.expected)}; ${row.overturned_by}`;
}

function settingsTable(forecast) {
  const moved = new Set(Object.keys(forecast.settings));
  const all = Object.entries(forecast.complete_settings);
  all.sort((a, b) => moved.has(b[0]) - moved.has(a[0]));
  return el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Setting"), el("th", { scope: "col" }, "Value"), el("th", { scope: "col" }, "90 % interval"))),
    el("tbody", {}, ...all.map(([setting, of]) => el(moved.has(setting) ? "tr.differs" : "tr", {}, el("th", { scope: "row" }, words(setting)),
      el("td", {}, typeof of === "number" ? number(of, 6) : of === null ? "–" : Array.isArray(of) ? of.join(", ") || "–" : String(of)),
      el("td", {}, moved.has(setting) ? `${number(forecast.settings[setting].low)} to ${number(forecast.settings[setting].high)}` : "")))));
}

async function draw(found) {
  shown = found;
  byId("said").replaceChildren(...sentence(found));
  byId("details").classList.remove("stale");
  byId("tiles").replaceChildren(...tiles(found));
  byId("sensitivity").replaceChildren(list(found.plan?.details?.sensitivity, sensitivityText, "Nothing is known of it without a plan."));
  byId("rehearsal").replaceChildren(list(found.plan?.details?.rehearsal, rehearsalText, "Nothing is left open that a short run could tell."));
  byId("settings").replaceChildren(settingsTable(found.forecast));
  byId("keep").disabled = !found.plan;
  await Promise.all([drawFront(found.plan), drawShares(found.plan)]);
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
    if (error.name !== "AbortError") failure(byId("said"), error);
  }
}

async function plans() {
  const found = (await api(`${where}/plans`)).plans;
  byId("plans").replaceChildren(found.length ? el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Plans kept" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["Plan", "Machine", "Nodes", "Batch", "Epochs", "Time", "Observed", "Take along"].map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, ...found.toReversed().map(({ plan, observed_epochs_to_target: observed, outcomes }) => el("tr", {},
      el("td", {}, `${plan.id}, ${words(plan.kind)}`), el("td", {}, plan.machine), el("td.number", {}, number(plan.nodes)),
      el("td.number", {}, number(plan.global_batch_size)), el("td", {}, interval(plan.epochs_to_target)), el("td", {}, hours(plan.seconds_to_target)),
      el("td", {}, outcomes.length ? `${observed === null ? "missed" : number(observed)} (${outcomes.length} run${outcomes.length > 1 ? "s" : ""})` : "not launched"),
      el("td", {}, ...["script", "job", "settings"].flatMap((part) => [el("a", { href: `/api/v1/plans/${plan.id}/${part}`, download: true }, part), " "]))))))) : el("p.empty", {}, "No plan was kept yet."));
}

async function keep() {
  const { at, cost, slot_hours: slot, ...given } = query();
  const run = await attempt(() => api(`${where}/plans`, { method: "POST", body: { ...given, global_batch_size: at,
    ...(slot ? { slot_hours: Number(slot) } : {}), ...(cost ? { cost } : {}) } }));
  if (!run) return;
  toast(`Plan ${run.plan.id} is kept: its script, job and settings can be taken along below.`, "good");
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
  byId("machine").value = before.get("machine") ?? (machines.some((each) => each.name === study.full_scale?.machine) ? study.full_scale.machine : "local");
  for (const id of ["minimise", "cost"]) if (before.get(id)) byId(id).value = before.get(id);
  if (before.get("slot_hours")) byId("slot").value = before.get("slot_hours");
  setSlider("nodes", nodeCounts(chosenMachine()), Number(before.get("nodes") ?? chosenMachine().nodes));
  setSlider("batch", batches(), Number(before.get("at") ?? study.full_scale?.global_batch_size ?? study.ladder.at(-1)));
  await Promise.all([ask(), attempt(plans)]);
  byId("front").on?.("plotly_click", ({ points: [point] }) => {
    const [nodes, batch] = point.customdata;
    setSlider("nodes", [...new Set([...slider.nodes, nodes])].sort((a, b) => a - b), nodes);
    setSlider("batch", [...new Set([...slider.batches, batch])].sort((a, b) => a - b), batch);
    ask();
  });
} catch (error) {
  failure(byId("said"), error);
}
