"""Another author's program: click for its options, and a table of its epochs as CSV."""

import csv

import click
import numpy as np


@click.command()
@click.option("--step-size", type=float, required=True)
@click.option("--batch", type=int, required=True)
@click.option("--ramp", type=float, required=True, help="epochs in which the step size rises")
@click.option("--seed", type=int, required=True)
@click.option("--epochs", type=int, required=True)
@click.option("--table", type=click.File("w", lazy=False), required=True)
def train(step_size, batch, ramp, seed, epochs, table):
    """Descend a noisy quadratic."""
    generator = np.random.default_rng(seed)
    curvatures, weights = np.geomspace(0.02, 1, 20), np.ones(20)
    rows, updates = csv.writer(table), 1024 // batch
    rows.writerow(["epoch", "rate", "error"])
    for epoch in range(epochs):
        for update in range(updates):
            rate = step_size * min(1, (epoch + (update + 1) / updates) / ramp if ramp else 1)
            noise = generator.normal(size=20) * np.sqrt(curvatures / batch)
            weights = weights - rate * (curvatures * weights + noise)
        rows.writerow([epoch + 1, rate, (curvatures * weights**2).sum() / 2])
        table.flush()


train()
