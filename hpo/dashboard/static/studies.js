// The table of studies, updated live: state, progress, best result and samples spent.
import { api, attempt, best, byId, debounce, el, failure, follow, home, number, path, state, steady, target, when } from "./app.js";

const LIMIT = 100;
const MOST = 1000;
const FILTERS = ["search", "state", "owner"];
const place = byId("studies");
const rows = new Map();
let next = null;

function query(after, limit = LIMIT) {
  const given = new URLSearchParams({ limit });
  for (const name of FILTERS) if (byId(name).value) given.set(name, byId(name).value);
  if (after) given.set("after", after);
  return given;
}

function ended(study) {
  const trials = study.trials;
  return ["reached", "censored", "diverged", "pruned", "failed"].reduce((sum, name) => sum + (trials[name] ?? 0), 0);
}

function bar(study) {
  const done = ended(study);
  const all = Math.max(done, study.budget_trials ?? 0) || Object.values(study.trials).reduce((sum, count) => sum + count, 0);
  const share = all ? Math.min(100, 100 * done / all) : 0;
  return el("div", {}, el("div.small", {}, `${number(done)}${all > done || study.budget_trials ? ` of ${number(all)}` : ""} trials`),
    el("div.progress", { "aria-hidden": "true" }, el("span", { style: `width: ${share}%` })));
}

/** The cells of a study that change: all except the link, which must keep the keyboard focus. */
function cells(study) {
  const cancelling = study.cancel_requested && study.state === "running";
  return [
    el("td", {}, state(study.state), cancelling ? el("div.small.muted", {}, "cancelling…") : null),
    el("td", {}, bar(study)),
    el("td.number", {}, best(study) ?? "–"),
    el("td.number.optional", {}, number(study.samples)),
    el("td.optional", {}, study.owner || "–"),
    el("td.optional", {}, when(study.updated_at)),
  ];
}

function rowOf(study) {
  const row = rows.get(study.name) ?? { element: el("tr"), link: el("td.wrap", {}, el("a", { href: `${home}/studies/${path(study.name)}` }, study.name),
    el("div.small.muted", {}, `${study.workload}, ${target(study.target)}`)) };
  while (row.element.children.length > 1) row.element.lastElementChild.remove();
  if (!row.element.firstElementChild) row.element.append(row.link);
  row.element.append(...cells(study));
  row.study = study;
  return row;
}

function show(studies, { append = false } = {}) {
  const kept = new Map(append ? [...rows] : []);
  for (const study of studies) kept.set(study.name, rowOf(study));
  rows.clear();
  for (const [name, row] of kept) rows.set(name, row);
  byId("count").textContent = `${number(rows.size)}${next ? "+" : ""} ${rows.size === 1 ? "study" : "studies"}`;
  byId("more").hidden = next === null;
  if (rows.size === 0) {
    const filtered = FILTERS.some((name) => byId(name).value);
    place.replaceChildren(el("div.empty", {}, el("h2", {}, filtered ? "No study matches" : "No study yet"),
      el("p", {}, filtered ? "Remove a filter, or search for another name."
        : "A study sweeps settings at small batch sizes and forecasts the best settings for the full machine."),
      filtered ? null : el("a.button.main", { href: `${home}/submit` }, "Submit the first study")));
    return;
  }
  const elements = [...rows.values()].map((row) => row.element);
  const body = place.querySelector("tbody");
  if (body && elements.length === body.children.length && elements.every((element, at) => element === body.children[at])) return;
  place.replaceChildren(el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Table of studies" },
    el("table", {}, el("thead", {}, el("tr", {},
      ...["Study", "State", "Progress"].map((name) => el("th", { scope: "col" }, name)),
      el("th.number", { scope: "col" }, "Best so far"), el("th.number.optional", { scope: "col" }, "Samples spent"),
      el("th.optional", { scope: "col" }, "Owner"), el("th.optional", { scope: "col" }, "Last change"))),
    el("tbody", {}, ...elements))));
}

async function read({ after, limit } = {}) {
  const found = await api(`studies?${query(after, limit)}`);
  next = found.next;
  show(found.studies, { append: Boolean(after) });
}

// reread as many studies as are shown, so that none disappears
const refresh = steady(() => read({ limit: Math.min(MOST, Math.max(LIMIT, rows.size)) }), { rest: 1500, share: 4 });
const search = debounce(() => attempt(() => read()), 150);
byId("filters").addEventListener("input", search);
byId("filters").addEventListener("submit", (event) => { event.preventDefault(); search(); });
byId("more").addEventListener("click", () => attempt(() => read({ after: next })));

try {
  await read();
} catch (error) {
  failure(place, error);
}
follow(null, {
  log: refresh,
  progress: (told) => {
    const row = rows.get(told.study);
    if (row) rowOf({ ...row.study, state: told.state, trials: told.trials, cancel_requested: told.cancel_requested });
    if (!row || told.changed.length) refresh();
  },
}, refresh);
