// The accuracy of forecasts: coverage in words, figures of predicted against observed values, and a table of launched plans.
import { api, attempt, byId, duration, el, failure, home, interval, number, path, words } from "./app.js";
import { plot } from "./plots.js";

const held = (rows, name) => rows.filter((row) => row[name] === true).length;
const known = (rows, name) => rows.filter((row) => row[name] !== null && row[name] !== undefined).length;

function verdict(rows, forecasts) {
  if (!forecasts.length) {
    return el("div.empty", {}, el("h2", {}, "No forecast has been launched yet"),
      el("p", {}, "Launch a plan with hpo launch, or store the report of a run with hpo record; the outcome then appears here."));
  }
  const told = known(forecasts, "inside");
  const hours = known(forecasts, "inside_seconds");
  const share = told ? held(forecasts, "inside") / told : 0;
  const word = told < 3 ? "too few to judge" : share >= 0.75 ? "as expected" : "less often than expected";
  return el("div", {}, el("p.forecast", {}, `${held(forecasts, "inside")} of ${told} intervals of epochs held: ${word}.`),
    hours ? el("p", {}, `${held(forecasts, "inside_seconds")} of ${hours} intervals of time held.`) : null);
}

function table(rows) {
  const ends = (row, name) => row[`predicted_${name}_median`] === null ? null : { median: row[`predicted_${name}_median`],
    low: row[`predicted_${name}_low`], high: row[`predicted_${name}_high`] };
  const interlined = (text) => {      // an interval wraps below its median if both do not fit on one line
    const [median, range] = text.split(" (");
    return el("td.interlined", {}, median, range ? " " : "", range ? el("span", {}, `(${range}`) : "");
  };
  const spent = (row) => { const of = ends(row, "seconds"); return of ? `${duration(of.median)} (${duration(of.low)} to ${duration(of.high)})` : "–"; };
  return el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Table of launched plans" }, el("table.dense", {},
    el("thead", {}, el("tr", {}, ...["Study", "Plan", "Machine", "Batch", "Predicted epochs", "Observed", "Held",
      "Predicted time", "Observed time", "Trust"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {},
      el("td.wrap", {}, el("a", { href: `${home}/studies/${path(row.study)}` }, row.study)), el("td", {}, words(row.kind)),
      el("td", {}, row.machine), el("td.number", {}, number(row.global_batch_size)),
      interlined(interval(ends(row, "epochs"))), el("td", {}, number(row.observed_epochs_mean)),
      el("td", {}, row.inside === null ? (row.predicted_epochs_median === null ? "–" : "unknown") : row.inside ? "✓ yes" : "✕ no"),
      interlined(spent(row)), el("td", {}, duration(row.observed_seconds_mean)), el("td", {}, row.trust ?? "–"))))));
}

try {
  const { plans } = await api("calibration");
  const forecasts = plans.filter((row) => row.predicted_epochs_median !== null);
  byId("verdict").replaceChildren(verdict(plans, forecasts));
  if (plans.length) {
    byId("plans").hidden = false;
    byId("plans").replaceChildren(table(plans));
  }
  const pictures = [["figure", "calibration", "observed_epochs_mean"], ["times", "calibration_of_time", "observed_seconds_mean"]]
    .filter(([, , measured]) => forecasts.some((row) => row[measured] !== null));
  // show all cards first, because a figure takes the available width
  for (const [id] of pictures) byId(`${id}_card`).hidden = false;
  for (const [id, figure] of pictures) {
    await attempt(async () => plot(byId(id), await api(`figures/${figure}`)));
  }
} catch (error) {
  failure(byId("verdict"), error);
}
