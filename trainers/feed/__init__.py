"""The path of the samples from storage to the device: decoding, cropping, prefetching, copying.

Samples keep their stored type until they are on the device; there the workload's ``prepare`` turns them into the
model's input. Which samples, crops and flips a training sees depends only on its seed, not on the number of threads
that prepare them.
"""
