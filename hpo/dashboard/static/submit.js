// Submits a pasted or uploaded study file; its problems are shown beside the lines.
import { api, byId, el, home, path, toast } from "./app.js";

const EXAMPLE = `# A noisy quadratic (arXiv:1907.04164): training is simulated, so the study takes only seconds.
name: bowl
workload: noisy_quadratic
data: {modes: 200, noise_scale: 0.5, train_samples: 512}
target: {metric: loss, at_most: 0.05}
ladder: [16, 32, 64, 128]
full_scale: {global_batch_size: 2048, machine: local, workers: 2}
search:
  optimizer: sgd
  learning_rate: {log_uniform: [0.002, 2], role: scaled}
  momentum: 0.9
  weight_decay: 0
budget: {trials: 48, epochs_per_trial: 80}
`;

const DRAFT = "study file";
const spec = byId("spec");
const lines = byId("lines");
// one key per study file, so that a second click or a retry after a lost response repeats the same submission
let key = { text: null, value: null };
let faulty = new Map();

function drawLines() {
  const count = spec.value.split("\n").length;
  lines.replaceChildren(...Array.from({ length: Math.max(count, 1) }, (_, index) =>
    el(faulty.has(index + 1) ? "span.fault" : "span", { title: faulty.get(index + 1) }, String(index + 1))));
  lines.scrollTop = spec.scrollTop;
}

function goTo(line) {
  const before = spec.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  const end = spec.value.indexOf("\n", before);
  spec.focus();
  spec.setSelectionRange(before, end < 0 ? spec.value.length : end);
  spec.scrollTop = Math.max(0, (line - 6) * parseFloat(getComputedStyle(spec).lineHeight));
}

function showFaults(error) {
  const faults = error?.faults ?? [];
  faulty = new Map(faults.filter((fault) => fault.line).map((fault) => [fault.line, fault.message]));
  spec.setAttribute("aria-invalid", error ? "true" : "false");
  drawLines();
  if (!error) { byId("faults").replaceChildren(); return; }
  const shown = faults.length ? faults : [{ message: error.message, line: null }];
  byId("faults").replaceChildren(
    el("strong.lost", {}, shown.length === 1 ? "1 problem to fix" : `${shown.length} problems to fix`),
    el("ul.faults", {}, ...shown.map((fault) => el("li.notice.bad", {},
      fault.line ? el("button.quiet", { type: "button", onclick: () => goTo(fault.line) }, `line ${fault.line}`) : null,
      " ", fault.message))),
    error.wayOut ? el("p", {}, error.wayOut) : "");
  if (faults[0]?.line) goTo(faults[0].line);
}

/** Store a study file until the page is opened again, or null to remove it. */
function draft(text) {
  try {
    if (text === null) sessionStorage.removeItem(DRAFT); else sessionStorage.setItem(DRAFT, text);
  } catch { /* storage is blocked or full: the text is not kept */ }
}

function restoreDraft() {
  try { spec.value = sessionStorage.getItem(DRAFT) ?? spec.value; } catch { /* storage is blocked */ }
  draft(null);
}

async function submit() {
  if (!spec.reportValidity()) return;
  if (key.text !== spec.value) key = { text: spec.value, value: crypto.randomUUID?.() ?? String(Math.random()).slice(2) };
  const body = { spec: spec.value, priority: Number(byId("priority").value || 0) };
  for (const name of ["max_samples", "max_accelerator_hours"]) if (byId(name).value) body[name] = Number(byId(name).value);
  byId("send").disabled = true;
  draft(spec.value);      // if the session has ended, the page leaves for the login and comes back
  try {
    const study = await api("studies", { method: "POST", body, headers: { "Idempotency-Key": key.value } });
    location.assign(`${home}/studies/${path(study.name)}`);
  } catch (error) {
    showFaults(error);
    if (!error.status) toast("The server did not respond. Nothing is lost: submit again.", "bad");
  } finally {
    draft(null);
    byId("send").disabled = false;
  }
}

byId("submit").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
spec.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); submit(); }
});
spec.addEventListener("input", () => { faulty = new Map(); drawLines(); });
spec.addEventListener("scroll", () => { lines.scrollTop = spec.scrollTop; });
byId("file").addEventListener("change", async () => {
  const [file] = byId("file").files;
  if (!file) return;
  if (file.size > 1_000_000) { toast("A study file must be smaller than 1 MB.", "bad"); return; }
  spec.value = await file.text();
  showFaults(null);
});
byId("example").addEventListener("click", () => { spec.value = EXAMPLE; showFaults(null); spec.focus(); });
restoreDraft();
drawLines();
