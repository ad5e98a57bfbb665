// The summary above a study's figures: its progress, and its forecast in a sentence or the next step.
import { answered, api, asksForBest, best, byId, el, home, number, path, predicted, quietly, state, target, words } from "./app.js";

const ENDED = ["reached", "censored", "diverged", "pruned", "failed"];
export const ended = (study) => ENDED.reduce((sum, each) => sum + (study.trials[each] ?? 0), 0);
export const atRest = (study) => ["finished", "failed", "cancelled", "interrupted"].includes(study.state);

/** The state and next step of a study without a forecast, so that its page is never empty. */
function advice(study) {
  const { trials } = study;
  const none = !answered(study);
  const only = (each) => ended(study) > 0 && (trials[each] ?? 0) === ended(study);
  if (study.state === "queued" && none) return ["The study is waiting for a worker.", "It starts as soon as a worker is free."];
  if (study.state === "failed") return ["The study failed.", study.message || "See \"What happened\" below; fix the cause, then resume the study."];
  if (only("diverged")) return ["Every trial diverged.", "Lower the range of learning rates, or allow a longer warmup. To change the search space, submit a study with another name."];
  if (only("failed")) return ["Every trial failed.", "The table of trials shows the reasons; fix the workload, then resume the study."];
  if (study.state === "cancelled" && none) return ["The study was cancelled.", "Its results are kept, and you can resume it."];
  if (study.state === "interrupted" && none) return ["The study was interrupted.", "If you resume it, it continues where it stopped."];
  if (!none) return null;
  if (atRest(study)) return asksForBest(study)
    ? ["No trial reached the end of its budget.", "Extend the search ranges to lower learning rates; submit the changed study under another name."]
    : ["No trial reached the target.", "Raise budget.epochs_per_trial, widen the search ranges, or set a target that can be reached; submit the changed study under another name."];
  return ["The study is running.", `A forecast is made as soon as some trials have reached the ${asksForBest(study) ? "end of their budget" : "target"}.`];
}

/** Say whether a worker is available for a queued study. */
async function waiting() {
  const found = await quietly(() => api("workers"));
  if (!found) return null;
  if (!found.workers.length) return el("p", {}, "There is no worker. Start a worker on the machine that should train: ", el("code", {}, "hpo worker --storage URL"), ", with the server's database.");
  const busy = found.workers.filter((worker) => worker.study_id !== null).length;
  return el("p", {}, busy === found.workers.length ? (busy === 1 ? "The only worker is busy with another study. " : `All ${number(busy)} workers are busy. `) : "A worker is free and will start the study within seconds. ", el("a", { href: `${home}/workers` }, "Workers"));
}

export function showSummary(study, name) {
  byId("about").textContent = [`${study.workload} to ${target(study.target)}`, `rungs ${study.ladder.map((batch) => number(batch)).join(", ")}`,
    study.full_scale ? `for ${number(study.full_scale.global_batch_size)}` : null, study.owner ? `of ${study.owner}` : null].filter(Boolean).join(" · ");
  byId("state").replaceChildren(state(study.state));
  if (study.cancel_requested && study.state === "running") byId("state").append(el("span.muted.small", {}, " cancelling…"));
  byId("cancel").hidden = atRest(study) || study.cancel_requested;
  byId("resume").hidden = !["failed", "cancelled", "interrupted"].includes(study.state);
  for (const id of ["forecast", "report"]) byId(id).hidden = !answered(study);
  byId("forecast").href = `${home}/studies/${path(name)}/forecast`;
  byId("report").href = `${home}/api/v1/studies/${path(name)}/report`;
  byId("spec").textContent = study.spec;
  const tile = (title, value, small) => el("div.tile", {}, el("div.small.muted", {}, title), el("div.value", {}, value), small ? el("div.small.muted", {}, small) : null);
  const count = (each) => study.trials[each] ?? 0;
  byId("tiles").replaceChildren(
    tile("Trials", study.budget_trials && study.budget_trials >= ended(study) ? `${number(ended(study))} of ${number(study.budget_trials)}` : number(ended(study)),
      count("running") ? `${number(count("running"))} running` : count("queued") ? `${number(count("queued"))} queued` : ""),
    tile(asksForBest(study) ? "Trained to the end" : "Reached the target", number(answered(study)), `${number(count("pruned"))} stopped early, ${number(count("diverged"))} diverged`),
    tile("Best so far", best(study) ?? "–"),
    tile("Spent", `${number(study.samples)} samples`, `${number(study.usage.accelerator_seconds / 3600)} accelerator hours`),
    tile("Worker", study.worker ?? "none", study.attempts > 1 ? `attempt ${study.attempts}` : ""));
}

/** The running trials, each with its newest point. */
export function showRunning(told, study, name) {
  const shown = told.newest.slice(0, 6).map((point) => el("li", {}, el("a", { href: `${home}/studies/${path(name)}/trials/${point.trial}` }, `trial ${point.trial}`),
    ` at batch ${number(point.global_batch_size)}: ${study.target.metric} ${number(point.metric)} after ${number(point.epochs)} epochs`));
  byId("running").hidden = study.state !== "running" || shown.length === 0;
  byId("newest").replaceChildren(...shown);
}

const says = (first, ...more) => byId("headline").replaceChildren(el("p.forecast", {}, first), ...more.filter(Boolean));

/** Show the next step or the best result so far, which need no fit. Return whether a forecast is possible. */
export function sayWhatIsKnown(study, who = null) {
  const told = advice(study);
  if (told) {
    says(told[0], el("p", {}, told[1]), who);
    return false;
  }
  if (!study.full_scale) {
    says("The study has no full-scale batch size.", el("p", {}, "The study's forecast page makes forecasts for any batch size."));
    return false;
  }
  if (!byId("headline").querySelector(".trust")) {
    says(asksForBest(study) ? `The best trial so far has ${best(study)}.` : `The best trial so far took ${best(study)} to ${target(study.target)}.`,
      el("p.muted", {}, `Fitting the laws to ${number(ended(study))} trials; everything else is ready…`));
  }
  return true;
}

/** Show the forecast for the full-scale batch size as soon as it is made, and until then the summary without it. */
export async function showHeadline(study, where) {
  const who = study.state === "queued" ? await waiting() : null;
  if (!sayWhatIsKnown(study, who)) return;
  let found;
  try {
    found = (await api(`${where}/forecast`)).forecasts[0];
  } catch (error) {
    if (!error.status || error.status >= 500) throw error;
    says("There is no forecast yet.", el("p", {}, error.message), error.wayOut && el("p", {}, error.wayOut));
    return;
  }
  const moved = Object.entries(found.settings).map(([each, of]) => `${words(each)} ${number(of.median)} (${number(of.low)} to ${number(of.high)})`);
  says(`At global batch size ${number(found.global_batch_size)}: ${predicted(found, target(study.target))}${moved.length ? ` with ${moved.join(", ")}` : ""}.`,
  el("p", {}, "Trust: ", el(`span.trust.${found.trust}`, {}, found.trust), `. ${found.reason}`), study.message && el("p.muted", {}, study.message));
}
