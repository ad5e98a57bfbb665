// Two to eight trials side by side: their curves in one picture each, and what differs between them first.
import { api, byId, duration, el, failure, number, path, plot, state, words } from "./app.js";
import { MARGIN, line, look, readCurves, targetLine } from "./curves.js";

const { study: name } = document.body.dataset;
const where = `studies/${path(name)}`;
byId("up").textContent = name;
byId("up").href = `/studies/${path(name)}`;

function asked(text) {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean).map(Number))];
}

const shownValue = (value) => value === null ? "–" : typeof value === "number" ? number(value, 5)
  : Array.isArray(value) ? value.join(", ") || "–" : String(value);

function table(study, trials) {
  const facts = [["State", (trial) => state(trial.state)], ["Global batch size", (trial) => number(trial.global_batch_size)],
    ["Epochs to target", (trial) => number(trial.epochs_to_target)], ["Epochs trained", (trial) => number(trial.epochs)],
    [`Best ${study.target.metric}`, (trial) => number(trial.best_metric, 4)], ["Time", (trial) => duration(trial.seconds)],
    ["Seed", (trial) => number(trial.seed)]];
  const names = Object.keys(trials[0].settings);
  const differs = (setting) => new Set(trials.map((trial) => JSON.stringify(trial.settings[setting]))).size > 1;
  names.sort((a, b) => differs(b) - differs(a));
  return el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), ...trials.map((trial, index) => el("th", { scope: "col" },
      el("span", { style: `color: ${look(index).color}`, "aria-hidden": "true" }, "━ "),
      el("a", { href: `/studies/${path(name)}/trials/${trial.number}` }, `trial ${trial.number}`))))),
    el("tbody", {}, ...facts.map(([term, fact]) => el("tr", {}, el("th", { scope: "row" }, term), ...trials.map((trial) => el("td", {}, fact(trial))))),
      ...names.map((setting) => el(differs(setting) ? "tr.differs" : "tr", {}, el("th", { scope: "row" }, words(setting)),
        ...trials.map((trial) => el("td", {}, shownValue(trial.settings[setting])))))));
}

async function compare(numbers) {
  if (numbers.length < 2 || numbers.length > 8 || numbers.some((each) => !Number.isInteger(each) || each < 0)) {
    byId("shown").hidden = true;
    byId("said").replaceChildren(el("div.notice", {}, "Two to eight trials can be compared; give their numbers, such as 0, 7, 12. ",
      el("a", { href: `/studies/${path(name)}` }, "The study's table has them all.")));
    return;
  }
  try {
    const [study, ...trials] = await Promise.all([api(where), ...numbers.map((each) => api(`${where}/trials/${each}`))]);
    const curves = await readCurves(name, numbers);
    byId("said").replaceChildren();
    byId("shown").hidden = false;
    byId("facts").replaceChildren(table(study, trials));
    const draw = (place, column, title, more = {}) => plot(byId(place), {
      data: numbers.map((each, index) => line(curves.get(each), column, `trial ${each}`, { index, ...more.trace })),
      layout: { height: 320, margin: MARGIN, showlegend: true, legend: { orientation: "h", y: 1.12 },
        xaxis: { title: { text: "epochs" } }, yaxis: { title: { text: title } }, ...more.layout } });
    await draw("metric", "metric", study.target.metric, { layout: { height: 380, ...targetLine(study.target) } });
    await draw("rate", "learning_rate", "learning rate");
    await draw("batch", "global_batch_size", "samples", { trace: {} });
  } catch (error) {
    byId("shown").hidden = true;
    failure(byId("said"), error);
  }
}

function go(numbers) {
  history.replaceState(null, "", `?trials=${numbers.join(",")}`);
  byId("numbers").value = numbers.join(", ");
  return compare(numbers);
}

byId("choose").addEventListener("submit", (event) => { event.preventDefault(); go(asked(byId("numbers").value)); });
go(asked(new URLSearchParams(location.search).get("trials") ?? ""));
