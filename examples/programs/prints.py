"""Train a logistic regression in NumPy with a program that does not use `hpo` and only prints its results."""

import sys

import numpy as np
from sklearn.datasets import load_digits

rate, batch, decay, seed = (
    float(sys.argv[1]),
    int(sys.argv[2]),
    float(sys.argv[3]),
    int(sys.argv[4]),
)
generator = np.random.default_rng(seed)
digits = load_digits()
images, labels = digits.data / 16, np.eye(10)[digits.target]
train, test = np.arange(1440), np.arange(1440, 1797)
weights = np.zeros((64, 10))

for epoch in range(1, 41):
    losses = []
    for chosen in np.array_split(generator.permutation(train), 1440 // batch):
        scores = images[chosen] @ weights
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        losses.append(-np.log((shares * labels[chosen]).sum(1)).mean())
        gradient = images[chosen].T @ (shares - labels[chosen]) / len(chosen)
        weights -= rate * (gradient + decay * weights)
    accuracy = (np.argmax(images[test] @ weights, 1) == digits.target[test]).mean()
    print(
        f"[epoch {epoch:3d}] train loss {np.mean(losses):.4f} | test acc {100 * accuracy:.2f} %",
        flush=True,
    )
