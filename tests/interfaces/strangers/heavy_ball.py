"""Another author's program for torchrun: argparse with its own names, and an optimizer that nobody else knows."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--bs", type=int, required=True, help="of one worker")
parser.add_argument("--rho", type=float, required=True, help="how heavy the ball is")
parser.add_argument("--rounds", type=int, required=True)
parser.add_argument("--rng", type=int, required=True)
parser.add_argument("--opt", choices=["heavyball2"], required=True)
parser.add_argument("--metrics", required=True)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
generator = np.random.default_rng([args.rng, rank])
curvatures = np.geomspace(0.02, 1, 20)
weights, ball = np.ones(20), np.zeros(20)
for epoch in range(1, args.rounds + 1):
    for _ in range(1024 // (args.bs * workers)):
        noise = generator.normal(size=20) * np.sqrt(curvatures / args.bs)
        gradient = torch.from_numpy(curvatures * weights + noise)
        dist.all_reduce(gradient)
        ball = args.rho * ball + gradient.numpy() / workers
        weights = weights - args.lr * ball
    loss = float((curvatures * weights**2).sum() / 2)
    if rank == 0:
        with Path(args.metrics).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"epochs": epoch, "loss": loss}) + "\n")
dist.destroy_process_group()
