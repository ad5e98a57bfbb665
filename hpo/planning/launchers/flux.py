"""Flux: the script is submitted with ``flux batch launch.sh`` and starts its ranks with ``flux run``.

See flux-batch(1), flux-run(1) and flux-resource(1).
"""

from __future__ import annotations

from hpo.planning.launchers.script import JobArray, Scheduler, SlotFacts, whole_minutes

FUNCTIONS = """\
healthy_hosts() {  # the hosts of this job that are up
  flux hostlist --expand --delimiter=$'\\n' avail
}
start() {  # PER_NODE COMMAND...
  local per_node=$1 list
  shift
  list=$(IFS=,; echo "${hosts[*]}")
  flux run --nodes="${#hosts[@]}" --tasks-per-node="$per_node" --exclusive --requires="hosts:$list" \\
    --setopt=cpu-affinity=off --setopt=gpu-affinity=off "$@"
}
resubmit() {  # to the instance that runs this job; the new job waits for this one to end
  flux --parent batch --dependency=afterany:"$FLUX_ENCLOSING_ID" ${account:+--bank="$account"} \\
    ${partition:+--queue="$partition"} launch.sh
}
"""


def scheduler(run: SlotFacts) -> Scheduler:
    """Return the directives and functions for Flux; the script itself watches the time limit."""

    def array(agents: int) -> JobArray:
        # Flux has no job arrays, so one job is copied, with its resources as options: the directives of a script only
        # apply to `flux batch`. See --cc in flux-submit(1)
        program = (
            *("flux", "submit", f"--cc=0-{agents - 1}", f"--job-name={run.name}"),
            *(
                f"--nodes={run.nodes}",
                "--ntasks=1",
                f"--time-limit={whole_minutes(run.slot_seconds)}m",
            ),
            *([f"--gpus-per-task={run.accelerators}"] if run.accelerators else []),
            "--output=launch-{{id}}.log",
        )
        return JobArray((), "${FLUX_JOB_CC:-0}", "$FLUX_JOB_ID", program)

    return Scheduler(
        submit="flux batch launch.sh",
        folder=".",
        job="$FLUX_ENCLOSING_ID",
        notice=False,
        functions=FUNCTIONS,
        array=array,
        directives=(
            f"# flux: --job-name={run.name}",
            f"# flux: --nodes={run.nodes}",
            "# flux: --exclusive",
            f"# flux: --time-limit={whole_minutes(run.slot_seconds)}m",
            "# flux: --output=launch-{{id}}.log",
            "# flux: # YOURS, if the site requires them, or `hpo launch --account A --partition P`:",
            "# flux: # --bank=BANK",
            "# flux: # --queue=QUEUE",
        ),
    )
