// The table of workers: what each worker is running, and when it was last seen.
import { api, byId, el, failure, home, number, path, when } from "./app.js";

const place = byId("workers");
const NAMES = ["Worker", "Machine", "Running", "Cores", "Accelerators", "Version", "Last heartbeat"];

async function read() {
  try {
    const { workers } = await api("workers");
    if (!workers.length) {
      place.replaceChildren(el("div.empty", {}, el("h2", {}, "There is no worker"),
        el("p", {}, "Studies wait in the queue until a worker starts: run hpo worker on the machine that should train.")));
      return;
    }
    place.replaceChildren(el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Table of workers" },
      el("table", {}, el("thead", {}, el("tr", {}, ...NAMES.map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, ...workers.map((worker) => el("tr", {}, el("td", {}, worker.name), el("td", {}, worker.host),
          el("td.wrap", {}, worker.study ? el("a", { href: `${home}/studies/${path(worker.study)}` }, worker.study) : "idle"),
          el("td.number", {}, number(worker.cores)), el("td.number", {}, number(worker.accelerators)),
          el("td", {}, worker.version), el("td", {}, when(worker.seen_at))))))));
  } catch (error) {
    failure(place, error);
  }
}

read();
setInterval(() => { if (!document.hidden) read(); }, 5000);
