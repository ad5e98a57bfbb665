// Compares two to eight trials side by side: a figure for each quantity, and a table with the differing settings first.
import { api, byId, duration, el, failure, home, number, path, state } from "./app.js";
import { MARGIN, line, look, metricAxis, readCurves, targetLine } from "./curves.js";
import { plot, scale } from "./plots.js";
import { settingsTables, shown } from "./settings.js";

const { study: name } = document.body.dataset;
const where = `studies/${path(name)}`;
byId("up").textContent = name;
byId("up").href = `${home}/studies/${path(name)}`;

function asked(text) {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean).map(Number))];
}

function tables(study, trials, tuned) {
  const facts = [["State", (trial) => state(trial.state)], ["Global batch size", (trial) => number(trial.global_batch_size)],
    ["Epochs to target", (trial) => number(trial.epochs_to_target)], ["Epochs trained", (trial) => number(trial.epochs)],
    [`Best ${study.target.metric}`, (trial) => number(trial.best_metric, 4)], ["Time", (trial) => duration(trial.seconds)],
    ["Seed", (trial) => number(trial.seed)]];
  const names = Object.keys(trials[0].settings);
  const differs = (setting) => new Set(trials.map((trial) => JSON.stringify(trial.settings[setting]))).size > 1;
  const heads = () => trials.map((trial, index) => [el("span", { style: `color: ${look(index).color}`, "aria-hidden": "true" }, "━ "),
    el("a", { href: `${home}/studies/${path(name)}/trials/${trial.number}` }, `trial ${trial.number}`)]);
  const rows = facts.map(([term, fact]) => el("tr", {}, el("th", { scope: "row" }, term), ...trials.map((trial) => el("td", {}, fact(trial)))));
  return settingsTables({ heads, rows, names, first: [...names.filter(differs), ...tuned], marked: differs,
    cells: (setting) => trials.map((trial) => shown(trial.settings[setting])) });
}

async function compare(numbers) {
  if (numbers.length < 2 || numbers.length > 8 || numbers.some((each) => !Number.isInteger(each) || each < 0)) {
    byId("shown").hidden = true;
    byId("said").replaceChildren(el("div.notice", {}, "Enter the numbers of two to eight trials to compare, such as 0, 7, 12. ",
      el("a", { href: `${home}/studies/${path(name)}` }, "The study's table lists all trials.")));
    return;
  }
  try {
    const [study, { names: tuned }, ...trials] = await Promise.all([api(where), api(`${where}/tuned`), ...numbers.map((each) => api(`${where}/trials/${each}`))]);
    const curves = await readCurves(name, numbers);
    byId("said").replaceChildren();
    byId("shown").hidden = false;
    byId("facts").replaceChildren(...tables(study, trials, tuned));
    const draw = (place, column, title, more = {}) => plot(byId(place), {
      data: numbers.map((each, index) => line(curves.get(each), column, `trial ${each}`, { index, ...more.trace })),
      layout: { height: 300, margin: { ...MARGIN, t: 34 }, showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
        xaxis: { title: { text: "epochs" } }, yaxis: { title: { text: title } }, ...more.layout } });
    const axis = metricAxis(scale, numbers.flatMap((each) => curves.get(each).metric), study.target);
    await draw("metric", "metric", "", { layout: { height: 380, yaxis: axis, ...targetLine(study.target, axis) } });
    await draw("rate", "learning_rate", "learning rate");
    await draw("batch", "global_batch_size", "samples");
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
