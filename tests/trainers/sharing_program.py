"""One of several workers: advances each job of a folder twice, with the optimizer's work shared, and not shared.

    sharing_program.py FOLDER LABEL BACKEND ADVANCES [START]

Each training goes on from the checkpoint ``JOB.START.WAY.pt``, if a start is named, and leaves ``JOB.LABEL.WAY.pt``: a
checkpoint, and how far worker 0 would have saved another state without asking the others for theirs. ``WAY`` is
``shared`` or ``each``.
"""

import sys
from pathlib import Path

import torch

from trainers import TrainingJob
from trainers.begin import begin_training
from trainers.distributed import connect
from trainers.loop import checkpoint as checkpoints
from trainers.loop.restarts import resume_from_checkpoint
from trainers.optimizers import muon, soap

SHARED_FROM = {"shared": (26, 50), "each": (10**9, 10**9)}
"""Of Muon and SOAP: from which size on a matrix is shared, for matrices that are quickly computed."""


def tensors(state):
    if isinstance(state, dict):
        return [each for value in state.values() for each in tensors(value)]
    if isinstance(state, list | tuple):
        return [each for value in state for each in tensors(value)]
    return [state] if isinstance(state, torch.Tensor) else []


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, label, backend, advances = Path(sys.argv[1]), *sys.argv[2:5]
    communicator = connect(backend, timeout_seconds=60)
    for way, (muon.SHARED_FROM, soap.SHARED_FROM) in SHARED_FROM.items():
        for path in sorted(folder.glob("*.json")):
            training = begin_training(TrainingJob.load(path), communicator)
            for start in sys.argv[5:]:
                resume_from_checkpoint(
                    training, communicator, folder / f"{path.stem}.{start}.{way}.pt"
                )
            for _ in range(int(advances)):
                training.advance()
            before = tensors(training.state_dict()["optimizer"])
            training.gather()
            state = training.state_dict()
            brought = sum(
                not torch.equal(*each)
                for each in zip(before, tensors(state["optimizer"]), strict=True)
            )
            if communicator.rank == 0:
                checkpoints.save(folder / f"{path.stem}.{label}.{way}.pt", state)
                (folder / f"{path.stem}.{label}.{way}.brought").write_text(str(brought))
    communicator.barrier()
    communicator.close()
