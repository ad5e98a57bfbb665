"""Bring samples from storage to the device: decoding, cropping, prefetching and copying.

Samples keep their stored type until they are on the device, where the workload's ``prepare`` turns them into the
model's input. Which samples, crops and flips a training run uses depends only on its seed, not on the number of threads
that prepare them.
"""
