"""Train on handwritten digits with Accelerate's launcher, loop and accumulation, on any number of workers."""

import argparse
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast, set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import hpo


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--micro-batch", type=int, default=32, help="samples per forward pass")
    parser.add_argument("--accumulation", type=int, default=1, help="forward passes per update")
    parser.add_argument("--warmup-epochs", type=float, default=0.0)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()

    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=options.accumulation)
    set_seed(options.seed)
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    loader = DataLoader(
        TensorDataset(images[:1440], labels[:1440]),
        options.micro_batch,
        shuffle=True,
        drop_last=True,
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    first_epoch, saved = 0, options.resume / "last"
    if (saved / "epoch.txt").exists():
        accelerator.load_state(str(saved))
        first_epoch = int((saved / "epoch.txt").read_text())

    for epoch in range(first_epoch, int(options.epochs)):
        model.train()
        loader.set_epoch(epoch)
        for step, (pictures, digit) in enumerate(loader):
            done = epoch + (step + 1) / len(loader)
            rate = options.lr * min(1.0, done / max(options.warmup_epochs, 1e-9))
            for group in optimizer.param_groups:
                group["lr"] = rate
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(pictures), digit)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            scores = model(images[1440:])
        accuracy = (scores.argmax(1) == labels[1440:]).float().mean()
        accelerator.save_state(str(saved))
        if accelerator.is_main_process:
            (saved / "epoch.txt").write_text(str(epoch + 1))
        hpo.report(epochs=epoch + 1, top1=accuracy, train_loss=loss.detach(), learning_rate=rate)
        if broadcast(torch.tensor(hpo.should_stop())):  # the first worker decides
            break
    accelerator.end_training()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
