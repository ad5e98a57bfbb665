"""Staging: copy shard files from a shared folder to every node's local disk, reading each shared file only once.

    python -m trainers.staging SHARED LOCAL                                    one node
    torchrun --nnodes N --nproc-per-node 1 -m trainers.staging SHARED LOCAL --backend torch
    horovodrun -np N -H node1:1,node2:1 python -m trainers.staging SHARED LOCAL --backend horovod

One staging process runs on each node; a *node* here is one rank of the communicator. Node i reads its share of the
files from the shared folder, and the nodes exchange them over the network, as in Kurth et al. (arXiv:1810.01993), where
each file would otherwise have been read about 23 times (a figure quoted from memory).

* mode ``all``: every node gets every file, as needed for ``distributed.sampling``'s shuffle over the whole data set.
* mode ``partition``: every node gets a random share, equal to within one file; with ``files_per_node`` it also draws
  random files from the other nodes' shares, as Kurth's script does. This mode suits a reader that shuffles within its
  node.

Each file is checked against its checksum (CRC-32) after it is copied and when an interrupted staging resumes, and
appears under its name only when complete. ``LOCAL/.staging/manifest.jsonl`` holds the checksums and, for every staging,
the amount of data moved and the speed.
"""

from __future__ import annotations

from trainers.staging.nodes import stage
from trainers.staging.plan import MODES
from trainers.staging.result import StagingResult

__all__ = ["MODES", "StagingResult", "stage"]
