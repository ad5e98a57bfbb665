"""Train on handwritten digits with Lightning on any number of workers, with two lines for `hpo`."""

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from hpo.callbacks.lightning import LightningReport  # 1


class Digits(pl.LightningModule):
    def __init__(self, lr: float, warmup_epochs: float, dropout: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(dropout), nn.Linear(256, 10),
        )  # fmt: skip

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        right = (self.net(batch[0]).argmax(1) == batch[1]).float()
        self.log("val_acc", right.mean(), on_epoch=True, sync_dist=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        updates_per_epoch = self.trainer.estimated_stepping_batches / self.trainer.max_epochs
        updates = self.hparams.warmup_epochs * updates_per_epoch
        warmup = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda update: min(1.0, (update + 1) / max(updates, 1.0))
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": warmup, "interval": "step"},
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per update of one worker"
    )
    parser.add_argument("--warmup-epochs", type=float, default=0.0)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()

    pl.seed_everything(options.seed, verbose=False)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    samples = TensorDataset(images, torch.tensor(digits.target))
    train, test = torch.utils.data.Subset(samples, range(1440)), samples[1440:]
    saves = ModelCheckpoint(options.resume, save_last=True, save_top_k=0)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=options.workers,
        strategy="ddp" if options.workers > 1 else "auto",
        max_epochs=options.epochs,
        callbacks=[
            saves,
            LightningReport({"top1": "val_acc", "train_loss": "train_loss"}),  # 2
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    saved = options.resume / "last.ckpt"
    trainer.fit(
        Digits(options.lr, options.warmup_epochs, options.dropout),
        DataLoader(train, options.batch_size, shuffle=True, drop_last=True),
        DataLoader(TensorDataset(*test), 400),
        ckpt_path=saved if saved.exists() else None,
    )
    print(f"left after {trainer.current_epoch} epochs")


if __name__ == "__main__":
    main()
