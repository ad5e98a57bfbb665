"""Train on handwritten digits with DistributedDataParallel: an existing program plus six lines for `hpo`."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import hpo  # 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per update of one worker"
    )
    parser.add_argument("--warmup-epochs", type=float, default=0.0)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, default=Path("checkpoints"))
    return parser.parse_args()


def shifted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Apply the program's own augmentation: shift each batch by up to one pixel."""
    across, down = torch.randint(-1, 2, (2,), generator=generator).tolist()
    return images.roll((down, across), (2, 3))


def main() -> None:
    options = arguments()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)

    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    train, test = slice(0, 1440), slice(1440, None)
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(options.dropout), nn.Linear(256, 10),
        )
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    updates = 1440 // (options.batch_size * size)
    first_epoch, saved = 0, options.resume / "last.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"]

    for epoch in range(first_epoch, int(options.epochs)):
        generator = torch.Generator().manual_seed(1000 * options.seed + epoch)
        order = torch.randperm(1440, generator=generator).tensor_split(updates)
        model.train()
        for step, batch in enumerate(order):
            done = epoch + step / updates
            warmth = min(1.0, (done + 1 / updates) / max(options.warmup_epochs, 1e-9))
            optimizer.param_groups[0]["lr"] = options.lr * warmth
            mine = batch[rank::size]
            optimizer.zero_grad()
            loss = functional.cross_entropy(
                model(shifted(images[train][mine], generator)), labels[train][mine]
            )
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            scores = model(images[test])
        accuracy = (scores.argmax(1) == labels[test]).float().mean()
        if rank == 0:
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch + 1,
                },
                saved,
            )
        hpo.report(  # 2
            epochs=epoch + 1, top1=accuracy, train_loss=loss.detach(), learning_rate=options.lr * warmth  # 3
        )  # fmt: skip
        stop = torch.tensor(hpo.should_stop() and rank == 0)  # 4
        dist.broadcast(stop, 0)  # 5: all workers stop together
        if stop:  # 6
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
