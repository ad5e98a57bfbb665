"""One of several workers: joins the others and trains each job of a folder, as ``python -m trainers`` does."""

import sys
from pathlib import Path

import torch

from trainers import TrainingJob
from trainers.begin import train
from trainers.distributed import connect

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, label, backend, all_reduce = Path(sys.argv[1]), *sys.argv[2:]
    communicator = connect(backend, timeout_seconds=60, all_reduce=all_reduce)
    for path in sorted(folder.glob("*.json")):
        train(
            TrainingJob.load(path),
            communicator,
            lambda point: None,
            checkpoint=folder / f"{path.stem}.{label}.pt",
        )
    sums, means, sent = (torch.full((3,), float(communicator.rank + 1)) for _ in range(3))
    communicator.all_reduce_sum_([sums])
    communicator.all_reduce_mean_([means])
    communicator.broadcast_([sent], root=communicator.size - 1)
    if communicator.rank == 0:
        torch.save([sums, means, sent], folder / f"collectives.{label}.pt")
    communicator.barrier()
    communicator.close()
