"""Submit a study, wait for it, forecast batch sizes that were not swept, and write the files that launch the plan.

    export HPO_SERVER=http://127.0.0.1:8642 HPO_TOKEN=lb_...
    python plain.py bowl.yaml --at 512 --at 2048 --plan plan

When the script is run again after an interruption, it finds its study and waits for it again.
"""

import argparse
import sys

import hpo


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", help="the study's YAML file")
    parser.add_argument(
        "--at", type=int, action="append", required=True, metavar="B", help="global batch size"
    )
    parser.add_argument(
        "--plan", metavar="DIR", help="folder for launch.sh, job.json and settings.json"
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="how long to wait for the study"
    )
    given = parser.parse_args()
    with hpo.Client() as client:
        study = client.submit(given.study)
        study.wait(
            given.timeout,
            on_event=lambda event: print(f"{event.kind}: {event.message}", file=sys.stderr),
        )
        for batch in given.at:
            forecast = study.forecast(batch)
            epochs, rate = forecast.epochs_to_target, forecast.settings["learning_rate"]
            print(
                f"batch {batch}: {epochs.median:.3g} epochs to target ({epochs.low:.3g} to {epochs.high:.3g}), "
                f"learning rate {rate.median:.3g}, trust {forecast.trust}"
            )
        if given.plan:
            plan = study.plan(global_batch_size=given.at[0])
            print(f"plan {plan.id}: {', '.join(map(str, plan.write(given.plan)))}")


if __name__ == "__main__":
    try:
        main()
    except hpo.HpoError as error:
        sys.exit(f"error: {error}")
