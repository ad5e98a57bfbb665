"""A workload with a DataLoader: handwritten digits, split among the workers differently in each epoch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from trainers.workloads import StreamWorkload


class StreamedDigits(StreamWorkload):
    metrics = {"accuracy": True, "loss": False}

    def __init__(self, data):
        bunch = load_digits()
        inputs, classes = torch.tensor(bunch.data, dtype=torch.uint8), torch.tensor(bunch.target)
        held_out = torch.arange(len(classes)) % 5 == 0
        self.train = TensorDataset(inputs[~held_out], classes[~held_out])
        self.test = TensorDataset(inputs[held_out], classes[held_out])
        self.train_samples, self.evaluation_samples = len(self.train), len(self.test)

    def training_stream(self, epoch, seed, part):  # for worker part.rank of part.size
        sampler = DistributedSampler(self.train, part.size, part.rank, seed=seed)
        sampler.set_epoch(epoch)
        return DataLoader(self.train, batch_size=64, sampler=sampler)

    def evaluation_stream(self, part):  # the workers together yield every sample once
        mine = range(part.rank, len(self.test), part.size)
        return DataLoader(self.test, batch_size=64, sampler=mine)

    def prepare(self, batch):  # runs on the device
        return batch[0].float() / 16, batch[1]

    def build_model(self, settings):
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def loss(self, model, batch, settings):
        return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=settings.label_smoothing)

    def score(self, model, batch):
        answers = model(batch[0])
        return {
            "accuracy": answers.argmax(1) == batch[1],
            "loss": F.cross_entropy(answers, batch[1], reduction="none"),
        }
