// The table of studies: state, progress, best so far, what was spent; it follows what happens.
import { api, byId, debounce, el, failure, follow, number, path, state, target, when } from "./app.js";

const LIMIT = 100;
const place = byId("studies");
const rows = new Map();
let next = null;

function query(after) {
  const given = new URLSearchParams({ limit: LIMIT });
  for (const name of ["search", "state", "owner"]) if (byId(name).value) given.set(name, byId(name).value);
  if (after) given.set("after", after);
  return given;
}

function ended(study) {
  const trials = study.trials;
  return ["reached", "censored", "diverged", "pruned", "failed"].reduce((sum, name) => sum + (trials[name] ?? 0), 0);
}

function bar(study) {
  const done = ended(study);
  const all = study.budget_trials ?? Object.values(study.trials).reduce((sum, count) => sum + count, 0);
  const share = all ? Math.min(100, 100 * done / all) : 0;
  return el("div", {}, el("div.small", {}, `${number(done)}${all ? ` of ${number(all)}` : ""} trials`),
    el("div.progress", { "aria-hidden": "true" }, el("span", { style: `width: ${share}%` })));
}

function cells(study) {
  return [
    el("td.wrap", {}, el("a", { href: `/studies/${path(study.name)}` }, study.name),
      el("div.small.muted", {}, `${study.workload}, ${target(study.target)}`)),
    el("td", {}, state(study.cancel_requested && study.state === "running" ? "running" : study.state),
      study.cancel_requested && study.state === "running" ? el("div.small.muted", {}, "cancelling…") : null),
    el("td", {}, bar(study)),
    el("td.number", {}, study.best_epochs_to_target === null ? "–" : `${number(study.best_epochs_to_target)} epochs`),
    el("td.number.optional", {}, number(study.samples)),
    el("td.optional", {}, study.owner || "–"),
    el("td.optional", {}, when(study.updated_at)),
  ];
}

function show(studies, { append = false } = {}) {
  if (!append) rows.clear();
  for (const study of studies) rows.set(study.name, el("tr", {}, cells(study)));
  byId("count").textContent = `${number(rows.size)}${next ? "+" : ""} ${rows.size === 1 ? "study" : "studies"}`;
  byId("more").hidden = next === null;
  if (rows.size === 0) {
    const filtered = query().size > 1;
    place.replaceChildren(el("div.empty", {}, el("h2", {}, filtered ? "No study matches" : "No study yet"),
      el("p", {}, filtered ? "Take a filter away, or look for another name."
        : "A study sweeps settings at small batch sizes and forecasts those of the full machine."),
      filtered ? null : el("a.button.main", { href: "/submit" }, "Submit the first study")));
    return;
  }
  place.replaceChildren(el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Table of studies" },
    el("table", {}, el("thead", {}, el("tr", {},
      ...["Study", "State", "Progress"].map((name) => el("th", { scope: "col" }, name)),
      el("th.number", { scope: "col" }, "Best so far"), el("th.number.optional", { scope: "col" }, "Samples spent"),
      el("th.optional", { scope: "col" }, "Owner"), el("th.optional", { scope: "col" }, "Last change"))),
    el("tbody", {}, ...rows.values()))));
}

async function read({ after } = {}) {
  try {
    const found = await api(`studies?${query(after)}`);
    next = found.next;
    show(found.studies, { append: Boolean(after) });
  } catch (error) {
    failure(place, error);
  }
}

const again = debounce(() => read(), 150);
byId("filters").addEventListener("input", again);
byId("filters").addEventListener("submit", (event) => { event.preventDefault(); read(); });
byId("more").addEventListener("click", () => read({ after: next }));

const refresh = debounce(() => read(), 300);
follow(null, {
  log: refresh,
  progress: async (told) => {
    const row = rows.get(told.study);
    if (!row) { refresh(); return; }
    const study = await api(`studies/${path(told.study)}`).catch(() => null);
    if (study) row.replaceChildren(...cells(study));
  },
});
read();
