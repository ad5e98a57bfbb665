"""Train on handwritten digits with FSDP2 (sharded parameters, gradients and optimizer state) and DCP checkpoints."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import hpo


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per update of one worker"
    )
    parser.add_argument("--micro-batch", type=int, default=32, help="samples per forward pass")
    parser.add_argument("--warmup-epochs", type=float, default=0.0)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, default=Path("checkpoints"))
    return parser.parse_args()


def sharded_model() -> nn.Module:
    """Shard each layer that has parameters: they are gathered when needed, and freed afterwards."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    options = arguments()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)

    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    train, test = slice(0, 1440), slice(1440, None)
    model = sharded_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    updates = 1440 // (options.batch_size * size)
    first_epoch, saved = 0, sorted(options.resume.glob("epoch-*/.metadata"))
    if saved:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "epoch": 0}
        dcp.load(state, checkpoint_id=saved[-1].parent)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        first_epoch = state["epoch"]

    for epoch in range(first_epoch, int(options.epochs)):
        generator = torch.Generator().manual_seed(1000 * options.seed + epoch)
        order = torch.randperm(1440, generator=generator).tensor_split(updates)
        for step, batch in enumerate(order):
            done = epoch + (step + 1) / updates
            rate = options.lr * min(1.0, done / max(options.warmup_epochs, 1e-9))
            optimizer.param_groups[0]["lr"] = rate
            mine = batch[rank::size]
            optimizer.zero_grad()
            parts = -(-len(batch) // size // options.micro_batch) or 1  # the same on every worker
            for number, part in enumerate(mine.tensor_split(parts)):
                model.set_requires_gradient_sync(number == parts - 1)
                scores = model(images[train][part])
                loss = functional.cross_entropy(scores, labels[train][part], reduction="sum")
                (loss / len(mine)).backward()
            optimizer.step()
        with torch.no_grad():
            scores = model(images[test])
        accuracy = (scores.argmax(1) == labels[test]).float().mean()
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "epoch": epoch + 1}
        dcp.save(state, checkpoint_id=options.resume / f"epoch-{epoch + 1:03}")
        hpo.report(
            epochs=epoch + 1,
            top1=accuracy,
            train_loss=loss.detach() / len(part),
            learning_rate=rate,
        )
        stop = torch.tensor(hpo.should_stop() and rank == 0)
        dist.broadcast(stop, 0)  # all workers stop together
        if stop:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
