"""Asynchronous training: a parameter server and replicas that do not wait for each other, as Ray actors.

* update mode ``asynchronous``: Project Adam (Chilimbi et al., OSDI 2014). A replica takes the server's weights,
  computes the gradient of one global batch, submits it and continues; the server applies each gradient as it arrives,
  however much the weights have changed in the meantime. Replicas differ in speed, so an epoch ends once a fraction
  ``epoch_quorum`` (75 %) of them have done their shares; the remaining updates of the other replicas are skipped.
* update mode ``stale_synchronous``: Ho et al., NIPS 2013. As above, but a replica that has done c updates continues
  only once every other replica has done at least c - ``staleness_bound``, and each does its whole share. With a bound
  of 0, training proceeds in rounds of one update per replica.

Here an epoch means the updates between two evaluations. With W replicas, update u belongs to replica u mod W and uses
the same samples as in synchronous training, so no sample is used twice in an epoch, and W = 1 is synchronous training.
A gradient's staleness is the number of updates between the moment its weights were taken and the moment it is applied;
under a bound s it is at most (W - 1)(2 s + 1).

A training run starts W + 1 processes that load PyTorch and the data, which takes seconds. If there are fewer than W
updates between two evaluations, some of the replicas are idle, so evaluate less often with large batches. Ray is
imported when a training run starts.
"""
