"""Train on handwritten digits with Hugging Face's Trainer on any number of workers, with two lines for `hpo`."""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import EvalPrediction, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from hpo.callbacks.transformers import TrainerReport  # 1


class Part(Dataset):
    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"images": self.images[index], "labels": self.labels[index]}


class Net(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(dropout), nn.Linear(256, 10),
        )  # fmt: skip

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(images)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def top1(found: EvalPrediction) -> dict[str, float]:
    return {"top1": float((found.predictions.argmax(1) == found.label_ids).mean())}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per update of one worker"
    )
    parser.add_argument("--warmup-epochs", type=float, default=0.0)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", default="checkpoints")
    options = parser.parse_args()

    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = Trainer(
        Net(options.dropout),
        TrainingArguments(
            options.resume,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            per_device_eval_batch_size=400,
            learning_rate=options.lr,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=round(options.warmup_epochs * 1440 / (options.batch_size * workers)),
            seed=options.seed,
            use_cpu=True,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Part(images[:1440], labels[:1440]),
        eval_dataset=Part(images[1440:], labels[1440:]),
        compute_metrics=top1,
        callbacks=[TrainerReport()],  # 2
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(options.resume))
    print(f"left after {trainer.state.epoch:g} epochs")


if __name__ == "__main__":
    main()
